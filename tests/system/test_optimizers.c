/* Lion, Adafactor and AdamW with 8-bit states through the built command, against other people's code
 * (tests/golden/optimizers.py): every case on one rank, every mesh, runs that go on bit for bit and on another mesh,
 * and what is refused. */
#include <stdlib.h>

#include "tests/system/system.h"

enum { STEPS = 20 };

static struct curve curve, again;

static const struct {
    const char *name, *options;
} cases[] = {
    {"lion", "use: lion, lr: 2e-3, betas: [0.9, 0.99], weight_decay: 0.1, clip: 1"},
    {"lion-plain", "use: lion, lr: 1e-3, betas: [0.95, 0.98], weight_decay: 0, clip: 0"},
    {"adafactor", "use: adafactor, lr: 2e-2, weight_decay: 0.1"},
    {"adafactor-clipped", "use: adafactor, lr: 1e-2, beta2_decay: -0.5, eps1: 1e-6, eps2: 1e-2, d: 1.5, clip: 1"},
    {"adamw8", "use: adamw8, lr: 2e-3, betas: [0.9, 0.95], weight_decay: 0.1, clip: 1, block_size: 16, min_8bit_size: "
               "300"},
    {"adamw8-heads", "use: adamw8, lr: 2e-3, betas: [0.9, 0.99], weight_decay: 0.1, clip: 0, block_size: 16, "
                     "min_8bit_size: 500"},
};

static char job[64]; /* of this test: jobs of one name and folder would go on where another ended */

static void write_job(const char *test, int n, int which)
{
    char text[1024];
    snprintf(job, sizeof job, "%s%d", test, n);
    snprintf(text, sizeof text,
             "job: {name: %s, steps: %d}\n"
             "device: {threads: 1}\n"
             "optimizer: {%s}\n"
             "model: {use: transformer, from: %s/llama}\n"
             "data: {train: %s/localsgd/tokens.npy, seq_len: 8, batch: 4, micro_batch: 1, shuffle: false}\n"
             "checkpoint: {dir: saved-%s}\n",
             job, STEPS, cases[which].options, GOLDEN_DIR, GOLDEN_DIR, job);
    write_file("job.yaml", text);
}

static double wanted(const char *name, const char *what, int n)
{
    json_t *all = keep(json_loads(read_file(GOLDEN_DIR "/optimizers/expected.json"), 0, NULL));
    json_t *one = json_object_get(json_object_get(all, "cases"), name);
    ck_assert_ptr_nonnull(one);
    return json_number_value(json_array_get(json_object_get(one, what), (size_t)n));
}

static void expect_case(int which)
{
    const char *name = cases[which].name;
    char golden[512], exported[80];
    ck_assert_int_eq(curve.n, STEPS);
    for (int n = 0; n < STEPS; n++) {
        expect_number(curve.loss[n], wanted(name, "losses", n), 1e-5, "the loss", n + 1);
        expect_number(curve.norm[n], wanted(name, "grad_norms", n), 1e-4, "the gradient norm", n + 1);
    }
    snprintf(golden, sizeof golden, GOLDEN_DIR "/optimizers/%s.safetensors", name);
    expect_code(command_run("ckpt export job.yaml --to exported-%s", job), 0);
    snprintf(exported, sizeof exported, "exported-%s", job);
    expect_weights(exported, golden, 1e-4);
}

#define ZERO(options) "strategies=[{\"use\":\"zero\"," options "}]"
#define THREE_D(options) "strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"," options "}]"
enum { EACH = sizeof cases / sizeof cases[0] };

START_TEST(as_published)
{
    write_job("case", _i, _i / 2);
    train(&curve, job, "job.yaml device={\"kernels\":\"%s\",\"threads\":2}", _i % 2 ? "reference" : "fast");
    expect_case(_i / 2);
}
END_TEST

static const struct {
    int which;
    const char *mesh;
} meshes[] = {
    {0, "mesh.dp=2 " ZERO("\"stage\":0")},
    {0, "mesh.dp=4 " ZERO("\"stage\":3")},
    {0, "mesh.pp=2"},
    {0, "mesh.tp=2"},
    {2, "mesh.dp=2 " ZERO("\"stage\":0")},
    {2, "mesh.dp=4 " ZERO("\"stage\":1")},
    {2, "mesh.dp=4 " ZERO("\"stage\":2")},
    {2, "mesh.dp=4 " ZERO("\"stage\":3")},
    {2, "mesh.dp=2 " ZERO("\"stage\":2,\"offload\":{\"optimizer\":\"host\"}")},
    {2, "mesh={\"dp\":2,\"pp\":2} " THREE_D("\"stage\":1")},
    {4, "mesh.dp=2 " ZERO("\"stage\":0")},
    {4, "mesh.dp=4 " ZERO("\"stage\":1")},
    {4, "mesh.dp=4 " ZERO("\"stage\":2")},
    {4, "mesh.dp=4 " ZERO("\"stage\":3")},
    {4, "mesh.dp=2 " ZERO("\"stage\":2,\"offload\":{\"optimizer\":\"host\"}")},
    {4, "mesh={\"dp\":2,\"pp\":2} " THREE_D("\"stage\":1")},
    {5, "mesh.tp=2"},
    {5, "mesh={\"dp\":2,\"tp\":2} " THREE_D("\"stage\":3")},
};

START_TEST(every_mesh_trains_the_same)
{
    write_job("mesh", _i, meshes[_i].which);
    expect_code(command_run("check job.yaml %s", meshes[_i].mesh), 0);
    train(&curve, job, "job.yaml %s", meshes[_i].mesh);
    expect_case(meshes[_i].which);
}
END_TEST

/* States come back bit for bit: what follows is what would have followed. */
START_TEST(goes_on_bit_for_bit)
{
    static const char *const mesh[] = {"mesh.dp=1", "mesh.dp=4 " ZERO("\"stage\":3")};
    int which = _i / 2 * 2;
    write_job("straight", _i, which);
    train(&again, job, "job.yaml %s", mesh[_i % 2]);
    write_job("resumed", _i, which);
    train(&curve, job, "job.yaml job.steps=9 %s", mesh[_i % 2]);
    train(&curve, job, "job.yaml %s", mesh[_i % 2]);
    ck_assert_int_eq(curve.n, STEPS);
    for (int n = 0; n < STEPS; n++)
        ck_assert_msg(curve.loss[n] == again.loss[n] && curve.norm[n] == again.norm[n], "step %d: %.17g and %.17g",
                      n + 1, curve.loss[n], again.loss[n]);
}
END_TEST

static const struct {
    int which;
    const char *first, *then;
} moved[] = {
    {0, "mesh.dp=4 " ZERO("\"stage\":2"), "mesh.tp=2"}, {2, "mesh.dp=4 " ZERO("\"stage\":3"), "mesh.pp=2"},
    {2, "mesh.pp=2", "mesh.dp=2 " ZERO("\"stage\":1")}, {4, "mesh.dp=4 " ZERO("\"stage\":3"), "mesh.pp=2"},
    {4, "mesh.dp=1", "mesh.dp=4 " ZERO("\"stage\":2")}, {5, "mesh.tp=2", "mesh.dp=4 " ZERO("\"stage\":1")},
    {5, "mesh.dp=2 " ZERO("\"stage\":3"), "mesh.tp=2"},
};

START_TEST(goes_on_on_another_mesh)
{
    write_job("moved", _i, moved[_i].which);
    train(&curve, job, "job.yaml job.steps=10 %s", moved[_i].first);
    train(&curve, job, "job.yaml %s", moved[_i].then);
    expect_case(moved[_i].which);
}
END_TEST

static const struct {
    int which;
    const char *options, *says;
} refused[] = {
    {4, "mesh.tp=2",
     "job.yaml:3:18: optimizer.use: state exp_avg_scale has a number for 16 elements, and the mesh cuts "},
    {4, "mesh.tp=2", " into runs of 12: use mesh.tp: 1, or blocks that divide them"},
    {4, "optimizer.block_size=48", "optimizer.block_size is 48: it must be a power of two, as 256"},
    {4, "optimizer.block_size=8", "optimizer.block_size"},
    {4, "optimizer.betas=[0.9]", "optimizer.betas has 1 number, AdamW needs 2"},
    {0, "optimizer.betas=[0.9,1]", "optimizer.betas: '1' is not a number from 0 up to but not 1"},
    {2, "optimizer.d=0.5", "optimizer.d"},
    {2, "optimizer.beta2_decay=0.8", "optimizer.beta2_decay"},
    {0, "precision.optimizer=bf16", "precision.optimizer is bf16: an optimizer's step function works on fp32 only"},
    {0, "precision.master=bf16", "job.yaml:3:18: optimizer.use: its plugin updates weights, gradients and states in "},
    {2, "precision.master=bf16", " is bf16: use precision.master, grad and optimizer fp32"},
    {2, "precision={\"grad\":\"bf16\"}", " is bf16: use precision.master, grad and optimizer fp32"},
};

START_TEST(refuses)
{
    write_job("refused", _i, refused[_i].which);
    static const char *const commands[] = {"check", "train"};
    for (size_t k = 0; k < HD__COUNT(commands); k++) {
        struct command *c = command_run("%s job.yaml %s", commands[k], refused[_i].options);
        ck_assert_int_eq(c->code, 2);
        expect_says(c, refused[_i].says);
    }
}
END_TEST

START_TEST(a_device_without_a_kernel_is_refused)
{
    write_job("device", 0, 2 * _i);
    struct command *c = command_run("check job.yaml device.use=cuda");
    ck_assert_int_eq(c->code, 2);
    if (!strstr(c->err, "plugin device-cuda was not built"))
        expect_says(c, "job.yaml:3:18: optimizer.use: device-cuda has no kernel for the update of optim-");
}
END_TEST

/* Experts are matrices, in a tensor each or in one for all: those of a rank are whole where the mesh deals experts. */
START_TEST(experts_are_matrices)
{
    static struct curve whole;
    const char *const mixtral = "model={\"use\":\"transformer\",\"from\":\"" GOLDEN_DIR "/mixtral-aux\"}";
    write_job("experts", _i, _i);
    train(&whole, job, "job.yaml %s job.steps=8", mixtral);
    write_job("parts", _i, _i);
    train(&curve, job, "job.yaml %s job.steps=8 mesh={\"dp\":2,\"ep\":2} " THREE_D("\"stage\":3"), mixtral);
    ck_assert_int_eq(curve.n, 8);
    expect_close(&whole, &curve, 1e-5);
}
END_TEST

/* A checkpoint knows the shape of what it holds: other blocks are another optimizer. */
START_TEST(other_states_are_refused)
{
    write_job("shapes", 0, 4);
    train(&curve, job, "job.yaml job.steps=2");
    struct command *c = command_run("train job.yaml optimizer.block_size=32");
    ck_assert_int_ne(c->code, 0);
    expect_says(c, "is of another optimizer: ");
    c = command_run("train job.yaml optimizer.min_8bit_size=4096");
    ck_assert_int_ne(c->code, 0);
    expect_says(c, "is of another optimizer: ");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"as published", as_published, 2 * EACH},
        {"meshes", every_mesh_trains_the_same, HD__COUNT(meshes)},
        {"bit for bit", goes_on_bit_for_bit, 6},
        {"moved", goes_on_on_another_mesh, HD__COUNT(moved)},
        {"refused", refuses, HD__COUNT(refused)},
        {"devices", a_device_without_a_kernel_is_refused, 3},
        {"experts", experts_are_matrices, EACH},
        {"other states", other_states_are_refused, 1},
        {NULL, NULL, 0},
    };
    return system_run("optimizers", tests);
}
