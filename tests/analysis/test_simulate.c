/* The step with times: spans, bubble and hidden communication of programs small enough to know by heart; rates as text;
 * the pictures. */
#include <check.h>
#include <stdlib.h>

#include "analysis/sim/simulate.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

static struct hd_error err;
static struct hd__text text;

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    text = (struct hd__text){0};
}

static void tear_down(void)
{
    hd__text_free(&text);
}

static double one_second(const struct hd_program *p, const struct hd__instr *i)
{
    (void)p;
    return i->op == HD_OP_GELU;
}

/* A second a kernel; messages and collectives take `wire` seconds. */
static struct hd__sim_rates plain_rates(double wire)
{
    struct hd__sim_rates r = {.seconds = one_second, .flops = 1, .memory = 1};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        r.latency[a] = wire;
        r.link[a] = 1e30;
    }
    return r;
}

/* ---- a pipeline of two stages, two micro-batches, 1F1B */

static hd_tensor work(struct hd_program *p, hd_tensor in, uint8_t phase, int16_t micro, const char *name)
{
    hd_tensor out = tiny_vector(p, name, 16);
    struct hd__instr *i = tiny_op(p, 0, HD_OP_GELU, T(in), T(out));
    i->phase = phase;
    i->micro = micro;
    i->chunk = (int16_t)p->stage;
    return out;
}

static void forward(struct hd_program *p, int16_t m, hd_tensor x[2])
{
    hd_tensor in = tiny_state(p, "x", 16);
    if (p->stage) {
        in = tiny_vector(p, "in", 16);
        tiny_recv(p, 0, 0, (uint16_t)(1 + m), in);
    }
    x[m] = work(p, in, HD__PHASE_F, m, "f");
    if (!p->stage)
        tiny_send(p, 0, 1, (uint16_t)(1 + m), x[m]);
}

static void backward(struct hd_program *p, int16_t m, hd_tensor x[2])
{
    hd_tensor in = x[m];
    if (!p->stage) {
        in = tiny_vector(p, "g", 16);
        tiny_recv(p, 0, 1, (uint16_t)(11 + m), in);
    }
    in = work(p, in, HD__PHASE_B, m, "b");
    if (p->stage)
        tiny_send(p, 0, 0, (uint16_t)(11 + m), in);
}

static struct hd_program *stage_program(int32_t stage)
{
    struct hd_program *p = tiny_program(2, 1, 1, stage);
    hd_tensor x[2];
    tiny_section(p, "step", 1);
    forward(p, 0, x);
    if (!stage)
        forward(p, 1, x);
    backward(p, 0, x);
    if (stage)
        forward(p, 1, x);
    backward(p, 1, x);
    tiny_finish(p);
    return p;
}

static struct hd_program *stages[2];

static struct hd__timeline simulate_pipeline(double wire)
{
    struct hd__timeline t;
    struct hd__sim_rates rates = plain_rates(wire);
    stages[0] = stage_program(0);
    stages[1] = stage_program(1);
    ck_assert_msg(!hd__sim_timeline(&stages[0]->mesh, (const struct hd_program *const *)stages, &rates, -1, &t, &err),
                  "%s", err.message);
    return t;
}

static void close_pipeline(struct hd__timeline *t)
{
    hd__timeline_free(t);
    hd__program_free(stages[0]);
    hd__program_free(stages[1]);
}

START_TEST(a_pipeline_has_its_bubble)
{
    struct hd__timeline t = simulate_pipeline(0);
    ck_assert_double_eq_tol(t.seconds, 6, 1e-12);
    ck_assert_double_eq_tol(t.span, 6, 1e-12);
    ck_assert_double_eq_tol(t.bubble_of_work, 1.0 / 2, 1e-12); /* (P - 1) / M */
    ck_assert_double_eq_tol(t.bubble_of_span, 1.0 / 3, 1e-12); /* (P - 1) / (M + P - 1) */
    ck_assert_double_eq_tol(t.busy, 4.0 / 6, 1e-12);
    ck_assert_double_eq(t.comm, 0);
    close_pipeline(&t);
}
END_TEST

START_TEST(a_pipeline_as_text)
{
    struct hd__timeline t = simulate_pipeline(0.25);
    hd__timeline_text(&t, -1, 17 + 27, &text); /* a column is 0.25 s */
    ck_assert_str_eq(text.at,
                     "stage 0  compute FFFFffff......BBBB.....bbbb\n"
                     "         pp          >        >        <\n"
                     "stage 1  compute .....FFFFBBBB.ffffbbbb.....\n"
                     "         pp          <        >        >\n"
                     "                 |0\n"
                     "F forward; B gradients of activations; . idle\n"
                     "small letters: odd micro-batches; > send to another stage; < receive from another stage\n");
    close_pipeline(&t);
}
END_TEST

/* As viewers want it: every event's thread is a number that has a name, and on one thread no event begins inside
 * another. */
static void expect_threads(const json_t *events)
{
    const json_t *e, *other;
    size_t n, k;
    json_array_foreach(events, n, e)
    {
        const json_t *pid = json_object_get(e, "pid"), *tid = json_object_get(e, "tid");
        int named = 0;
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X"))
            continue;
        double start = json_number_value(json_object_get(e, "ts")),
               end = start + json_number_value(json_object_get(e, "dur"));
        ck_assert(json_is_integer(pid) && json_integer_value(tid) > 0); /* Perfetto gives thread 0 another number */
        json_array_foreach(events, k, other)
        {
            double at = json_number_value(json_object_get(other, "ts"));
            if (!json_equal(json_object_get(other, "pid"), pid) || !json_equal(json_object_get(other, "tid"), tid))
                continue;
            named += !strcmp(json_string_value(json_object_get(other, "name")), "thread_name") &&
                     *json_string_value(json_object_get(json_object_get(other, "args"), "name"));
            ck_assert(k == n || !json_object_get(other, "dur") || at < start || at >= end - 1e-6);
        }
        ck_assert_int_eq(named, 1);
    }
}

START_TEST(a_pipeline_as_picture_and_trace)
{
    struct hd__timeline t = simulate_pipeline(0.25);
    json_t *trace = hd__timeline_trace(&t, -1), *events = json_object_get(trace, "traceEvents"), *e;
    double took = 0;
    size_t n, boxes = 0;
    json_array_foreach(events, n, e) if (json_object_get(e, "dur")) took +=
        json_number_value(json_object_get(e, "dur"));
    ck_assert_double_eq_tol(took, 1e6 * (8 + 2 * 4 * 0.25), 1e-3); /* eight kernels, and four messages at both ends */
    expect_threads(events);
    json_decref(trace);
    hd__timeline_svg(&t, -1, "a <b> & c", &text);
    ck_assert_ptr_nonnull(strstr(text.at, ">a &lt;b&gt; &amp; c</text>"));
    for (const char *at = text.at; (at = strstr(at, "fill='#56b4e9' fill-opacity"));) {
        boxes++;
        at++;
    }
    ck_assert_uint_eq(boxes, 4); /* a forward a stage and micro-batch */
    ck_assert_str_eq(text.at + text.length - 7, "</svg>\n");
    close_pipeline(&t);
}
END_TEST

/* ---- communication */

START_TEST(communication_is_hidden_or_not)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    const struct hd_program *both[] = {p, p};
    hd_tensor x = tiny_state(p, "x", 16), y = tiny_vector(p, "y", 16), a = tiny_state(p, "a", 16),
              b = tiny_state(p, "b", 16);
    struct hd__sim_rates rates = plain_rates(4);
    struct hd__timeline t;
    tiny_section(p, "micro", 2);
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, x, y);
    tiny_op(p, 0, HD_OP_GELU, T(a), T(b)); /* one second of four is hidden */
    tiny_op(p, 0, HD_OP_GELU, T(y), T(x));
    tiny_finish(p);
    ck_assert_msg(!hd__sim_timeline(&p->mesh, both, &rates, 1, &t, &err), "%s", err.message);
    ck_assert_double_eq_tol(t.seconds, 10, 1e-12);
    ck_assert_double_eq_tol(t.comm, 8, 1e-12);
    ck_assert_double_eq_tol(t.overlapped, 2, 1e-12);
    ck_assert_uint_eq(t.n_ranks, 2);
    ck_assert_int_eq(t.ranks[1].rank, 1);
    ck_assert_double_eq_tol(t.ranks[1].overlapped, 2, 1e-12);
    hd__timeline_text(&t, 1, 17 + 20, &text);
    ck_assert_str_eq(text.at, "rank 1   compute FF......FFff......ff\n"
                              "         tp      aaaaaaaa  aaaaaaaa\n"
                              "                 |0                  |10 s\n"
                              "F forward; . idle\n"
                              "small letters: odd micro-batches; a all_reduce\n");
    hd__timeline_free(&t);
    hd__program_free(p);
}
END_TEST

/* ---- rates */

START_TEST(rates_as_text)
{
    struct hd__sim_rates r = hd__sim_rates_default();
    ck_assert_int_eq(hd__sim_rates_parse(&r, "flops=2e12,link=1e10,tp.link=2e11,dp.latency=3e-6,kernel=0", &err),
                     HD_OK);
    ck_assert_double_eq(r.flops, 2e12);
    ck_assert_double_eq(r.link[HD_AXIS_PP], 1e10);
    ck_assert_double_eq(r.link[HD_AXIS_TP], 2e11);
    ck_assert_double_eq(r.latency[HD_AXIS_DP_SHARD], 3e-6);
    ck_assert_double_eq(r.latency[HD_AXIS_DP_REPLICATE], 3e-6);
    ck_assert_double_eq(r.latency[HD_AXIS_TP], hd__sim_rates_default().latency[HD_AXIS_TP]);
    hd__sim_rates_text(&r, &text);
    ck_assert_str_eq(text.at, "flops=2e+12,memory=1e+10,kernel=0,latency=5e-06,link=1e+10,dp_replicate.latency=3e-06,"
                              "dp_shard.latency=3e-06,tp.link=2e+11");
    struct hd__sim_rates again = hd__sim_rates_default();
    ck_assert_int_eq(hd__sim_rates_parse(&again, text.at, &err), HD_OK);
    ck_assert_mem_eq(&again, &r, sizeof r);
}
END_TEST

START_TEST(rates_that_are_wrong)
{
    static const char *const wrong[][2] = {
        {"speed=1", "unknown rate 'speed'"},
        {"flops", "'flops' is not a rate"},
        {"flops=", "'flops=' is not a rate"},
        {"flops=-1", "is not a rate"},
        {"flops=0", "is not a rate"},
        {"flops=1x", "'flops=1x' is not a rate"},
        {"flops=nan", "is not a rate"},
        {"tp.flops=1", "unknown rate 'tp.flops'"},
        {"xp.link=1", "unknown rate 'xp.link'"},
        {"=3", "unknown rate ''"},
        {"kernel=2", "'kernel=2' is more than 0.1 seconds: 2 us are 2e-6"},
        {"tp.latency=5", "'tp.latency=5' is more than 0.1 seconds"},
        {"link=1e9,,", "unknown rate ''"},
    };
    struct hd__sim_rates before = hd__sim_rates_default(), r = before;
    for (size_t n = 0; n < HD__COUNT(wrong); n++) {
        ck_assert_int_eq(hd__sim_rates_parse(&r, wrong[n][0], &err), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, wrong[n][1]) != NULL, "'%s': %s", wrong[n][0], err.message);
        ck_assert_mem_eq(&before, &r, sizeof r);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("simulate");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, a_pipeline_has_its_bubble);
    tcase_add_test(c, a_pipeline_as_text);
    tcase_add_test(c, a_pipeline_as_picture_and_trace);
    tcase_add_test(c, communication_is_hidden_or_not);
    tcase_add_test(c, rates_as_text);
    tcase_add_test(c, rates_that_are_wrong);
    return suite_run_case("simulate", c);
}
