/* Tensors in another memory: where they lie, what the schedule makes of staging, and what verify finds. */
#include <check.h>
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"
#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

#define FLATS 4

static struct hd_error err;

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

static hd_tensor elsewhere(struct hd_program *p, const char *name, int64_t count, uint8_t memory)
{
    hd_tensor t = tiny_state(p, name, count);
    p->buffers.at[hd__tensor_const(p, t)->buffer].memory = memory;
    p->buffers.at[hd__tensor_const(p, t)->buffer].paged = memory == HD__MEM_FILE;
    return t;
}

/* An update that brings in, doubles and writes back one state after another, as a strategy would: two ahead in three
 * slots. */
static struct hd_program *staged_update(uint8_t memory, int finish)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    uint32_t s = tiny_section(p, "update", 1);
    for (int f = 0; f < FLATS; f++) {
        struct hd__flat flat = {.name = "0"};
        flat.tensor[HD__FLAT_MASTER] = elsewhere(p, hd__arena_format(&p->arena, "m%d", f), 1000 + 100 * f, memory);
        hd__push(&p->flats, flat);
    }
    hd__offload_fetch(p, "update", 1, HD_PART_MASTER, HD_PART_MASTER, 0);
    for (uint32_t f = 0; f < FLATS; f++) {
        hd_tensor twin;
        if (f + 1 < FLATS)
            hd__offload_fetch(p, "update", f + 2, HD_PART_MASTER, HD_PART_MASTER, (f + 1) % 3);
        twin = hd__offload_staged(p, "update", p->flats.at[f].tensor[HD__FLAT_MASTER]);
        tiny_op(p, s, HD_OP_ACCUM, T(twin), T(twin));
        hd__offload_store(p, "update", f + 1, HD_PART_MASTER);
    }
    if (finish)
        tiny_finish(p);
    return p;
}

START_TEST(each_memory_has_an_arena)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor host = elsewhere(p, "host", 100, HD__MEM_HOST), file = elsewhere(p, "file", 100, HD__MEM_FILE),
              second = elsewhere(p, "second", 100, HD__MEM_FILE), here = tiny_state(p, "here", 100);
    int32_t coord[HD_AXIS_COUNT] = {0};
    char *arena = (char *)4096;
    tiny_section(p, "update", 1);
    ck_assert_int_eq(hd__memory_plan(p, &err), HD_OK);
    ck_assert_int_eq(p->bytes[HD__MEM_MAIN], 448);
    ck_assert_int_eq(p->arena_bytes, 448);
    ck_assert_int_eq(p->bytes[HD__MEM_HOST], 448);
    ck_assert_int_eq(p->bytes[HD__MEM_FILE], 2 * 4096); /* whole pages */
    ck_assert_ptr_eq(hd__tensor_address(p, here, coord, arena), arena);
    ck_assert_ptr_eq(hd__tensor_address(p, host, coord, arena), arena + 4096);
    ck_assert_ptr_eq(hd__tensor_address(p, file, coord, arena), arena + 8192);
    ck_assert_ptr_eq(hd__tensor_address(p, second, coord, arena), arena + 8192 + 4096);
    ck_assert_int_eq(hd__arena_total_bytes(p), 8192 + 2 * 4096);
    p->arena_base[HD__MEM_HOST] = 1 << 20; /* as who maps it elsewhere says */
    ck_assert_ptr_eq(hd__tensor_address(p, host, coord, arena), arena + (1 << 20));
    hd__program_free(p);
}
END_TEST

/* Position of a copy of this tensor, or of the wait for it. */
static uint32_t position(const struct hd_program *p, const char *name, int is_out, int wait)
{
    const hd__code *code = &p->sections.at[0].code;
    uint32_t *at = hd__instr_positions(p), found = UINT32_MAX;
    for (uint32_t n = 0; n < code->count; n++) {
        const struct hd__instr *i = &code->at[n];
        uint32_t on = wait && i->op == HD_OP_WAIT ? hd__wait_target(p, code, at, i) : n;
        i = &code->at[on];
        if ((code->at[n].op == HD_OP_WAIT) == wait && i->op == HD_OP_COPY && (i->stream == HD__STREAM_OUT) == is_out &&
            !strcmp(hd__tensor_const(p, is_out ? i->out[0] : i->in[0])->name, name))
            found = n;
    }
    free(at);
    ck_assert_uint_ne(found, UINT32_MAX);
    return found;
}

/* One comes in while the former is updated, and its predecessor goes back; a slot is filled again only when it was
 * written. */
START_TEST(copies_overlap_the_updates)
{
    for (uint8_t memory = HD__MEM_HOST; memory <= HD__MEM_FILE; memory++) {
        struct hd_program *p = staged_update(memory, 1);
        uint32_t update1 = tiny_find(p, 0, HD_OP_ACCUM, NULL, 1), update2 = tiny_find(p, 0, HD_OP_ACCUM, NULL, 2);
        ck_assert_msg(hd__verify(p, &err) == HD_OK, "%s", err.message);
        ck_assert_uint_lt(position(p, "m2", 0, 0), update1); /* m2 starts before m1 is updated */
        ck_assert_uint_gt(position(p, "m2", 0, 1), update1); /* and is waited for after that */
        ck_assert_uint_gt(position(p, "m1", 1, 1), update2); /* m1 goes back while m2 is updated */
        ck_assert_uint_gt(position(p, "m0", 1, 1), update1);
        ck_assert_uint_lt(position(p, "m0", 1, 1), position(p, "m3", 0, 0)); /* they share a slot */
        hd__program_free(p);
    }
}
END_TEST

/* Three slots as large as their largest user, whatever the number of flats. */
START_TEST(staging_takes_three_slots)
{
    struct hd_program *p = staged_update(HD__MEM_FILE, 1);
    ck_assert_int_eq(p->temp_bytes, (1300 * 4 + 4095) / 4096 * 4096 + (1200 * 4 + 4095) / 4096 * 4096 + 8192);
    for (uint32_t b = 1; b < p->buffers.count; b++)
        ck_assert_int_eq(p->buffers.at[b].offset % 4096, 0);
    hd__program_free(p);
}
END_TEST

static void assert_fault(struct hd_program *p, const char *expected)
{
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, expected), "%s", err.message);
    hd__program_free(p);
}

START_TEST(planted_faults_are_found)
{
    struct hd_program *p = staged_update(HD__MEM_HOST, 1);
    struct hd__code_section *s = &p->sections.at[0];
    uint32_t at = tiny_find(p, 0, HD_OP_ACCUM, NULL, 1);
    s->code.at[at].in[0] = s->code.at[at].out[0] =
        p->flats.at[1].tensor[HD__FLAT_MASTER]; /* computes where it may not */
    assert_fault(p, "m1 is offloaded: only copies may access it");

    p = staged_update(HD__MEM_HOST, 1);
    at = position(p, "m2", 0, 1);
    tiny_drop(p, 0, at); /* its wait */
    assert_fault(p, "missing wait");

    p = staged_update(HD__MEM_HOST, 1);
    p->sections.at[0].code.at[position(p, "m2", 0, 0)].stream = HD__STREAM_COMPUTE;
    assert_fault(p, "m2 is offloaded: only copies may access it");

    p = staged_update(HD__MEM_HOST, 0);
    p->sections.at[0].code.at[position(p, "m2", 0, 0)].in[0] = tiny_state(p, "here", 1200);
    tiny_finish(p);
    assert_fault(p, "exactly one end in device memory");

    p = staged_update(HD__MEM_HOST, 0);
    tiny_drop(p, 0, position(p, "m3", 0, 0));
    tiny_finish(p);
    assert_fault(p, "use of m3@0 before it was copied from its offloaded home"); /* m0 is there */

    p = staged_update(HD__MEM_HOST, 0);
    tiny_drop(p, 0, position(p, "m2", 1, 0));
    tiny_finish(p);
    assert_fault(p, "m2: modified copy of an offloaded tensor is not written back");
}
END_TEST

/* An update that computes with what it did not fetch is refused when it is built. */
START_TEST(what_is_not_fetched_is_refused)
{
    struct hd_program *p = staged_update(HD__MEM_HOST, 0);
    hd_tensor other = elsewhere(p, "other", 16, HD__MEM_HOST), here = tiny_state(p, "here", 16);
    ck_assert_uint_eq(hd__offload_staged(p, "update", here), here);
    ck_assert_int_eq(p->failed, 0);
    hd__offload_staged(p, "update", other);
    ck_assert_int_eq(p->failed, HD_E_INVALID);
    ck_assert_str_eq(p->error.message,
                     "section update computes with other, which lies in host memory, and does not fetch it first");
    hd__program_free(p);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("offload");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, each_memory_has_an_arena);
    tcase_add_test(c, copies_overlap_the_updates);
    tcase_add_test(c, staging_takes_three_slots);
    tcase_add_test(c, planted_faults_are_found);
    tcase_add_test(c, what_is_not_fetched_is_refused);
    return suite_run_case("offload", c);
}
