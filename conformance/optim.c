/* Promises of every optimizer: of `step`, over pieces of parameters, and of whole jobs. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/check.h"
#include "core/base/option.h"
#include "core/plugin/plugin.h"
#include "heddle/gradient_clipping.h"
#include "heddle/reference.h"

/* Three parameters in one flat buffer, and guards around every array. Where states have a number for a block of
 * elements, parameters begin at multiples of it. */
enum { PARAMS = 3, MOST = 2 * 256 + 35, GUARD = 16, ROOM = MOST + 2 * GUARD, STEPS = 6, STATES = 4 };
enum { FACTORS = 256, STATE_ROOM = 8 * (PARAMS * FACTORS + 2 * GUARD) }; /* numbers of a parameter at most; bytes */
static struct hd_optim_param params[PARAMS] = {
    {.name = "layers.0.up.weight", .ndim = 2, .count = 55, .rows = 5, .cols = 11},
    {.name = "layers.0.up.bias", .ndim = 1, .count = 7},
    {.name = "layers.1.up.weight", .ndim = 2, .count = 35, .rows = 5, .cols = 7}};
static int64_t count, grain;     /* elements of the buffer; shards begin at multiples */
static int whole_params[PARAMS]; /* not cut */
static struct hd_optim_state shapes[PARAMS][STATES];
static const float canary = -12345.5f;
static const unsigned char guard = 0xa5;

static const struct hd_optimizer_ops *ops;
static const void *settings;

struct trained {
    float param[ROOM];
    _Alignas(8) unsigned char state[STATES][STATE_ROOM];
};

/* How a step is called. */
struct how {
    int64_t cuts[MOST + 1]; /* pieces end here, ascending; the last is all, 0 */
    int last_first;         /* the last piece is updated before the first one */
    double scale;           /* gradients are multiplied by it, and hyper says so */
    double larger, odd;     /* the same, but hyper says nothing; in every other step times `odd` too */
    double skip;
    double slower; /* the learning rate is divided by it; 0: by 1 */
    float spoilt;  /* added to every gradient */
    int no_error;  /* args.err is NULL */
};

static const struct how whole = {.scale = 1, .larger = 1, .odd = 1};

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double noise(uint64_t n)
{
    n = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    n = (n ^ n >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    return (double)(int64_t)(n ^ n >> 29) / 9223372036854775808.0;
}

static float gradient(int step, int64_t i)
{
    return (float)noise(1000 * (uint64_t)step + (uint64_t)i);
}

static double rate(int step)
{
    return 0.01 / (1 + step);
}

static uint32_t states(void)
{
    return ops->states ? ops->states(settings) : ops->n_states;
}

/* The parameter that has element i; -1: none. */
static int owner(int64_t i)
{
    for (int k = 0; k < PARAMS; k++)
        if (i >= params[k].first && i < params[k].first + params[k].count)
            return k;
    return -1;
}

static int64_t numbers(int k, uint32_t s)
{
    const struct hd_optim_param *p = &params[k];
    const int64_t each[] = {[HD_STATE_ROW] = p->rows,
                            [HD_STATE_COLUMN] = p->cols,
                            [HD_STATE_ROW_FACTOR] = p->rows * p->rows,
                            [HD_STATE_COLUMN_FACTOR] = p->cols * p->cols,
                            [HD_STATE_ONE] = 1};
    return each[shapes[k][s].kind];
}

/* Groups and states of the parameters, and their places. */
static void lay_out(void)
{
    int64_t at = 0;
    grain = 1;
    for (int k = 0; k < PARAMS; k++) {
        struct hd_optim_param *p = &params[k];
        p->struct_size = sizeof *p;
        p->all_rows = p->rows;
        p->all_cols = p->cols;
        uint32_t group = ops->group ? ops->group(settings, p) : 0;
        p->group = group & ~HD_OPTIM_CUT;
        whole_params[k] = !(ops->caps & HD_OPTIM_FLAT) && !(group & HD_OPTIM_CUT);
        ck_assert_msg(p->group <= UINT16_MAX, "the group of %s is %u", p->name, p->group);
        for (uint32_t s = 0; s < states(); s++) {
            shapes[k][s] = (struct hd_optim_state){.struct_size = sizeof shapes[k][s], .dtype = HD_F32};
            if (ops->state)
                ops->state(settings, p->group, s, &shapes[k][s]);
            grain = shapes[k][s].kind == HD_STATE_BLOCK && shapes[k][s].block > grain ? shapes[k][s].block : grain;
            ck_assert_msg(shapes[k][s].kind <= HD_STATE_ONE && hd_dtype_size(shapes[k][s].dtype),
                          "state %u of %s has kind %u and dtype %u", s, p->name, shapes[k][s].kind, shapes[k][s].dtype);
            p->state[s] = k * FACTORS;
        }
    }
    ck_assert_msg(grain <= FACTORS, "a state has a number for %lld elements: set an option for 256 or fewer",
                  (long long)grain);
    for (int k = 0; k < PARAMS; k++) {
        params[k].first = at;
        count = at + params[k].count;
        at = (count + grain - 1) / grain * grain;
    }
}

/* The numbers of state s that are of parameter k. */
static struct hd_range numbers_of(int k, uint32_t s)
{
    const struct hd_optim_state *x = &shapes[k][s];
    int64_t unit = x->kind == HD_STATE_BLOCK ? x->block : 1;
    if (x->kind > HD_STATE_BLOCK)
        return (struct hd_range){k * FACTORS, numbers(k, s), 0};
    return (struct hd_range){params[k].first / unit, (params[k].count + unit - 1) / unit, 0};
}

/* Bytes of a state that `step` may write, behind the guard: those of all parameters. */
static size_t state_bytes(uint32_t s)
{
    int64_t n = 0;
    for (int k = 0; k < PARAMS; k++) {
        struct hd_range r = numbers_of(k, s);
        int64_t end = (r.first + r.count) * (int64_t)hd_dtype_size(shapes[k][s].dtype);
        n = end > n ? end : n;
    }
    return (size_t)n;
}

static void begin(struct trained *t)
{
    settings = conf_settings(&(struct hd_error)HD_ERROR_INIT);
    ops = &conf_target.component->ops.optimizer;
    lay_out();
    for (int i = 0; i < ROOM; i++)
        t->param[i] = i < GUARD || i >= GUARD + count ? canary
                      : owner(i - GUARD) < 0          ? 0
                                                      : (float)(1 + 0.5 * noise(77777 + (uint64_t)i));
    memset(t->state, guard, sizeof t->state);
    for (uint32_t s = 0; s < states(); s++)
        memset(t->state[s] + 8 * GUARD, 0, state_bytes(s));
}

/* ---- what the device offers: items one by one, the last one first, and products in plain loops */

static void parallel(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user)
{
    (void)context;
    while (n-- > 0)
        fn(user, n, n + 1);
}

static float element(uint32_t dtype, const struct hd_optim_matrix *m, int64_t i, int64_t j)
{
    int64_t at = i * m->row + j * m->col;
    uint32_t word = dtype == HD_BF16 ? (uint32_t)((const uint16_t *)m->data)[at] << 16 : 0;
    float x = dtype == HD_BF16 ? 0 : ((const float *)m->data)[at];
    if (dtype == HD_BF16)
        memcpy(&x, &word, sizeof x);
    return x;
}

static int32_t product(void *context, uint32_t dtype, int64_t m, int64_t n, int64_t k, const struct hd_optim_matrix *a,
                       const struct hd_optim_matrix *b, const struct hd_optim_matrix *c, struct hd_error *err)
{
    (void)context;
    if ((dtype != HD_F32 && dtype != HD_BF16) || c->col != 1)
        return hd_fail(err, HD_E_INVALID, "a product of matrices of dtype %u", dtype);
    for (int64_t at = 0; at < m * n; at++) {
        float sum = 0;
        for (int64_t x = 0; x < k; x++)
            sum += element(dtype, a, at / n, x) * element(dtype, b, x, at % n);
        ((float *)c->data)[at / n * c->row + at % n] = sum;
    }
    return HD_OK;
}

/* A call has parameters of one group. */
static int32_t call(struct trained *t, const struct how *how, const struct hd_optim_args *all, int64_t first,
                    int64_t end, struct hd_error *err)
{
    static const struct hd_optim_host host = {.struct_size = sizeof host, .product = product, .parallel = parallel};
    struct hd_optim_args a = *all;
    int from = 0, to, all_from;
    uint64_t scratch = 0;
    int32_t rc;
    while (from < PARAMS && params[from].first + params[from].count <= first)
        from++;
    all_from = from;
    for (to = from; to < PARAMS && params[to].first < end && params[to].group == params[from].group; to++)
        if (ops->scratch && ops->scratch(settings, &params[to]) > scratch)
            scratch = ops->scratch(settings, &params[to]);
    if (to == from)
        return HD_OK;
    a.first = first;
    a.count = (to < PARAMS && params[to].first < end ? params[to].first : end) - first;
    a.grad += first;
    a.param = t->param + GUARD + first;
    for (uint32_t s = 0; s < states(); s++) {
        const struct hd_optim_state *x = &shapes[all_from][s];
        int64_t at = x->kind == HD_STATE_ELEMENT ? first : x->kind == HD_STATE_BLOCK ? first / x->block : 0;
        a.state[s] = (void *)(t->state[s] + 8 * GUARD + at * (int64_t)hd_dtype_size(x->dtype));
        for (int k = from; k < to; k++) /* as a job says it: a parameter's first number, in state[s] of this call */
            if (x->kind == HD_STATE_ELEMENT || x->kind == HD_STATE_BLOCK)
                params[k].state[s] = (params[k].first - first) / (x->kind == HD_STATE_BLOCK ? x->block : 1);
    }
    a.err = how->no_error ? NULL : err;
    a.params = params + from;
    a.n_params = (uint64_t)(to - from);
    a.host = &host;
    a.scratch = scratch ? aligned_alloc(64, (scratch + 63) / 64 * 64) : NULL;
    rc = ops->step(settings, &a);
    free(a.scratch);
    return rc || first + a.count >= end ? rc : call(t, how, all, first + a.count, end, err);
}

static int32_t step(struct trained *t, const struct how *how, int n, struct hd_error *err)
{
    struct hd_range decay[PARAMS];
    double hyper[HD_HYPER_COUNT] = {how->slower > 0 ? rate(n) / how->slower : rate(n), n + 1, 1 / how->scale,
                                    how->skip},
           norm2 = 0;
    float grad[ROOM], before[ROOM];
    int32_t rc = HD_OK;
    int pieces = 1;
    for (int i = 0; i < ROOM; i++) {
        int inside = owner(i - GUARD) >= 0;
        grad[i] =
            inside ? gradient(n, i - GUARD) * (float)(how->scale * how->larger * (n % 2 ? how->odd : 1)) + how->spoilt
            : i < GUARD || i >= GUARD + count ? canary
                                              : 0;
        norm2 += inside ? (double)grad[i] * grad[i] : 0;
    }
    memcpy(before, grad, sizeof grad);
    for (int p = 0; p < PARAMS; p++)
        decay[p] = (struct hd_range){params[p].first, params[p].count,
                                     ops->decay ? ops->decay(settings, params[p].name, params[p].ndim) : 0};
    const struct hd_optim_args all = {.struct_size = sizeof all,
                                      .grad = grad + GUARD,
                                      .norm2 = norm2,
                                      .hyper = hyper,
                                      .decay = decay,
                                      .n_decay = PARAMS};
    while (how->cuts[pieces - 1])
        pieces++;
    for (int k = 0; k < pieces && !rc; k++) {
        int piece = how->last_first ? pieces - 1 - k : k;
        rc = call(t, how, &all, piece ? how->cuts[piece - 1] : 0, piece < pieces - 1 ? how->cuts[piece] : count, err);
    }
    for (int i = 0; i < ROOM; i++)
        ck_assert_msg(bits(before[i]) == bits(grad[i]), "step %d wrote into its gradients", n + 1);
    return rc;
}

static void train_from(struct trained *t, const struct how *how, int from, int to)
{
    struct hd_error err = HD_ERROR_INIT;
    for (int n = from; n < to; n++) {
        int32_t rc = step(t, how, n, &err);
        ck_assert_msg(rc == HD_OK, "step %d failed with %d: %s", n + 1, rc, err.message);
    }
    for (int i = 0; i < ROOM; i++)
        ck_assert_msg((i >= GUARD && i < GUARD + count) || t->param[i] == canary,
                      "param[%d] was written, outside of the piece", i - GUARD);
    for (uint32_t s = 0; s < STATES; s++)
        for (size_t i = 0; i < STATE_ROOM; i++)
            ck_assert_msg((s < states() && i >= 8 * GUARD && i < 8 * GUARD + state_bytes(s)) || t->state[s][i] == guard,
                          "byte %d of state %u was written, outside of the piece", (int)i - 8 * GUARD, s);
}

static struct trained train(const struct how *how)
{
    struct trained t;
    begin(&t);
    train_from(&t, how, 0, STEPS);
    return t;
}

static void same_bits(const struct trained *a, const struct trained *b, const char *why)
{
    for (int i = 0; i < ROOM; i++) {
        ck_assert_msg(bits(a->param[i]) == bits(b->param[i]), "%s: param[%d] is %.9g and %.9g", why, i - GUARD,
                      (double)a->param[i], (double)b->param[i]);
    }
    for (uint32_t s = 0; s < states(); s++)
        for (size_t i = 0; i < STATE_ROOM; i++)
            ck_assert_msg(a->state[s][i] == b->state[s][i], "%s: byte %d of state %u is %u and %u", why,
                          (int)i - 8 * GUARD, s, a->state[s][i], b->state[s][i]);
}

/* ---- checks */

START_TEST(slots_answer)
{
    struct trained t;
    begin(&t);
    double lr = ops->learning_rate(settings), clip = ops->clip ? ops->clip(settings) : 0;
    ck_assert_msg(isfinite(lr) && lr >= 0, "learning_rate is %g", lr);
    ck_assert_msg(isfinite(clip) && clip >= 0, "clip is %g", clip);
    ck_assert_msg(states() <= ops->n_states && ops->n_states <= STATES, "states says %u, n_states %u", states(),
                  ops->n_states);
    for (int p = 0; p < PARAMS && ops->decay; p++) {
        double decay = ops->decay(settings, params[p].name, params[p].ndim);
        ck_assert_msg(isfinite(decay) && decay >= 0, "decay of %s is %g", params[p].name, decay);
    }
    for (uint32_t s = 0; s < ops->n_states; s++) {
        const char *name = ops->state_names[s];
        ck_assert_msg(name && *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789")],
                      "state %u is called '%s': checkpoints name it, in a-z, 0-9 and _", s, name ? name : "");
        for (uint32_t o = 0; o < s; o++)
            ck_assert_msg(strcmp(name, ops->state_names[o]) != 0, "two states are called %s", name);
    }
}
END_TEST

/* Those in fp32; of what is in other types the optimizer alone knows what it stands for. */
static void states_are_numbers(const struct trained *t)
{
    for (int k = 0; k < PARAMS; k++)
        for (uint32_t s = 0; s < states(); s++) {
            struct hd_range r = numbers_of(k, s);
            const float *x = (const void *)(t->state[s] + 8 * GUARD);
            for (int64_t i = r.first; shapes[k][s].dtype == HD_F32 && i < r.first + r.count; i++)
                ck_assert_msg(!isnan(x[i]), "number %lld of state %s of %s is NaN after %d steps",
                              (long long)(i - r.first), ops->state_names[s], params[k].name, STEPS);
        }
}

START_TEST(a_step_moves_all_parameters)
{
    struct trained before, after = train(&whole);
    begin(&before);
    for (int i = GUARD; i < GUARD + count; i++) {
        if (owner(i - GUARD) < 0)
            continue;
        ck_assert_msg(isfinite(after.param[i]), "param[%d] is %g", i - GUARD, (double)after.param[i]);
        ck_assert_msg(before.param[i] != after.param[i], "param[%d] stays %g in %d steps", i - GUARD,
                      (double)before.param[i], STEPS);
    }
    states_are_numbers(&after);
}
END_TEST

/* The effect of an option's value: answers of slots, and what steps leave of small and large gradients. */
struct effect {
    double answers[2], decay[PARAMS];
    struct trained trained[3];
};

/* 0: the value is refused. */
static int see_effect(const char *set, int decay_alone, struct effect *e)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t before = conf_target.n_set;
    int refused;
    memset(e, 0, sizeof *e);
    if (set)
        conf_target.set[conf_target.n_set++] = set; /* it has room for all words of the command line */
    ops = &conf_target.component->ops.optimizer;
    settings = conf_settings(&err);
    refused = !settings || (ops->check && ops->check(settings, &err));
    for (int k = 0; k < PARAMS && !refused && ops->decay; k++)
        e->decay[k] = ops->decay(settings, params[k].name, params[k].ndim);
    for (int n = 0; n < 3 && !refused && !decay_alone; n++) {
        struct how how = whole;
        how.larger = n == 0 ? 1 : n == 1 ? 1e-4 : 1e4;
        begin(&e->trained[n]);
        e->answers[0] = ops->learning_rate(settings);
        e->answers[1] = ops->clip ? ops->clip(settings) : 0;
        for (int t = 0; t < 4 * STEPS && !step(&e->trained[n], &how, t, &err); t++)
            continue;
    }
    conf_target.n_set = before;
    return !refused;
}

static void check_option(const struct hd_option *x)
{
    static struct effect as_is, other;
    int ranged = x->min < x->max, whole_number = x->type == HD_OPT_INT, seen = 0, acts = 0, decays = 0, shrinks = 0;
    const double values[] = {ranged ? x->min : 0, ranged ? x->max : 1e3, ranged ? (x->min + x->max) / 2 : 1};
    see_effect(NULL, 0, &as_is);
    for (size_t v = 0; v < HD__COUNT(values); v++) {
        char *set = hd__format(whole_number ? "%s=%.0f" : "%s=%.17g", x->name, values[v]); // NOLINT: one of two
        if (see_effect(set, whole_number, &other)) {
            int decay = memcmp(other.decay, as_is.decay, sizeof other.decay) != 0;
            int trained = !whole_number || (decay && see_effect(set, 0, &other));
            seen++;
            decays |= decay;
            acts |= memcmp(&other, &as_is, sizeof other) != 0;
            for (int n = 0; n < 3 && trained; n++)
                shrinks |= memcmp(other.trained[n].param, as_is.trained[n].param, sizeof as_is.trained[n].param) != 0;
        }
        free(set);
    }
    ck_assert_msg(
        shrinks || !decays,
        "another %s changes what `decay` answers, and no parameter: does `step` use it (hd_decay_run), and is "
        "the field of the option's type (HD_OPT_FLOAT: double, HD_OPT_INT: int64_t)?",
        x->name);
    ck_assert_msg(
        acts || !seen || whole_number,
        "steps, `decay`, `clip` and `learning_rate` are the same where %s is %g, %g and %g: it has no effect; "
        "an option that has one under a condition names that in `needs`",
        x->name, values[0], values[1], values[2]);
}

/* An int may be a size of blocks or a seed, and change nothing here; but what decays, shrinks parameters. */
START_TEST(options_have_an_effect)
{
    const struct hd__component *c = conf_target.component;
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    for (size_t o = 0; o < table.count; o++) {
        struct hd_option x = hd__option_at(&table, o);
        if ((x.flags & HD_OPTION_GLOBAL) && !x.needs && (x.type == HD_OPT_FLOAT || x.type == HD_OPT_INT))
            check_option(&x);
    }
}
END_TEST

START_TEST(any_cut_gives_the_same_bits)
{
    struct trained want = train(&whole);
    struct how how = whole;
    char why[64];
    int64_t n = 0;
    for (how.last_first = 0; how.last_first < 2; how.last_first++) {
        n = 0;
        for (int64_t cut = grain; cut < count; cut += grain) {
            struct trained got;
            int within = owner(cut);
            if (within >= 0 && whole_params[within] && cut > params[within].first)
                continue;
            how.cuts[0] = cut;
            how.cuts[1] = 0;
            got = train(&how);
            snprintf(why, sizeof why, "cut at %lld", (long long)cut);
            same_bits(&want, &got, why);
        }
        for (int64_t cut = grain; cut < count; cut += grain)
            if (owner(cut) < 0 || !whole_params[owner(cut)] || cut == params[owner(cut)].first)
                how.cuts[n++] = cut;
        how.cuts[n] = 0;
        struct trained got = train(&how);
        same_bits(&want, &got, "cut at once wherever it may be");
    }
}
END_TEST

START_TEST(a_loss_scale_changes_no_bit)
{
    struct trained want = train(&whole), got;
    struct how how = whole;
    for (how.scale = 1.0 / 64; how.scale < 1e5; how.scale *= 64) {
        got = train(&how);
        same_bits(&want, &got, "gradients times a power of two");
    }
}
END_TEST

START_TEST(overflow_and_skip_write_nothing)
{
    struct how bad = whole;
    bad.skip = _i == 0;
    bad.spoilt = _i == 1 ? NAN : _i == 2 ? INFINITY : 0;
    struct trained t, before;
    begin(&t);
    train_from(&t, &whole, 0, 2);
    before = t;
    train_from(&t, &bad, 2, STEPS);
    same_bits(&before, &t, _i ? "the norm of the gradients is not finite" : "hyper says skip");
}
END_TEST

/* The schedule's rate comes in hyper; what settings say is its peak. */
START_TEST(the_rate_is_that_of_hyper)
{
    struct how how = whole;
    how.slower = 1024;
    struct trained before, fast = train(&whole), slow = train(&how);
    begin(&before);
    double moved[2] = {0};
    for (int i = GUARD; i < GUARD + count; i++) {
        moved[0] += fabs((double)fast.param[i] - before.param[i]);
        moved[1] += fabs((double)slow.param[i] - before.param[i]);
    }
    ck_assert_msg(moved[1] < moved[0] / 2,
                  "parameters move by %g with the rates in hyper[HD_HYPER_LR], and by %g with 1/1024 of them", moved[0],
                  moved[1]);
}
END_TEST

START_TEST(step_needs_no_error_struct)
{
    struct how how = whole;
    how.no_error = 1;
    struct trained want = train(&whole), got = train(&how);
    same_bits(&want, &got, "with and without args.err");
}
END_TEST

/* Half of the steps in one process, the others in one that has parameters and states alone: a resumed job. */
START_TEST(parameters_and_states_are_all_there_is)
{
    struct trained *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
    begin(shared);
    for (int half = 0; half < 2; half++) {
        int status;
        pid_t pid = fork();
        if (!pid) {
            train_from(shared, &whole, half ? STEPS / 2 : 0, half ? STEPS : STEPS / 2);
            fflush(NULL);
            _exit(0);
        }
        ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    }
    struct trained want = train(&whole);
    same_bits(&want, shared, "in one process and resumed in another");
}
END_TEST

/* Two shards of one rank, or another optimizer beside it: what one call leaves behind is not seen by the next. */
START_TEST(calls_do_not_see_each_other)
{
    struct trained want = train(&whole), a, b;
    struct how other = whole;
    other.larger = 3;
    begin(&a);
    begin(&b);
    for (int n = 0; n < STEPS; n++) {
        train_from(&a, &whole, n, n + 1);
        train_from(&b, &other, n, n + 1);
    }
    same_bits(&want, &a, "with another buffer updated between its steps");
}
END_TEST

/* Beyond the threshold only the direction counts: every other step's gradient may be a thousand times as large. */
START_TEST(clipping_is_by_the_global_norm)
{
    struct trained want, got;
    struct how how = whole;
    begin(&want);
    how.larger = 1 + ops->clip(settings); /* the norm of what gradient() makes is 5 */
    want = train(&how);
    how.odd = 1000;
    got = train(&how);
    for (int i = GUARD; i < GUARD + count; i++)
        ck_assert_msg(fabsf(want.param[i] - got.param[i]) <= 1e-5f * (1 + fabsf(want.param[i])),
                      "clip is %g, but param[%d] is %.9g, and %.9g where gradients above it are 1000 times as large",
                      ops->clip(settings), i - GUARD, (double)want.param[i], (double)got.param[i]);
}
END_TEST

/* The rule of the instruction that `emit` names, as heddle/optimizer.h has it, in fp64. */
static void rule(uint32_t op, const struct hd_attrs *at, double *p, double *m, double *v, double g, double decay,
                 double lr, int t)
{
    if (op == HD_OP_ADAMW) {
        *p *= 1 - lr * decay;
        *m = at->beta1 * *m + (1 - at->beta1) * g;
        *v = at->beta2 * *v + (1 - at->beta2) * g * g;
        *p -= lr / (1 - pow(at->beta1, t)) * *m / (sqrt(*v) / sqrt(1 - pow(at->beta2, t)) + at->eps);
    } else {
        *m = at->beta1 * *m + g + decay * *p;
        *p -= lr * (states() ? *m : g + decay * *p);
    }
}

START_TEST(step_is_the_rule_of_its_instruction)
{
    double p[MOST], m[MOST] = {0}, v[MOST] = {0};
    struct hd_attrs at = {.struct_size = sizeof at};
    struct hd_error err = HD_ERROR_INIT;
    struct trained start, got = train(&whole);
    uint32_t op = 0;
    begin(&start);
    ck_assert_msg(ops->emit(settings, &op, &at, &err) == HD_OK, "emit: %s", err.message);
    ck_assert_msg(op == HD_OP_ADAMW || op == HD_OP_SGD, "emit names op %u, which is no update", op);
    for (int i = 0; i < count; i++)
        p[i] = start.param[GUARD + i];
    for (int n = 0; n < STEPS; n++) {
        double norm2 = 0;
        for (int i = 0; i < count; i++)
            norm2 += (double)gradient(n, i) * gradient(n, i);
        double clip = hd_clip_factor(norm2, at.clip, sqrt);
        for (int k = 0; k < PARAMS; k++)
            for (int64_t i = params[k].first; i < params[k].first + params[k].count; i++)
                rule(op, &at, &p[i], &m[i], &v[i], gradient(n, i) * clip,
                     ops->decay ? ops->decay(settings, params[k].name, params[k].ndim) : 0, rate(n), n + 1);
    }
    for (int i = 0; i < count; i++) /* STEPS roundings to fp32 */
        ck_assert_msg(fabs(p[i] - got.param[GUARD + i]) <= STEPS * 1e-7 * (1 + fabs(p[i])),
                      "param[%d] is %.9g, and %.9g by the rule in fp64", i, (double)got.param[GUARD + i], p[i]);
}
END_TEST

/* ---- whole jobs: ranks, shards, a resumed run */

static const char *job_text(char text[2048])
{
    struct hd__text use = {0};
    conf_use(&use);
    snprintf(text, 2048,
             "job: {name: optim, steps: 6, seed: 3, deterministic: exact}\n"
             "strategies: [{use: zero}]\n"
             "optimizer: %s\n"
             "model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, "
             "vocab: 256}\n"
             "data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 2, shuffle: false}\n",
             use.at);
    return text;
}

START_TEST(whole_jobs_train_the_same)
{
    static const struct {
        const char *words;
        int cuts; /* parameters, so that an optimizer of whole ones is refused */
    } ways[] = {{"launch.ranks=1 strategies.zero.stage=0", 0},
                {"launch.ranks=2 strategies.zero.stage=0", 0},
                {"launch.ranks=2 strategies.zero.stage=1", 1},
                {"launch.ranks=4 strategies.zero.stage=3", 1},
                {"launch.ranks=2 strategies.zero.stage=1 job.steps=3 checkpoint.dir=saved checkpoint.every=3", 1},
                {"launch.ranks=4 strategies.zero.stage=3 checkpoint.dir=saved", 1}};
    char text[2048], want[128], got[128];
    int flat = (conf_target.component->ops.optimizer.caps & HD_OPTIM_FLAT) != 0;
    for (size_t k = 0; k < HD__COUNT(ways); k++) {
        struct hd__text printed = {0};
        int code = conf_train(conf_folder(), job_text(text), ways[k].words, &printed);
        if (code == 2 && ways[k].cuts && !flat)
            continue; /* said by name */
        ck_assert_msg(code == 0, "heddle train %s: exit code %d\n%s", ways[k].words, code, printed.at);
        if (strstr(ways[k].words, "job.steps"))
            continue;
        conf_end(&printed, k ? got : want);
        ck_assert_msg(!k || !strcmp(want, got), "%s: ends with %s, and %s with %s", ways[0].words, want, ways[k].words,
                      got);
    }
}
END_TEST

void conf_optim(void)
{
    struct trained t;
    begin(&t);
    RUN_TEST(slots_answer);
    if (ops->step) {
        RUN_TEST(a_step_moves_all_parameters);
        RUN_TEST(options_have_an_effect);
        RUN_TEST(any_cut_gives_the_same_bits);
        RUN_TEST(a_loss_scale_changes_no_bit);
        RUN_LOOP(overflow_and_skip_write_nothing, 0, 3, NULL);
        RUN_TEST(the_rate_is_that_of_hyper);
        RUN_TEST(step_needs_no_error_struct);
        RUN_TEST(parameters_and_states_are_all_there_is);
        RUN_TEST(calls_do_not_see_each_other);
        if (ops->clip && ops->clip(settings) > 0)
            RUN_TEST(clipping_is_by_the_global_norm);
        if (ops->emit)
            RUN_TEST(step_is_the_rule_of_its_instruction);
    }
    RUN_TEST(whole_jobs_train_the_same);
}
