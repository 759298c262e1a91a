/* Programs that only evaluate: their memory is that of weights and of a forward pass, on every mesh. */
#include "analysis/sim/machine.h"
#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

/* Bytes that a parameter takes on a rank: of weights, and in training, with gradients and states. */
static const struct {
    const char *mesh, *strategies, *optimizer, *compute;
    double weights, training;
} rows[] = {
    {"dp: 1", "{use: zero}", "adamw", "fp32", 4, 12},
    {"dp: 1", "{use: zero}", "adamw", "bf16", 6, 14},
    {"dp: 4", "{use: zero, stage: 1}", "adamw", "fp32", 4, 6},
    {"dp: 4", "{use: zero, stage: 2}", "adamw", "bf16", 3, 5},
    {"dp: 4", "{use: zero, stage: 3}", "adamw", "fp32", 1, 3},
    {"dp: 2", "{use: zero, stage: 1, offload: {optimizer: host}}", "adamw", "fp32", 4, 4},
    {"dp: 2", "{use: zero}, {use: ema}", "adamw", "fp32", 4, 16},
    {"dp: {replicate: 2, shard: 1}", "{use: zero}, {use: localsgd, every: 4}", "adamw", "fp32", 4, 16},
    {"dp: 1", "{use: zero}", "lion", "fp32", 4, 8},
    {"tp: 2, dp: 2", "{use: 3d, sequence_parallel: true}, {use: zero}", "adamw", "fp32", 2, 6},
    {"pp: 2, dp: 2", "{use: 3d}, {use: zero, stage: 1}", "adamw", "bf16", 0, 0},
    {"pp: 2", "{use: 3d, schedule: zb-v}, {use: zero}", "adamw", "fp32", 0, 0},
};

static void make(struct compiled *c, int row, uint32_t flags)
{
    char text[1024];
    snprintf(text, sizeof text,
             "job: {name: evaluation, steps: 1}\nmesh: {%s}\nstrategies: [%s]\noptimizer: {use: %s, lr: 1e-3}\n"
             "precision: {compute: %s}\nmodel: {use: transformer, family: llama, layers: 4, hidden: 128, heads: 4, "
             "vocab: 512, tied: true}\ndata: {train: none, seq_len: 16, batch: 16, micro_batch: 1}\n",
             rows[row].mesh, rows[row].strategies, rows[row].optimizer, rows[row].compute);
    compile_flags(c, text, flags);
}

static int is_kept(const struct hd__code_section *s)
{
    return s->kind == HD__SECTION_EVAL || s->kind == HD__SECTION_EVAL_END || s->kind == HD__SECTION_RESTORE ||
           s->kind == HD__SECTION_DECODE || s->kind == HD__SECTION_BEGIN;
}

/* Every operand has memory, and every wait its start. */
static void check_operands(struct hd_program *p)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t *position = hd__instr_positions(p), code = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        ck_assert_msg(is_kept(x) || !x->code.count, "section %s is left", x->name);
        for (uint32_t n = 0; n < x->code.count; n++) {
            const struct hd__instr *i = &x->code.at[n];
            for (uint32_t k = hd__accesses(p, i, t); k-- > 0;)
                ck_assert_msg(p->buffers.at[t[k].buffer].offset >= 0, "%s #%u has no memory", x->name, n);
            ck_assert(i->op != HD_OP_WAIT || hd__wait_target(p, &x->code, position, i) != UINT32_MAX);
        }
        code += x->code.count;
    }
    ck_assert_uint_gt(code, 0);
    free(position);
}

/* Weights lie where they are loaded; nothing else of a flat has a role. */
static void check_flats(const struct hd_program *p)
{
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t role = 0; role < HD__FLAT_ROLES; role++) {
            hd_tensor t = p->flats.at[f].tensor[role];
            const struct hd__buffer *b = &p->buffers.at[hd__tensor_const(p, t)->buffer];
            ck_assert(role != HD__FLAT_MASTER || (t && b->life == HD__LIFE_PERSISTENT && b->offset >= 0));
            ck_assert_msg(!t || role == HD__FLAT_MASTER || role == HD__FLAT_COMPUTE_COPY || role == HD__FLAT_FULL,
                          "role %u is left", role);
        }
}

START_TEST(weights_and_no_more)
{
    struct hd_error err = HD_ERROR_INIT;
    struct compiled alone, whole;
    const struct hd_program *programs[16];
    make(&alone, _i, HD__COMPILE_EVALUATION);
    make(&whole, _i, 0);
    double n = (double)hd__compiled_parameter_count(whole.c);
    for (int32_t s = 0; s < alone.c->n_stages; s++) {
        struct hd_program *p = alone.c->stage[s], *all = whole.c->stage[s];
        check_operands(p);
        check_flats(p);
        ck_assert_int_lt(p->arena_bytes, all->arena_bytes);
        ck_assert_int_le(p->temp_bytes, all->temp_bytes);
        ck_assert_int_eq(p->bytes[HD__MEM_HOST], 0);
        if (!rows[_i].weights)
            continue;
        ck_assert_double_eq_tol((double)p->persistent_bytes / n, rows[_i].weights, 0.02);
        ck_assert_double_ge((double)all->arena_bytes / n, rows[_i].training);
    }
    for (int32_t r = 0; r < alone.c->mesh.ranks; r++)
        programs[r] = hd__compiled_program(alone.c, r);
    struct hd__sim *machine = hd__sim_create(&alone.c->mesh, programs, &(struct hd__sim_options){0});
    ck_assert_msg(!hd__sim_verify(machine, &err), "%s", err.message);
    hd__sim_destroy(machine);
    compiled_free(&alone);
    compiled_free(&whole);
}
END_TEST

/* The proof of its memory finds a temporary and a weight that lie where another does. */
START_TEST(memory_is_proved)
{
    struct hd_error err = HD_ERROR_INIT;
    struct compiled c;
    make(&c, 0, HD__COMPILE_EVALUATION);
    struct hd_program *p = c.c->stage[0];
    struct hd__code_section *eval = hd__program_section_of(p, HD__SECTION_EVAL);
    ck_assert_msg(!hd__verify_memory(p, &err), "%s", err.message);
    for (uint32_t n = 0, moved = 0; n < eval->code.count && !moved; n++) { /* an output over an input */
        const struct hd__instr *i = &eval->code.at[n];
        if (i->op != HD_OP_EINSUM)
            continue;
        struct hd__buffer *in = &p->buffers.at[hd__tensor_const(p, i->in[0])->buffer],
                          *out = &p->buffers.at[hd__tensor_const(p, i->out[0])->buffer];
        if (in->life != HD__LIFE_TEMP || out->life != HD__LIFE_TEMP)
            continue;
        int64_t was = out->offset;
        out->offset = in->offset;
        ck_assert_int_ne(hd__verify_memory(p, &err), HD_OK);
        out->offset = was;
        moved = 1;
    }
    p->buffers.at[hd__tensor_const(p, p->flats.at[0].tensor[HD__FLAT_MASTER])->buffer].offset =
        p->buffers.at[hd__tensor_const(p, p->flats.at[1].tensor[HD__FLAT_MASTER])->buffer].offset;
    ck_assert_int_ne(hd__verify_memory(p, &err), HD_OK);
    compiled_free(&c);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("evaluation");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, weights_and_no_more, 0, (int)HD__COUNT(rows));
    tcase_add_test(t, memory_is_proved);
    return suite_run_case("compile-evaluation", t);
}
