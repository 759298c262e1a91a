/* Gradients as products of two thin matrices, on two emulated ranks: the numbers are those of PyTorch's powerSGD_hook,
 * the bytes those of the formula, and verify sees each part of it that is missing. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "runtime/exec/select.h"
#include "service/checkpoint/param_init.h"
#include "tests/golden/run/powersgd.h"
#include "tests/suite.h"

enum { RANKS = 2 };

static const char *const matrices[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight",
                                       "model.layers.0.mlp.down_proj.weight"};

static struct hd__plugins *plugins;
static struct hd__job *job;
static struct hd__compiled *compiled;
static struct hd__sim *machine;
static const struct hd_device_ops *ops;
static struct hd_device *device;
static struct hd_error err;
static int32_t step; /* of the golden numbers: from 0 */

static void compile(const char *zero)
{
    char text[1024];
    snprintf(text, sizeof text,
             "job: {name: powersgd, steps: 9}\nmesh: {dp: 2}\nstrategies: [{use: zero, %s}]\noptimizer: {use: sgd, lr: "
             "1e-3}\n"
             "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 2, kv_heads: 1, ffn: 12, vocab: "
             "10, max_seq_len: 4}\n"
             "data: {train: none, seq_len: 4, batch: 4, micro_batch: 2}\nprecision: {compute: fp64}\n"
             "device: {use: cpu, kernels: reference, threads: 1}\n",
             zero);
    job = NULL;
    compiled = NULL;
    ck_assert_msg(!hd__job_parse("job", text, strlen(text), NULL, 0, &job, &err) && !hd__job_resolve(job, 0, &err) &&
                      !hd__exec_compile(job, plugins, &compiled, &err),
                  "%s\n%s", err.message, text);
}

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
}

static void tear_down(void)
{
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    hd__plugins_destroy(plugins);
}

/* ---- the gradients of the golden numbers take the place of the model's where they meet the error */

struct kernel {
    struct hd_kernel *of;
    double *meets; /* the gradients that are added to the error; NULL: another instruction */
};

static int matrix_of(const struct hd_program *p, uint32_t param)
{
    for (int k = 0; k < (int)HD__COUNT(matrices); k++)
        if (!strcmp(p->params.at[param].desc.name, matrices[k]))
            return k;
    return -1;
}

static void put_gradients(int32_t rank, double *to)
{
    const struct hd_program *p = compiled->stage[0];
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params &&
                             hd__sim_tensor_data(machine, rank, p->flats.at[f].tensor[HD__FLAT_GRAD]) == to;
             k++) {
            int matrix = matrix_of(p, p->flats.at[f].params[k]);
            int64_t n = hd__numel(p, hd__tensor_const(p, p->params.at[p->flats.at[f].params[k]].tensor));
            for (int64_t i = 0; matrix >= 0 && i < n; i++) /* the hook takes the mean, heddle the sum */
                to[p->flats.at[f].offset[k] + i] = hd_direction(i, 1000 + 10 * step + rank, (uint32_t)matrix) / RANKS;
        }
}

static int32_t prepare(void *user, int32_t rank, const struct hd_instr_desc *desc, void **kernel, struct hd_error *e)
{
    struct kernel *k = calloc(1, sizeof *k);
    (void)user, (void)rank;
    if (desc->op == HD_OP_BLEND && desc->attrs.table[1] == 1)
        k->meets = desc->in[1].data;
    *kernel = k;
    return ops->prepare(device, desc, &k->of, e);
}

static int32_t run(void *user, int32_t rank, void *kernel, struct hd_error *e)
{
    struct kernel *k = kernel;
    (void)user;
    if (k->meets)
        put_gradients(rank, k->meets);
    return ops->launch(device, k->of, 0, e);
}

static void release(void *user, int32_t rank, void *kernel)
{
    struct kernel *k = kernel;
    (void)user, (void)rank;
    ops->release(device, k->of);
    free(k);
}

static int32_t feed(void *user, int32_t rank, const struct hd__instr *i, int32_t micro, const struct hd_operand *out,
                    struct hd_error *e)
{
    (void)user, (void)rank, (void)i, (void)micro, (void)e;
    for (int64_t n = 0; n < hd_operand_count(out); n++)
        ((int32_t *)out->data)[n] = (int32_t)(n % 10);
    return HD_OK;
}

static void open_machine(void)
{
    static const struct hd__sim_kernels kernels = {NULL, prepare, run, release, feed};
    const struct hd_program *programs[RANKS] = {compiled->stage[0], compiled->stage[0]};
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1, .threads = 1};
    ops = &compiled->device_choice.component->ops.device;
    ck_assert(!ops->open(hd__exec_host_table(), compiled->device_choice.settings, &place, &device, &err));
    machine = hd__sim_create(&compiled->mesh, programs, &(struct hd__sim_options){.kernels = &kernels, .seed = 1});
    for (int32_t r = 0; r < RANKS; r++) {
        int32_t coord[HD_AXIS_COUNT];
        hd__mesh_coord(&compiled->mesh, r, coord);
        hd__ckpt_init_zeros(compiled->stage[0], coord, hd__sim_arena(machine, r));
        ck_assert(!hd__ckpt_init_params(compiled->stage[0], coord, hd__sim_arena(machine, r), 1, &err));
    }
}

static void close_machine(void)
{
    hd__sim_destroy(machine);
    ops->close(device);
}

static void run_step(int64_t number)
{
    for (int32_t r = 0; r < RANKS; r++) {
        double *hyper = hd__sim_tensor_data(machine, r, compiled->stage[0]->hyper);
        memset(hyper, 0, HD_HYPER_COUNT * sizeof *hyper);
        hyper[HD_HYPER_INV_SCALE] = 1;
        hyper[HD_HYPER_STEP] = (double)number;
    }
    ck_assert_msg(!hd__sim_run(machine, NULL, number, &err), "%s", err.message);
}

/* ---- the numbers */

static void near(const double *is, const double *golden_numbers, int n, double scale, const char *what,
                 const struct golden *g)
{
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs(is[i] * scale - golden_numbers[i]) < 1e-9,
                      "rank %d, %s, step %d: %s [%d] is %.12g, not %.12g", g->thick, matrices[g->matrix], g->step, what,
                      i, is[i] * scale, golden_numbers[i]);
}

static hd_tensor error_of(const struct hd_program *p, const struct hd__flat *f)
{
    char name[64];
    snprintf(name, sizeof name, "E.%s", f->name);
    for (uint32_t n = 0; n < p->facts.count; n++)
        if (!strcmp(hd__tensor_const(p, p->facts.at[n].tensor)->name, name))
            return p->facts.at[n].tensor;
    ck_abort_msg("no %s", name);
}

static void compare(const struct golden *g)
{
    const struct hd_program *p = compiled->stage[0];
    int seen = 0;
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++) {
            const struct hd__flat *flat = &p->flats.at[f];
            if (matrix_of(p, flat->params[k]) != g->matrix)
                continue;
            for (int32_t r = 0; r < RANKS; r++)
                near((double *)hd__sim_tensor_data(machine, r, flat->tensor[HD__FLAT_GRAD]) + flat->offset[k],
                     g->gradient, g->rows * g->columns, 1, "the gradient", g);
            near((double *)hd__sim_tensor_data(machine, 0, error_of(p, flat)) + flat->offset[k], g->error,
                 g->rows * g->columns, RANKS, "the error", g);
            seen++;
        }
    ck_assert_int_eq(seen, 1);
}

/* Whatever the stage, the buckets, and whether whole gradients came first. */
START_TEST(numbers_are_those_of_pytorch)
{
    static const char *const jobs[] = {"stage: 0, bucket: 0", "stage: 0", "stage: 1, bucket: 2000"};
    static const int thick[] = {2, 6};
    int warmup = _i % 3 == 2, n = 0;
    char zero[128];
    snprintf(zero, sizeof zero, "%s, compress: {kind: powersgd, rank: %d, warmup: %d}", jobs[_i % 3], thick[_i / 3],
             warmup);
    compile(zero);
    open_machine();
    if (warmup)
        run_step(1);
    for (step = 0; step < GOLDEN_STEPS; step++) {
        run_step(warmup + step + 1);
        for (size_t k = 0; k < HD__COUNT(golden); k++)
            if (golden[k].thick == thick[_i / 3] && golden[k].step == step) {
                compare(&golden[k]);
                n++;
            }
    }
    ck_assert_int_eq(n, GOLDEN_STEPS * (int)HD__COUNT(matrices));
    close_machine();
}
END_TEST

/* ---- the bytes */

static double sent(const char *section)
{
    const struct hd_program *p = compiled->stage[0];
    const struct hd__code_section *s = hd__program_section(compiled->stage[0], section);
    double bytes = 0;
    ck_assert_ptr_nonnull(s);
    for (uint32_t k = 0; k < s->code.count; k++)
        bytes += hd__instr_traffic(p, &s->code.at[k]);
    return bytes;
}

/* Bytes of a ring: 2 (n - 1) / n of what is reduced, r (m + n) numbers a matrix and the others as they are. */
START_TEST(bytes_are_those_of_the_formula)
{
    static const struct {
        int rows, columns, times;
    } shapes[] = {{10, 8, 2}, {8, 8, 2}, {4, 8, 2}, {12, 8, 2}, {8, 12, 1}};
    static const int thick[] = {1, 2, 5, 6, 100};
    int rank = thick[_i];
    double ring = 2.0 * (RANKS - 1) / RANKS * 8, whole = 0, thin = 0, others = 0;
    char zero[128];
    snprintf(zero, sizeof zero,
             "stage: %d, bucket: 0, gather_in_forward: false, compress: {kind: powersgd, rank: %d, warmup: 3}", _i % 2,
             rank);
    compile(zero);
    for (size_t k = 0; k < HD__COUNT(shapes); k++) {
        int least = HD__MIN(shapes[k].rows, shapes[k].columns);
        thin += shapes[k].times * HD__MIN(rank, least) * (shapes[k].rows + shapes[k].columns);
        whole += shapes[k].times * shapes[k].rows * shapes[k].columns;
    }
    others = 8 + 16 + 8; /* norms: the last, and the two of a layer, which begin at whole lines of 16 */
    ck_assert_double_eq(sent("micro_last"), ring * (thin + others));
    ck_assert_double_ge(sent("micro_last_warmup"), ring / (_i % 2 ? 2 : 1) * (whole + others));
    ck_assert(hd__program_section(compiled->stage[0], "micro_last")->after == 3);
    ck_assert(hd__program_section(compiled->stage[0], "micro_last_warmup")->last == 3);
}
END_TEST

/* ---- the proof */

/* Everything between the gradients and what the optimizer reads, each left out once. */
START_TEST(verify_misses_each_part)
{
    static const uint16_t parts[] = {HD_OP_ORTHOGONALISE, HD_OP_EINSUM, HD_OP_BLEND};
    int left_out = 0;
    compile("stage: 0, bucket: 2000, compress: {kind: powersgd, rank: 2}");
    hd__code *code = &hd__program_section(compiled->stage[0], "micro_last")->code;
    for (uint32_t k = 0; k < code->count; k++) {
        struct hd__instr i = code->at[k];
        int part = 0;
        for (size_t n = 0; n < HD__COUNT(parts); n++)
            part |= i.op == parts[n] && i.phase == HD_PHASE_O;
        if (!part)
            continue;
        memmove(&code->at[k], &code->at[k + 1], (code->count - 1 - k) * sizeof i);
        code->count--;
        ck_assert_msg(hd__verify(compiled->stage[0], &err) == HD_E_INVALID, "not missed: %s, output %s",
                      hd__op(i.op)->name, hd__tensor_const(compiled->stage[0], i.out[0])->name);
        hd__push(code, i);
        memmove(&code->at[k + 1], &code->at[k], (code->count - 1 - k) * sizeof i);
        code->at[k] = i;
        left_out++;
    }
    ck_assert_int_ge(left_out, 9 * 5); /* two directions and three products a matrix */
    ck_assert_msg(!hd__verify(compiled->stage[0], &err), "%s", err.message);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("powersgd");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, numbers_are_those_of_pytorch, 0, 6);
    tcase_add_loop_test(c, bytes_are_those_of_the_formula, 0, 5);
    tcase_add_test(c, verify_misses_each_part);
    return suite_run_case("powersgd", c);
}
