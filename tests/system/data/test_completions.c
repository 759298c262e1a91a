/* A loss that counts some tokens alone: any mesh, with other counts on every rank and in every micro-batch, trains as
 * torch does, which divides the sum of the global batch by the labels that it counts (tests/golden/completions.py). */
#include <math.h>

#include "tests/system/system.h"

#define FOLDER GOLDEN_DIR "/completions/"

static struct curve a, b;
static json_t *expected;

static double number(const char *key)
{
    return json_number_value(json_object_get(expected, key));
}

static double number_at(const char *key, int i)
{
    return json_number_value(json_array_get(json_object_get(expected, key), (size_t)i));
}

static void write_job(void)
{
    json_error_t why;
    char text[2048];
    expected = json_load_file(FOLDER "expected.json", 0, &why);
    ck_assert_msg(expected != NULL, "%s", why.text);
    snprintf(
        text, sizeof text,
        "job: {name: completions, steps: %d}\n"
        "device: {use: cpu, threads: 1}\n"
        "model: {use: transformer, from: " GOLDEN_DIR "/llama}\n"
        "data: {train: " FOLDER "train.bin, seq_len: %d, batch: %d, shuffle: false, loss: completion}\n"
        "optimizer: {use: adamw, lr: %.17g, betas: [%.17g, %.17g], eps: %.17g, weight_decay: %.17g, clip: %.17g}\n",
        (int)number("steps"), (int)number("seq"), (int)number("batch"), number("lr"), number_at("betas", 0),
        number_at("betas", 1), number("eps"), number("weight_decay"), number("clip"));
    write_file("job.yaml", text);
}

static void expect_torch(const struct curve *c, const char *mesh)
{
    ck_assert_int_eq(c->n, (int)number("steps"));
    for (int i = 0; i < c->n; i++) {
        double loss = number_at("losses", i), norm = number_at("grad_norms", i), tolerance = i ? 1e-4 : 1e-5;
        ck_assert_msg(fabs(c->loss[i] - loss) <= tolerance * loss, "%s, step %d: loss %.9g, torch %.9g", mesh, i + 1,
                      c->loss[i], loss);
        ck_assert_msg(fabs(c->norm[i] - norm) <= tolerance * norm, "%s, step %d: gradient norm %.9g, torch %.9g", mesh,
                      i + 1, c->norm[i], norm);
    }
}

/* Losses whole, in chunks of 64 tokens, of a vocabulary over ranks, by reference kernels; micro-batches and ranks
 * without any label that counts (of sequences 8 to 11). */
static const char *const meshes[] = {
    "data.micro_batch=16",
    "data.micro_batch=16 device.logits=1",
    "data.micro_batch=16 device.kernels=reference",
    "data.micro_batch=4",
    "mesh.dp=4",
    "mesh.dp=4 data.micro_batch=1",
    "mesh.dp=4 data.micro_batch=2 strategies.zero.stage=3",
    "mesh.tp=2 data.micro_batch=8 device.logits=1",
    "mesh.tp=2 strategies.3d.vocab_parallel=false",
    "mesh.dp=2 mesh.tp=2 data.micro_batch=2",
    "mesh.pp=2 data.micro_batch=4",
    "mesh.pp=2 mesh.dp=2 data.micro_batch=2",
    "mesh.cp=2 data.micro_batch=4",
    "mesh.cp=2 mesh.dp=2 strategies.3d.context=ring data.micro_batch=4",
    "mesh.dp=3 data.pad_batch=always data.micro_batch=2",
    "mesh.pp=2 mesh.dp=3 data.pad_batch=always data.micro_batch=1",
    "mesh.dp=4 comm={\"use\":\"shm\",\"hooks\":[\"check\"]}",
    "mesh.dp=2 plugins.path=" ASYNC " device.use=async comm.use=ordered", /* the sum of counts on the device's stream */
};

START_TEST(meshes_train_as_torch_does)
{
    write_job();
    train(&a, "completions", "job.yaml %s", meshes[_i]);
    expect_torch(&a, meshes[_i]);
    json_decref(expected);
}
END_TEST

/* The same bits for any number of ranks, stages too. */
START_TEST(exact_sums)
{
    write_job();
    train(&a, "one", "job.yaml job.deterministic=exact data.micro_batch=2");
    train(&b, "four", "job.yaml job.deterministic=exact mesh.dp=4 data.micro_batch=2");
    expect_torch(&a, "exact");
    expect_same_bits(&a, &b);
    train(&b, "stages", "job.yaml job.deterministic=exact mesh.pp=2 data.micro_batch=2");
    expect_same_bits(&a, &b);
    json_decref(expected);
}
END_TEST

/* The losses of a router are means over all tokens, whatever counts in the loss: here they are all of the gradient. */
START_TEST(router_losses)
{
    static const char *const how[] = {"data.micro_batch=4", "mesh.ep=2 data.micro_batch=4 precision.loss_scale=64",
                                      "mesh.pp=2 mesh.dp=2 data.micro_batch=2"};
    write_job();
    for (int k = 0; k < 2; k++)
        train(k ? &b : &a, k ? "some" : "all",
              "job.yaml job.steps=1 %s data.loss=%s "
              "model={\"use\":\"transformer\",\"family\":\"mixtral\",\"layers\":2,\"hidden\":32,\"heads\":2,\"ffn\":32,"
              "\"vocab\":32,\"experts\":4,\"router_aux_loss_coef\":1e4,\"router_z_loss_coef\":1e3}",
              how[_i], k ? "completion" : "all");
    ck_assert_double_gt(a.norm[0], 100);
    ck_assert_msg(a.loss[0] != b.loss[0] && fabs(a.norm[0] - b.norm[0]) <= 1e-3 * a.norm[0],
                  "%s: gradient norm %.9g where all tokens count, %.9g where some do", how[_i], a.norm[0], b.norm[0]);
    json_decref(expected);
}
END_TEST

/* ---- sets of data.val, data.test */

#define SETS "data.val={\"wiki\":\"" FOLDER "wiki.bin\",\"code\":[\"" FOLDER "code.bin\"]} eval.batches=1 "

static json_t *row_of(const char *job, int step)
{
    char path[64], key[32];
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    snprintf(key, sizeof key, "{\"step\": %d,", step);
    const char *line = strstr(read_file(path), key);
    ck_assert_msg(line != NULL, "%s: no %s", path, key);
    json_t *row = json_loadb(line, strcspn(line, "\n"), 0, NULL);
    ck_assert_ptr_nonnull(row);
    return row;
}

static void expect_losses(const json_t *got, const char *metric, int evaluation, const char *set, double tolerance)
{
    double wanted = json_number_value(
               json_object_get(json_array_get(json_object_get(expected, "evaluations"), (size_t)evaluation), set)),
           is = json_number_value(json_object_get(got, metric));
    ck_assert_msg(fabs(is - wanted) <= tolerance * wanted, "%s: %.9g, torch %.9g", metric, is, wanted);
}

/* Each set by name, and the mean over the labels of both: not of the two means, nor of the tokens. */
START_TEST(sets_by_name)
{
    static const char *const how[] = {"data.micro_batch=4", "mesh.dp=2 mesh.tp=2 data.micro_batch=2", "mesh.pp=2"};
    write_job();
    for (size_t i = 0; i < HD__COUNT(how); i++) {
        struct command *c = command_run("train job.yaml job.name=sets eval.every=5 %s " SETS, how[i]);
        expect_code(c, 0);
        ck_assert_msg(strstr(c->out, "  val_loss 3.6987 (wiki 3.7209, code 3.4505)") != NULL, "%s", c->out);
        for (int evaluation = 0; evaluation < 2; evaluation++) {
            json_t *row = row_of("sets", 5 + 5 * evaluation);
            expect_losses(row, "val_loss", evaluation, "all", 1e-4);
            expect_losses(row, "val_loss_wiki", evaluation, "wiki", 1e-4);
            expect_losses(row, "val_loss_code", evaluation, "code", 1e-4);
            json_decref(row);
        }
    }
    json_decref(expected);
}
END_TEST

/* Wiki's tokens three times, of which the last alone counts: it is behind the first batch. */
static void write_hardly_labelled(void)
{
    static uint8_t tokens[1 << 14], marks[8 + (1 << 12)] = "HDLOSS1\n";
    FILE *f = fopen(FOLDER "wiki.bin", "rb");
    ck_assert_ptr_nonnull(f);
    size_t bytes = fread(tokens, 1, sizeof tokens, f), last = 3 * bytes / 2 - 1;
    fclose(f);
    ck_assert(bytes && bytes < sizeof tokens);
    marks[8 + last / 8] = (uint8_t)(1u << last % 8);
    f = fopen("hardly.bin", "wb");
    for (int k = 0; k < 3; k++)
        fwrite(tokens, 1, bytes, f);
    fclose(f);
    f = fopen("hardly.loss", "wb");
    fwrite(marks, 1, 8 + last / 8 + 1, f);
    fclose(f);
}

/* A set in whose batches no label counts ends an evaluation by itself, and no training; other sets have their loss. */
START_TEST(sets_without_labels)
{
    write_job();
    write_hardly_labelled();
    struct command *c = command_run("train job.yaml job.name=bare mesh.dp=2 eval.every=5 eval.batches=1 "
                                    "data.val=hardly.bin checkpoint.dir=ckpt");
    expect_code(c, 0);
    expect_says(c, "none of the labels of 1 batches counts in the loss: nothing to evaluate");
    ck_assert_msg(!strstr(c->out, "val_loss"), "%s", c->out);
    for (int ranks = 1; ranks <= 2; ranks++) {
        c = command_run("eval job.yaml eval.batches=1 data.val=hardly.bin checkpoint.dir=ckpt mesh.dp=%d", ranks);
        expect_code(c, 2);
        expect_says(c, "command line: none of the labels of 1 batches counts in the loss: nothing to evaluate");
    }
    c = command_run("train job.yaml job.name=sets mesh.dp=2 eval.every=5 eval.batches=1 "
                    "data.val={\"none\":\"hardly.bin\",\"code\":[\"" FOLDER "code.bin\"]}");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "  val_loss 3.4505 (none nan, code 3.4505)") != NULL, "%s", c->out);
    json_t *row = row_of("sets", 5);
    ck_assert(json_is_null(json_object_get(row, "val_loss_none")));
    ck_assert(json_is_real(json_object_get(row, "val_loss")));
    json_decref(row);
    json_decref(expected);
}
END_TEST

START_TEST(splits)
{
    static const struct {
        const char *words, *metric, *set;
    } rows[] = {{SETS, "val_loss", "all"},
                {SETS "--split val", "val_loss_code", "code"},
                {SETS "--split wiki", "val_loss_wiki", "wiki"},
                {SETS "data.test=" FOLDER "code.bin --split test", "test_loss", "code"},
                {"data.test={\"path\":\"" FOLDER "wiki.bin\"} eval.batches=1 --split test", "test_loss", "wiki"}};
    write_job();
    expect_code(command_run("train job.yaml job.name=splits checkpoint.dir=ckpt"), 0);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("eval job.yaml checkpoint.dir=ckpt --json %s", rows[i].words);
        expect_code(c, 0);
        json_t *got = json_loads(c->out, 0, NULL);
        ck_assert_msg(got != NULL, "%s", c->out);
        expect_losses(got, rows[i].metric, 1, rows[i].set, 1e-4);
        ck_assert_int_eq(json_object_size(got), i < 2 ? 4 : 2);
        json_decref(got);
    }
    struct command *c = command_run("eval job.yaml checkpoint.dir=ckpt " SETS "--split books");
    expect_code(c, 2);
    expect_says(c, "--split books: the job has no such set: it has val, wiki, code, and no data.test");
    c = command_run("eval job.yaml checkpoint.dir=ckpt " SETS "--split test");
    expect_code(c, 2);
    expect_says(c, "the job has no test data: set data.test");
    json_decref(expected);
}
END_TEST

/* ---- epochs */

/* 160 sequences, 16 a step. */
START_TEST(epochs)
{
    static const struct {
        const char *words;
        int steps;
        double epoch;
    } rows[] = {
        {"job.epochs=2", 20, 2},
        {"job.epochs=0.5", 5, 0.5},
        {"job.epochs=1.1", 11, 1.1},
        {"job.num_train_epochs=1 data.batch=12 mesh.dp=2 watch.straggler=0", 14, 1.05}}; /* the last step is whole */
    char text[4096];
    write_job();
    snprintf(text, sizeof text, "%s", read_file("job.yaml"));
    char *steps = strstr(text, ", steps: 10");
    memmove(steps, steps + strlen(", steps: 10"), strlen(steps + strlen(", steps: 10")) + 1);
    write_file("epochs.yaml", text);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c =
            command_run("train epochs.yaml job.name=epochs %s schedule.kind=linear schedule.min_lr=1e-4 %s",
                        rows[i].words, i ? "" : "eval.every=15 eval.batches=1 data.val=" FOLDER "wiki.bin");
        expect_code(c, 0);
        ck_assert_msg(strstr(c->err, "warning") == NULL, "%s", c->err);
        curve_read(&a, "epochs");
        ck_assert_int_eq(a.n, rows[i].steps);
        json_t *row = row_of("epochs", rows[i].steps);
        ck_assert_double_eq_tol(json_number_value(json_object_get(row, "epoch")), rows[i].epoch, 1e-9);
        json_decref(row);
    }
    /* the same as so many steps: the schedule too */
    train(&a, "as-epochs", "epochs.yaml job.epochs=0.5 schedule.kind=linear");
    train(&b, "as-steps", "job.yaml job.steps=5 schedule.kind=linear");
    expect_same_bits(&a, &b);
    json_t *one = row_of("as-epochs", 3), *other = row_of("as-steps", 3);
    ck_assert(json_equal(json_object_get(one, "lr"), json_object_get(other, "lr")));
    json_decref(one);
    json_decref(other);
    json_decref(expected);
}
END_TEST

/* A finished job goes on for another epoch, and says by which key. */
START_TEST(epochs_resume)
{
    write_job();
    expect_code(command_run("train job.yaml job.name=whole job.steps=20 checkpoint.dir=whole"), 0);
    char text[4096];
    snprintf(text, sizeof text, "%s", read_file("job.yaml"));
    char *steps = strstr(text, "steps: 10");
    memcpy(steps, "epochs: 1", strlen("epochs: 1"));
    write_file("epochs.yaml", text);
    expect_code(command_run("train epochs.yaml job.name=parts checkpoint.dir=parts"), 0);
    struct command *c = command_run("train epochs.yaml job.name=parts checkpoint.dir=parts");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "the job is finished: its checkpoint is at step 10 of 10; set job.epochs higher"),
                  "%s", c->out);
    expect_code(command_run("train epochs.yaml job.name=parts checkpoint.dir=parts job.epochs=2"), 0);
    curve_read(&a, "whole");
    curve_read(&b, "parts");
    ck_assert_int_eq(b.n, 20);
    expect_same_bits(&a, &b);
    json_decref(expected);
}
END_TEST

/* ---- mistakes */

START_TEST(refusals)
{
    static const struct {
        const char *words, *why;
    } rows[] = {
        {"job.epochs=2", "command line: job.epochs: job.steps is given too; say one, as job={epochs: N}"},
        {"job.epochs=0", "job.epochs"},
        {"data.val={\"train\":\"a.bin\"}", "data.val: train is the name of a part of its own: name the set otherwise"},
        {"data.val={\"a/b\":\"a.bin\"}", "data.val: a/b is no name of a set"},
        {"data.val={}", "data.val"},
        {"data.val={\"wiki\":[]}", "data.val.wiki is an empty list"},
        {"data.val={\"wiki\":\"none.bin\"} eval.every=1", "none.bin"},
        {"data.val={\"wiki\":\"a.bin\"} data.val_fraction=0.1", "data.val_fraction: data.val is given too"},
        {"data.val={\"wiki\":{\"use\":\"a.bin\"}}", "unknown key use; the keys are path and weight"},
        {"data.loss=some", "data.loss"},
        {"data.train=plain.bin", "plain.loss: there is no such file, and data.loss: completion reads from it"},
        {"data.train=plain.bin", "heddle data tokenize --chat-template NAME"},
        {"strategies=[{\"use\":\"localsgd\"}] mesh.dp=2", "labels of the data's own (data.loss: completion)"},
    };
    write_job();
    write_file("plain.bin", "\1\2\3\4\5\6\7\1\2\3\4\5\6\7\1\2\3\4\5\6\7\1\2\3\4\5\6\7\1\2\3\4\5\6\7\1\2\3\4\5");
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("train job.yaml %s", rows[i].words);
        expect_code(c, 2);
        expect_says(c, rows[i].why);
    }
    json_decref(expected);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"meshes", meshes_train_as_torch_does, (int)HD__COUNT(meshes)},
        {"exact", exact_sums, 0},
        {"router losses", router_losses, 3},
        {"sets by name", sets_by_name, 0},
        {"sets without labels", sets_without_labels, 0},
        {"splits", splits, 0},
        {"epochs", epochs, 0},
        {"epochs, resumed", epochs_resume, 0},
        {"refusals", refusals, 0},
        {NULL, NULL, 0},
    };
    return system_run("completions", tests);
}
