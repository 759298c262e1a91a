/* Wrong calls of hd_pass_api and hd_builder_api, a row each: every one ends the compilation with a message that names
 * the slot and the fault, and none is lost or crashes. */
#include <check.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/model.h"
#include "heddle/strategy.h"
#include "tests/suite.h"
#include "tests/support/compile.h"
#include "tests/support/linked.h"

#define NONE 0x7ffffff0u

static const struct hd_pass_api *api;
static struct hd_program *program;
static const struct wrong *wrong;

enum { LAYOUT, PARTITION, TRANSFORM, REDUCE };

struct wrong {
    const char *name;
    int phase;
    void (*call)(void);
    const char *message; /* NULL: the call is right */
};

static uint32_t section_named(const char *name)
{
    for (uint32_t s = 0; s < api->n_sections(program); s++)
        if (!strcmp(api->section_name(program, s), name))
            return s;
    return NONE;
}

/* One that has instructions. */
static uint32_t a_section(void)
{
    uint32_t s = 0;
    while (s + 1 < api->n_sections(program) && !api->n_instr(program, s))
        s++;
    return s;
}

static uint32_t a_flat(void)
{
    const uint32_t params[] = {0, 1};
    return api->n_flats(program) ? 1 : api->flat(program, "0", 0, 0, params, 2, 0);
}

static hd_tensor a_tensor(void)
{
    return api->flat_whole(program, a_flat(), "T", HD_F32, HD_LIFE_PERSISTENT);
}

static struct hd_pass_instr fill(void)
{
    hd_tensor t = a_tensor();
    return (struct hd_pass_instr){
        .struct_size = sizeof(struct hd_pass_instr), .op = HD_OP_FILL0, .phase = HD_PHASE_O, .n_out = 1, .out = {t}};
}

static void insert_instr(struct hd_pass_instr i)
{
    api->insert(program, a_section(), 0, 0, &i);
}

#define CALL(name, ...)    \
    static void name(void) \
    {                      \
        __VA_ARGS__;       \
    }

static struct hd_pass_instr instr;
static struct hd_pass_param param;
static struct hd_pass_flat flat;
static struct hd_pass_block block;
static const uint32_t ids[] = {0, NONE};
static const struct hd_attrs no_size = {.scale = 1};

CALL(right, struct hd_pass_instr i = {.struct_size = sizeof i, .op = HD_OP_FILL0, .phase = HD_PHASE_O, .n_out = 1};
     i.out[0] = api->vector(program, 1, "V", 16, HD_F32, 0, HD_LIFE_TEMP); api->append(program, "update", &i))
CALL(name_of_no_section, api->section_name(program, NONE))
CALL(length_of_no_section, api->n_instr(program, NONE))
CALL(instr_of_no_section, api->instr(program, NONE, 0, &instr))
CALL(no_instr, api->instr(program, a_section(), NONE, &instr))
CALL(instr_to_null, api->instr(program, a_section(), 0, NULL))
CALL(no_param, api->param(program, NONE, &param))
CALL(param_to_null, api->param(program, 0, NULL))
CALL(param_of_no_tensor, api->param_of(program, NONE))
CALL(count_of_no_tensor, api->count(program, NONE))
CALL(count_of_none, api->count(program, 0))
CALL(partial_of_no_tensor, api->partial(program, NONE))
CALL(dtype_of_nothing, api->dtype(program, "wire"))
CALL(dtype_of_null, api->dtype(program, NULL))
CALL(no_axis, api->axis_size(program, HD_AXIS_COUNT))
CALL(no_letter, api->extent(program, -1))
CALL(shard_no_letter, api->shard_params(program, '1', HD_AXIS_TP))
CALL(shard_no_axis, api->shard_residual(program, 's', HD_AXIS_COUNT))
CALL(shard_too_late, api->shard_params(program, 'h', HD_AXIS_TP))
CALL(ring_too_late, api->ring_attention(program, HD_AXIS_CP))
CALL(apart_too_late, api->apart(program, HD_AXIS_BIT(HD_AXIS_DP_REPLICATE)))
CALL(split_tp_too_late, api->split_tp(program, 1))
CALL(flat_too_early, a_flat())
CALL(flat_without_name, api->flat(program, NULL, 0, 0, ids, 1, 0))
CALL(flat_without_params, api->flat(program, "0", 0, 0, NULL, 1, 0))
CALL(empty_flat, api->flat(program, "0", 0, 0, ids, 0, 0))
CALL(flat_of_no_param, api->flat(program, "0", 0, 0, ids, 2, 0))
CALL(flat_in_no_block, api->flat(program, "0", NONE, 0, ids, 1, 0))
CALL(flat_over_no_axis, api->flat(program, "0", 0, HD_AXIS_BIT(HD_AXIS_COUNT), ids, 1, 0))
CALL(no_flat, api->flat_get(program, 1, &flat))
CALL(flat_zero, a_flat(); api->flat_get(program, 0, &flat))
CALL(flat_to_null, api->flat_get(program, a_flat(), NULL))
CALL(whole_of_no_flat, api->flat_whole(program, NONE, "P", HD_F32, HD_LIFE_TEMP))
CALL(whole_without_dtype, api->flat_whole(program, a_flat(), "P", 0, HD_LIFE_TEMP))
CALL(whole_without_name, api->flat_whole(program, a_flat(), NULL, HD_F32, HD_LIFE_TEMP))
CALL(whole_of_another_life, api->flat_whole(program, a_flat(), "P", HD_F32, 9))
CALL(shard_inside_no_tensor, api->flat_shard(program, a_flat(), "P", HD_F32, HD_LIFE_TEMP, NONE))
CALL(shard_inside_another, hd_tensor t = a_tensor();
     api->flat_shard(program, api->flat(program, "0", 0, 0, ids, 1, 0), "P", HD_F32, HD_LIFE_TEMP, t))
CALL(shard_in_no_memory, api->flat_shard_in(program, a_flat(), "P", HD_F32, 3))
CALL(states_in_no_memory, api->states_in(program, a_flat(), 3))
CALL(view_of_no_param, api->flat_view(program, a_flat(), a_tensor(), NONE))
CALL(view_of_anothers_param, uint32_t f = a_flat();
     api->flat_view(program, f, api->flat_whole(program, f, "P", HD_F32, HD_LIFE_TEMP), 2))
CALL(view_in_no_tensor, api->flat_view(program, a_flat(), NONE, 0))
CALL(range_beyond, uint32_t f = a_flat();
     api->flat_range(program, f, api->flat_whole(program, f, "P", HD_F32, HD_LIFE_TEMP), 0, 1 << 30))
CALL(range_before, uint32_t f = a_flat();
     api->flat_range(program, f, api->flat_whole(program, f, "P", HD_F32, HD_LIFE_TEMP), -1, 16))
CALL(no_role, api->flat_role(program, a_flat(), 77, a_tensor()))
CALL(role_of_no_tensor, api->flat_role(program, a_flat(), HD_FLAT_GRAD, NONE))
CALL(keep_no_tensor, api->keep(program, a_flat(), 0, "error"))
CALL(keep_without_name, api->keep(program, a_flat(), a_tensor(), NULL))
CALL(keep_as_a_path, api->keep(program, a_flat(), a_tensor(), "error/m"))
CALL(keep_as_the_cores, api->keep(program, a_flat(), a_tensor(), "ranks"))
CALL(keep_twice, uint32_t f = a_flat(); api->keep(program, f, a_tensor(), "error");
     api->keep(program, f, a_tensor(), "error"))
static hd_tensor a_state(void)
{
    uint32_t f = a_flat();
    hd_tensor t = api->flat_shard(program, f, "S", HD_F32, HD_LIFE_PERSISTENT, 0);
    api->keep(program, f, t, "state");
    api->section(program, "own", 2);
    return t;
}

CALL(declare_no_tensor, api->declare(program, NONE, HD_FACT_FEEDBACK, 0, NULL))
CALL(declare_nothing, api->declare(program, a_state(), 0, 0, "own"))
CALL(declare_no_fact, api->declare(program, a_state(), HD_FACT_MIX << 1, 0, "own"))
CALL(declare_no_axes, api->declare(program, a_state(), HD_FACT_EQUAL | HD_FACT_AVERAGE, 1u << 31, "own"))
CALL(declare_in_no_section, api->declare(program, a_state(), HD_FACT_AVERAGE, 0, "mine"))
CALL(declare_in_the_update, api->declare(program, a_state(), HD_FACT_AVERAGE, 0, "update"))
CALL(declare_in_null, api->declare(program, a_state(), HD_FACT_AVERAGE, 0, NULL))
CALL(declare_both, api->declare(program, a_state(), HD_FACT_AVERAGE | HD_FACT_ZERO_SUM, 0, "own"))
CALL(declare_equal_alone, api->declare(program, a_state(), HD_FACT_EQUAL, 0, "own"))
CALL(declare_mixed_state, api->declare(program, a_state(), HD_FACT_MIX, 0, "own"))
CALL(declare_axes_of_one, api->declare(program, a_state(), HD_FACT_AVERAGE, 1, "own"))
CALL(declare_axes_not_apart, api->declare(program, a_state(), HD_FACT_EQUAL | HD_FACT_AVERAGE, 2, "own"))
CALL(declare_twice, hd_tensor t = a_state(); api->declare(program, t, HD_FACT_AVERAGE, 0, "own");
     api->declare(program, t, HD_FACT_AVERAGE, 0, "own"))
CALL(declare_unkept, api->section(program, "own", 2); api->declare(program, a_tensor(), HD_FACT_AVERAGE, 0, "own"))
CALL(declare_a_temporary, uint32_t f = a_flat();
     api->declare(program, api->flat_whole(program, f, "P", HD_F32, HD_LIFE_TEMP), HD_FACT_FEEDBACK, 0, NULL))
CALL(declare_feedback_of_a_section, api->declare(program, a_state(), HD_FACT_FEEDBACK, 0, "own"))
CALL(declare_feedback_and_more, api->declare(program, a_state(), HD_FACT_FEEDBACK | HD_FACT_ZERO_SUM, 0, "own"))
CALL(declare_average_of_params, api->section(program, "own", 2); api->declare(program, 0, HD_FACT_AVERAGE, 0, "own"))
CALL(declare_params_of_no_section, api->declare(program, 0, HD_FACT_EQUAL, 0, NULL))
CALL(declare_params_not_apart, api->section(program, "own", 2); api->declare(program, 0, HD_FACT_MIX, 2, "own"))
CALL(vector_of_nothing, api->vector(program, a_flat(), "V", 0, HD_F32, 0, HD_LIFE_TEMP))
CALL(uneven_vector, api->vector(program, a_flat(), "V", 3, HD_F32, HD_AXIS_BIT(HD_AXIS_DP_SHARD), HD_LIFE_TEMP))
CALL(like_no_tensor, api->vector_like(program, "V", NONE, 0, HD_LIFE_TEMP))
CALL(dim_of_nothing, api->dim(program, "rows", 0))
CALL(dim_without_name, api->dim(program, NULL, 4))
CALL(view_with_no_dim, api->view(program, a_tensor(), "M", 0, ids, 2))
CALL(view_too_long, uint32_t d = api->dim(program, "rows", 1 << 30); api->view(program, a_tensor(), "M", 0, &d, 1))
CALL(view_inside_none, uint32_t d = api->dim(program, "rows", 4); api->view(program, 0, "M", 0, &d, 1))
CALL(insert_in_no_section, struct hd_pass_instr i = fill(); api->insert(program, NONE, 0, 0, &i))
CALL(insert_far_away, struct hd_pass_instr i = fill(); api->insert(program, a_section(), 1 << 30, 0, &i))
CALL(insert_null, api->insert(program, a_section(), 0, 0, NULL))
CALL(insert_too_early, struct hd_pass_instr i = {.struct_size = sizeof i}; api->insert(program, 0, 0, 0, &i))
CALL(append_nowhere, struct hd_pass_instr i = fill(); api->append(program, "updates", &i))
CALL(append_to_null, struct hd_pass_instr i = fill(); api->append(program, NULL, &i))
CALL(append_null, api->append(program, "update", NULL))
CALL(no_struct_size, struct hd_pass_instr i = fill(); i.struct_size = 0; insert_instr(i))
CALL(no_size_of_attributes, struct hd_pass_instr i = fill(); i.attrs = &no_size; insert_instr(i))
CALL(no_op, struct hd_pass_instr i = fill(); i.op = 999; insert_instr(i))
CALL(op_beyond_16_bits, struct hd_pass_instr i = fill(); i.op += 1 << 16; insert_instr(i))
CALL(nine_inputs, struct hd_pass_instr i = fill(); i.n_in = 9; insert_instr(i))
CALL(inputs_beyond_8_bits, struct hd_pass_instr i = fill(); i.n_in = 256; insert_instr(i))
CALL(too_few_outputs, struct hd_pass_instr i = fill(); i.n_out = 0; insert_instr(i))
CALL(output_is_no_tensor, struct hd_pass_instr i = fill(); i.out[0] = NONE; insert_instr(i))
CALL(output_is_none, struct hd_pass_instr i = fill(); i.out[0] = 0; insert_instr(i))
CALL(no_such_block, struct hd_pass_instr i = fill(); i.block = 1 << 16; insert_instr(i))
CALL(no_such_phase, struct hd_pass_instr i = fill(); i.phase = 9; insert_instr(i))
CALL(no_such_axes, struct hd_pass_instr i = fill(); i.axes = 1u << 31; insert_instr(i))
CALL(no_such_reduction, struct hd_pass_instr i = fill(); i.redop = 9; insert_instr(i))
CALL(replace_in_no_section, api->replace_in(program, NONE, 0, 0, a_tensor()))
CALL(replace_in_no_instr, api->replace_in(program, a_section(), NONE, 0, a_tensor()))
CALL(replace_no_operand, api->replace_in(program, a_section(), 0, 8, a_tensor()))
CALL(replace_by_no_tensor, api->replace_out(program, a_section(), 0, 0, NONE))
CALL(replace_no_output, api->replace_out(program, a_section(), 0, 6, a_tensor()))
CALL(update_no_flat, api->update(program, NONE, 0))
CALL(update_an_unfinished_flat, api->update(program, a_flat(), 0))
CALL(update_no_copy, api->update(program, a_flat(), NONE))
CALL(fetch_no_flat, api->fetch(program, "update", NONE, HD_PART_MASTER, 0, 0))
CALL(fetch_no_part, api->fetch(program, "update", a_flat(), 64, 0, 0))
CALL(store_no_flat, api->store(program, "update", NONE, HD_PART_MASTER))
CALL(stage_no_tensor, api->staged(program, "update", NONE))
CALL(stage_nowhere, api->staged(program, NULL, a_tensor()))
CALL(null_folder, api->file_folder(program, NULL))
CALL(section_without_name, api->section(program, NULL, 2))
CALL(section_never, api->section(program, "sync", 0))
CALL(split_no_section, api->split_section(program, NONE, 3))
CALL(split_at_nothing, api->split_section(program, section_named("update"), 0))
CALL(first_round_of_none, api->first_round(program, NONE))
CALL(no_block, api->block(program, NONE, &block))
CALL(block_to_null, api->block(program, 0, NULL))
CALL(null_chunks, api->chunks(program, 1, NULL, NULL))
CALL(chunks_too_late, api->chunks(program, 1, ids, ids))
CALL(null_actions, api->actions(program, 0, NULL, 4))
CALL(actions_before_chunks, struct hd_action a = {0}; api->actions(program, 0, &a, 1))

/* ---- custom ops, instructions that are taken away, buckets */

static int32_t compute(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *error)
{
    (void)settings, (void)d, (void)stream, (void)error;
    return HD_OK;
}

static int32_t refuse_shapes(const void *settings, const struct hd_instr_desc *d, struct hd_error *error)
{
    (void)settings;
    return hd_fail(error, HD_E_INVALID, "%lld elements are too few", (long long)d->out[0].extent[0]);
}

static const struct hd_custom_op half = {
    .struct_size = sizeof half, .name = "half", .in = "f", .out = "f", .proof = HD_CUSTOM_LINEAR, .run = compute};
static const struct hd_custom_op code = {.struct_size = sizeof code,
                                         .name = "code",
                                         .in = "f",
                                         .out = "uf",
                                         .proof = HD_CUSTOM_ENCODE,
                                         .state = 1 << 1,
                                         .run = compute};
static const struct hd_custom_kernel two[] = {{"cuda", compute}, {"cuda", compute}}, none[] = {{"cuda", NULL}};

/* An instruction of an op whose operands are right: tensors over one flat, codes of as many bytes. */
static struct hd_pass_instr custom(struct hd_custom_op op)
{
    struct hd_pass_instr i = {.struct_size = sizeof i, .phase = HD_PHASE_O, .op = api->custom_op(program, &op)};
    uint32_t f = a_flat();
    for (const char *c = op.in; c && *c && i.n_in < HD_MAX_IN; c++)
        i.in[i.n_in++] = api->flat_whole(program, f, "X", *c == 'u' ? HD_U8 : HD_F32, HD_LIFE_PERSISTENT);
    for (const char *c = op.out; c && *c && i.n_out < HD_MAX_OUT; c++) {
        i.out[i.n_out] = api->flat_whole(program, f, "Y", *c == 'u' ? HD_U8 : HD_F32, HD_LIFE_PERSISTENT);
        if (op.state >> i.n_out & 1)
            api->declare(program, i.out[i.n_out], HD_FACT_FEEDBACK, 0, NULL);
        i.n_out++;
    }
    return i;
}

static void insert_custom(struct hd_custom_op op)
{
    insert_instr(custom(op));
}

static struct hd_pass_bucket bucket(void)
{
    uint32_t f = a_flat(), s = a_section();
    hd_tensor grad = api->flat_whole(program, f, "G", HD_F32, HD_LIFE_PERSISTENT);
    return (struct hd_pass_bucket){.struct_size = sizeof(struct hd_pass_bucket),
                                   .flat = f,
                                   .axes = HD_AXIS_BIT(HD_AXIS_DP_SHARD),
                                   .section = s,
                                   .rounds = 1,
                                   .grad = grad,
                                   .out = grad};
}

static const struct hd_pass_bucket *given; /* in REDUCE */

#define CUSTOM(name, from, ...) CALL(name, struct hd_custom_op o = from; __VA_ARGS__; insert_custom(o))
#define CUSTOM_INSTR(name, from, ...) CALL(name, struct hd_pass_instr i = custom(from); __VA_ARGS__; insert_instr(i))
#define BUCKET(name, ...) CALL(name, struct hd_pass_bucket b = bucket(); __VA_ARGS__; api->reduce(program, &b))

CALL(custom_null, api->custom_op(program, NULL))
CALL(custom_too_early, api->custom_op(program, &half))
CUSTOM(custom_without_size, half, o.struct_size = 0)
CUSTOM(custom_without_name, half, o.name = NULL)
CUSTOM(custom_with_capitals, half, o.name = "Half")
CUSTOM(custom_with_a_long_name, half, o.name = "a_name_of_more_than_thirty_one_characters")
CUSTOM(custom_with_an_ops_name, half, o.name = "all_reduce")
CUSTOM(custom_without_operands, half, o.in = NULL)
CUSTOM(custom_without_outputs, half, o.out = "")
CUSTOM(custom_of_no_dtype, half, o.in = "q")
CUSTOM(custom_of_nine_inputs, half, o.in = "fffffffff")
CUSTOM(custom_of_no_proof, half, o.proof = 5)
CUSTOM(custom_proof_of_no_input, half, o.in = "")
CUSTOM(custom_codes_of_floats, code, o.out = "ff")
CUSTOM(custom_decodes_floats, half, o.proof = HD_CUSTOM_DECODE)
CUSTOM(custom_state_of_no_output, code, o.state = 1 << 2)
CUSTOM(custom_state_is_the_gradient, code, o.state = 1)
CUSTOM(custom_without_a_kernel, half, o.run = NULL)
CUSTOM(custom_kernels_of_null, half, o.n_kernels = 1)
CUSTOM(custom_kernel_twice, half, o.kernels = two; o.n_kernels = 2)
CUSTOM(custom_kernel_of_null, half, o.kernels = none; o.n_kernels = 1)
CUSTOM(custom_of_many_kernels, half, o.kernels = two; o.n_kernels = UINT64_MAX)
CUSTOM(custom_of_long_settings, half, o.settings = two; o.settings_bytes = SIZE_MAX)
CUSTOM(custom_of_negative_cost, half, o.flops = -1)
CUSTOM(custom_settings_of_null, half, o.settings_bytes = 8)
CUSTOM(custom_twice, half, api->custom_op(program, &half); o.proof = HD_CUSTOM_MAP)
CALL(custom_of_another_shape, struct hd_custom_op o = half; uint32_t f = a_flat(); o.check = refuse_shapes;
     o.proof = HD_CUSTOM_OTHER; hd_tensor x = api->flat_whole(program, f, "X", HD_F32, HD_LIFE_TEMP),
                                y = api->flat_whole(program, f, "Y", HD_F32, HD_LIFE_TEMP);
     insert_instr((struct hd_pass_instr){
         .struct_size = sizeof(struct hd_pass_instr), .op = HD_OP_FILL0, .phase = HD_PHASE_O, .n_out = 1, .out = {x}});
     insert_instr((struct hd_pass_instr){.struct_size = sizeof(struct hd_pass_instr),
                                         .op = api->custom_op(program, &o),
                                         .phase = HD_PHASE_O,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_out = 1,
                                         .out = {y}}))
CALL(custom_number, struct hd_pass_instr i = fill(); i.op = HD_OP_LIMIT; insert_instr(i))
CALL(custom_by_its_op, struct hd_pass_instr i = fill(); i.op = HD_OP_CUSTOM; insert_instr(i))
CUSTOM_INSTR(custom_without_state, code, i.n_out = 1)
CUSTOM_INSTR(custom_on_codes, half, i.in[0] = api->flat_whole(program, 1, "Z", HD_U8, HD_LIFE_TEMP))
CUSTOM_INSTR(custom_in_bf16, half, i.out[0] = api->flat_whole(program, 1, "Z", HD_BF16, HD_LIFE_TEMP))
CUSTOM_INSTR(custom_on_no_tensor, half, i.in[0] = NONE)
CUSTOM_INSTR(custom_in_no_phase, half, i.phase = 9)
CUSTOM_INSTR(state_that_is_lost, code, i.out[1] = api->flat_whole(program, 1, "Z", HD_F32, HD_LIFE_PERSISTENT))
CUSTOM_INSTR(state_of_another_size, code, i.out[1] = api->vector(program, 1, "Z", 16, HD_F32, 0, HD_LIFE_PERSISTENT);
             api->declare(program, i.out[1], HD_FACT_FEEDBACK, 0, NULL))
CALL(state_that_is_cleared, struct hd_pass_instr i = custom(code); insert_instr(i); struct hd_pass_instr f = fill();
     f.out[0] = i.out[1]; insert_instr(f))
CALL(remove_from_no_section, api->remove(program, NONE, 0))
CALL(remove_no_instr, api->remove(program, a_section(), NONE))
CALL(remove_twice, api->remove(program, a_section(), 0); api->remove(program, a_section(), 0))
CALL(remove_too_early, api->remove(program, 0, 0))
CALL(replace_what_was_removed, hd_tensor t = a_tensor(); uint32_t s = a_section(); api->remove(program, s, 0);
     api->replace_out(program, s, 0, 0, t))
BUCKET(bucket_without_size, b.struct_size = 0)
BUCKET(bucket_of_no_flat, b.flat = NONE)
BUCKET(bucket_over_no_axes, b.axes = 0)
BUCKET(bucket_nowhere, b.index = NONE)
BUCKET(bucket_that_ends_before, b.index = 1; b.last = 0)
BUCKET(bucket_of_no_rounds, b.rounds = 0)
BUCKET(bucket_into_another, b.out = api->vector(program, 1, "V", 16, HD_F32, 0, HD_LIFE_TEMP))
/* The first sum over ranks leaves, or another like it takes its place. */
static void remove_sum(int puts_another)
{
    for (uint32_t s = 0; s < api->n_sections(program); s++)
        for (uint32_t k = 0; k < api->n_instr(program, s); k++) {
            api->instr(program, s, k, &instr);
            if (instr.op != HD_OP_ALL_REDUCE)
                continue;
            api->remove(program, s, k);
            if (puts_another)
                api->insert(program, s, k, 1, &instr);
            api->instr(program, s, k, &instr);
            ck_assert_uint_eq(instr.op, 0);
            return;
        }
}

CALL(sum_removed, remove_sum(0))
CALL(sum_replaced, remove_sum(1))
CALL(reduce_of_itself, api->reduce(program, given))
CALL(reduce_that_fails, (void)0)
CALL(reduce_that_does_nothing, (void)0)
CALL(hyper_is_no_state, struct hd_pass_instr i = fill(); i.out[0] = api->hyper(program); i.op = HD_OP_SUMSQ; i.n_in = 1;
     i.in[0] = NONE; insert_instr(i))

#define ROW(call, phase, message)   \
    {                               \
#call, phase, call, message \
    }
static const struct wrong rows[] = {
    ROW(name_of_no_section, TRANSFORM, "section_name: section"),
    ROW(length_of_no_section, TRANSFORM, "n_instr: section"),
    ROW(instr_of_no_section, TRANSFORM, "instr: section"),
    ROW(no_instr, TRANSFORM, "instr: instruction"),
    ROW(instr_to_null, TRANSFORM, "instr: a pointer is NULL"),
    ROW(no_param, TRANSFORM, "param: parameter"),
    ROW(param_to_null, TRANSFORM, "param: a pointer is NULL"),
    ROW(param_of_no_tensor, TRANSFORM, "param_of: tensor"),
    ROW(count_of_no_tensor, TRANSFORM, "count: tensor"),
    ROW(count_of_none, TRANSFORM, "count: tensor 0 does not exist"),
    ROW(partial_of_no_tensor, TRANSFORM, "partial: tensor"),
    ROW(dtype_of_nothing, TRANSFORM, "dtype: 'wire'"),
    ROW(dtype_of_null, LAYOUT, "dtype: ''"),
    ROW(no_axis, LAYOUT, "axis_size: mesh axis 7"),
    ROW(no_letter, LAYOUT, "extent: dimension letter -1"),
    ROW(shard_no_letter, LAYOUT, "shard_params: dimension letter"),
    ROW(shard_no_axis, LAYOUT, "shard_residual: mesh axis"),
    ROW(shard_too_late, TRANSFORM, "shard_params is for layout, and was called in transform"),
    ROW(ring_too_late, TRANSFORM, "ring_attention is for layout"),
    ROW(apart_too_late, TRANSFORM, "apart is for layout"),
    ROW(split_tp_too_late, TRANSFORM, "split_tp is for layout"),
    ROW(flat_too_early, LAYOUT, "flat is for transform, and was called in layout"),
    ROW(flat_without_name, TRANSFORM, "flat: a pointer is NULL"),
    ROW(flat_without_params, TRANSFORM, "flat: a pointer is NULL"),
    ROW(empty_flat, TRANSFORM, "flat: number 0"),
    ROW(flat_of_no_param, TRANSFORM, "flat: parameter"),
    ROW(flat_in_no_block, TRANSFORM, "flat: block"),
    ROW(flat_over_no_axis, TRANSFORM, "flat: mask of mesh axes"),
    ROW(no_flat, TRANSFORM, "flat_get: flat buffer 1 does not exist: there is none"),
    ROW(flat_zero, TRANSFORM, "flat_get: flat buffer 0 does not exist: there are 1 to 1"),
    ROW(flat_to_null, TRANSFORM, "flat_get: a pointer is NULL"),
    ROW(whole_of_no_flat, TRANSFORM, "flat_whole: flat buffer"),
    ROW(whole_without_dtype, TRANSFORM, "flat_whole: dtype 0"),
    ROW(whole_without_name, TRANSFORM, "flat_whole: a pointer is NULL"),
    ROW(whole_of_another_life, TRANSFORM, "flat_whole: lifetime 9"),
    ROW(shard_inside_no_tensor, TRANSFORM, "flat_shard: tensor"),
    ROW(shard_inside_another, TRANSFORM, "flat_shard: T.0 is no whole tensor of flat 0"),
    ROW(shard_in_no_memory, TRANSFORM, "flat_shard_in: memory 3"),
    ROW(states_in_no_memory, TRANSFORM, "states_in: memory 3"),
    ROW(view_of_no_param, TRANSFORM, "flat_view: parameter"),
    ROW(view_of_anothers_param, TRANSFORM, "does not lie in P.0 of flat 0"),
    ROW(view_in_no_tensor, TRANSFORM, "flat_view: tensor"),
    ROW(range_beyond, TRANSFORM, "flat_range: elements 0 to 1073741824 do not lie in P.0"),
    ROW(range_before, TRANSFORM, "flat_range: elements -1 to 15 do not lie in P.0"),
    ROW(no_role, TRANSFORM, "flat_role: role 77"),
    ROW(role_of_no_tensor, TRANSFORM, "flat_role: tensor"),
    ROW(keep_no_tensor, TRANSFORM, "keep: tensor 0"),
    ROW(keep_without_name, TRANSFORM, "keep: a pointer is NULL"),
    ROW(keep_as_a_path, TRANSFORM, "state 'error/m' of parameters 0: checkpoints' files are named after it"),
    ROW(keep_as_the_cores, TRANSFORM, "state 'ranks' of parameters 0: checkpoints' files are named after it"),
    ROW(keep_twice, TRANSFORM, "state 'error' of parameters 0: a strategy has registered one of that name"),
    ROW(declare_no_tensor, TRANSFORM, "declare: tensor"),
    ROW(declare_nothing, TRANSFORM, "declare: mask of facts"),
    ROW(declare_no_fact, TRANSFORM, "declare: mask of facts"),
    ROW(declare_no_axes, TRANSFORM, "declare: mask of mesh axes"),
    ROW(declare_in_no_section, TRANSFORM, "no such section of the strategy's own"),
    ROW(declare_in_the_update, TRANSFORM, "no such section of the strategy's own"),
    ROW(declare_in_null, TRANSFORM, "it holds where a section of the strategy's own ends"),
    ROW(declare_both, TRANSFORM, "of a tensor there is HD_FACT_AVERAGE or HD_FACT_ZERO_SUM"),
    ROW(declare_equal_alone, TRANSFORM, "of a tensor there is HD_FACT_AVERAGE or HD_FACT_ZERO_SUM"),
    ROW(declare_mixed_state, TRANSFORM, "of a tensor there is HD_FACT_AVERAGE or HD_FACT_ZERO_SUM"),
    ROW(declare_axes_of_one, TRANSFORM, "axes are for HD_FACT_EQUAL"),
    ROW(declare_axes_not_apart, TRANSFORM, "axes are for HD_FACT_EQUAL"),
    ROW(declare_twice, TRANSFORM, "declared already"),
    ROW(declare_unkept, TRANSFORM, "checkpoints do not have it"),
    ROW(declare_a_temporary, TRANSFORM, "does not live from step to step"),
    ROW(declare_feedback_of_a_section, TRANSFORM, "error feedback is each rank's own"),
    ROW(declare_feedback_and_more, TRANSFORM, "of a tensor there is HD_FACT_AVERAGE or HD_FACT_ZERO_SUM"),
    ROW(declare_average_of_params, TRANSFORM, "of parameters there is HD_FACT_EQUAL or HD_FACT_MIX"),
    ROW(declare_params_of_no_section, TRANSFORM, "it holds where a section of the strategy's own ends"),
    ROW(declare_params_not_apart, TRANSFORM, "and those of `apart`"),
    ROW(vector_of_nothing, TRANSFORM, "vector: V of 0 elements"),
    ROW(uneven_vector, TRANSFORM, "vector: V of 3 elements is not cut into 2 equal shards"),
    ROW(like_no_tensor, TRANSFORM, "vector_like: tensor"),
    ROW(dim_of_nothing, TRANSFORM, "dim: rows has extent 0"),
    ROW(dim_without_name, TRANSFORM, "dim: a pointer is NULL"),
    ROW(view_with_no_dim, TRANSFORM, "view: dim"),
    ROW(view_too_long, TRANSFORM, "view: 1 dims with 1073741824 elements from 0 do not lie in T.0"),
    ROW(view_inside_none, TRANSFORM, "view: tensor 0"),
    ROW(insert_in_no_section, TRANSFORM, "insert: section"),
    ROW(insert_far_away, TRANSFORM, "insert: instruction 1073741824 does not exist"),
    ROW(insert_null, TRANSFORM, "insert: a pointer is NULL"),
    ROW(insert_too_early, PARTITION, "insert is for transform, and was called in partition"),
    ROW(append_nowhere, TRANSFORM, "there is no section 'updates' to append to"),
    ROW(append_to_null, TRANSFORM, "append: a pointer is NULL"),
    ROW(append_null, TRANSFORM, "append: a pointer is NULL"),
    ROW(no_struct_size, TRANSFORM, "insert: struct_size of the instruction is 0: set it with sizeof"),
    ROW(no_size_of_attributes, TRANSFORM, "insert: struct_size of the attributes is 0: set it with sizeof"),
    ROW(no_op, TRANSFORM, "insert: op 999 does not exist"),
    ROW(op_beyond_16_bits, TRANSFORM, "does not exist: see heddle/ops.h"),
    ROW(nine_inputs, TRANSFORM, "insert: fill0 with 9 inputs"),
    ROW(inputs_beyond_8_bits, TRANSFORM, "insert: fill0 with 256 inputs"),
    ROW(too_few_outputs, TRANSFORM, "insert: fill0 with 0 inputs and 0 outputs"),
    ROW(output_is_no_tensor, TRANSFORM, "insert: tensor"),
    ROW(output_is_none, TRANSFORM, "insert: tensor 0"),
    ROW(no_such_block, TRANSFORM, "insert: block 65536"),
    ROW(no_such_phase, TRANSFORM, "insert: fill0 in phase 9"),
    ROW(no_such_axes, TRANSFORM, "insert: mask of mesh axes"),
    ROW(no_such_reduction, TRANSFORM, "with reduction 9"),
    ROW(replace_in_no_section, TRANSFORM, "replace_in: section"),
    ROW(replace_in_no_instr, TRANSFORM, "replace_in: instruction"),
    ROW(replace_no_operand, TRANSFORM, "replace_in: operand 8 of an instruction that has"),
    ROW(replace_by_no_tensor, TRANSFORM, "replace_out: tensor"),
    ROW(replace_no_output, TRANSFORM, "replace_out: operand 6 of an instruction that has"),
    ROW(update_no_flat, TRANSFORM, "update: flat buffer"),
    ROW(update_an_unfinished_flat, TRANSFORM, "update: flat 0 has no tensor of role HD_FLAT_MASTER or HD_FLAT_SHARD"),
    ROW(update_no_copy, TRANSFORM, "update: tensor"),
    ROW(fetch_no_flat, TRANSFORM, "fetch: flat buffer"),
    ROW(fetch_no_part, TRANSFORM, "fetch: mask of parts 64"),
    ROW(store_no_flat, TRANSFORM, "store: flat buffer"),
    ROW(stage_no_tensor, TRANSFORM, "staged: tensor"),
    ROW(stage_nowhere, TRANSFORM, "staged: a pointer is NULL"),
    ROW(null_folder, TRANSFORM, "file_folder: a pointer is NULL"),
    ROW(section_without_name, TRANSFORM, "section: a pointer is NULL"),
    ROW(section_never, TRANSFORM, "section 'sync' every 0 steps"),
    ROW(split_no_section, TRANSFORM, "split_section: section"),
    ROW(split_at_nothing, TRANSFORM, "split_section: the first part ends with step 0"),
    ROW(first_round_of_none, TRANSFORM, "first_round: section"),
    ROW(no_block, PARTITION, "block: block"),
    ROW(block_to_null, PARTITION, "block: a pointer is NULL"),
    ROW(null_chunks, PARTITION, "chunks: a pointer is NULL"),
    ROW(chunks_too_late, TRANSFORM, "chunks is for partition, and was called in transform"),
    ROW(null_actions, PARTITION, "actions: a pointer is NULL"),
    ROW(actions_before_chunks, PARTITION, "actions for stage 0 before the model was cut into chunks"),
    ROW(custom_null, TRANSFORM, "custom_op: a pointer is NULL"),
    ROW(custom_too_early, LAYOUT, "custom_op is for transform, and was called in layout"),
    ROW(custom_without_size, TRANSFORM, "custom_op: struct_size is 0: set it with sizeof"),
    ROW(custom_without_name, TRANSFORM, "custom_op: : its name is 1 to 31"),
    ROW(custom_with_capitals, TRANSFORM, "custom_op: Half: its name is 1 to 31"),
    ROW(custom_with_a_long_name, TRANSFORM, "characters: its name is 1 to 31"),
    ROW(custom_with_an_ops_name, TRANSFORM, "custom_op: all_reduce: its name is"),
    ROW(custom_without_operands, TRANSFORM, "custom_op: half: `in` and `out` have a letter"),
    ROW(custom_without_outputs, TRANSFORM, "custom_op: half: `in` and `out` have a letter"),
    ROW(custom_of_no_dtype, TRANSFORM, "custom_op: half: `in` and `out` have a letter"),
    ROW(custom_of_nine_inputs, TRANSFORM, "custom_op: half: `in` and `out` have a letter"),
    ROW(custom_of_no_proof, TRANSFORM, "custom_op: half: `proof` is one of"),
    ROW(custom_proof_of_no_input, TRANSFORM, "custom_op: half: its `proof` is about input 0, and it has no input"),
    ROW(custom_codes_of_floats, TRANSFORM, "custom_op: code: codes are of dtype u"),
    ROW(custom_decodes_floats, TRANSFORM, "custom_op: half: codes are of dtype u"),
    ROW(custom_state_of_no_output, TRANSFORM, "custom_op: code: `state` is a mask of its outputs"),
    ROW(custom_state_is_the_gradient, TRANSFORM, "custom_op: code: `state` is a mask of its outputs, without output 0"),
    ROW(custom_without_a_kernel, TRANSFORM, "custom_op: half: it has a `run`, or `kernels`"),
    ROW(custom_kernels_of_null, TRANSFORM, "custom_op: half: it has a `run`, or `kernels`"),
    ROW(custom_kernel_twice, TRANSFORM, "custom_op: half: it has a `run`, or `kernels`"),
    ROW(custom_kernel_of_null, TRANSFORM, "custom_op: half: it has a `run`, or `kernels`"),
    ROW(custom_of_many_kernels, TRANSFORM, "custom_op: half: it has a `run`, or `kernels`"),
    ROW(custom_of_long_settings, TRANSFORM, "custom_op: half: settings is NULL"),
    ROW(custom_of_negative_cost, TRANSFORM, "custom_op: half: `flops` is a number of at least 0"),
    ROW(custom_settings_of_null, TRANSFORM, "custom_op: half: settings is NULL"),
    ROW(custom_twice, TRANSFORM, "custom_op: half: there is another op of this name"),
    ROW(custom_number, TRANSFORM, "insert: op 128 does not exist"),
    ROW(custom_by_its_op, TRANSFORM, "insert: op 110 does not exist"),
    ROW(custom_without_state, TRANSFORM, "insert: code with 1 inputs and 1 outputs: it was given as 'f' to 'uf'"),
    ROW(custom_on_codes, TRANSFORM, "insert: half takes 'f' here, and Z.0 is uint8"),
    ROW(custom_in_bf16, TRANSFORM, "insert: half takes 'f' here, and Z.0 is bf16"),
    ROW(custom_on_no_tensor, TRANSFORM, "insert: tensor"),
    ROW(custom_in_no_phase, TRANSFORM, "insert: half in phase 9"),
    ROW(remove_from_no_section, TRANSFORM, "remove: section"),
    ROW(remove_no_instr, TRANSFORM, "remove: instruction"),
    ROW(remove_twice, TRANSFORM, "was removed before"),
    ROW(remove_too_early, PARTITION, "remove is for transform, and was called in partition"),
    ROW(replace_what_was_removed, TRANSFORM, "replace_out: the instruction was removed"),
    ROW(bucket_without_size, TRANSFORM, "reduce: struct_size of the bucket is 0: set it with sizeof"),
    ROW(bucket_of_no_flat, TRANSFORM, "reduce: flat buffer"),
    ROW(bucket_over_no_axes, TRANSFORM, "is not all of flat 0 into it or its shard"),
    ROW(bucket_nowhere, TRANSFORM, "reduce: instruction"),
    ROW(bucket_that_ends_before, TRANSFORM, "is complete behind instruction 0, before its last contribution, 1"),
    ROW(bucket_of_no_rounds, TRANSFORM, "reduce: number 0"),
    ROW(bucket_into_another, TRANSFORM, "G.0 into V.0 over [dp_shard] is not all of flat 0 into it or its shard"),
    ROW(reduce_of_itself, REDUCE, "reduce: the strategy that reduces asks for itself"),
    ROW(reduce_that_fails, REDUCE, "the strategy's reduce failed (code -1) without a message (hd_fail)"),
    ROW(hyper_is_no_state, TRANSFORM, "insert: tensor"),
};
/* What only the whole program shows: beside zero, which updates. */
static const struct wrong proved_rows[] = {
    ROW(custom_of_another_shape, TRANSFORM, "elements are too few"),
    ROW(sum_removed, TRANSFORM, ": not reduced over dp_shard"),
    ROW(reduce_that_does_nothing, REDUCE, ": not reduced over dp_shard"),
    ROW(state_that_is_lost, TRANSFORM,
        "Z.0, state of code, is not declared HD_FACT_FEEDBACK: what is in it would be lost"),
    ROW(state_of_another_size, TRANSFORM, "X.0 and Z.0 are not the same shard of one tensor"),
    ROW(state_that_is_cleared, TRANSFORM, "Y.0 is state of code: nothing else may write it"),
};
static const struct wrong right_rows[] = {ROW(right, TRANSFORM, NULL), ROW(sum_replaced, TRANSFORM, NULL)};

/* ---- models */

static const struct hd_builder_api *build;

static const struct hd_param_desc weight = {
    .struct_size = sizeof weight, .name = "w", .dims = "vh", .init = HD_INIT_NORMAL, .std = 1};

static hd_tensor param_with(struct hd_param_desc d)
{
    return build->param(program, &d);
}

CALL(no_desc, build->param(program, NULL))
CALL(desc_without_size, struct hd_param_desc d = weight; d.struct_size = 0; param_with(d))
CALL(short_desc, struct hd_param_desc d = weight; d.struct_size = 24; param_with(d))
CALL(no_init, struct hd_param_desc d = weight; d.init = 0; param_with(d))
CALL(another_init, struct hd_param_desc d = weight; d.init = 4; param_with(d))
CALL(no_std, struct hd_param_desc d = weight; d.std = 0; param_with(d))
CALL(one_place, struct hd_param_desc d = weight; d.file_name = "f"; d.parts = 2; d.part = 1; param_with(d);
     d.name = "u"; d.part = 0; param_with(d); d.name = "x"; param_with(d))
CALL(few_positions, struct hd_param_desc d = weight; build->dim(program, 'p', "positions", 4); d.dims = "ph";
     const hd_tensor e[] = {build->input(program, "ids"), param_with(weight)};
     const hd_tensor in[] = {build->emit(program, HD_OP_EMBED, NULL, e, 2, "bsh", NULL), (d.name = "x", param_with(d))};
     build->emit(program, HD_OP_POSITION, NULL, in, 2, "bsh", NULL))
CALL(too_short, build->dim(program, 'x', "unused", 1))
CALL(nameless, struct hd_param_desc d = weight; d.name = NULL; param_with(d))
CALL(without_dims, struct hd_param_desc d = weight; d.dims = NULL; param_with(d))
CALL(undeclared_dim, struct hd_param_desc d = weight; d.dims = "vz"; param_with(d))
CALL(another_input, build->input(program, "pixels"))
CALL(null_input, build->input(program, NULL))
CALL(null_block, build->block(program, NULL))
CALL(loss_of_no_tensor, build->loss(program, NONE))
CALL(loss_of_none, build->loss(program, 0))
CALL(logits_of_no_tensor, build->logits(program, NONE))
CALL(auxiliary_of_no_tensor, build->auxiliary(program, NONE))
CALL(residual_of_no_tensor, build->residual(program, NONE))
CALL(tokenwise_of_none, build->tokenwise(program, 0))
CALL(emit_no_op, hd_tensor w = param_with(weight); build->emit(program, 1 << 16, NULL, &w, 1, "vh", NULL))
CALL(emit_to_no_dims, hd_tensor w = param_with(weight); build->emit(program, HD_OP_ADD, NULL, &w, 1, NULL, NULL))
CALL(emit_of_null, build->emit(program, HD_OP_ADD, NULL, NULL, 2, "vh", NULL))
CALL(emit_of_a_fused_op, hd_tensor w = param_with(weight), outs[2];
     build->emit(program, HD_OP_EINSUM_GELU, NULL, &w, 1, "vh,vh", outs))
CALL(emit_of_no_tensor, const hd_tensor in[] = {NONE, NONE}; build->emit(program, HD_OP_ADD, NULL, in, 2, "vh", NULL))
CALL(attributes_without_size, hd_tensor w = param_with(weight); const hd_tensor in[] = {w, w};
     build->emit(program, HD_OP_ADD, &no_size, in, 2, "vh", NULL))

CALL(emit_in_a_block, const hd_tensor in[] = {NONE, NONE}; build->block(program, "L3");
     build->emit(program, HD_OP_ADD, NULL, in, 2, "vh", NULL); build->block(program, "L4"))
CALL(fail_in_a_block, build->block(program, "head"); (build->fail)(program, "model.vocab is odd"))

static const struct wrong model_rows[] = {
    ROW(emit_in_a_block, 0, "input 0 of add is no tensor (in block L3)"),
    ROW(fail_in_a_block, 0, "model.vocab is odd (in block head)"),
    ROW(no_desc, 0, "a parameter has no name or no dims"),
    ROW(desc_without_size, 0, "parameter w: struct_size is 0: set it with sizeof"),
    ROW(short_desc, 0, "parameter w: struct_size is 24: set it with sizeof"),
    ROW(no_init, 0, "parameter w: init is 0; it must be one of HD_INIT_NORMAL"),
    ROW(another_init, 0, "parameter w: init is 4; it must be one of HD_INIT_NORMAL"),
    ROW(no_std, 0, "parameter w: HD_INIT_NORMAL with std 0: give it a std above 0, or use HD_INIT_ZEROS"),
    ROW(one_place, 0, "parameters u and x are both part 0 of f in files"),
    ROW(few_positions, 0, "position has a table with fewer rows than the sequence has tokens"),
    ROW(too_short, 0, "data.seq_len is 8, but this model has 4 positions: use at most these"),
    ROW(nameless, 0, "a parameter has no name"),
    ROW(without_dims, 0, "a parameter has no name or no dims"),
    ROW(undeclared_dim, 0, "w uses dimension 'z', which the model did not declare"),
    ROW(another_input, 0, "input 'pixels' is unknown"),
    ROW(null_input, 0, "input '' is unknown"),
    ROW(null_block, 0, "block: the name is NULL"),
    ROW(loss_of_no_tensor, 0, "loss: tensor"),
    ROW(loss_of_none, 0, "loss: there is no tensor 0"),
    ROW(logits_of_no_tensor, 0, "logits: tensor"),
    ROW(auxiliary_of_no_tensor, 0, "auxiliary: tensor"),
    ROW(residual_of_no_tensor, 0, "residual: tensor"),
    ROW(tokenwise_of_none, 0, "tokenwise: there is no tensor 0"),
    ROW(emit_no_op, 0, "emit: op 65536"),
    ROW(emit_to_no_dims, 0, "emit: op"),
    ROW(emit_of_null, 0, "emit: op"),
    ROW(emit_of_a_fused_op, 0, "a model may not emit einsum_gelu"),
    ROW(emit_of_no_tensor, 0, "input 0 of add is no tensor"),
    ROW(attributes_without_size, 0, "attributes of add: struct_size is 0: set it with sizeof"),
};

static int32_t open_model(const struct hd_host *host, const void *settings, struct hd_model **model,
                          struct hd_error *err)
{
    (void)settings, (void)err;
    build = host->build;
    *model = NULL;
    return HD_OK;
}

static void close_model(struct hd_model *model)
{
    (void)model;
}

static int32_t info(struct hd_model *model, struct hd_model_info *out, struct hd_error *err)
{
    (void)model, (void)err;
    *out = (struct hd_model_info){.struct_size = sizeof *out, .vocab = 32, .layers = 1, .hidden = 16, .heads = 2};
    out->max_seq_len = wrong->call == too_short ? 4 : 0;
    return HD_OK;
}

static int32_t build_model(struct hd_model *model, struct hd_program *p, struct hd_error *err)
{
    (void)model, (void)err;
    program = p;
    build->dim(p, 'v', "vocabulary", 32);
    build->dim(p, 'h', "hidden", 16);
    wrong->call();
    return HD_OK;
}

static const struct hd_model_ops model_ops = {
    .struct_size = sizeof model_ops, .open = open_model, .close = close_model, .info = info, .build = build_model};
static const struct hd_component model_component = {.struct_size = sizeof model_component,
                                                    .kind = HD_KIND_MODEL,
                                                    .name = "wrong",
                                                    .summary = "makes one wrong call",
                                                    .ops = &model_ops};
HD_PLUGIN_DESCRIPTOR(model_plugin, "model-wrong", "0.1.0", "Apache-2.0", model_component);

static const struct hd_plugin *model_entry(void)
{
    return &model_plugin;
}

/* ---- the strategy that makes one of these calls */

static int32_t pass(const struct hd_host *host, struct hd_program *p, int phase)
{
    api = host->pass;
    program = p;
    if (wrong->phase == phase)
        wrong->call();
    return HD_OK;
}

#define PHASE(slot, phase)                                                                                            \
    static int32_t slot(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err) \
    {                                                                                                                 \
        (void)settings, (void)err;                                                                                    \
        return pass(host, p, phase);                                                                                  \
    }
PHASE(layout, LAYOUT)
PHASE(partition, PARTITION)
PHASE(transform, TRANSFORM)

static int32_t reduce(const struct hd_host *host, const void *settings, struct hd_program *p,
                      const struct hd_pass_bucket *asked, struct hd_error *err)
{
    (void)settings, (void)err;
    given = asked;
    pass(host, p, REDUCE);
    return wrong->call == reduce_that_fails ? HD_E_INVALID : HD_OK;
}

static struct hd_strategy_ops ops = {.struct_size = sizeof ops,
                                     .api = HD_STRATEGY_API,
                                     .layout = layout,
                                     .partition = partition,
                                     .transform = transform};
HD_PLUGIN("strategy-wrong", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "wrong",
          .summary = "makes one wrong call", .ops = &ops)

#define TRANSFORMER "transformer, family: llama, layers: 1, hidden: 16, heads: 2, kv_heads: 2, ffn: 24, vocab: 32"

static void compile_with(const struct wrong *row, const char *model, const char *strategies, int32_t code)
{
    static const char common[] = "job: {name: wrong, steps: 1}\noptimizer: {use: adamw, lr: 1e-2}\n"
                                 "mesh: {dp: 2}\ndata: {train: none, seq_len: 8, batch: 4}\n";
    struct hd_error err = HD_ERROR_INIT;
    struct compiled c = {.plugins = hd__plugins_create(hd__exec_host_table())};
    char *text = hd__format("%smodel: {use: %s}\nstrategies: %s\n", common, model, strategies);
    int32_t rc;
    wrong = row;
    ops.reduce = row->phase == REDUCE ? reduce : NULL;
    ck_assert(!hd__plugins_add_folder(c.plugins, PLUGINS, &err) && !add_linked(c.plugins, HD_PLUGIN_ENTRY, &err) &&
              !add_linked(c.plugins, model_entry, &err));
    ck_assert(!hd__job_parse("job.yaml", text, strlen(text), NULL, 0, &c.job, &err) &&
              !hd__job_resolve(c.job, 2, &err));
    rc = hd__exec_compile(c.job, c.plugins, &c.c, &err);
    if (!row->message)
        ck_assert_msg(!rc, "%s: %s", row->name, err.message);
    else {
        ck_assert_msg(rc == code, "%s: code %d: %s", row->name, rc, err.message);
        ck_assert_msg(strstr(err.message, row->message), "%s: '%s' is not in: %s", row->name, row->message,
                      err.message);
    }
    compiled_free(&c);
    free(text);
}

START_TEST(a_wrong_call_of_a_strategy_is_refused)
{
    compile_with(&rows[_i], TRANSFORMER, "[{use: wrong}, {use: zero, stage: 1}]", HD_E_INVALID);
}
END_TEST

START_TEST(a_right_call_is_not)
{
    compile_with(&right_rows[_i], TRANSFORMER, "[{use: zero}, {use: wrong}]", HD_OK);
}
END_TEST

START_TEST(a_wrong_call_of_a_model_is_refused)
{
    compile_with(&model_rows[_i], "wrong", "[{use: wrong}, {use: zero, stage: 1}]", HD_E_INVALID);
}
END_TEST

START_TEST(a_wrong_program_is_refused)
{
    compile_with(&proved_rows[_i], TRANSFORMER, "[{use: zero}, {use: wrong}]", _i ? HD_E_INTERNAL : HD_E_INVALID);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("wrong-calls");
    tcase_add_loop_test(t, a_wrong_call_of_a_strategy_is_refused, 0, (int)HD__COUNT(rows));
    tcase_add_loop_test(t, a_right_call_is_not, 0, (int)HD__COUNT(right_rows));
    tcase_add_loop_test(t, a_wrong_call_of_a_model_is_refused, 0, (int)HD__COUNT(model_rows));
    tcase_add_loop_test(t, a_wrong_program_is_refused, 0, (int)HD__COUNT(proved_rows));
    return suite_run_case("wrong-calls", t);
}
