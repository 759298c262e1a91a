/* Fused ops are made where the job's device says that it supports them, asked op by op; of a plugin with abi_minor
 * 0, those that its capability bits name. */
#include <stdlib.h>

#include "core/program/fusion.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/compile.h"
#include "tests/support/linked.h"

/* ---- a device that compiles and never opens */

static uint8_t supported[HD_OP_LIMIT];
static uint32_t asked_dtypes; /* as a mask */
static uint32_t asked_open;   /* how often a device was given */

static int32_t supports(struct hd_device *device, uint32_t op, uint32_t dtype)
{
    asked_open += device != NULL;
    asked_dtypes |= 1u << dtype;
    return op == HD_OP_ADAMW ? 1 : supported[op];
}

static int32_t open_device(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                           struct hd_device **device, struct hd_error *err)
{
    (void)host, (void)settings, (void)place, (void)device;
    return hd_fail(err, HD_E_UNSUPPORTED, "device mock only compiles");
}

static void close_device(struct hd_device *device)
{
    (void)device;
}

static int32_t prepare(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    (void)device, (void)instr, (void)kernel;
    return hd_fail(err, HD_E_UNSUPPORTED, "device mock only compiles");
}

static int32_t launch(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    (void)device, (void)kernel, (void)stream;
    return hd_fail(err, HD_E_UNSUPPORTED, "device mock only compiles");
}

static void release(struct hd_device *device, struct hd_kernel *kernel)
{
    (void)device, (void)kernel;
}

static struct hd_device_ops ops = {.struct_size = sizeof ops,
                                   .open = open_device,
                                   .close = close_device,
                                   .supports = supports,
                                   .prepare = prepare,
                                   .launch = launch,
                                   .release = release};

static const struct hd_component component = {.struct_size = sizeof component,
                                              .kind = HD_KIND_DEVICE,
                                              .name = "mock",
                                              .summary = "compiles and never opens",
                                              .ops = &ops};
static const struct hd_component *const components[] = {&component, NULL};
static struct hd_plugin plugin = {.magic = HD_PLUGIN_MAGIC,
                                  .struct_size = sizeof plugin,
                                  .abi_minor = HD_ABI_MINOR,
                                  .name = "device-mock",
                                  .version = "0.1.0",
                                  .licence = "Apache-2.0",
                                  .components = components};

static const struct hd_plugin *mock(void)
{
    return &plugin;
}

/* ---- jobs on it */

static const uint16_t fused[] = {HD_OP_XENT_HEAD,        HD_OP_EINSUM_BIAS,       HD_OP_EINSUM_GELU,
                                 HD_OP_EINSUM_GELU_GRAD, HD_OP_EINSUM_BIAS_DW,    HD_OP_ADD_RMSNORM,
                                 HD_OP_ADD_LAYERNORM,    HD_OP_RMSNORM_DX_ADD,    HD_OP_LAYERNORM_DX_ADD,
                                 HD_OP_RMSNORM_GRAD_ADD, HD_OP_LAYERNORM_GRAD_ADD};
enum { N_FUSED = HD__COUNT(fused) };

static const char *const families[] = {"gpt2", "llama"};

/* Counts the fused ops of both families' programs. */
static void compile_and_count(const char *precision, uint32_t flags, uint32_t made[N_FUSED])
{
    memset(made, 0, N_FUSED * sizeof *made);
    for (size_t f = 0; f < HD__COUNT(families); f++) {
        struct hd_error err = HD_ERROR_INIT;
        struct compiled c = {.plugins = hd__plugins_create(hd__exec_host_table())};
        char *text = hd__format("job: {name: fusions, steps: 1}\noptimizer: {use: adamw, lr: 1e-2}\n"
                                "model: {use: transformer, family: %s, layers: 2, hidden: 16, heads: 4, ffn: 24, "
                                "vocab: 32, max_seq_len: 8}\n"
                                "data: {train: none, seq_len: 8, batch: 8, micro_batch: 8}\n"
                                "precision: {compute: %s}\ndevice: {use: mock}\n",
                                families[f], precision);
        ck_assert_msg(!hd__plugins_add_folder(c.plugins, PLUGINS, &err) && !add_linked(c.plugins, mock, &err) &&
                          !hd__job_parse("job.yaml", text, strlen(text), NULL, 0, &c.job, &err) &&
                          !hd__job_resolve(c.job, 0, &err) &&
                          !hd__exec_compile_with(c.job, c.plugins, flags, &c.c, &err),
                      "%s", err.message);
        const struct hd_program *p = c.c->stage[0];
        for (uint32_t s = 0; s < p->sections.count; s++)
            for (uint32_t k = 0; k < p->sections.at[s].code.count; k++)
                for (size_t n = 0; n < N_FUSED; n++)
                    made[n] += p->sections.at[s].code.at[k].op == fused[n];
        compiled_free(&c);
        free(text);
    }
}

static void support(int yes)
{
    for (size_t n = 0; n < N_FUSED; n++)
        supported[fused[n]] = (uint8_t)yes;
}

/* Exactly the ops for which `want` is not 0. */
static void assert_made(const char *precision, uint32_t flags, const uint8_t want[N_FUSED])
{
    uint32_t made[N_FUSED];
    compile_and_count(precision, flags, made);
    for (size_t n = 0; n < N_FUSED; n++)
        ck_assert_msg(!made[n] == !want[n], "%s: %u", hd__op(fused[n])->name, made[n]);
}

static const uint8_t none[N_FUSED], all[N_FUSED] = {1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1};

START_TEST(a_device_that_supports_none_gets_the_parts)
{
    support(0);
    ops.caps = HD_DEVICE_XENT_HEAD | HD_DEVICE_EPILOGUES | HD_DEVICE_NORM_SUMS; /* no longer read */
    assert_made("fp32", 0, none);
}
END_TEST

START_TEST(a_device_that_supports_all_gets_all)
{
    support(1);
    assert_made("fp32", 0, all);
}
END_TEST

/* A GELU is made behind einsum_bias; without that it has nothing to join. So does the weights' gradient the input's. */
START_TEST(each_op_is_asked_for)
{
    uint8_t want[N_FUSED];
    memcpy(want, all, sizeof want);
    support(1);
    supported[fused[_i]] = 0;
    want[_i] = 0;
    if (fused[_i] == HD_OP_EINSUM_BIAS)
        want[2] = 0;
    if (_i >= 7)
        want[_i < 9 ? _i + 2 : _i - 2] = _i >= 9;
    assert_made("fp32", 0, want);
}
END_TEST

START_TEST(the_question_is_of_the_compute_dtype_and_of_no_device)
{
    support(1);
    assert_made("bf16", 0, all);
    ck_assert_uint_eq(asked_dtypes, 1u << HD_BF16);
    ck_assert_uint_eq(asked_open, 0);
}
END_TEST

START_TEST(only_1_is_yes)
{
    support(2);
    assert_made("fp32", 0, none);
}
END_TEST

START_TEST(flags_overrule_the_device)
{
    static const uint8_t epilogues[N_FUSED] = {0, 1, 1, 1, 1}, others[N_FUSED] = {0, 1, 1, 1, 1, 0, 0, 0, 0};
    support(0);
    assert_made("fp32", HD__COMPILE_FUSE(HD__FUSE_EPILOGUES), epilogues);
    support(1);
    assert_made("fp32", HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD | HD__FUSE_NORM_SUMS), others);
}
END_TEST

/* Operands of the rows are there, and as many as the fused op has. */
START_TEST(rows_agree_with_the_table_of_ops)
{
    for (uint32_t k = 0; k < hd__n_fusions; k++) {
        const struct hd__fusion *row = &hd__fusions[k];
        const struct hd__op *made = hd__op(row->op), *part[] = {hd__op(row->first), hd__op(row->second)};
        int8_t ins = 0, outs = 0;
        if (!row->first)
            continue;
        for (; row->in[ins]; ins++)
            ck_assert(part[HD__FUSION_PART(row->in[ins])]->n_in < 0 ||
                      (int)HD__FUSION_OPERAND(row->in[ins]) < part[HD__FUSION_PART(row->in[ins])]->n_in);
        for (; row->out[outs]; outs++)
            ck_assert((int)HD__FUSION_OPERAND(row->out[outs]) <
                      HD__MAX(part[HD__FUSION_PART(row->out[outs])]->n_out, 1));
        for (uint32_t n = 0; row->same[n]; n++)
            ck_assert((int)HD__FUSION_OPERAND(row->same[n]) < part[0]->n_in && (int)n < part[1]->n_in);
        ck_assert(!row->same[0] == !(row->flags & HD__FUSION_SIBLINGS));
        ck_assert_msg(made->n_in == ins, "%s", made->name);
        ck_assert_msg(made->n_out == (row->flags & HD__FUSION_MAY_DROP ? -1 : outs), "%s", made->name);
        ck_assert(part[1]->n_in < 0 || row->link < part[1]->n_in);
        ck_assert_ptr_eq(hd__fusion_of(row->op), row);
    }
}
END_TEST

/* ---- plugins that were built before `supports` was asked */

static const struct {
    uint64_t caps;
    uint8_t want[N_FUSED];
} old[] = {
    {0, {0}},
    {HD_DEVICE_XENT_HEAD, {1}},
    {HD_DEVICE_EPILOGUES, {0, 1, 1, 1, 1}},
    {HD_DEVICE_NORM_SUMS, {0, 0, 0, 0, 0, 1, 1, 1, 1}},
};

START_TEST(an_old_plugin_says_it_by_bits)
{
    support(!_i); /* the opposite of what the bits say */
    plugin.abi_minor = 0;
    ops.caps = old[_i].caps;
    assert_made("fp32", 0, old[_i].want);
    ck_assert_uint_eq(asked_dtypes, 0);
}
END_TEST

/* ---- a vocabulary that the mesh does not divide */

START_TEST(a_device_that_cannot_pad_is_refused)
{
    static const char text[] = "job: {name: padded, steps: 1}\nmesh: {tp: 2}\noptimizer: {use: adamw, lr: 1e-2}\n"
                               "strategies: [{use: 3d}, {use: zero}]\n"
                               "model: {use: transformer, family: gpt2, layers: 1, hidden: 16, heads: 4, vocab: 33}\n"
                               "data: {train: none, seq_len: 8, batch: 8}\ndevice: {use: mock}\n";
    support(1);
    ops.caps = _i ? HD_DEVICE_HOST_MEMORY | HD_DEVICE_PADDED_VOCAB : HD_DEVICE_HOST_MEMORY;
    struct hd_error err = HD_ERROR_INIT;
    struct compiled c = {.plugins = hd__plugins_create(hd__exec_host_table())};
    ck_assert_msg(!hd__plugins_add_folder(c.plugins, PLUGINS, &err) && !add_linked(c.plugins, mock, &err) &&
                      !hd__job_parse("job.yaml", text, strlen(text), NULL, 0, &c.job, &err) &&
                      !hd__job_resolve(c.job, 0, &err),
                  "%s", err.message);
    ck_assert_msg((hd__exec_compile_with(c.job, c.plugins, 0, &c.c, &err) == HD_OK) == _i, "%s", err.message);
    if (!_i) {
        ck_assert_msg(strstr(err.message, "job.yaml:7:15: ") && strstr(err.message, "HD_DEVICE_PADDED_VOCAB") &&
                          strstr(err.message, "vocab_parallel: false"),
                      "%s", err.message);
        hd__job_free(c.job);
        hd__plugins_destroy(c.plugins);
        return;
    }
    const struct hd_program *p = c.c->stage[0];
    const struct hd__dim *v = &p->dims.at[p->letter['v']];
    ck_assert_int_eq(v->extent, 34);
    ck_assert_int_eq(v->used, 33);
    ck_assert_int_eq(hd__compiled_parameter_count(c.c), 33 * 16 + 1024 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16);
    compiled_free(&c);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("fusions");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, a_device_that_supports_none_gets_the_parts);
    tcase_add_test(c, a_device_that_supports_all_gets_all);
    tcase_add_loop_test(c, each_op_is_asked_for, 0, N_FUSED);
    tcase_add_test(c, the_question_is_of_the_compute_dtype_and_of_no_device);
    tcase_add_test(c, only_1_is_yes);
    tcase_add_test(c, flags_overrule_the_device);
    tcase_add_test(c, rows_agree_with_the_table_of_ops);
    tcase_add_loop_test(c, an_old_plugin_says_it_by_bits, 0, (int)HD__COUNT(old));
    tcase_add_loop_test(c, a_device_that_cannot_pad_is_refused, 0, 2);
    return suite_run_case("fusions", c);
}
