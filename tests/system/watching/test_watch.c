/* What `watch` finds in real jobs: a rank that is slow, copies of which one was changed. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/system.h"

/* The first row of an event in the metrics of a job, of an alarm that with this rule and rank; NULL: there is none
 * yet. */
static json_t *row_of(const char *job, const char *event, const char *rule, int64_t rank)
{
    char path[256], *rest, *line;
    json_t *found = NULL;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    if (access(path, F_OK))
        return NULL;
    for (rest = read_file(path); !found && (line = strsep(&rest, "\n")) && *line;) {
        json_t *row = json_loads(line, 0, NULL);
        const char *is = json_string_value(json_object_get(row, "event"));
        if (is && !strcmp(is, event) &&
            (!rule || (!strcmp(json_string_value(json_object_get(row, "rule")), rule) &&
                       json_integer_value(json_object_get(row, "rank")) == rank)))
            found = keep(json_incref(row));
        json_decref(row);
    }
    return found;
}

static json_t *alarm_of(const char *job, const char *rule, int64_t rank)
{
    return row_of(job, "alarm", rule, rank);
}

/* Rank 1 is stopped for four fifths of the time, until it is named. */
START_TEST(straggler)
{
    json_t *alarm = NULL;
    pid_t ranks[2];
    struct command *c = command_start(NULL, "train llama.yaml job.name=slow job.steps=100000 mesh.dp=2 data.batch=32 "
                                            "data.micro_batch=16 watch.straggler=0.1");
    command_ranks(c, 2, ranks);
    curve_wait("slow", 10);
    for (double until = hd__now() + promptly(60); !alarm && hd__now() < until; alarm = alarm_of("slow", "straggler", 1))
        for (int k = 0; k < 10; k++) {
            ck_assert_int_eq(kill(ranks[1], SIGSTOP), 0);
            usleep(8000);
            ck_assert_int_eq(kill(ranks[1], SIGCONT), 0);
            usleep(2000);
        }
    ck_assert_msg(alarm != NULL, "it was not named");
    ck_assert(json_number_value(json_object_get(alarm, "value")) > 0.1);
    ck_assert_int_gt(json_integer_value(json_object_get(alarm, "step")), 0);
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_code(c, 3);
    expect_says(c, "straggler: rank 1 computes");
}
END_TEST

#define FLIP(rank) "comm.hooks=[{\"use\":\"faults\",\"rank\":" rank ",\"at\":26,\"kind\":\"flip\"}]"
#define STAGE0 "strategies=[{\"use\":\"zero\",\"stage\":0}]"

/* Some step's gradients are not the same on all ranks after their sum: found before anything is saved of it, and the
 * ranks go on from the checkpoint before, to the same bits. */
START_TEST(reduced_gradient)
{
    static struct curve clean, restarted;
    const char *job = "llama.yaml mesh.dp=3 data.batch=6 data.micro_batch=1 job.steps=14 "
                      "checkpoint={\"every\":4,\"async\":false} watch.replicas={\"every\":3} " STAGE0;
    train(&clean, "clean", "%s", job);
    ck_assert_ptr_null(alarm_of("clean", "replicas", 0));
    struct command *c = command_run("train %s job.name=flipped " FLIP("1"), job);
    expect_code(c, 1);
    expect_says(c, "silent corruption, found after step ");
    expect_says(c, "(block ");
    expect_says(c, "rank 1 is not what the other 2 copies along dp_shard are; also optimizer state exp_avg of model.");
    json_t *alarm = alarm_of("flipped", "replicas", 1);
    ck_assert_ptr_nonnull(alarm);
    int64_t step = json_integer_value(json_object_get(alarm, "step"));
    ck_assert(step % 3 == 0 || step % 4 == 0); /* when it was due, or a save was */
    for (int64_t k = step; k <= 14; k++) {
        char path[128];
        snprintf(path, sizeof path, "runs/flipped/checkpoints/step-%08ld", (long)k);
        ck_assert_msg(access(path, F_OK), "%s was saved", path);
    }
    /* in the step itself the gradient is named, and it comes first */
    c = command_run("train %s job.name=named watch.replicas={\"every\":1} " FLIP("1"), job);
    expect_code(c, 1);
    expect_says(c, ": gradient of model.");
    expect_says(c, "rank 1 is not what the other 2 copies along dp_shard are; also parameter model.");
    c = command_run("train %s job.name=restarted launch.restarts=3 launch.pause=0s " FLIP("1"), job);
    expect_code(c, 0);
    expect_says(c, "silent corruption");
    ck_assert_ptr_nonnull(alarm_of("restarted", "replicas", 1)); /* of a step that was trained again */
    curve_read(&restarted, "restarted");
    expect_same_bits(&clean, &restarted);
}
END_TEST

/* The sum of a single micro-batch shares its memory with others: it is hashed before the update, in steps after which
 * copies are compared, or saved. */
START_TEST(reduced_gradient_of_one_micro_batch)
{
    static const struct {
        const char *words, *at;
        int gradient; /* is named */
    } rows[] = {
        {"watch.replicas={\"every\":1}", "20", 1},
        {"watch.replicas={\"every\":1} plugins.path=[\"" ASYNC "\"] device.use=async device.seed=3", "20", 1},
        {"watch.replicas={\"every\":1} mesh.dp={\"replicate\":3,\"shard\":1} metrics.trace=t.json", "20", 1},
        {"watch.replicas={\"every\":1000} checkpoint={\"every\":1,\"async\":false}", "20", 1},
        {"watch.replicas={\"every\":1000} checkpoint.every=1000", "1", 0}, /* of the first step, long overwritten */
        {"watch.replicas={\"every\":14}", "1", 0},
    };
    static struct curve without, with;
    const char *job = "llama.yaml mesh.dp=3 data.batch=6 data.micro_batch=2 job.steps=14 " STAGE0;
    train(&without, "uncompared", "%s watch.replicas=0", job);
    train(&with, "compared", "%s watch.replicas={\"every\":1}", job);
    expect_same_bits(&without, &with);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("train %s job.name=single%zu %s "
                                        "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":%s,\"kind\":\"flip\"}]",
                                        job, i, rows[i].words, rows[i].at);
        expect_code(c, 1);
        expect_says(c, "silent corruption, found after step ");
        expect_says(c, ": rank 1 is not what the other 2 copies along ");
        ck_assert_msg((strstr(c->err, ": gradient of model.") != NULL) == rows[i].gradient, "%s: %s", rows[i].words,
                      c->err);
    }
}
END_TEST

/* Flips a bit of the first run of ones in the first arena that a process has mapped, its own or another rank's: the
 * weights of a norm, as they are made. */
static void flip_in_memory(pid_t pid)
{
    enum { RUN = 64 };
    char path[64], line[512], access[5];
    unsigned long from, to;
    float ones[RUN];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    int mem = open(path, O_RDWR), flipped = 0;
    ck_assert(maps && mem >= 0);
    for (int k = 0; k < RUN; k++)
        ones[k] = 1;
    while (!flipped && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) != 3 || strncmp(access, "rw", 2) ||
            !strstr(line, "memfd:heddle"))
            continue;
        char *bytes = keep(malloc(to - from)), *at;
        ssize_t n = pread(mem, bytes, to - from, (off_t)from);
        if (n > 0 && (at = memmem(bytes, (size_t)n, ones, sizeof ones))) {
            at[sizeof ones / 2] ^= 1;
            flipped = pwrite(mem, at + sizeof ones / 2, 1,
                             (off_t)(from + (unsigned long)(at - bytes) + sizeof ones / 2)) == 1;
        }
    }
    ck_assert_msg(flipped, "there are no ones in its memory");
    fclose(maps);
    close(mem);
}

/* A parameter that changes in the memory of one rank while the job trains. */
START_TEST(parameter)
{
    char rank[32];
    pid_t ranks[3];
    struct command *c = command_start(NULL, "train llama.yaml job.name=live mesh.dp=3 data.batch=6 data.micro_batch=2 "
                                            "job.steps=1000000 optimizer.lr=1e-30 metrics.every=5 "
                                            "watch.replicas={\"every\":20} comm.use=shm " STAGE0);
    command_ranks(c, 3, ranks);
    curve_wait("live", 25);
    flip_in_memory(ranks[2]);
    command_wait(c, 60);
    expect_code(c, 1);
    expect_says(c, "silent corruption, found after step ");
    expect_says(c, "norm.weight (block ");
    expect_says(c, " is not what the other 2 copies along dp_shard are");
    json_t *alarm = NULL;
    for (int64_t r = 0; r < 3 && !alarm; r++)
        alarm = alarm_of("live", "replicas", r);
    ck_assert_ptr_nonnull(alarm);
    snprintf(rank, sizeof rank, "rank %d is not", (int)json_integer_value(json_object_get(alarm, "rank")));
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(alarm, "words")), rank));
}
END_TEST

/* A processor of rank 1 makes errors in products: all ranks get the same wrong sums, so no copies differ. */
#define BAD_PROCESSOR                                                                                                 \
    "llama.yaml mesh.dp=2 job.steps=60 checkpoint={\"every\":1,\"async\":false} watch.replicas={\"every\":1} " STAGE0 \
    " plugins.path=[\"" PLUGINS_OF_TESTS "\"] device={\"use\":\"flips\",\"rank\":1,\"at\":500} "

START_TEST(rerun)
{
    struct command *c = command_run("train " BAD_PROCESSOR "job.name=bad watch.rerun={\"every\":1}");
    expect_code(c, 1);
    expect_says(c, "silent corruption in step ");
    expect_says(c, "on rank 1 einsum (block L");
    expect_says(c, " ran twice on the same inputs, and the bits of ");
    json_t *alarm = alarm_of("bad", "rerun", 1);
    ck_assert_ptr_nonnull(alarm);
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(alarm, "words")), "ran twice"));
    char saved[128], before[128];
    int64_t step = json_integer_value(json_object_get(alarm, "step"));
    snprintf(saved, sizeof saved, "runs/bad/checkpoints/step-%08ld", (long)step);
    snprintf(before, sizeof before, "runs/bad/checkpoints/step-%08ld", (long)step - 1);
    ck_assert_msg(access(saved, F_OK) && !access(before, F_OK), "step %ld", (long)step);
    c = command_run("train " BAD_PROCESSOR "job.name=unseen watch.rerun=0");
    expect_code(c, 0);
    c = command_run("train " BAD_PROCESSOR
                    "job.name=again watch.rerun={\"every\":1} launch.restarts=1 launch.pause=0s");
    expect_says(c, "warning: restart 1 of 1 in a row");
    json_t *restart = row_of("again", "restart", NULL, 0);
    ck_assert_ptr_nonnull(restart); /* from the save before, and for rank 1's sake, though all know */
    ck_assert_int_eq(json_integer_value(json_object_get(restart, "step")), step - 1);
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(restart, "lost"), 0)), 1);
}
END_TEST

static const char *const sound[] = {
    "gpt2.yaml precision.compute=fp16",
    "llama.yaml mesh.dp=2 precision.compute=bf16 recompute=full strategies.zero.stage=3",
    "mixtral.yaml",
    "llama.yaml mesh.dp=2 plugins.path=[\"" ASYNC "\"] device.use=async device.seed=1",
};

/* Without errors, instructions give the same bits twice, and training what it gives without. */
START_TEST(same_bits_twice)
{
    static struct curve once, twice;
    train(&once, "once", "%s job.steps=40 watch.rerun=0", sound[_i]);
    train(&twice, "twice", "%s job.steps=40 watch.rerun=1", sound[_i]);
    expect_same_bits(&once, &twice);
}
END_TEST

/* auto compares, too; and nothing is, where it is off or there are no copies. */
START_TEST(when)
{
    struct command *c = command_run("train llama.yaml job.name=auto mesh.dp=2 job.steps=60 " STAGE0 " " FLIP("1"));
    expect_code(c, 1);
    expect_says(c, "ranks 0, 1 differ along dp_shard");
    c = command_run("train llama.yaml job.name=off mesh.dp=2 watch.replicas=0 " STAGE0 " " FLIP("1"));
    expect_code(c, 0);
    c = command_run("train llama.yaml job.name=sharded mesh.dp=2 watch.replicas={\"every\":2} "
                    "strategies=[{\"use\":\"zero\",\"stage\":2}]");
    expect_code(c, 0);
    expect_says(c, "watch.replicas: no two ranks hold copies of the same state, so nothing is compared");
    static const char *const wrong[][2] = {{"-1", "watch.replicas: -1 is out of range"},
                                           {"{\"each\":3}", "watch.replicas: unknown key each; the key is every"},
                                           {"{\"every\":x}", "watch.replicas.every"},
                                           {"often", "watch.replicas: auto, a number of steps"},
                                           {"[3]", "watch.replicas: auto, a number of steps, or {every: N} is wanted"}};
    c = command_run("train llama.yaml watch.rerun=often");
    expect_code(c, 2);
    expect_says(c, "watch.rerun: auto, a number of steps, or {every: N} is wanted");
    for (size_t i = 0; i < HD__COUNT(wrong); i++) {
        c = command_run("train llama.yaml mesh.dp=2 watch.replicas=%s", wrong[i][0]);
        expect_code(c, 2);
        expect_says(c, wrong[i][1]);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"straggler", straggler, 1},
                                        {"reduced gradient", reduced_gradient, 1},
                                        {"of one micro-batch", reduced_gradient_of_one_micro_batch, 1},
                                        {"parameter", parameter, 1},
                                        {"when", when, 1},
                                        {"rerun", rerun, 1},
                                        {"same bits twice", same_bits_twice, HD__COUNT(sound)},
                                        {NULL, NULL, 0}};
    return system_run("watch", tests);
}
