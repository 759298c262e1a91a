/* An average of the weights through the built command: its numbers, from the weights of every step; the same on
 * other meshes and after a resumption; and evaluated, sampled and exported in place of the weights. */
#include <math.h>
#include <stdlib.h>

#include "service/checkpoint/safetensors.h"
#include "tests/system/system.h"

static struct curve whole, parts;

#define STEPS 6
#define DECAY 0.75

static const char *const jobs[] = {
    "strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.75}]",
    "mesh.dp=2 strategies=[{\"use\":\"zero\",\"stage\":1},{\"use\":\"ema\",\"decay\":0.75}]",
    "mesh.dp=2 "
    "strategies=[{\"use\":\"zero\",\"stage\":3,\"offload\":{\"params\":\"host\",\"optimizer\":\"host\"}},{\"use\":"
    "\"ema\",\"decay\":0.75}]",
    "mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.75}]",
    "mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.75}]",
};

static struct hd__ckpt_st *open_weights(const char *dir, int step, const char *group)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__ckpt_st *file;
    char path[128];
    snprintf(path, sizeof path, "%s/step-%08d/%s-00001-of-00001.safetensors", dir, step, group);
    ck_assert_msg(!hd__ckpt_st_open(path, &file, &err), "%s", err.message);
    return file;
}

/* All tensors of a file, one behind another, in the order of their names. */
static float *read_all(struct hd__ckpt_st *file, uint64_t *count)
{
    struct hd_error err = HD_ERROR_INIT;
    uint64_t all = 0, at = 0;
    float *x;
    for (uint32_t k = 0; k < hd__ckpt_st_count(file); k++)
        all += hd__ckpt_st_tensor_at(file, k)->count;
    x = keep(malloc((all + 1) * sizeof *x));
    for (uint32_t k = 0; k < hd__ckpt_st_count(file); k++) {
        const struct hd__ckpt_st_tensor *t = hd__ckpt_st_tensor_at(file, k);
        ck_assert_msg(!hd__ckpt_st_read_f32(file, t, 0, t->count, x + at, &err), "%s", err.message);
        at += t->count;
    }
    hd__ckpt_st_close(file);
    *count = all;
    return x;
}

/* e = decay e + (1 - decay) p, in fp32: from the average and the weights in the files, to the average in the next. */
static void expect_average(const char *dir, int from, int to)
{
    uint64_t n, m;
    const float *e = read_all(open_weights(dir, from, "strategy-ema"), &n);
    for (int step = from + 1; step <= to; step++) {
        const float *p = read_all(open_weights(dir, step, "model"), &m), *next;
        double moved = 0;
        ck_assert_uint_eq(n, m);
        next = read_all(open_weights(dir, step, "strategy-ema"), &m);
        ck_assert_uint_eq(n, m);
        for (uint64_t k = 0; k < n; k++) {
            double should = DECAY * (double)e[k] + (1 - DECAY) * (double)p[k];
            ck_assert_msg(fabs(next[k] - should) <= 2e-7 * (fabs(e[k]) + fabs(p[k])),
                          "step %d, element %lu: %.9g, should be %.9g", step, (unsigned long)k, (double)next[k],
                          should);
            moved += fabs(next[k] - (double)e[k]);
        }
        ck_assert_double_gt(moved, 0);
        e = next;
    }
}

START_TEST(as_the_formula_says)
{
    char job[32];
    snprintf(job, sizeof job, "ema%d", _i);
    train(&whole, job,
          "llama.yaml %s job.steps=%d checkpoint.dir=%s checkpoint.every=1 checkpoint.async=false checkpoint.keep=0",
          jobs[_i], STEPS, job);
    expect_average(job, 1, STEPS);
}
END_TEST

/* It begins as the weights do, and they are drawn from the seed: with a decay that fp32 rounds to 1 it stays so. */
START_TEST(begins_as_the_weights)
{
    uint64_t n, m;
    const float *first, *last;
    train(&whole, "start",
          "llama.yaml strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.999999999999}] job.steps=3 "
          "checkpoint.dir=start");
    train(&whole, "first", "llama.yaml optimizer.lr=0 job.steps=1 checkpoint.dir=first");
    first = read_all(open_weights("first", 1, "model"), &n);
    last = read_all(open_weights("start", 3, "strategy-ema"), &m);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(first, last, n * sizeof *first), 0);
}
END_TEST

/* Training does not read it; a run that stops goes on to the same average, on another mesh too. */
START_TEST(resumed)
{
    uint64_t n, m;
    const float *is, *should;
    train(&whole, "plain", "llama.yaml job.steps=8");
    train(&parts, "straight", "llama.yaml %s job.steps=8 checkpoint.dir=straight", jobs[0]);
    expect_same_bits(&parts, &whole);
    train(&parts, "cut", "llama.yaml %s job.steps=4 checkpoint.dir=cut", jobs[0]);
    train(&parts, "cut", "llama.yaml %s job.steps=8 checkpoint.dir=cut", jobs[0]);
    expect_same_bits(&parts, &whole);
    should = read_all(open_weights("straight", 8, "strategy-ema"), &n);
    is = read_all(open_weights("cut", 8, "strategy-ema"), &m);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(is, should, n * sizeof *is), 0);
    train(&parts, "cut",
          "llama.yaml %s job.steps=10 checkpoint.dir=cut checkpoint.every=1 checkpoint.async=false checkpoint.keep=0",
          jobs[2]);
    expect_average("cut", 8, 10);
}
END_TEST

/* In place of the weights: what is exported is the average, and its loss is another than theirs. */
START_TEST(used)
{
    struct hd_error err = HD_ERROR_INIT;
    struct command *c;
    struct hd__ckpt_st *exported;
    uint64_t n, m;
    const float *e, *x;
    char model[32];
    train(&whole, "used", "llama.yaml %s job.steps=20 checkpoint.dir=used data.val_fraction=0.1", jobs[0]);
    c = command_run("eval llama.yaml checkpoint.dir=used data.val_fraction=0.1 eval.batches=1 --json");
    expect_code(c, 0);
    snprintf(model, sizeof model, "%.31s", strstr(c->out, "val_loss"));
    c = command_run("eval llama.yaml checkpoint.dir=used data.val_fraction=0.1 eval.batches=1 --weights ema --json");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "\"step\": 20") && !strstr(c->out, model), "%s and %s", c->out, model);
    expect_code(command_run("sample llama.yaml checkpoint.dir=used --weights ema --prompt the --tokens 3"), 0);
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=used --weights ema --to averaged"), 0);
    ck_assert_msg(!hd__ckpt_st_open("averaged", &exported, &err), "%s", err.message);
    e = read_all(open_weights("used", 20, "strategy-ema"), &n);
    x = read_all(exported, &m);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(e, x, n * sizeof *e), 0);
    c = command_run("eval llama.yaml checkpoint.dir=used data.val_fraction=0.1 --weights swa");
    expect_code(c, 2);
    expect_says(c, "--weights swa: checkpoint step-00000020 of used has no such weights; it has model, ema");
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=used --weights swa --to none"), 2);
    c = command_run("train llama.yaml job.name=used checkpoint.dir=plainly job.steps=2");
    expect_code(c, 0);
    c = command_run("train llama.yaml job.name=used checkpoint.dir=plainly job.steps=3 %s",
                    jobs[0]); /* there was none before */
    expect_code(c, 2);
    expect_says(c, "of group strategy-ema");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"as the formula says", as_the_formula_says, HD__COUNT(jobs)},
                                        {"begins as the weights", begins_as_the_weights, 1},
                                        {"resumed", resumed, 1},
                                        {"used", used, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-ema", tests);
}
