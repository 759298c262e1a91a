/* Strategies with arithmetic of their own, through the built command: signs and the largest elements with error
 * feedback (tests/plugins/onebit.c, topk.c) are proved, train as torch does with the same compression
 * (tests/golden/compress.py), go on to the last bit, and are refused by name where they cannot be. */
#include "tests/system/system.h"

#define PLUGINS " plugins.path=[\"" ASYNC "\"] "
#define STEPS 20

static struct curve whole, parts;

/* ---- torch: the same losses, and those of the last steps at most 2.4 % above what they are without compression */

static const struct {
    const char *method, *options;
    int ranks, stage;
} runs[] = {{"onebit", "", 2, 0},           {"onebit", "", 2, 1},           {"onebit", "", 4, 0},
            {"onebit", "", 4, 1},           {"topk", ", keep: 0.05", 2, 0}, {"topk", ", keep: 0.05", 2, 1},
            {"topk", ", keep: 0.05", 4, 0}, {"topk", ", keep: 0.05", 4, 1}};

static void write_golden_job(const char *path, const char *strategies, int ranks)
{
    write_file(path, keep(hd__format("job: {name: golden, steps: %d}\nmesh: {dp: %d}\nstrategies: [%s]\n"
                                     "optimizer: {use: sgd, lr: 0.1, momentum: 0.5}\n"
                                     "model: {use: transformer, from: %s/llama}\nplugins: {path: [\"%s\"]}\n"
                                     "data: {train: %s/localsgd/tokens.npy, seq_len: 8, batch: 4, micro_batch: %d, "
                                     "shuffle: false}\n",
                                     STEPS, ranks, strategies, GOLDEN_DIR, ASYNC, GOLDEN_DIR, 4 / ranks)));
}

static void expect_losses(const struct curve *c, const json_t *losses)
{
    ck_assert_int_eq(c->n, STEPS);
    for (int n = 0; n < STEPS; n++)
        expect_number(c->loss[n], json_number_value(json_array_get(losses, (size_t)n)), 1e-5, "the loss", n + 1);
}

/* Of the last 5 steps. */
static double late(const json_t *losses)
{
    double sum = 0;
    for (size_t n = STEPS - 5; n < STEPS; n++)
        sum += json_number_value(json_array_get(losses, n));
    return sum / 5;
}

START_TEST(as_torch)
{
    json_t *all = keep(json_loads(read_file(GOLDEN_DIR "/compress.json"), 0, NULL)),
           *run = json_array_get(json_object_get(all, "runs"), (size_t)_i);
    char *strategies =
             keep(hd__format("{use: %s%s}, {use: zero, stage: %d}", runs[_i].method, runs[_i].options, runs[_i].stage)),
         *job = keep(hd__format("golden%d", _i));
    ck_assert_str_eq(json_string_value(json_object_get(run, "method")), runs[_i].method);
    ck_assert_int_eq(json_integer_value(json_object_get(run, "ranks")), runs[_i].ranks);
    ck_assert_int_eq(json_integer_value(json_object_get(run, "stage")), runs[_i].stage);
    write_golden_job("golden.yaml", strategies, runs[_i].ranks);
    train(&parts, job, "golden.yaml");
    expect_losses(&parts, json_object_get(run, "losses"));
    ck_assert_double_lt(late(json_object_get(run, "losses")), 1.024 * late(json_object_get(all, "uncompressed")));
    if (_i)
        return;
    write_golden_job("golden.yaml", "{use: zero}", 2);
    train(&whole, "golden-whole", "golden.yaml");
    expect_losses(&whole, json_object_get(all, "uncompressed"));
}
END_TEST

/* ---- what is proved, and learnt */

#define STRATEGIES "strategies=[{\"use\":\"%s\"},{\"use\":\"zero\",\"stage\":%d}] mesh.dp=%d " PLUGINS

static const char *const kinds[] = {"onebit", "topk"};

START_TEST(is_proved)
{
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int stage = 0; stage < 2; stage++) {
            struct command *c =
                command_run("check llama.yaml data.seq_len=8 --numerics " STRATEGIES, kinds[_i], stage, ranks);
            expect_code(c, 0);
            ck_assert_msg(strstr(c->out, "so that both can agree: gradients are summed by all_reduce and "
                                         "reduce_scatter, not by ") != NULL,
                          "%s", c->out);
            c = command_run("explain llama.yaml " STRATEGIES, kinds[_i], stage, ranks);
            expect_code(c, 0);
            ck_assert_int_eq(strstr(c->out, _i ? "topk_encode" : "sign_encode") != NULL, ranks > 1);
        }
}
END_TEST

START_TEST(learns)
{
    for (int stage = 0; stage < 2; stage++)
        for (int ranks = 2; ranks <= 4; ranks *= 2) {
            train(&parts, "compressed",
                  "llama.yaml data.seq_len=8 optimizer={\"use\":\"sgd\",\"lr\":0.3,\"momentum\":0.5} "
                  "job.steps=60 " STRATEGIES,
                  kinds[_i], stage, ranks);
            expect_learns(&parts);
        }
}
END_TEST

/* The errors that ranks carry from step to step are in checkpoints: a run that goes on has the same bits. */
START_TEST(goes_on_with_its_errors)
{
    for (int stage = 0; stage < 2; stage++) {
        char *job = keep(hd__format("midway-%s%d", kinds[_i], stage));
        train(&whole, "straight", "llama.yaml " STRATEGIES, kinds[_i], stage, 2);
        train(&parts, job, "llama.yaml checkpoint.dir=%s job.steps=10 " STRATEGIES, job, kinds[_i], stage, 2);
        ck_assert_int_eq(parts.n, 10);
        train(&parts, job, "llama.yaml checkpoint.dir=%s " STRATEGIES, job, kinds[_i], stage, 2);
        expect_same_bits(&parts, &whole);
    }
}
END_TEST

/* A kernel that the strategy has for this device runs there, to the bits of the host's. */
START_TEST(runs_on_another_device)
{
    const char *job = "llama.yaml job.steps=6 " STRATEGIES;
    for (int stage = 0; stage < 2; stage++) {
        train(&whole, "here", job, "topk", stage, 2);
        train(&parts, "there",
              keep(hd__format("%s device.use=async device.seed=%d device.staging=4KiB", job, 3 + stage)), "topk", stage,
              2);
        expect_same_bits(&parts, &whole);
    }
}
END_TEST

/* ---- what is refused */

START_TEST(is_refused_by_name)
{
    static const struct {
        const char *words, *message;
    } rows[] = {
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\",\"stage\":2}]",
         "strategies.onebit keeps an error as large as all gradients on every rank"},
        {"strategies=[{\"use\":\"topk\"},{\"use\":\"zero\",\"stage\":3}]",
         "strategies.topk keeps an error as large as all gradients on every rank"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"topk\"},{\"use\":\"zero\"}]",
         "strategies.topk: another strategy of the job reduces buckets as well"},
        {"strategies=[{\"use\":\"topk\",\"keep\":0},{\"use\":\"zero\"}]", "strategies.topk.keep"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\",\"compress\":{\"kind\":\"int8\"}}]",
         "strategies.zero.compress.kind says how gradients travel, and so does another strategy"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] precision.reduce=bf16",
         "precision.reduce says how gradients travel, and so does another strategy"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] precision.compute=fp16",
         "precision.loss_scale: sign_encode keeps state of gradients"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] precision.grad=bf16 precision.reduce=bf16",
         "sign_encode takes 'f' here, and G.0 is bf16"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] precision.compute=fp64",
         "sign_encode takes 'f' here, and G.0 is fp64"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] job.deterministic=exact",
         "gradients must not travel compressed: leave out `compress`, and a strategy that encodes them"},
        {"strategies=[{\"use\":\"onebit\"},{\"use\":\"zero\"}] device.use=async",
         "device-async cannot run sign_encode, an op of a strategy: it has a function for host memory and no kernel"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct command *c = command_run("check llama.yaml mesh.dp=2 %s " PLUGINS, rows[i].words);
        expect_code(c, 2);
        expect_says(c, rows[i].message);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"as torch", as_torch, sizeof runs / sizeof *runs},
        {"proved", is_proved, 2},
        {"learns", learns, 2},
        {"goes on", goes_on_with_its_errors, 2},
        {"another device", runs_on_another_device, 1},
        {"refused", is_refused_by_name, 1},
        {NULL},
    };
    return system_run("own-ops", tests);
}
