/* optim-adamw8: `step` against torchao.optim.AdamW8bit (tests/golden/optimizers.py): codes and scales bit for bit, over
 * every cut between blocks. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/option.h"
#include "heddle/optimizer.h"
#include "plugins/optim-adamw8/tests/adamw8_steps.h"
#include "tests/suite.h"

const struct hd_plugin *heddle_plugin_v1_adamw8(void);

static struct hd__arena arena;
static struct hd_error err = HD_ERROR_INIT;

static void parallel(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user)
{
    (void)context;
    for (int64_t i = 0; i < n; i++) /* each range is one item */
        fn(user, n - 1 - i, n - i);
}

static const struct hd_component *component(void)
{
    return heddle_plugin_v1_adamw8()->components[0];
}

static void *settings(const char *const (*set)[2], int n)
{
    const struct hd_component *c = component();
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    void *made = hd__arena_alloc(&arena, c->settings_size);
    ck_assert_int_eq(hd__options_defaults(&table, made, &arena, &err), HD_OK);
    for (int i = 0; i < n; i++) {
        int64_t at = hd__option_find(&table, set[i][0]);
        ck_assert_int_ge(at, 0);
        ck_assert_int_eq(hd__option_parse(&c->options[at], set[i][1], made, &arena, &err), HD_OK);
    }
    return made;
}

/* `cut`: blocks of the first piece; the others are in the second one. */
static void train(int64_t cut)
{
    static const char *const set[][2] = {{"block_size", "16"}, {"min_8bit_size", "0"}, {"clip", "0"}};
    const struct hd_optimizer_ops *ops = component()->ops;
    const struct hd_optim_host host = {.struct_size = sizeof host, .parallel = parallel};
    const struct hd_range decay = {.count = COUNT, .value = 0.1};
    void *s = settings(set, HD__COUNT(set));
    struct hd_optim_param p = {.struct_size = sizeof p,
                               .name = "w",
                               .count = COUNT,
                               .rows = ROWS,
                               .cols = BLOCK,
                               .all_rows = ROWS,
                               .all_cols = BLOCK,
                               .ndim = 2};
    float param[COUNT], scale[2][ROWS] = {{0}};
    unsigned char code[2][COUNT] = {{0}};
    uint32_t group = ops->group(s, &p);
    ck_assert_uint_eq(ops->group_states(s, p.group = group & ~HD_OPTIM_CUT), 4);
    memcpy(param, start, sizeof param);
    for (int n = 0; n < STEPS; n++) {
        const double hyper[HD_HYPER_COUNT] = {0.01, n + 1, 1, 0};
        for (int piece = 0; piece < 2; piece++) {
            int64_t from = piece ? cut * BLOCK : 0, to = piece ? COUNT : cut * BLOCK;
            struct hd_optim_args a = {.struct_size = sizeof a,
                                      .first = from,
                                      .count = to - from,
                                      .grad = gradients + (size_t)n * COUNT + from,
                                      .param = param + from,
                                      .state = {(void *)(code[0] + from), (void *)(code[1] + from),
                                                scale[0] + from / BLOCK, scale[1] + from / BLOCK},
                                      .norm2 = 1,
                                      .hyper = hyper,
                                      .decay = &decay,
                                      .n_decay = 1,
                                      .err = &err,
                                      .params = &p,
                                      .n_params = 1,
                                      .host = &host};
            ck_assert_msg(to == from || ops->step(s, &a) == HD_OK, "%s", err.message);
        }
        for (int i = 0; i < 2 * COUNT; i++)
            ck_assert_msg(code[i / COUNT][i % COUNT] == codes[(size_t)n * 2 * COUNT + (size_t)i],
                          "step %d: code %d is %u, torchao's is %u", n + 1, i, code[i / COUNT][i % COUNT],
                          codes[(size_t)n * 2 * COUNT + (size_t)i]);
        for (int i = 0; i < 2 * ROWS; i++)
            ck_assert_float_eq_tol(scale[i / ROWS][i % ROWS], scales[n * 2 * ROWS + i],
                                   3e-7f * scales[n * 2 * ROWS + i]);
        for (int i = 0; i < COUNT; i++)
            ck_assert_float_eq_tol(param[i], params[n * COUNT + i], 1e-6f * (1 + fabsf(params[n * COUNT + i])));
    }
}

START_TEST(as_torchao)
{
    train(_i);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("adamw8");
    tcase_add_loop_test(t, as_torchao, 0, ROWS + 1);
    return suite_run_case("adamw8", t);
}
