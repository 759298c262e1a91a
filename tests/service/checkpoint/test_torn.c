/* Two ranks save one checkpoint after the other, with a policy of what is kept, and die before or in the middle of each
 * call that changes the disk: one of them, or both at once. Whatever they die at, the newest checkpoint is the old one
 * or the new one, all that are listed are whole, and the next run saves on.
 *
 *   test_torn           some of the points
 *   test_torn --long    all of them */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heddle/plugin.h"
#include "service/checkpoint/checkpoint.h"
#include "tests/service/checkpoint/reduce.h"
#include "tests/suite.h"
#include "tests/support/scratch.h"

const struct hd_plugin *heddle_plugin_v1_posix(void);

enum { RANKS = 2, ROOM = 65536, SAMPLE = 29 };

/* Counters and settings in memory that all processes share. */
static struct shared {
    _Atomic int points, saves; /* so far */
    int dies_at, dies_together;
    _Atomic int gone[RANKS], round[RANKS];
    _Atomic pid_t pid[RANKS];
    char data[RANKS][2][ROOM];
} * shared;

static int me = -1; /* -1: this process is no rank */
static int every = SAMPLE;

/* ---- the calls that change the disk; fsync is none, for whom a killed process is the worst */

static void point(void)
{
    if (me < 0 || atomic_fetch_add(&shared->points, 1) + 1 != shared->dies_at)
        return;
    for (int r = 0; r < RANKS; r++)
        if (r != me && shared->dies_together && shared->pid[r])
            kill(shared->pid[r], SIGKILL);
    shared->gone[me] = 1;
    raise(SIGKILL);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    point();
    if (me >= 0 && atomic_load(&shared->points) + 1 == shared->dies_at) /* half of it */
        syscall(SYS_pwrite64, fd, data, bytes / 2, at);
    point();
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

int fsync(int fd)
{
    (void)fd;
    point();
    return 0;
}

int mkdir(const char *path, mode_t mode)
{
    point();
    return (int)syscall(SYS_mkdir, path, mode);
}

int rename(const char *from, const char *to)
{
    point();
    return (int)syscall(SYS_rename, from, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    point();
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int remove(const char *path)
{
    point();
    int rc = (int)syscall(SYS_unlink, path);
    return rc ? (int)syscall(SYS_rmdir, path) : 0;
}

/* ---- a save of two ranks */

static struct hd_error err = HD_ERROR_INIT;
static const struct hd_host host = {.struct_size = sizeof host};
static const int32_t settings[2] = {0, 1}; /* direct, fsync */

static const struct hd__ckpt_tensor model[] = {
    {"model", "a", HD_F32, 2, {30, 40}},
    {"model", "b", HD_F32, 1, {501}},
    {"optim-m", "a", HD_F32, 2, {30, 40}},
};
enum { TENSORS = HD__COUNT(model), MOST = 1200 };

/* Saves in order: some steps come twice, as where a run is resumed from before them. A checkpoint's version is its
 * number in this list, from 1, and every element of it says so. */
static const int steps[] = {1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10};
enum { SAVES = HD__COUNT(steps), LAST = 10, KEEP = 2, KEEP_EVERY = 4, BEST = 3 };

static int64_t elements(uint32_t t)
{
    return model[t].ndim == 2 ? model[t].shape[0] * model[t].shape[1] : model[t].shape[0];
}

static uint32_t element(int version, uint32_t t, int64_t i)
{
    return (uint32_t)version << 24 | t << 16 | (uint32_t)i;
}

static struct hd__ckpt_store open_store(const char *dir)
{
    struct hd__ckpt_store store = {.ops = heddle_plugin_v1_posix()->components[0]->ops, .threads = 1};
    ck_ok(store.ops->open(&host, settings, dir, &store.ckpt, &err));
    return store;
}

static int32_t all_gather(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *e)
{
    int n = shared->round[me], other = !me;
    (void)user;
    if (bytes > ROOM)
        return hd_fail(e, HD_E_INTERNAL, "%lu bytes", (unsigned long)bytes);
    memcpy(shared->data[me][n % 2], mine, bytes);
    atomic_store(&shared->round[me], n + 1);
    while (atomic_load(&shared->round[other]) <= n) {
        if (atomic_load(&shared->gone[other]))
            return hd_fail(e, HD_E_PEER, "rank %d died", other);
        usleep(20);
    }
    for (int r = 0; r < RANKS; r++)
        memcpy((char *)all + (size_t)r * bytes, shared->data[r][n % 2], bytes);
    return HD_OK;
}

static int32_t all_reduce(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                          struct hd_error *e)
{
    const struct hd__ckpt_peers peers = {.ranks = RANKS, .all_gather = all_gather, .user = user};
    return reduce_by_gather(&peers, mine, bytes, fold, e);
}

static int32_t gather(void *user, const void *mine, uint64_t bytes,
                      void (*take)(void *to, const void *part, uint64_t bytes), void *to, void *answer,
                      uint64_t answer_bytes, struct hd_error *e)
{
    const struct hd__ckpt_peers peers = {.rank = me, .ranks = RANKS, .all_gather = all_gather, .user = user};
    return gather_by_gather(&peers, mine, bytes, take, to, answer, answer_bytes, e);
}

static int32_t save_version(const struct hd__ckpt_store *store, int version)
{
    static uint32_t data[TENSORS][MOST];
    struct hd__ckpt_run runs[TENSORS];
    int step = steps[version - 1];
    for (uint32_t t = 0; t < TENSORS; t++) {
        int64_t n = elements(t), from = me ? n / 3 : 0;
        for (int64_t i = 0; i < n; i++)
            data[t][i] = element(version, t, i);
        runs[t] =
            (struct hd__ckpt_run){.tensor = t, .first = from, .count = (me ? n : n / 3) - from, .data = data[t] + from};
    }
    json_t *state = json_pack("{s:i,s:f}", "version", version, "val_loss", 1.0 + abs(step - BEST));
    struct hd__ckpt_save save = {.step = (uint64_t)step,
                                 .tensors = model,
                                 .runs = runs,
                                 .n_tensors = TENSORS,
                                 .n_runs = TENSORS,
                                 .state = state,
                                 .version = "0",
                                 .run = "one",
                                 .keep = KEEP,
                                 .keep_best = 1,
                                 .keep_every = KEEP_EVERY};
    int32_t rc = hd__ckpt_save(store, &save, &err);
    json_decref(state);
    return rc;
}

/* A rank saves all versions from that one on. Ends the process: 1 after an error. */
static void run_rank(const char *dir, int rank, int version)
{
    struct hd__ckpt_store store = open_store(dir);
    store.peers = (struct hd__ckpt_peers){.rank = rank, .ranks = RANKS, .gather = gather, .all_reduce = all_reduce};
    shared->pid[rank] = getpid();
    me = rank;
    for (; version <= SAVES; version++) {
        if (save_version(&store, version)) {
            if (!shared->dies_at)
                fprintf(stderr, "rank %d, version %d: %s\n", me, version, err.message);
            shared->gone[me] = 1;
            _exit(1);
        }
        if (me == 0)
            shared->saves = version;
    }
    _exit(0);
}

/* Returns 1 where both ranks came to their end. */
static int run_ranks(const char *dir, int version, int dies_at, int together)
{
    pid_t pid[RANKS];
    int whole = 1, status;
    memset(shared, 0, sizeof *shared);
    shared->saves = version - 1;
    shared->dies_at = dies_at;
    shared->dies_together = together;
    for (int r = 0; r < RANKS; r++)
        if ((pid[r] = fork()) == 0)
            run_rank(dir, r, version);
    for (int r = 0; r < RANKS; r++) {
        ck_assert_int_eq(waitpid(pid[r], &status, 0), pid[r]);
        shared->gone[r] = 1;
        whole &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return whole;
}

/* ---- what is there afterwards */

/* A listed checkpoint verifies, and every element is of the version that its index says. Returns that. */
static int check_whole(const struct hd__ckpt_store *store, uint64_t step)
{
    static uint32_t data[TENSORS][MOST];
    struct hd__ckpt_run runs[TENSORS];
    struct hd__ckpt *ckpt;
    char name[32];
    hd__ckpt_step_name(step, name);
    ck_ok(hd__ckpt_open(store, name, &ckpt, &err));
    ck_ok(hd__ckpt_verify(ckpt, &err));
    int version = (int)json_integer_value(json_object_get(hd__ckpt_state(ckpt), "version"));
    ck_assert_int_eq(steps[version - 1], (int)step);
    for (uint32_t t = 0; t < TENSORS; t++)
        runs[t] = (struct hd__ckpt_run){.tensor = t, .count = elements(t), .data = data[t]};
    ck_ok(hd__ckpt_load(ckpt, model, TENSORS, runs, TENSORS, &err));
    for (uint32_t t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < elements(t); i++)
            ck_assert_uint_eq(data[t][i], element(version, t, i));
    hd__ckpt_close(ckpt);
    return version;
}

static int is_listed(const uint64_t *list, uint32_t n, int step)
{
    int found = 0;
    for (uint32_t i = 0; i < n; i++)
        found |= list[i] == (uint64_t)step;
    return found;
}

/* Every version that the policy keeps of the first `saves` is on the disk, and every one on it loads whole. Returns the
 * newest. */
static int check_disk(const char *dir, int saves)
{
    struct hd__ckpt_store store = open_store(dir);
    uint64_t *list = NULL;
    uint32_t n = 0, torn = 0;
    int newest = 0;
    ck_ok(hd__ckpt_list_steps(&store, &list, &n, &torn, &err));
    ck_assert_uint_eq(torn, 0);
    for (uint32_t i = 0; i < n; i++)
        newest = check_whole(&store, list[i]);
    ck_assert_msg(newest == saves || newest == saves + 1, "version %d after %d saves", newest, saves);
    for (int v = 1; v <= saves; v++)
        if (v == saves || steps[v - 1] == BEST || steps[v - 1] % KEEP_EVERY == 0)
            ck_assert_msg(is_listed(list, n, steps[v - 1]), "step %d is not there after %d saves", steps[v - 1], saves);
    free(list);
    store.ops->close(store.ckpt);
    return newest;
}

/* Nothing but what is kept. */
static void check_end(const char *dir)
{
    static const char *const kept[] = {"step-00000003", "step-00000004", "step-00000008", "step-00000009",
                                       "step-00000010"};
    DIR *d = opendir(dir);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        int known = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
        for (size_t i = 0; i < HD__COUNT(kept); i++)
            known |= !strcmp(e->d_name, kept[i]);
        ck_assert_msg(known, "%s was left behind", e->d_name);
        n++;
    }
    closedir(d);
    ck_assert_uint_eq(n, HD__COUNT(kept) + 2);
}

/* Returns 0 where the ranks came to their end before that point. */
static int dies_at(int n, int together)
{
    struct scratch s;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "checkpoints");
    int whole = run_ranks(dir, 1, n, together), newest = check_disk(dir, shared->saves);
    ck_assert(whole || newest < SAVES || shared->saves <= SAVES);
    if (!whole) {
        ck_assert_msg(newest == SAVES || run_ranks(dir, newest + 1, 0, 0), "it does not go on after point %d", n);
        ck_assert_int_eq(check_disk(dir, SAVES), SAVES);
    }
    if (whole || newest < SAVES)
        check_end(dir);
    scratch_finish(&s);
    return !whole;
}

START_TEST(killed_at_each_call)
{
    int points = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
    for (int n = 1 + _i % every; dies_at(n, _i); n += every)
        points++;
    printf("%s: %d points\n", _i ? "both ranks" : "one rank", points);
    ck_assert_int_ge(points, 250 / every);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("torn");
    if (argc > 1 && !strcmp(argv[1], "--long"))
        every = 1;
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, killed_at_each_call, 0, 2);
    return suite_run_case("torn", tc);
}
