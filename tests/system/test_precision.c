/* Half precision through real processes: fp16 trains like fp32, an overflow is skipped by all ranks alike, and what
 * goes on afterwards, also from a checkpoint, is the same to the bit. */
#include "tests/system/system.h"

#include <math.h>
#include <string.h>

static struct curve a, b;

START_TEST(fp16)
{
    train(&a, "fp16-wide", "llama.yaml");
    train(&b, "fp16-one", "llama.yaml precision.compute=fp16");
    expect_learns(&b);
    expect_close(&b, &a, 2e-3);
    for (int stage = 0; stage <= 3; stage++) {
        train(&b, "fp16-two", "llama.yaml precision.compute=fp16 mesh.dp=2 strategies.zero.stage=%d", stage);
        expect_close(&b, &a, 2e-3);
    }
}
END_TEST

START_TEST(fixed_scales)
{
    train(&a, "scale-none", "llama.yaml precision.compute=fp16 precision.loss_scale=none");
    train(&b, "scale-fixed", "llama.yaml precision.compute=fp16 precision.loss_scale=1024");
    expect_close(&b, &a, 2e-3);
    train(&a, "scale-fp32", "llama.yaml mesh.dp=2");
    train(&b, "scale-fp32-fixed", "llama.yaml mesh.dp=2 precision.loss_scale=1024");
    expect_close(&b, &a, 1e-6);
}
END_TEST

/* Bytes that a rank sends in a step. */
static double sent(const struct command *c)
{
    json_t *root = json_loads(c->out, 0, NULL), *value;
    const char *axis;
    double sum = 0;
    expect_code(c, 0);
    json_object_foreach(json_object_get(json_object_get(root, "totals"), "sent_bytes"), axis, value) sum +=
        json_number_value(value);
    json_decref(root);
    ck_assert_double_gt(sum, 0);
    return sum;
}

/* What travels is rounded once on its way out and once as the sum: 2^-8 each for bf16, of gradients that Adam then
 * normalises. */
START_TEST(reduced_in_another_dtype)
{
    static const char *const dtypes[] = {"bf16", "fp16"};
    train(&a, "reduce-fp32", "llama.yaml");
    for (int d = 0; d < 2; d++)
        for (int stage = 0; stage <= 3; stage++) {
            train(&b, "reduce-short", "llama.yaml mesh.dp=2 strategies.zero.stage=%d precision.reduce=%s", stage,
                  dtypes[d]);
            expect_close(&b, &a, d ? 5e-4 : 2e-3);
            ck_assert_str_ne(a.text[1], b.text[1]);
        }
    train(&b, "reduce-wide", "llama.yaml mesh.dp=2 precision.grad=bf16 strategies.zero.stage=2");
    expect_close(&b, &a, 5e-3);
}
END_TEST

/* Codes of 8 and 4 bits learn like whole gradients, and send a quarter and an eighth of their bytes and a little
 * more. */
START_TEST(compressed)
{
    static const struct {
        const char *kind;
        double bound, bytes; /* of the loss, and at most of what is sent uncompressed */
    } kinds[] = {{"bf16", 2e-3, 0.51},
                 {"fp16", 5e-4, 0.51},
                 {"int8", 5e-3, 0.27},
                 {"int4", 2e-2, 0.15},
                 {"powersgd", 5e-2, 0.25}};
    double whole;
    train(&a, "compress-none", "llama.yaml");
    whole = sent(command_run("explain llama.yaml mesh.dp=2 strategies.zero.stage=0 --json"));
    for (size_t k = 0; k < HD__COUNT(kinds); k++) {
        for (int stage = 0; stage < 2; stage++) {
            train(&b, "compress", "llama.yaml mesh.dp=2 strategies.zero.stage=%d strategies.zero.compress.kind=%s",
                  stage, kinds[k].kind);
            expect_close(&b, &a, kinds[k].bound);
            ck_assert_str_ne(a.text[2], b.text[2]);
        }
        ck_assert_double_le(
            sent(command_run(
                "explain llama.yaml mesh.dp=2 strategies.zero.stage=0 strategies.zero.compress.kind=%s --json",
                kinds[k].kind)),
            kinds[k].bytes * whole);
    }
}
END_TEST

START_TEST(compression_that_makes_no_sense)
{
    static const struct {
        const char *words, *message;
    } rows[] = {
        {"strategies.zero.stage=2", "strategies.zero.compress.kind: int8 keeps an error as large as all gradients"},
        {"precision.compute=fp16", "the error that int8 carries over has the size of one loss scale"},
        {"precision.reduce=bf16", "precision.reduce is bf16 where precision.grad is fp32: leave compress out, or say "
                                  "precision.reduce=fp32"},
        {"precision.grad=bf16 strategies.zero.compress.kind=bf16",
         "precision.reduce is fp32 where precision.grad is bf16: leave compress out, or say precision.reduce=bf16"},
        {"job.deterministic=exact", "exact: gradients must not travel compressed"},
        {"strategies.zero.compress.block=100", "strategies.zero.compress.block (100) is not a multiple of 16"},
        {"strategies.zero.compress.kind=powersgd strategies.zero.stage=3",
         "strategies.zero.compress.kind: powersgd keeps an error as large"},
        {"strategies.zero.compress.kind=powersgd precision.compute=fp16",
         "the error that powersgd carries over has the size of one loss"},
        {"strategies.zero.compress.kind=powersgd strategies.zero.compress.rank=0", "strategies.zero.compress.rank"},
        {"strategies.zero.compress.kind=powersgd job.deterministic=exact",
         "exact: gradients must not travel compressed"},
        {"strategies.zero.compress.kind=bf16 strategies.zero.compress.warmup=9", "which int8, int4 and powersgd know"},
        {"launch.ranks=4 mesh.dp={\"replicate\":2,\"shard\":2} strategies.zero.stage=1",
         "use stage 0, or let mesh.dp shard"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c =
            command_run("train llama.yaml mesh.dp=2 strategies.zero.compress.kind=int8 %s", rows[i].words);
        expect_code(c, 2);
        expect_says(c, rows[i].message);
    }
}
END_TEST

/* Optimizer states in bf16 train like those in fp32, and are saved and loaded as they are. */
START_TEST(short_optimizer_states)
{
    train(&a, "states-fp32", "llama.yaml");
    train(&b, "states-bf16", "llama.yaml precision.optimizer=bf16 mesh.dp=2 strategies.zero.stage=2");
    expect_close(&b, &a, 2e-3);
    train(&a, "states-resumed",
          "llama.yaml precision.optimizer=bf16 mesh.dp=2 strategies.zero.stage=2 checkpoint.dir=states job.steps=9");
    train(&a, "states-resumed",
          "llama.yaml precision.optimizer=bf16 mesh.dp=2 strategies.zero.stage=2 checkpoint.dir=states");
    expect_same_bits(&a, &b);
    train(&b, "weights-bf16", "llama.yaml precision.compute=bf16 precision.master=bf16 precision.optimizer=bf16");
    expect_learns(&b);
}
END_TEST

/* So few tokens that the gradient of the loss, times 65536, leaves fp16's range every few steps. */
#define NARROW                                                                                                    \
    "llama.yaml precision.compute=fp16 data.seq_len=2 data.batch=2 data.micro_batch=1 job.steps=16 eval.every=1 " \
    "eval.batches=1 data.val_fraction=0.1 mesh.dp=2 strategies.zero.stage=%d "

static double field(const char *line, const char *key)
{
    json_t *row = json_loads(line, 0, NULL);
    double value = json_number_value(json_object_get(row, key));
    json_decref(row);
    return value;
}

/* Every row of a step: events, as alarms, come in between where a machine is busy. A skipped step halves the scale,
 * counts, and leaves the weights as they were. Returns how many there were. */
static int check_skips(const char *job, const struct curve *c)
{
    char path[128], *rest, *line;
    double scale = 65536;
    int skips = 0, step = 0;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    rest = read_file(path);
    strsep(&rest, "\n");
    while ((line = strsep(&rest, "\n")) && *line) {
        if (strstr(line, "\"event\": "))
            continue;
        ck_assert_double_eq(field(line, "loss_scale"), scale);
        if (isnan(c->norm[step])) {
            ck_assert_ptr_nonnull(strstr(line, "\"grad_norm\": null"));
            ck_assert(step > 0 && c->val_loss[step] == c->val_loss[step - 1]);
            scale /= 2;
            skips++;
        } else {
            ck_assert(step == 0 || c->val_loss[step] != c->val_loss[step - 1]);
        }
        ck_assert_double_eq(field(line, "skipped"), skips);
        step++;
    }
    return skips;
}

START_TEST(overflow_is_skipped)
{
    train(&a, "skip", NARROW, _i);
    ck_assert_int_ge(check_skips("skip", &a), 1);
    ck_assert_int_eq(a.n, 16);
    train(&b, "skip-again", NARROW, _i);
    expect_same_bits(&a, &b);
}
END_TEST

START_TEST(resume_after_a_skip)
{
    int first = 0;
    train(&a, "straight", NARROW, 2 * _i);
    while (first < a.n && !isnan(a.norm[first]))
        first++;
    ck_assert_int_lt(first + 1, a.n);
    for (int stop = first + 1; stop <= first + 2; stop++) { /* right after it, and one step later */
        char job[32];
        snprintf(job, sizeof job, "stop%d-%d", _i, stop);
        train(&b, job, NARROW "checkpoint.dir=%s job.steps=%d", 2 * _i, job, stop);
        ck_assert_int_eq(b.n, stop);
        train(&b, job, NARROW "checkpoint.dir=%s", 2 * _i, job);
        expect_same_bits(&a, &b);
    }
}
END_TEST

START_TEST(fixed_scale_that_overflows_ends_the_run)
{
    struct command *c = command_run("train " NARROW "precision.loss_scale=1000000000 job.name=over", 1);
    ck_assert_int_ne(c->code, 0);
    expect_says(c, "Lower precision.loss_scale, or say dynamic");
}
END_TEST

#if defined __x86_64__ && defined __GNUC__
static int has_isa(const char *name)
{
    return !strcmp(name, "avx2")          ? __builtin_cpu_supports("x86-64-v3")
           : !strcmp(name, "avx512")      ? __builtin_cpu_supports("x86-64-v4")
           : !strcmp(name, "avx512_bf16") ? __builtin_cpu_supports("avx512bf16")
                                          : __builtin_cpu_supports("amx-bf16");
}
#else
static int has_isa(const char *name)
{
    (void)name;
    return 0;
}
#endif

/* Each instruction set that this processor has trains alike, and by kernels of its own; others are refused. */
START_TEST(instruction_sets)
{
    static const char *const names[] = {"avx2", "avx512", "avx512_bf16", "amx"};
    static struct curve before;
    before.n = 0;
    train(&a, "isa-auto", "llama.yaml precision.compute=bf16");
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        if (!has_isa(names[i])) {
            struct command *c = command_run("train llama.yaml job.name=isa-none device.isa=%s", names[i]);
            expect_code(c, 2);
            expect_says(c, "command line: device.isa: ");
            expect_says(c, "this machine's processor has no more than ");
            continue;
        }
        train(&b, "isa", "llama.yaml precision.compute=bf16 device.isa=%s", names[i]);
        expect_close(&b, &a, 5e-3);
        ck_assert_msg(!before.n || strcmp(before.text[before.n - 1], b.text[b.n - 1]) != 0,
                      "%s has the bits of the one before it", names[i]);
        before = b;
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"fp16", fp16, 1},
                                        {"fixed scales", fixed_scales, 1},
                                        {"reduced in another dtype", reduced_in_another_dtype, 1},
                                        {"short optimizer states", short_optimizer_states, 1},
                                        {"compressed", compressed, 1},
                                        {"compression refused", compression_that_makes_no_sense, 1},
                                        {"overflow", overflow_is_skipped, 4},
                                        {"resume after a skip", resume_after_a_skip, 2},
                                        {"fixed scale overflows", fixed_scale_that_overflows_ends_the_run, 1},
                                        {"instruction sets", instruction_sets, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-precision", tests);
}
