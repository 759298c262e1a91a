/* Muon through the built command, against torch.optim.Muon (tests/golden/muon.py): every variant on one rank, every
 * mesh, runs that go on on another mesh, experts, and what is refused. */
#include <math.h>
#include <stdlib.h>

#include "tests/system/system.h"

enum { STEPS = 20 };

static struct curve curve;

static char job[64]; /* of this test: jobs of one name and folder would go on where another ended */

static void write_job(const char *model, const char *test, int n)
{
    char text[1024];
    snprintf(job, sizeof job, "%s%d", test, n);
    snprintf(text, sizeof text,
             "job: {name: %s, steps: %d}\n"
             "optimizer: {use: muon, lr: 2e-2, momentum: 0.95, nesterov: true, ns_steps: 5, adamw_lr: 1e-2, "
             "weight_decay: 0.1}\n"
             "model: {use: transformer, from: %s/%s}\n"
             "data: {train: %s/localsgd/tokens.npy, seq_len: 8, batch: 4, micro_batch: 1, shuffle: false}\n"
             "checkpoint: {dir: saved-%s}\n",
             job, STEPS, GOLDEN_DIR, model, GOLDEN_DIR, job);
    write_file("muon.yaml", text);
}

static double wanted(const char *name, const char *what, int n)
{
    json_t *all = keep(json_loads(read_file(GOLDEN_DIR "/muon/expected.json"), 0, NULL));
    json_t *one = json_object_get(json_object_get(all, "cases"), name);
    ck_assert_ptr_nonnull(one);
    return json_number_value(json_array_get(json_object_get(one, what), (size_t)n));
}

static void expect_curve(const char *name, double relative)
{
    ck_assert_int_eq(curve.n, STEPS);
    for (int n = 0; n < STEPS; n++) {
        expect_number(curve.loss[n], wanted(name, "losses", n), relative, "the loss", n + 1);
        expect_number(curve.norm[n], wanted(name, "grad_norms", n), 10 * relative, "the gradient norm", n + 1);
    }
}

static void expect_exported(const char *name, double relative)
{
    char golden[512], exported[80];
    snprintf(golden, sizeof golden, GOLDEN_DIR "/muon/%s.safetensors", name);
    expect_code(command_run("ckpt export muon.yaml --to exported-%s", job), 0);
    snprintf(exported, sizeof exported, "exported-%s", job);
    expect_weights(exported, golden, relative);
}

#define ZERO(options) "strategies=[{\"use\":\"zero\"," options "}]"

static const struct {
    const char *name, *options;
} cases[] = {
    {"original", "device.kernels=fast"},
    {"original", "device.kernels=reference"},
    {"match_rms_adamw", "optimizer.adjust_lr=match_rms_adamw optimizer.momentum=0.9 optimizer.clip=1"},
    {"heavy-ball", "optimizer.nesterov=false optimizer.momentum=0.8 optimizer.ns_steps=3 optimizer.clip=1"},
};

START_TEST(as_torch)
{
    write_job("llama", "variant", _i);
    train(&curve, job, "muon.yaml %s", cases[_i].options);
    expect_curve(cases[_i].name, 1e-5);
    expect_exported(cases[_i].name, 1e-5);
}
END_TEST

/* Every product is rounded to 8 bits, so the order of sums shows: in the first steps the losses are torch's to 2e-4,
 * then two runs drift apart as torch's own does from that in fp64. */
START_TEST(bf16_as_torch)
{
    write_job("llama", "bf16", _i);
    train(&curve, job, "muon.yaml optimizer.ns_dtype=bf16");
    ck_assert_int_eq(curve.n, STEPS);
    for (int n = 0; n < 3; n++)
        expect_number(curve.loss[n], wanted("bf16", "losses", n), 2e-4, "the loss", n + 1);
    for (int n = 3; n < STEPS; n++)
        expect_number(curve.loss[n], wanted("bf16", "losses", n), 5e-3, "the loss", n + 1);
    ck_assert_double_gt(fabs(curve.loss[1] / wanted("original", "losses", 1) - 1), 1e-6);
}
END_TEST

static const char *const meshes[] = {
    "mesh.dp=2",
    "mesh.dp=2 " ZERO("\"stage\":0"),
    "mesh.dp=4 " ZERO("\"stage\":1"),
    "mesh.dp=4 " ZERO("\"stage\":2"),
    "mesh.dp=4 " ZERO("\"stage\":3"),
    "mesh.dp=4 " ZERO("\"stage\":1,\"bucket\":0"),
    "mesh.dp=4 " ZERO("\"stage\":3,\"gather_bucket\":\"1MB\""),
    "mesh={\"dp\":{\"replicate\":2,\"shard\":2}} " ZERO("\"stage\":3"),
    "mesh.dp=2 " ZERO("\"stage\":2,\"offload\":{\"optimizer\":\"host\"}"),
    "mesh.pp=2",
    "mesh={\"pp\":2,\"dp\":2} strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}]",
    "mesh.cp=2",
    "mesh.dp=4 job.deterministic=exact " ZERO("\"stage\":2"),
};

START_TEST(every_mesh_trains_as_torch_does)
{
    write_job("llama", "mesh", _i);
    expect_code(command_run("check muon.yaml %s", meshes[_i]), 0);
    train(&curve, job, "muon.yaml %s", meshes[_i]);
    expect_curve("original", 1e-5);
    expect_exported("original", 1e-5);
}
END_TEST

static const struct {
    const char *first, *then;
} resumed[] = {
    {"mesh.dp=4 " ZERO("\"stage\":3"), "mesh.dp=1"},
    {"mesh.dp=1", "mesh.dp=4 " ZERO("\"stage\":2")},
    {"mesh.dp=2 " ZERO("\"stage\":1"), "mesh.pp=2"},
    {"mesh.pp=2", "mesh.dp=4 " ZERO("\"stage\":1")},
};

/* States of both kinds come back: matrices have one, the rest two. */
START_TEST(goes_on_on_another_mesh)
{
    write_job("llama", "resumed", _i);
    train(&curve, job, "muon.yaml job.steps=10 %s", resumed[_i].first);
    train(&curve, job, "muon.yaml %s", resumed[_i].then);
    expect_curve("original", 1e-5);
    expect_exported("original", 1e-5);
}
END_TEST

/* An expert is a matrix: those of a rank are whole where the mesh deals experts to ranks. Tied embeddings are none. */
START_TEST(experts_and_tied_embeddings)
{
    static struct curve whole;
    static const struct {
        const char *model, *mesh;
    } rows[] = {
        {"mixtral-aux", "mesh={\"dp\":2,\"ep\":2}"},
        {"mixtral-aux", "mesh={\"dp\":2,\"ep\":2} strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":3}]"},
        {"llama-tied", "mesh.pp=2"},
        {"gpt2", "mesh.dp=4 " ZERO("\"stage\":3")}};
    write_job(rows[_i].model, "whole", _i);
    train(&whole, job, "muon.yaml");
    write_job(rows[_i].model, "parts", _i);
    train(&curve, job, "muon.yaml %s", rows[_i].mesh);
    expect_close(&whole, &curve, 1e-5);
    ck_assert_int_eq(curve.n, STEPS);
}
END_TEST

static const struct {
    const char *options, *says;
} refused[] = {
    {"mesh.tp=2", "muon.yaml:2:18: optimizer.use: it updates whole matrices, and "
                  "the mesh cuts model.layers."},
    {"mesh.tp=2", "use mesh.tp: 1, with dp, pp or ep instead"},
    {"optimizer.ns_steps=0", "optimizer.ns_steps"},
    {"optimizer.lr=0", "optimizer.lr is 0: adamw_lr is shaped as lr is"},
    {"optimizer.momentum=1", "optimizer.momentum is 1: the mean would never move"},
    {"optimizer.betas=[0.9]", "optimizer.betas has 1 number, Muon needs 2"},
    {"optimizer.betas=[0.9,1]", "optimizer.betas: '1' is not a number from 0 up to but not 1"},
    {"optimizer.ns_coefficients=[3,nan,2]", "optimizer.ns_coefficients: 'nan' is not a number"},
    {"optimizer.adjust_lr=rms", "optimizer.adjust_lr"},
    {"optimizer.ns_dtype=fp16", "optimizer.ns_dtype"},
    {"precision.optimizer=bf16", "an optimizer's step function works on fp32 only"},
    {"mesh.dp=2 " ZERO("\"stage\":1,\"compress\":{\"kind\":\"powersgd\"}"),
     "powersgd with stage 1 wants an optimizer that updates parameters in pieces"},
};

START_TEST(refuses)
{
    write_job("llama", "refused", _i);
    struct command *c = command_run("train muon.yaml %s", refused[_i].options);
    ck_assert_int_ne(c->code, 0);
    expect_says(c, refused[_i].says);
}
END_TEST

/* Seven matrices of a layer on sixteen ranks: every shard is as large as the largest matrix. */
START_TEST(padding_is_told)
{
    write_job("llama", "padded", _i);
    struct command *c = command_run("check muon.yaml mesh.dp=16 data.batch=16 " ZERO("\"stage\":3"));
    expect_code(c, 0);
    expect_says(c, "a larger strategies.zero.gather_bucket has more matrices to deal");
    c = command_run("check muon.yaml mesh.dp=4 data.batch=16 " ZERO("\"stage\":3"));
    expect_code(c, 0);
    ck_assert_ptr_null(strstr(c->err, "gather_bucket"));
}
END_TEST

/* Explain shows what the update costs: one state of a matrix, memory for the iterations, FLOPs. */
START_TEST(explain_shows_the_cost)
{
    write_job("llama", "explained", _i);
    struct command *c = command_run("explain muon.yaml --section update");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "scratch."));
    ck_assert_ptr_nonnull(strstr(c->out, "exp_avg_sq."));
    ck_assert_ptr_nonnull(strstr(c->out, "FLOPs"));
    ck_assert_ptr_null(strstr(c->out, "FLOPs         0"));
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"as torch", as_torch, HD__COUNT(cases)},
        {"bf16 as torch", bf16_as_torch, 1},
        {"meshes", every_mesh_trains_as_torch_does, HD__COUNT(meshes)},
        {"resumed", goes_on_on_another_mesh, HD__COUNT(resumed)},
        {"experts", experts_and_tied_embeddings, 4},
        {"refused", refuses, HD__COUNT(refused)},
        {"padding", padding_is_told, 1},
        {"explain", explain_shows_the_cost, 1},
        {NULL, NULL, 0},
    };
    return system_run("muon", tests);
}
