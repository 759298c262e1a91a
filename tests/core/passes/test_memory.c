/* The memory plan: nothing that lives at the same time shares a byte; and what one instruction is bound to.
 */
#include <check.h>
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

static struct hd_error err;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* ---- random programs */

/* n tensors, each made, then read at random later moments, some by an asynchronous instruction. */
static void add_random(struct hd_program *p, uint32_t s, uint32_t *r, uint32_t n)
{
    hd_tensor *made = hd__alloc(n * sizeof *made);
    for (uint32_t k = 0; k < n; k++) {
        int64_t count = 16 << next_random(r) % 8;
        if (next_random(r) % 3 == 0)
            count += next_random(r) % 1000;
        hd_tensor t = made[k] = tiny_vector(p, "t", count);
        uint32_t back = 1 + next_random(r) % 6, near = k - HD__MIN(k, back), far = k ? next_random(r) % k : 0;
        if (k == 0)
            tiny_op(p, s, HD_OP_FILL0, NONE, T(t));
        else if (next_random(r) % 4)
            tiny_op(p, s, HD_OP_SWIGLU, T(made[near], made[far]), T(t));
        else if (next_random(r) % 2)
            tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, made[near], t);
        else
            tiny_op(p, s, HD_OP_GELU, T(made[near]), T(t));
    }
    free(made);
}

static void plan(struct hd_program *p)
{
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_OK);
    ck_assert_int_eq(hd__memory_plan(p, &err), HD_OK);
}

static struct hd_program *random_program(uint32_t seed, uint32_t n)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    add_random(p, tiny_section(p, "micro", 1), &seed, n);
    plan(p);
    return p;
}

struct span {
    uint32_t first, last;
};

static struct span *spans_of(const struct hd_program *p, uint32_t section)
{
    const hd__code *code = &p->sections.at[section].code;
    struct span *spans = hd__alloc(p->buffers.count * sizeof *spans);
    uint32_t *position = hd__instr_positions(p);
    uint32_t t[HD__MAX_ACCESSES];
    for (uint32_t b = 0; b < p->buffers.count; b++)
        spans[b].first = UINT32_MAX;
    for (uint32_t n = 0; n < code->count; n++)
        for (uint32_t k = hd__live_buffers(p, code, position, n, t); k-- > 0;) {
            spans[t[k]].first = HD__MIN(spans[t[k]].first, n);
            spans[t[k]].last = n;
        }
    free(position);
    return spans;
}

static void assert_no_overlap(const struct hd_program *p)
{
    struct span *spans = spans_of(p, 0);
    for (uint32_t a = 1; a < p->buffers.count; a++) {
        const struct hd__buffer *x = &p->buffers.at[a];
        if (spans[a].first == UINT32_MAX)
            continue;
        ck_assert_int_ge(x->offset, p->persistent_bytes);
        ck_assert_int_eq(x->offset % 64, 0);
        ck_assert_int_le(x->offset + x->bytes, p->arena_bytes);
        for (uint32_t b = a + 1; b < p->buffers.count; b++) {
            const struct hd__buffer *y = &p->buffers.at[b];
            int in_time =
                spans[b].first != UINT32_MAX && spans[a].first <= spans[b].last && spans[b].first <= spans[a].last;
            int in_space = x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
            if (in_time && in_space)
                ck_abort_msg("buffers %u and %u share memory while both live", a, b);
        }
    }
    free(spans);
}

START_TEST(random_lives_never_overlap)
{
    double worst = 1;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        struct hd_program *p = random_program(seed, 10 + seed * 8);
        assert_no_overlap(p);
        ck_assert_int_ge(p->temp_bytes, p->temp_bound);
        worst = HD__MAX(worst, (double)p->temp_bytes / (double)p->temp_bound);
        hd__program_free(p);
    }
    fprintf(stderr, "memory plan: worst ratio to the lower bound over 60 random programs %.3f\n", worst);
    ck_assert_double_lt(worst, 1.15);
}
END_TEST

START_TEST(sections_plan_the_same_memory)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    uint32_t one = tiny_section(p, "micro", 1), two = tiny_section(p, "update", 1);
    hd_tensor keep = tiny_state(p, "keep", 100), a = tiny_vector(p, "a", 1000), b = tiny_vector(p, "b", 500);
    tiny_op(p, one, HD_OP_FILL0, NONE, T(a));
    tiny_op(p, one, HD_OP_ACCUM, T(a), T(keep));
    tiny_op(p, two, HD_OP_FILL0, NONE, T(b));
    tiny_op(p, two, HD_OP_ACCUM, T(b), T(keep));
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_OK);
    ck_assert_int_eq(hd__memory_plan(p, &err), HD_OK);
    ck_assert_int_eq(p->persistent_bytes, 448);
    ck_assert_int_eq(p->temp_bytes, 4032);
    ck_assert_int_eq(p->temp_bound, 4032);
    ck_assert_int_eq(p->arena_bytes, 4480);
    ck_assert_int_eq(p->buffers.at[hd__tensor_const(p, keep)->buffer].offset, 0);
    ck_assert_int_eq(p->buffers.at[hd__tensor_const(p, a)->buffer].offset, 448);
    ck_assert_int_eq(p->buffers.at[hd__tensor_const(p, b)->buffer].offset, 448);
    hd__program_free(p);
}
END_TEST

static hd_tensor add_step_tensor(struct hd_program *p, uint32_t section, int64_t count, uint8_t life)
{
    hd_tensor s = tiny_vector(p, "s", count);
    hd__tensor_at(p, s)->role = HD__ROLE_FLAT;
    hd__tensor_at(p, s)->buffer = hd__buffer_new(p, "s", (count * 4 + 63) / 64 * 64, life);
    tiny_op(p, section, HD_OP_FILL0, NONE, T(s));
    return s;
}

/* Made in one section of a step and used in the next: 1000 elements where 1000 others were, beside 500 of the
 * second. */
static struct hd_program *step_program(const char *first, int32_t repeat, hd_tensor *s)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    uint32_t one = tiny_section(p, first, repeat), two = tiny_section(p, "update", 1),
             eval = tiny_section(p, "eval", 0);
    hd_tensor keep = tiny_state(p, "keep", 100), a = tiny_vector(p, "a", 1000), b = tiny_vector(p, "b", 500),
              e = tiny_vector(p, "e", 1400);
    tiny_op(p, one, HD_OP_FILL0, NONE, T(a));
    tiny_op(p, one, HD_OP_ACCUM, T(a), T(keep));
    *s = add_step_tensor(p, one, 1000, HD__LIFE_STEP);
    tiny_op(p, two, HD_OP_FILL0, NONE, T(b));
    tiny_op(p, two, HD_OP_ACCUM, T(*s), T(keep));
    tiny_op(p, two, HD_OP_ACCUM, T(b), T(keep));
    tiny_op(p, eval, HD_OP_FILL0, NONE, T(e));
    plan(p);
    return p;
}

/* Two sections of random instructions, and what the first makes for the second. */
static struct hd_program *random_steps(uint32_t seed, uint8_t life)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    uint32_t one = tiny_section(p, "micro_last", 1), two = tiny_section(p, "update", 1), r = seed;
    hd_tensor s[4], keep[4];
    for (uint32_t k = 0; k < HD__COUNT(s); k++) {
        int64_t count = 16 + next_random(&r) % 50;
        add_random(p, one, &r, 40);
        s[k] = add_step_tensor(p, one, count, life);
        keep[k] = tiny_state(p, "keep", count);
    }
    for (uint32_t k = 0; k < HD__COUNT(s); k++) {
        tiny_op(p, two, HD_OP_ACCUM, T(s[k]), T(keep[k]));
        add_random(p, two, &r, 40);
    }
    plan(p);
    return p;
}

START_TEST(a_step_is_planned_together_only_where_that_is_smaller)
{
    uint32_t alone = 0, together = 0;
    for (uint32_t seed = 1; seed <= 100; seed++) {
        struct hd_program *step = random_steps(seed, HD__LIFE_STEP), *kept = random_steps(seed, HD__LIFE_PERSISTENT);
        ck_assert_msg(step->arena_bytes <= kept->arena_bytes, "seed %u: %lld bytes, and %lld where all of it is kept",
                      seed, (long long)step->arena_bytes, (long long)kept->arena_bytes);
        alone += step->persistent_bytes == kept->persistent_bytes;
        together += step->arena_bytes < kept->arena_bytes;
        hd__program_free(step);
        hd__program_free(kept);
    }
    ck_assert_uint_gt(alone, 0); /* both are tried */
    ck_assert_uint_gt(together, 0);
}
END_TEST

START_TEST(what_lives_for_a_step)
{
    static const struct {
        const char *first;
        int32_t repeat, shared;
    } rows[] = {{"micro_last", 1, 1}, {"micro", 2, 0}, {"begin", 1, 0}};
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        hd_tensor s;
        struct hd_program *p = step_program(rows[n].first, rows[n].repeat, &s);
        const struct hd__buffer *b = &p->buffers.at[hd__tensor_const(p, s)->buffer];
        ck_assert_int_eq(b->life, rows[n].shared ? HD__LIFE_STEP : HD__LIFE_PERSISTENT);
        ck_assert_int_eq(p->persistent_bytes, rows[n].shared ? 448 : 448 + 4032);
        ck_assert_int_eq(p->temp_bytes, rows[n].shared ? 4032 + 2048 : 5632); /* s and b; e */
        ck_assert_int_eq(b->offset, 448);
        hd__program_free(p);
    }
}
END_TEST

/* ---- aliases */

static struct hd_program *gelu_program(hd_tensor *x, hd_tensor *y, hd_tensor *z)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    tiny_section(p, "micro", 1);
    *x = tiny_vector(p, "x", 64);
    *y = tiny_vector(p, "y", 64);
    *z = tiny_vector(p, "z", 64);
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(*x));
    return p;
}

static int same_buffer(struct hd_program *p, hd_tensor x, hd_tensor y)
{
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_OK);
    ck_assert_int_eq(hd__memory_plan(p, &err), HD_OK);
    int same = hd__tensor_const(p, x)->buffer == hd__tensor_const(p, y)->buffer;
    hd__program_free(p);
    return same;
}

START_TEST(an_output_takes_the_memory_of_an_input_that_dies)
{
    hd_tensor x, y, z;
    struct hd_program *p = gelu_program(&x, &y, &z);
    tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
    tiny_op(p, 0, HD_OP_GELU, T(y), T(z));
    ck_assert(same_buffer(p, x, z)); /* in a chain */
    p = gelu_program(&x, &y, &z);
    tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
    tiny_op(p, 0, HD_OP_ADD, T(y, x), T(z)); /* x lives on */
    ck_assert(same_buffer(p, y, z));         /* y dies there, though it is named first or second */
    p = gelu_program(&x, &y, &z);
    tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
    tiny_op(p, 0, HD_OP_ADD, T(x, y), T(z));
    tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
    ck_assert(!same_buffer(p, x, y));
    p = gelu_program(&x, &y, &z);
    tiny_op(p, 0, HD_OP_RMSNORM, T(x, x), T(y)); /* not an op in place */
    ck_assert(!same_buffer(p, x, y));
    p = gelu_program(&x, &y, &z);
    tiny_op(p, 0, HD_OP_SWIGLU, T(x, x), T(y)); /* read twice */
    ck_assert(!same_buffer(p, x, y));
}
END_TEST

START_TEST(what_is_in_flight_is_not_taken)
{
    hd_tensor x, y, z;
    struct hd_program *p = gelu_program(&x, &y, &z);
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, x, y); /* an asynchronous reader until the section's end */
    tiny_op(p, 0, HD_OP_GELU, T(x), T(z));
    ck_assert(!same_buffer(p, x, z));
    p = gelu_program(&x, &y, &z);
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, x, y);
    tiny_op(p, 0, HD_OP_GELU, T(y), T(z));
    ck_assert(same_buffer(p, x, z)); /* the all_reduce itself happens in place */
}
END_TEST

/* ---- binding */

START_TEST(binds_shapes_addresses_and_parts)
{
    struct hd_program *p = tiny_program(1, 1, 4, 0);
    int32_t coord[HD_AXIS_COUNT] = {[HD_AXIS_TP] = 3};
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    char arena[8192];
    p->block = hd__block_id(p, "L3");
    tiny_section(p, "micro", 1);
    hd_tensor whole = tiny_state(p, "whole", 64), part = tiny_shard(p, "part", 16, HD_AXIS_TP);
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(whole));
    struct hd__instr *i = tiny_op(p, 0, HD_OP_SLICE, T(whole), T(part));
    i->axes = HD_AXIS_BIT(HD_AXIS_TP);
    i->to = hd__tensor_const(p, part)->dim[0];
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_OK);
    ck_assert_int_eq(hd__memory_plan(p, &err), HD_OK);
    hd__instr_lower(p, &p->sections.at[0].code.at[1], coord, arena, &desc, in, out);
    ck_assert_str_eq(desc.label, "L3 F slice #1");
    ck_assert_uint_eq(desc.attrs.index, 3);
    ck_assert_uint_eq(desc.attrs.parts, 4);
    ck_assert_uint_eq(desc.attrs.to, out[0].dim[0]);
    ck_assert_int_eq(in[0].extent[0], 64);
    ck_assert_int_eq(out[0].extent[0], 16);
    ck_assert_int_eq(out[0].start[0], 48);
    ck_assert_ptr_eq(in[0].data, arena);
    ck_assert_ptr_eq(out[0].data, arena + 256);
    ck_assert_ptr_null(hd__tensor_address(p, part, coord, NULL));
    hd__tensor_at(p, part)->shard_view = 1; /* a shard inside the whole starts at its own elements */
    hd__tensor_at(p, part)->buffer = hd__tensor_const(p, whole)->buffer;
    ck_assert_ptr_eq(hd__tensor_address(p, part, coord, arena), arena + 48 * 4);
    hd__program_free(p);
}
END_TEST

/* Placed and copied tensors remember what they are of. */
START_TEST(says_which_inputs_are_gradients_and_what_is_of_logits)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    int32_t coord[HD_AXIS_COUNT] = {0};
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    tiny_section(p, "micro", 1);
    hd_tensor x = tiny_vector(p, "x", 8), z = tiny_vector(p, "z", 8), dz = tiny_vector(p, "dz", 8),
              dx = tiny_vector(p, "dx", 8);
    hd_tensor placed = hd__tensor_new(p, hd__tensor_const(p, z));
    hd__tensor_at(p, dz)->grad_of = z;
    hd__tensor_at(p, dx)->grad_of = x;
    hd__instr_lower(p, tiny_op(p, 0, HD_OP_EINSUM, T(dz, x), T(dx)), coord, NULL, &desc, in, out);
    ck_assert_uint_eq(desc.grads, 1 << 0);
    ck_assert_uint_eq(desc.flags, 0);
    p->logits = z;
    hd__instr_lower(p, tiny_op(p, 0, HD_OP_EINSUM, T(x, dz), T(dx)), coord, NULL, &desc, in, out);
    ck_assert_uint_eq(desc.grads, 1 << 1);
    ck_assert_uint_eq(desc.flags, HD_INSTR_LOGITS);
    hd__instr_lower(p, tiny_op(p, 0, HD_OP_EINSUM, T(x, x), T(placed)), coord, NULL, &desc, in, out);
    ck_assert_uint_eq(desc.grads, 0);
    ck_assert_uint_eq(desc.flags, HD_INSTR_LOGITS);
    hd__instr_lower(p, tiny_op(p, 0, HD_OP_EINSUM, T(dx, dx), T(x)), coord, NULL, &desc, in, out);
    ck_assert_uint_eq(desc.grads, 3);
    ck_assert_uint_eq(desc.flags, 0);
    p->exact = 1;
    hd__instr_lower(p, tiny_op(p, 0, HD_OP_EINSUM, T(x, x), T(x)), coord, NULL, &desc, in, out);
    ck_assert_uint_eq(desc.flags, HD_INSTR_EXACT);
    hd__program_free(p);
}
END_TEST

START_TEST(peers_are_world_ranks)
{
    struct hd_program *p = tiny_program(2, 2, 2, 0);
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    int32_t coord[HD_AXIS_COUNT];
    tiny_section(p, "step", 1);
    struct hd__instr *i = tiny_send(p, 0, 1, 7, tiny_vector(p, "a", 8));
    hd__mesh_coord(&p->mesh, 3, coord);
    hd__instr_lower(p, i, coord, NULL, &desc, in, out);
    ck_assert_int_eq(desc.attrs.peer, 7);
    hd__program_free(p);
}
END_TEST

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

int main(void)
{
    TCase *c = tcase_create("memory");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 50);
    tcase_add_test(c, random_lives_never_overlap);
    tcase_add_test(c, what_lives_for_a_step);
    tcase_add_test(c, a_step_is_planned_together_only_where_that_is_smaller);
    tcase_add_test(c, sections_plan_the_same_memory);
    tcase_add_test(c, an_output_takes_the_memory_of_an_input_that_dies);
    tcase_add_test(c, what_is_in_flight_is_not_taken);
    tcase_add_test(c, binds_shapes_addresses_and_parts);
    tcase_add_test(c, says_which_inputs_are_gradients_and_what_is_of_logits);
    tcase_add_test(c, peers_are_world_ranks);
    return suite_run_case("memory", c);
}
