/* Faults of all kinds in real jobs over every transport that is here: each job ends by itself, says which rank it
 * was, and leaves nothing behind.
 *
 *   test_system_faults                          six kinds, one each
 *   test_system_faults --faults 1000 --seed 7 --log FILE --bound SECONDS
 *
 * --slow 3: a machine with other work: times of the jobs are three times as long. Without it CK_TIMEOUT_MULTIPLIER
 * says it, which ./run-tests sets to 5, and to more under a sanitizer. --first N begins with the N-th of them, to
 * see one again. --only shm takes one transport. --log takes a line a fault: transport, kind, seconds from the fault
 * to the end of the job. --bound is the longest that may be, beyond what the fault itself takes; without it a job
 * only has to end. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

#define DEAD_AFTER 3.0 /* liveness.dead_after of the jobs, times `slow` */
#define TIMEOUT 6.0    /* their comm.timeout, which ends what is stalled, times `slow` */

static int count = 6, first;
static uint64_t seed = 1;
static double bound, slow = 1;
static const char *log_file, *only;

/* words: what else the job says of it. */
static const struct {
    const char *name, *use, *words;
} transports[] = {
    {"shm", "shm", ""},
    {"pipes", "pipes", ""},
    {"libfabric-shm", "libfabric", "provider: shm, "},
    {"libfabric-tcp", "libfabric", "provider: tcp, "},
    {"mpi", "mpi", ""},
    {"levels", "pipes", "inside: shm, "},
};

/* What the report's verdict may be. least: ranks that a job needs for it. takes: until the job can end. */
static const struct {
    const char *kind, *verdict;
    int least;
    double takes;
    int opening; /* before the groups are made */
} faults[] = {
    {"kill", "dead", 2, 0},        {"stop", "dead", 2, DEAD_AFTER},    {"reset", "dead", 2, 0},
    {"stall", "late", 2, TIMEOUT}, {"size", "mismatch", 2, 0},         {"dtype", "mismatch", 2, 0},
    {"op", "mismatch", 2, 0},      {"redop", "mismatch", 2, 0},        {"group", "mismatch", 4, TIMEOUT},
    {"kill", "dead", 2, 0, 1},     {"stop", "dead", 2, DEAD_AFTER, 1},
};

static uint64_t draw(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

/* The verdict's rank; -1: of two that differ nobody knows which went wrong, and its words have both. */
static int blames(const json_t *verdict, int rank)
{
    const char *words = json_string_value(json_object_get(verdict, "words"));
    json_int_t blamed = json_integer_value(json_object_get(verdict, "rank"));
    int one, other;
    if (blamed >= 0)
        return blamed == rank;
    return words && sscanf(words, "ranks %d and %d do not do the same", &one, &other) == 2 &&
           (one == rank || other == rank);
}

/* ---- what may stay behind */

static int has_word(const char *pid, const char *word)
{
    char path[300], line[4096] = "";
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    return memmem(line, n, word, strlen(word)) != NULL;
}

static int processes_of(const char *word)
{
    DIR *proc = opendir("/proc");
    int n = 0;
    for (struct dirent *e; proc && (e = readdir(proc));)
        n += e->d_name[0] >= '1' && e->d_name[0] <= '9' && has_word(e->d_name, word);
    closedir(proc);
    return n;
}

/* Names in /dev/shm that begin with the number of a process that is gone, as libfabric's do. */
static int names_of_the_dead(void)
{
    DIR *dir = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int pid = atoi(e->d_name);
        n += pid > 0 && kill(pid, 0) && errno == ESRCH;
    }
    if (dir)
        closedir(dir);
    return n;
}

/* The folder that the job has instead of /tmp, and Open MPI instead of /dev/shm. */
static void make_folder(char folder[128])
{
    char here[64];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(folder, 128, "%s/tmp", here);
    ck_assert(mkdir(folder, 0700) == 0 || errno == EEXIST);
}

static int left_in(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = -2; /* itself and the one above */
    while (dir && readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- one fault */

static void expect_named(const struct command *c, const char *job, const char *verdict, int rank)
{
    char path[128];
    const char *named = NULL;
    json_t *report, *judged;
    snprintf(path, sizeof path, "runs/%s/report-", job);
    for (const char *at = strstr(c->err, path); at;
         at = strstr(at + 1, path)) /* of all, if it was written, not of one rank */
        if (!named || memcmp(at + strcspn(at, " \n") - 11, "-rank", 5))
            named = at;
    ck_assert_msg(named != NULL, "no report is named in\n%.3000s", c->err);
    snprintf(path, sizeof path, "%.*s", (int)strcspn(named, " \n"), named);
    report = json_load_file(path, 0, NULL);
    judged = json_object_get(report, "verdict");
    const char *kind = json_string_value(json_object_get(judged, "kind"));
    ck_assert_msg(kind && !strcmp(kind, verdict), "the verdict is not %s:\n%.3000s", verdict, c->err);
    ck_assert_msg(blames(judged, rank), "rank %d is not blamed, but %lld:\n%.3000s", rank,
                  (long long)json_integer_value(json_object_get(judged, "rank")), c->err);
    json_decref(report);
}

static double seconds_since_fault(const struct command *c)
{
    const char *at = strstr(c->err, "faults: warning: rank ");
    double when = 0;
    ck_assert_msg(at != NULL, "nothing went wrong:\n%.3000s", c->err);
    at = strstr(at, ", at ");
    ck_assert(at != NULL && sscanf(at, ", at %lf s", &when) == 1);
    return c->started + c->seconds - when;
}

static int is_wanted(uint64_t t)
{
    return only ? !strcmp(transports[t].name, only) : runs_over(transports[t].use);
}

static void note(const char *use, const char *kind, int opening, double seconds)
{
    FILE *f = log_file ? fopen(log_file, "ae") : NULL;
    if (!f)
        return;
    fprintf(f, "%s %s%s %.3f\n", use, kind, opening ? "-opening" : "", seconds);
    fclose(f);
}

START_TEST(one_fault)
{
    int n = first + _i;
    static const char *const meshes[] = {"mesh.dp=2", "mesh.dp=3 data.batch=12", "mesh.dp=2 mesh.tp=2"};
    uint64_t state = seed * 1000003 + (uint64_t)n, which, t;
    int ranks, victim, at, before;
    char job[80], word[96], file[96], folder[128], environment[400];
    const char *use;
    double seconds;
    for (int k = 0; k < 4; k++)
        draw(&state, 2);
    which = ((uint64_t)n + seed) % HD__COUNT(faults); /* each kind in turn, whatever the draw */
    do
        t = draw(&state, HD__COUNT(transports));
    while (!is_wanted(t));
    use = transports[t].name;
    ranks = faults[which].least > 3 ? 4 : 2 + (int)draw(&state, 3);
    victim = (int)draw(&state, (uint64_t)ranks);
    at = 1 + (int)draw(&state, 60);
    snprintf(job, sizeof job, "fault-%d-%s-%s%s-%d", n, use, faults[which].kind,
             faults[which].opening ? "-opening" : "", (int)getpid()); /* no other run of this test has it */
    snprintf(word, sizeof word, "job.name=%s", job);
    snprintf(file, sizeof file, "%s.yaml", job);
    write_file(file,
               keep(hd__format("%s%sliveness: {dead_after: %gs, late_after: 1s}\nplugins: {path: [" PIPES
                               "]}\ncomm: {use: %s, %stimeout: %gs, "
                               "hooks: [{use: faults, rank: %d, at: %d, kind: %s, when: %s}]}\n",
                               read_file("llama.yaml"), ranks == 4 ? "strategies: [{use: 3d}, {use: zero}]\n" : "",
                               slow * DEAD_AFTER, transports[t].use, transports[t].words, slow * TIMEOUT, victim, at,
                               faults[which].kind, faults[which].opening ? "opening" : "operation")));
    make_folder(folder);
    snprintf(environment, sizeof environment, "TMPDIR=%s OMPI_MCA_btl_vader_backing_directory=%s", folder, folder);
    before = names_of_the_dead();
    struct command *c =
        command_start(environment, "train %s %s %s job.steps=1000000000", file, meshes[ranks - 2], word);
    command_wait(c, 80 * slow);
    seconds = seconds_since_fault(c);
    expect_code(c, 1);
    expect_named(c, job, faults[which].verdict, victim);
    if (!strcmp(faults[which].kind, "stall")) { /* named in the log long before the end */
        char late[32];
        snprintf(late, sizeof late, "warning: rank %d is ", victim);
        expect_says(c, late);
    }
    double until = hd__now() + 5 * slow;
    while ((processes_of(word) || names_of_the_dead() > before) && hd__now() < until)
        usleep(20000);
    ck_assert_int_eq(processes_of(word), 0);
    ck_assert_int_le(names_of_the_dead(), before);
    ck_assert_int_eq(left_in(folder), 0);
    note(use, faults[which].kind, faults[which].opening, seconds);
    if (bound > 0)
        ck_assert_msg(seconds < slow * faults[which].takes + bound, "%s over %s took %.1f s:\n%.3000s",
                      faults[which].kind, use, seconds, c->err);
}
END_TEST

static double usual_slowness(void)
{
    const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");
    return HD__MAX(1.0, multiplier ? atof(multiplier) / 5 : 1);
}

/* Tests run in a folder of their own. */
static const char *from_here(const char *path)
{
    char here[512];
    return *path == '/' || !getcwd(here, sizeof here) ? path : keep(hd__format("%s/%s", here, path));
}

static const char *known(const char *name)
{
    for (size_t t = 0; t < HD__COUNT(transports); t++)
        if (!strcmp(transports[t].name, name))
            return name;
    fprintf(stderr, "--only %s: none of", name);
    for (size_t t = 0; t < HD__COUNT(transports); t++)
        fprintf(stderr, " %s", transports[t].name);
    fprintf(stderr, "\n");
    exit(2);
}

int main(int argc, char **argv)
{
    struct system_test tests[] = {{"fault", one_fault, 0}, {NULL, NULL, 0}};
    slow = usual_slowness();
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--faults"))
            count = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            seed = (uint64_t)atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--first"))
            first = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--log"))
            log_file = from_here(argv[i + 1]);
        else if (!strcmp(argv[i], "--only"))
            only = known(argv[i + 1]);
        else if (!strcmp(argv[i], "--bound"))
            bound = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--slow"))
            slow = atof(argv[i + 1]);
    }
    tests[0].times = count;
    return system_run("system-faults", tests);
}
