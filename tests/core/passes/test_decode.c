/* The section `decode`: caches that are planned to the byte, on every mesh; what stands in its way is named; and what a
 * pass could get wrong in it is found. */
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

#define LLAMA "family: llama, layers: 2, hidden: 32, heads: 8, kv_heads: 4, ffn: 32, vocab: 64"
enum { DECODE = HD__COMPILE_LOGITS | HD__COMPILE_DECODE };

static void make(struct compiled *c, const char *mesh, const char *strategies, const char *model, uint32_t flags)
{
    char text[1024];
    snprintf(text, sizeof text,
             "job: {name: decode, steps: 1}\nmesh: {%s}\nstrategies: [%s]\noptimizer: {use: adamw, lr: 1e-3}\n"
             "model: {use: transformer, %s}\ndata: {train: none, seq_len: 16, batch: 4, micro_batch: 1}\n",
             mesh, strategies, model);
    compile_flags(c, text, flags);
}

static uint32_t count(const struct hd_program *p, uint16_t op)
{
    const struct hd__code_section *s = hd__program_section_of((struct hd_program *)p, HD__SECTION_DECODE);
    uint32_t n = 0;
    for (uint32_t k = 0; s && k < s->code.count; k++)
        n += s->code.at[k].op == op;
    return n;
}

/* ---- meshes */

static const struct {
    const char *mesh, *strategies;
    int64_t positions, cache; /* of a step; elements of a layer's keys on one rank: 16 positions of 4 heads of 4 */
} rows[] = {
    {"dp: 1", "{use: zero}", 1, 256},
    {"dp: 4", "{use: zero, stage: 3}", 1, 256},
    {"tp: 2", "{use: 3d}, {use: zero}", 1, 128},
    {"tp: 4", "{use: 3d, sequence_parallel: true}, {use: zero}", 4, 64},
    {"tp: 8", "{use: 3d}, {use: zero}", 1, 64},
    {"cp: 2", "{use: 3d, context: ulysses}, {use: zero}", 2, 128},
    {"pp: 2, tp: 2", "{use: 3d}, {use: zero}", 1, 128},
};

static void check_stage(struct hd_program *p, const struct hd_program *without, int row, uint32_t layers)
{
    int64_t bytes = 0;
    ck_assert_ptr_null(p->no_cache);
    ck_assert_ptr_null(hd__program_section_of((struct hd_program *)without, HD__SECTION_DECODE));
    ck_assert_uint_eq(count(p, HD_OP_ATTENTION_CACHED), layers);
    ck_assert_uint_eq(count(p, HD_OP_ROPE_AT), 2 * layers);
    ck_assert_uint_eq(count(p, HD_OP_ATTENTION) + count(p, HD_OP_ROPE) + count(p, HD_OP_NLL), 0);
    ck_assert_int_eq(p->dims.at[p->step].extent, rows[row].positions);
    for (uint32_t n = 0; n < p->caches.count; n++)
        if (p->caches.at[n].kept) {
            const struct hd__tensor *t = hd__tensor_const(p, p->caches.at[n].kept);
            ck_assert_int_eq(hd__numel(p, t), rows[row].cache);
            ck_assert_int_eq(p->buffers.at[t->buffer].life, HD__LIFE_PERSISTENT);
            bytes += hd__tensor_bytes(p, t);
        }
    ck_assert_int_eq(bytes, 2 * layers * rows[row].cache * 4);
    if (p->decode_logits)
        bytes += (hd__tensor_bytes(p, hd__tensor_const(p, p->decode_logits)) + 63) / 64 * 64;
    ck_assert_int_eq(p->persistent_bytes - without->persistent_bytes, bytes);
}

START_TEST(planned_on_every_mesh)
{
    struct hd_error err = HD_ERROR_INIT;
    struct compiled with, without;
    const struct hd_program *programs[16];
    make(&with, rows[_i].mesh, rows[_i].strategies, LLAMA, DECODE);
    make(&without, rows[_i].mesh, rows[_i].strategies, LLAMA, HD__COMPILE_LOGITS);
    for (int32_t s = 0; s < with.c->n_stages; s++)
        check_stage(with.c->stage[s], without.c->stage[s], _i, (uint32_t)(2 / with.c->n_stages));
    for (int32_t r = 0; r < with.c->mesh.ranks; r++)
        programs[r] = hd__compiled_program(with.c, r);
    struct hd__sim *machine = hd__sim_create(&with.c->mesh, programs, &(struct hd__sim_options){0});
    ck_assert_msg(!hd__sim_verify(machine, &err), "%s", err.message);
    hd__sim_destroy(machine);
    compiled_free(&with);
    compiled_free(&without);
}
END_TEST

START_TEST(learned_positions)
{
    struct compiled c;
    make(&c, "tp: 2", "{use: 3d, sequence_parallel: true}, {use: zero}",
         "family: gpt2, layers: 1, hidden: 32, heads: 4, vocab: 64, max_seq_len: 16", DECODE);
    ck_assert_uint_eq(count(c.c->stage[0], HD_OP_POSITION), 0);
    ck_assert_uint_eq(count(c.c->stage[0], HD_OP_EMBED), 2);
    ck_assert_uint_eq(count(c.c->stage[0], HD_OP_ATTENTION_CACHED), 1);
    compiled_free(&c);
}
END_TEST

/* ---- what stands in the way */

START_TEST(obstacles)
{
    static const struct {
        const char *mesh, *strategies, *model, *says;
    } in_the_way[] = {
        {"cp: 2", "{use: 3d, context: ring}, {use: zero}", LLAMA, "ring attention"},
        {"dp: 1", "{use: zero}",
         "family: mixtral, layers: 1, hidden: 32, heads: 4, ffn: 32, vocab: 64, experts: 4, capacity_factor: 1.25",
         "experts with a capacity"},
    };
    for (size_t n = 0; n < HD__COUNT(in_the_way); n++) {
        struct compiled c;
        make(&c, in_the_way[n].mesh, in_the_way[n].strategies, in_the_way[n].model, DECODE);
        struct hd_program *p = c.c->stage[0];
        ck_assert_msg(p->no_cache && strstr(p->no_cache, in_the_way[n].says), "it said: %s", p->no_cache);
        ck_assert_ptr_null(hd__program_section_of(p, HD__SECTION_DECODE));
        ck_assert_uint_eq(p->caches.count, 0);
        compiled_free(&c);
    }
}
END_TEST

/* ---- what passes may get wrong */

static struct hd__instr *nth(struct hd_program *p, uint16_t op, uint32_t n)
{
    hd__code *code = &hd__program_section_of(p, HD__SECTION_DECODE)->code;
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == op && !n--)
            return &code->at[k];
    ck_abort_msg("no such instruction");
}

enum { OTHER_LAYER, OTHER_VALUES, NO_POSITIONS, OTHER_WINDOW, OTHER_ROPE, FAULTS };

static void plant(struct hd_program *p, int fault)
{
    struct hd__instr *attention = nth(p, HD_OP_ATTENTION_CACHED, 0), *rope = nth(p, HD_OP_ROPE_AT, 1), *fault_in = rope;
    struct hd_attrs *attrs;
    switch (fault) {
    case OTHER_LAYER:
        attention->in[3] = attention->out[1] = nth(p, HD_OP_ATTENTION_CACHED, 1)->in[3];
        break;
    case OTHER_VALUES:
        attention->in[4] = attention->in[3];
        break;
    case NO_POSITIONS:
        rope->in[1] = nth(p, HD_OP_FEED, 0)->out[0]; /* the ids */
        break;
    default:
        fault_in = fault == OTHER_WINDOW ? attention : rope;
        attrs = hd__attrs_new(p, fault_in->attrs);
        attrs->window = fault == OTHER_WINDOW ? 7 : attrs->window;
        attrs->sign = fault == OTHER_ROPE ? -attrs->sign : attrs->sign;
        fault_in->attrs = attrs;
    }
}

START_TEST(faults_are_found)
{
    struct hd_error err = HD_ERROR_INIT;
    struct compiled c;
    make(&c, "dp: 1", "{use: zero}", LLAMA, DECODE);
    ck_assert_msg(!hd__verify(c.c->stage[0], &err), "%s", err.message);
    plant(c.c->stage[0], _i);
    ck_assert_int_ne(hd__verify(c.c->stage[0], &err), HD_OK);
    ck_assert_msg(strstr(err.message, "decode #") && strstr(err.message, "differs from the model"), "%s", err.message);
    compiled_free(&c);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("decode");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, planned_on_every_mesh, 0, (int)HD__COUNT(rows));
    tcase_add_test(t, learned_positions);
    tcase_add_test(t, obstacles);
    tcase_add_loop_test(t, faults_are_found, 0, FAULTS);
    return suite_run_case("compile-decode", t);
}
