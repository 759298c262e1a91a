/* optim-adamw, optim-sgd and the template optim-mylion: `step` against golden numbers, and what the loader and
 * the training loop read of them. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/option.h"
#include "core/plugin/plugin.h"
#include "tests/golden/optim.h"
#include "tests/suite.h"
#include "tests/support/linked.h"

static struct hd__plugins *registry;
static struct hd__arena arena;
static struct hd_error err = HD_ERROR_INIT;

const struct hd_plugin *heddle_plugin_v1_lion(void); /* examples/plugin-template, in this program */

static void set_up(void)
{
    registry = hd__plugins_create(NULL);
    ck_assert_int_eq(hd__plugins_add_folder(registry, PLUGINS, &err), HD_OK);
    ck_assert_int_eq(add_linked(registry, heddle_plugin_v1_lion, &err), HD_OK);
}

static void tear_down(void)
{
    hd__plugins_destroy(registry);
    hd__arena_free(&arena);
}

static const struct hd__component *load(const char *name)
{
    const struct hd__component *c = NULL;
    int32_t r = hd__plugin_find(registry, HD_KIND_OPTIMIZER, name, &c, &err);
    ck_assert_msg(r == HD_OK, "%s", err.message);
    return c;
}

/* Settings as a job would give them: through the plugin's own table of options. */
static void *settings_of(const struct hd__component *c)
{
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, c->settings_size);
    int32_t r = hd__options_check(&table, c->settings_size, &err);
    ck_assert_msg(r == HD_OK, "%s", err.message);
    r = hd__options_defaults(&table, settings, &arena, &err);
    ck_assert_msg(r == HD_OK, "%s", err.message);
    return settings;
}

static int32_t set(const struct hd__component *c, void *settings, const char *option, const char *value)
{
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    int64_t i = hd__option_find(&table, option);
    ck_assert_msg(i >= 0, "%s has no option %s", c->label, option);
    return hd__option_parse(&c->options[i], value, settings, &arena, &err);
}

static void set_number(const struct hd__component *c, void *settings, const char *option, double value)
{
    char *text = hd__format("%.17g", value);
    ck_assert_int_eq(set(c, settings, option, text), HD_OK);
    free(text);
}

static void *settings_for(const struct hd__component *c, const struct golden *g)
{
    void *settings = settings_of(c);
    set_number(c, settings, "clip", g->clip);
    if (strcmp(g->plugin, "sgd") == 0) {
        set_number(c, settings, "momentum", g->beta1);
        return settings;
    }
    if (strcmp(g->plugin, "lion") == 0) {
        set_number(c, settings, "beta1", g->beta1);
        set_number(c, settings, "beta2", g->beta2);
        return settings;
    }
    char *betas = hd__format("[%.17g, %.17g]", g->beta1, g->beta2);
    ck_assert_int_eq(set(c, settings, "betas", betas), HD_OK);
    set_number(c, settings, "eps", g->eps);
    free(betas);
    return settings;
}

struct run {
    float param[COUNT], state[2][COUNT];
};

static void train(struct run *run, const struct hd__component *c, const void *settings, const struct golden *g)
{
    const struct hd_range decay[] = {{0, MATRIX, g->decay_matrix}, {MATRIX, COUNT - MATRIX, g->decay_bias}};
    *run = (struct run){0};
    memcpy(run->param, start, sizeof start);
    for (int s = 0; s < STEPS; s++) {
        double hyper[HD_HYPER_COUNT] = {rates[s], s + 1, 1, 0};
        struct hd_optim_args a = {
            .struct_size = sizeof a,
            .count = COUNT,
            .grad = gradients[s],
            .param = run->param,
            .state = {run->state[0], run->state[1]},
            .hyper = hyper,
            .decay = decay,
            .n_decay = 2,
        };
        for (int i = 0; i < COUNT; i++)
            a.norm2 += (double)gradients[s][i] * gradients[s][i];
        ck_assert_int_eq(c->ops.optimizer.step(settings, &a), HD_OK);
    }
}

/* Values are stored in fp32 after each of 8 steps: 8 roundings of 2^-24 are 5e-7. `other` is what else a
 * rounding of the stored parameter (about 1 here) reaches: the parameter itself, and SGD's momentum through
 * the coupled decay. */
static void assert_near(const struct golden *g, const char *what, int i, double ours, double theirs, double other)
{
    double room = 5e-7 * (fmax(fabs(theirs), 1e-3) + other);
    ck_assert_msg(fabs(ours - theirs) <= room, "%s: %s[%d] is %.9g, should be %.9g", g->name, what, i, ours, theirs);
}

START_TEST(step_is_golden)
{
    const struct golden *g = &golden[_i];
    const struct hd__component *c = load(strcmp(g->plugin, "lion") ? g->plugin : "mylion");
    struct run run;
    train(&run, c, settings_for(c, g), g);
    for (int i = 0; i < COUNT; i++) {
        assert_near(g, "param", i, run.param[i], g->param[i], 1);
        assert_near(g, "state 0", i, run.state[0][i], g->state[0][i],
                    strcmp(g->plugin, "sgd") == 0 ? g->decay_matrix : 0);
        assert_near(g, "state 1", i, run.state[1][i], g->state[1][i], 0);
    }
}
END_TEST

START_TEST(adamw_instruction)
{
    const struct hd__component *c = load("adamw");
    void *settings = settings_of(c);
    struct hd_attrs attrs = {.struct_size = sizeof attrs};
    uint32_t op = 0;
    ck_assert_int_eq(c->ops.optimizer.emit(settings, &op, &attrs, &err), HD_OK);
    ck_assert_uint_eq(op, HD_OP_ADAMW);
    ck_assert_double_eq(attrs.beta1, 0.9);
    ck_assert_double_eq(attrs.beta2, 0.95);
    ck_assert_double_eq(attrs.eps, 1e-8);
    ck_assert_double_eq(attrs.clip, 1.0);
    ck_assert_double_eq(c->ops.optimizer.learning_rate(settings), 3e-4);
    ck_assert_double_eq(c->ops.optimizer.decay(settings, "w", 2), 0.1);
    ck_assert_double_eq(c->ops.optimizer.decay(settings, "b", 1), 0.0);
    ck_assert_int_eq(set(c, settings, "decay", "all"), HD_OK);
    ck_assert_double_eq(c->ops.optimizer.decay(settings, "b", 1), 0.1);
}
END_TEST

START_TEST(adamw_refuses_betas)
{
    static const struct {
        const char *value, *says;
    } bad[] = {
        {"[0.9]", "optimizer.betas has 1 number, AdamW needs 2"},
        {"[0.9, 1.0]", "optimizer.betas: '1.0' is not a number from 0 up to but not 1"},
        {"[0.9, many]", "optimizer.betas: 'many' is not a number"},
    };
    const struct hd__component *c = load("adamw");
    void *settings = settings_of(c);
    ck_assert_int_eq(c->ops.optimizer.check(settings, &err), HD_OK);
    ck_assert_int_eq(set(c, settings, "betas", bad[_i].value), HD_OK);
    ck_assert_int_eq(c->ops.optimizer.check(settings, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, bad[_i].says) != NULL, "%s", err.message);
}
END_TEST

START_TEST(sgd_instruction)
{
    const struct hd__component *c = load("sgd");
    void *settings = settings_of(c);
    struct hd_attrs attrs = {.struct_size = sizeof attrs};
    uint32_t op = 0;
    ck_assert_uint_eq(c->ops.optimizer.states(settings), 0);
    set_number(c, settings, "momentum", 0.9);
    ck_assert_uint_eq(c->ops.optimizer.states(settings), 1);
    ck_assert_int_eq(c->ops.optimizer.emit(settings, &op, &attrs, &err), HD_OK);
    ck_assert_uint_eq(op, HD_OP_SGD);
    ck_assert_double_eq(attrs.beta1, 0.9);
    ck_assert_double_eq(attrs.clip, 0.0);
    ck_assert_double_eq(c->ops.optimizer.learning_rate(settings), 0.1);
    set_number(c, settings, "weight_decay", 0.5);
    ck_assert_double_eq(c->ops.optimizer.decay(settings, "b", 1), 0.5);
    ck_assert_int_eq(set(c, settings, "decay", "matrices"), HD_OK);
    ck_assert_double_eq(c->ops.optimizer.decay(settings, "b", 1), 0.0);
}
END_TEST

/* Of a shard that begins in a range and ends behind them: gaps have no decay, and of two ranges the first counts.
 * Others may be listed in any order. */
START_TEST(runs_of_decay_cover_a_shard)
{
    static const struct hd_range ranges[2][4] = {{{0, 10, 0.1}, {12, 8, 0.2}, {15, 10, 0.3}, {40, 5, 0.4}},
                                                 {{40, 5, 0.4}, {12, 8, 0.2}, {15, 10, 0.3}, {0, 10, 0.1}}};
    static const struct {
        int64_t n;
        double decay;
    } want[] = {{5, 0.1}, {2, 0}, {8, 0.2}, {5, 0.3}, {5, 0}};
    const struct hd_optim_args args = {
        .struct_size = sizeof args, .first = 5, .count = 25, .decay = ranges[_i], .n_decay = HD__COUNT(ranges[_i])};
    int64_t at = 0;
    for (size_t i = 0; i < HD__COUNT(want); i++) {
        double decay = -1;
        ck_assert_int_eq(hd_decay_run(&args, at, &decay), want[i].n);
        ck_assert_double_eq(decay, want[i].decay);
        at += want[i].n;
    }
    ck_assert_int_eq(at, args.count);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("optim");
    int n = (int)HD__COUNT(golden);
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, step_is_golden, 0, n);
    tcase_add_test(c, adamw_instruction);
    tcase_add_loop_test(c, adamw_refuses_betas, 0, 3);
    tcase_add_test(c, sgd_instruction);
    tcase_add_loop_test(c, runs_of_decay_cover_a_shard, 0, 2);
    return suite_run_case("optim", c);
}
