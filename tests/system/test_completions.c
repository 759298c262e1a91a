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

int main(void)
{
    const struct system_test tests[] = {
        {"meshes", meshes_train_as_torch_does, (int)HD__COUNT(meshes)},
        {"exact", exact_sums, 0},
        {NULL, NULL, 0},
    };
    return system_run("completions", tests);
}
