/* Facts of strategies' tensors and of the parameters, and what holds of any strategy: planted into programs of shipped
 * strategies, each is found by name; and one assignment is proved as another that does the same. */
#include <check.h>

#include "conformance/edits.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/analysis/verbatim.h"
#include "tests/suite.h"
#include "tests/support/compiled.h"
#include "tests/support/linked.h"

#define CODES "{use: zero, compress: {kind: int8, block: 64}}"
#define APART "{use: zero}, {use: localsgd}"

static struct hd_program *p;

static hd__code *code_of(const char *section)
{
    return &hd__program_section(p, section)->code;
}

static struct hd__instr *first(const char *section, uint16_t op)
{
    hd__code *code = code_of(section);
    uint32_t n = 0;
    while (n < code->count && code->at[n].op != op)
        n++;
    ck_assert_uint_lt(n, code->count);
    return &code->at[n];
}

/* ---- planted */

/* A parameter's own tensor, in the memory that a schedule would give it. */
static void read_itself(void)
{
    struct hd__instr *i = first("micro", HD_OP_EMBED);
    hd_tensor own = p->params.at[hd__tensor_const(p, i->in[1])->param - 1].tensor;
    hd__tensor_at(p, own)->buffer = hd__tensor_const(p, i->in[1])->buffer;
    i->in[1] = own;
}

static void wide_wire(void)
{
    p->precision.reduce = HD_BF16;
}

static void undeclared(void)
{
    p->facts.count--;
}

static void error_overwritten(void)
{
    struct hd__instr *i = first("micro_last", HD_OP_ENCODE);
    struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
    attrs->flags &= ~(uint32_t)HD_ATTR_ACCUMULATE;
    i->attrs = attrs;
}

static void error_never_written(void)
{
    struct hd__instr *i = first("micro_last", HD_OP_ENCODE), read = *i;
    hd__push(&p->facts, p->facts.at[0]);
    p->facts.at[p->facts.count - 1].tensor = hd__tensor_new(p, hd__tensor_const(p, i->out[1]));
    hd__tensor_at(p, p->facts.at[p->facts.count - 1].tensor)->buffer =
        hd__buffer_new(p, "more", p->buffers.at[hd__tensor_const(p, i->out[1])->buffer].bytes, HD__LIFE_PERSISTENT);
    read.id = ++p->next_id;
    read.in[0] = p->facts.at[p->facts.count - 1].tensor;
    insert(code_of("micro_last"), 0, read);
}

static void error_unused(void)
{
    struct hd__fact more = p->facts.at[0];
    struct hd__tensor t = *hd__tensor_const(p, more.tensor);
    t.buffer = hd__buffer_new(p, "more", p->buffers.at[t.buffer].bytes, HD__LIFE_PERSISTENT);
    more.tensor = hd__tensor_new(p, &t);
    hd__push(&p->facts, more);
}

static void crosses(void)
{
    hd_tensor master = p->flats.at[0].tensor[HD__FLAT_MASTER];
    struct hd__instr i = {.id = ++p->next_id,
                          .op = HD_OP_BROADCAST,
                          .n_in = 1,
                          .n_out = 1,
                          .axes = p->independent_axes,
                          .stream = HD__STREAM_AXIS + HD_AXIS_DP_SHARD,
                          .micro = -1,
                          .peer = -1,
                          .in = {master},
                          .out = {master}};
    struct hd__instr wait = {.id = ++p->next_id, .op = HD_OP_WAIT, .wait = i.id, .micro = -1, .peer = -1};
    hd__push(code_of("update"), i);
    hd__push(code_of("update"), wait);
}

/* Appends out <- a weighted sum of n tensors. */
static void blend(const char *section, hd_tensor out, uint8_t n, const hd_tensor *in, const double *weights)
{
    const struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = weights, .n_table = n};
    struct hd__instr i = {.id = ++p->next_id,
                          .op = HD_OP_BLEND,
                          .n_in = n,
                          .n_out = 1,
                          .micro = -1,
                          .peer = -1,
                          .attrs = hd__attrs_new(p, &attrs),
                          .out = {out}};
    memcpy(i.in, in, n * sizeof *in);
    hd__push(code_of(section), i);
}

static void halved(void)
{
    static const double half = 0.5;
    hd_tensor master = p->flats.at[0].tensor[HD__FLAT_MASTER];
    blend("update", master, 1, &master, &half);
}

/* A section of a strategy's own moves the master weights along the momentum, which no fact is of. */
static void moved_by_a_state(const char *section)
{
    static const double weights[] = {1, 0.1};
    const hd_tensor *of = p->flats.at[0].tensor;
    blend(section, of[HD__FLAT_MASTER], 2, (hd_tensor[]){of[HD__FLAT_MASTER], of[HD__FLAT_OPTIM]}, weights);
}

static void moved_where_ranks_meet(void)
{
    moved_by_a_state("outer");
}

static void moved_by_an_average(void)
{
    moved_by_a_state("ema");
}

static void average_is_zeros(void)
{
    p->facts.at[0].what = HD_FACT_ZERO_SUM;
}

static void not_equal(void)
{
    p->facts.at[0].axes = 0;
}

static void no_model(void)
{
    p->flats.at[0].tensor[HD__FLAT_GLOBAL_COPY] = 0;
}

static void nothing_declared(void)
{
    hd__program_section(p, "outer")->declares = 0;
}

static void state_that_sums_to_zero(void)
{
    p->facts.at[0].what = HD_FACT_ZERO_SUM;
}

static void another_count_of_states(void)
{
    struct hd__instr *i = first("update", HD_OP_OPTIM_STEP);
    struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
    attrs->index++;
    i->attrs = attrs;
}

static void a_seed_in_a_rule_without(void)
{
    struct hd__instr *i = first("update", HD_OP_ADAMW);
    struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
    attrs->index = 7;
    i->attrs = attrs;
}

#define OWN_STEP "optimizer={use: lion, lr: 1e-3}"
#define ROW(plant, strategies, words) ROW_OF(plant, strategies, words, "")
#define ROW_OF(plant, strategies, words, more) \
    {                                          \
#plant, plant, strategies, words, more \
    }

static const struct {
    const char *name;
    void (*plant)(void);
    const char *strategies, *words, *more; /* more: a line of the job */
} rows[] = {
    ROW(read_itself, "{use: zero}", "reads model.embed_tokens.weight itself, which no update changes"),
    ROW(wide_wire, "{use: zero}", "travels in fp32, but precision.reduce is bf16"),
    ROW(halved, "{use: zero}", "which holds a different value"),
    ROW(undeclared, CODES, "has no role and no fact: nothing initialises or saves it"),
    ROW(error_overwritten, CODES, "is error feedback, and overwritten before the error of the step before is added"),
    ROW(error_never_written, CODES, "is error feedback, and what this step leaves is not written"),
    ROW(error_unused, CODES, "is error feedback, and no step uses it"),
    ROW(crosses, APART, "crosses ranks that are apart, in a section that brings none together"),
    ROW(moved_where_ranks_meet, APART, "differs between ranks along dp_shard"),
    ROW(moved_by_an_average, "{use: zero}, {use: ema}", ", which is neither parameters nor declared of them"),
    ROW(average_is_zeros, APART, "weights of the parameters in it sum to"),
    ROW(average_is_zeros, "{use: zero}, {use: ema}", "weights of the parameters in it sum to"),
    ROW(not_equal, APART, "and HD_FACT_EQUAL along all axes of `apart`"),
    ROW(no_model, APART, "a checkpoint has no model: HD_FLAT_COMMON"),
    ROW(nothing_declared, APART, "is changed, and nothing is declared of the parameters"),
    ROW(state_that_sums_to_zero, "{use: verbatim}, {use: zero}", "is not declared HD_FACT_FEEDBACK"),
    ROW_OF(another_count_of_states, "{use: zero}", "is not the optimizer's update", OWN_STEP),
    ROW(a_seed_in_a_rule_without, "{use: zero}", "is not the optimizer's update"),
};

START_TEST(found_by_name)
{
    struct hd_error err = HD_ERROR_INIT;
    struct job j;
    ck_assert_msg(!open_job(&j, "dp: 2", rows[_i].strategies, rows[_i].more, &err), "%s: %s", rows[_i].name,
                  err.message);
    p = j.c->stage[0];
    rows[_i].plant();
    ck_assert_msg(hd__verify(p, &err), "%s is not found", rows[_i].name);
    ck_assert_msg(strstr(err.message, rows[_i].words), "%s: %s", rows[_i].name, err.message);
    close_job(&j);
}
END_TEST

/* ---- what ranks compare of their programs */

START_TEST(a_hash_has_the_facts)
{
    struct job j;
    p = expect_job(&j, "dp: 2", APART);
    struct hd__code_section *outer = hd__program_section(p, "outer");
    uint64_t was = hd__program_hash(p);
    uint32_t *const fields[] = {&p->facts.at[0].what, &p->facts.at[0].axes};
    for (size_t k = 0; k < HD__COUNT(fields); k++) {
        *fields[k] ^= HD_AXIS_BIT(HD_AXIS_CP);
        ck_assert_msg(hd__program_hash(p) != was, "field %zu of a fact", k);
        *fields[k] ^= HD_AXIS_BIT(HD_AXIS_CP);
    }
    const char *section = p->facts.at[0].section;
    p->facts.at[0].section = "update";
    ck_assert_msg(hd__program_hash(p) != was, "the section of a fact");
    p->facts.at[0].section = section;
    outer->declares ^= HD_FACT_MIX;
    ck_assert_msg(hd__program_hash(p) != was, "what a section declares of the parameters");
    outer->declares ^= HD_FACT_MIX;
    ck_assert_uint_eq(hd__program_hash(p), was);
    close_job(&j);
}
END_TEST

/* ---- a copy is a blend of one tensor with weight 1, of parameters and of gradients */

START_TEST(a_copy_is_a_blend)
{
    static const struct {
        const char *strategies, *more;
    } jobs[] = {
        {APART, ""},
        {"{use: zero, stage: 1}", "precision.reduce=bf16"},
        {"{use: zero, stage: 2}", "precision.reduce=bf16"},
        {"{use: zero}", "precision.compute=bf16"},
    };
    static const double one = 1;
    const struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = &one, .n_table = 1};
    struct hd_error err = HD_ERROR_INIT;
    struct job j;
    uint32_t changed = 0;
    ck_assert_msg(!open_job(&j, "dp: 2", jobs[_i].strategies, jobs[_i].more, &err), "%s", err.message);
    p = j.c->stage[0];
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            struct hd__instr *i = &p->sections.at[s].code.at[k];
            if (i->op != HD_OP_COPY || hd__tensor_const(p, i->in[0])->param || hd__tensor_const(p, i->out[0])->param)
                continue;
            i->op = HD_OP_BLEND;
            i->attrs = hd__attrs_new(p, &attrs);
            changed++;
        }
    ck_assert_uint_gt(changed, 0);
    ck_assert_msg(!hd__verify(p, &err), "%s", err.message);
    close_job(&j);
}
END_TEST

static void open_plugins(void)
{
    struct hd_error err = HD_ERROR_INIT;
    setup();
    ck_assert_msg(!add_linked(plugins, HD_PLUGIN_ENTRY, &err), "%s", err.message);
}

int main(void)
{
    TCase *c = tcase_create("facts");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, open_plugins, teardown);
    tcase_add_loop_test(c, found_by_name, 0, HD__COUNT(rows));
    tcase_add_test(c, a_hash_has_the_facts);
    tcase_add_loop_test(c, a_copy_is_a_blend, 0, 4);
    return suite_run_case("facts", c);
}
