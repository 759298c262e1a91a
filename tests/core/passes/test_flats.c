/* The tensors of flat buffers by role: which of them are of a kind, and the states that strategies register. */
#include <check.h>

#include "core/passes/strategy_api.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

static hd_tensor temporary(struct hd_program *p, const char *name)
{
    hd_tensor t = tiny_state(p, name, 16);
    p->buffers.at[hd__tensor_const(p, t)->buffer].life = HD__LIFE_TEMP;
    return t;
}

/* Two flats: the first has all roles, a temporary full and a zeroed momentum; the second one tensor for the master
 * and the full weights. Both have an average. */
static struct hd_program *two_flats(void)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    struct hd__flat first = {.name = "0", .n_states = 2}, second = {.name = "1"};
    first.tensor[HD__FLAT_MASTER] = tiny_state(p, "m", 16);
    first.tensor[HD__FLAT_COMPUTE_COPY] = tiny_state(p, "low", 16);
    first.tensor[HD__FLAT_OPTIM] = tiny_state(p, "s0", 16);
    first.tensor[HD__FLAT_OPTIM + 1] = tiny_state(p, "s1", 16);
    first.tensor[HD__FLAT_FULL] = temporary(p, "full");
    first.tensor[HD__FLAT_GRAD] = first.tensor[HD__FLAT_SHARD] = tiny_state(p, "g", 16);
    first.tensor[HD__FLAT_GLOBAL_COPY] = tiny_state(p, "common", 16);
    second.tensor[HD__FLAT_MASTER] = second.tensor[HD__FLAT_FULL] = tiny_state(p, "w", 16);
    hd__push(&p->flats, first);
    hd__push(&p->flats, second);
    hd__pass_keep(p, 1, tiny_state(p, "ema0", 16), "ema");
    hd__pass_keep(p, 1, tiny_state(p, "momentum0", 16), "momentum");
    hd__pass_keep(p, 2, tiny_state(p, "ema1", 16), "ema");
    hd__pass_section(p, "own", 1);
    for (uint32_t f = 0; f < 2; f++)
        hd__pass_declare(p, p->flats.at[f].tensor[HD__FLAT_STRATEGY], HD_FACT_AVERAGE, 0, "own");
    hd__pass_declare(p, p->flats.at[0].tensor[HD__FLAT_STRATEGY + 1], HD_FACT_ZERO_SUM | HD_FACT_EQUAL, 0, "own");
    ck_assert_int_eq(p->failed, 0);
    return p;
}

START_TEST(kinds)
{
    static const struct {
        uint32_t kinds;
        const char *names;
    } rows[] = {
        {HD__FLAT_IS_PARAM, "m low full common ema0 w ema1 "},
        {HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, "m low common ema0 w ema1 "},
        {HD__FLAT_IS_GRAD, "g "},
        {HD__FLAT_IS_OPTIM_STATE, "s0 s1 "},
        {HD__FLAT_IS_STRATEGY_STATE, "momentum0 "},
        {HD__FLAT_IS_SAVED, "m s0 s1 common ema0 momentum0 w ema1 "},
        {HD__FLAT_IS_PERSISTENT, ""},
    };
    struct hd_program *p = two_flats();
    for (size_t k = 0; k < HD__COUNT(rows); k++) {
        struct hd__text found = {0};
        hd__text_add(&found, "%s", "");
        for (struct hd__flat_tensor t = {0}; hd__flat_next(p, rows[k].kinds, &t);) {
            hd__text_add(&found, "%s ", hd__tensor_const(p, t.tensor)->name);
            ck_assert_uint_eq(p->flats.at[t.flat].tensor[t.role], t.tensor);
        }
        ck_assert_str_eq(found.at, rows[k].names);
        hd__text_free(&found);
    }
    hd__program_free(p);
}
END_TEST

/* One name, one role in every flat; all ranks hold the same. */
START_TEST(registered_states)
{
    struct hd_program *p = two_flats();
    ck_assert_uint_eq(p->strategy_states.count, 2);
    ck_assert_str_eq(hd__tensor_const(p, p->flats.at[1].tensor[HD__FLAT_STRATEGY])->name, "ema1");
    ck_assert_uint_eq(p->flats.at[1].tensor[HD__FLAT_STRATEGY + 1], 0);
    ck_assert_uint_eq(hd__fact_of(p, p->flats.at[1].tensor[HD__FLAT_STRATEGY])->what, HD_FACT_AVERAGE);
    hd__program_free(p);
}
END_TEST

static void assert_refused(struct hd_program *p, uint32_t flat, const char *name)
{
    char expected[128];
    snprintf(expected, sizeof expected, "state '%s' of parameters %u: ", name, flat - 1);
    ck_assert_int_eq(p->failed, 0);
    hd__pass_keep(p, flat, tiny_state(p, "more", 16), name);
    ck_assert_int_eq(p->failed, HD_E_INVALID);
    ck_assert_msg(!strncmp(p->error.message, expected, strlen(expected)), "%s", p->error.message);
    hd__program_free(p);
}

START_TEST(states_that_cannot_be_registered)
{
    struct hd_program *p;
    assert_refused(two_flats(), 2, "ema"); /* twice */
    p = two_flats();
    for (int n = 2; n < HD__FLAT_ROLES - HD__FLAT_STRATEGY; n++)
        hd__pass_keep(p, 1, tiny_state(p, "s", 16), hd__arena_format(&p->arena, "state%d", n));
    assert_refused(p, 1, "one_too_many");
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("flats");
    tcase_add_test(c, kinds);
    tcase_add_test(c, registered_states);
    tcase_add_test(c, states_that_cannot_be_registered);
    return suite_run_case("flats", c);
}
