/* The trace file of ranks whose times are no whole nanoseconds: no events of a thread overlap, be it by one, since
 * Perfetto drops those; and arrows begin and end in events of their transfer. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "service/train/trace/trace.h"
#include "tests/support/compile.h"
#include "tests/support/scratch.h"

#define JOB                                                                                                            \
    "job: {name: t, steps: 4}\nmesh: {%s}\nstrategies: [{use: 3d}, {use: zero, stage: %d}]\noptimizer: {use: adamw}\n" \
    "model: {use: transformer, family: llama, layers: 4, hidden: 32, heads: 4, ffn: 64, vocab: 64}\n"                  \
    "data: {train: none.bin, seq_len: 16, batch: 8, micro_batch: 1}\n"

enum { RANKS = 4, ROOM = 20000 };

struct slice {
    int64_t start, end; /* nanoseconds */
    const char *name;
    int32_t rank, thread;
};

/* Instructions one after the other, as if each had taken a random time of up to a second, and 20 ns between them. */
static void record(struct hd__trace *t, const struct hd_program *p, uint64_t *random)
{
    double now = 86400.0 + (double)(scratch_random(random) % 1000) * 1e-10, began = now;
    t->limit = ROOM;
    t->step = 3;
    for (uint16_t s = 0; s < p->sections.count; s++)
        for (uint16_t run = 0; run < (uint16_t)p->sections.at[s].repeat; run++)
            for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
                double seconds = pow(10, -7 + (double)(scratch_random(random) % 7001) / 1000);
                hd__trace_add(t, s, run, k, now, now + seconds);
                now += seconds + 20e-9;
            }
    hd__trace_add(t, HD__TRACE_STEP, 0, 0, began, now);
    ck_assert_uint_eq(t->dropped, 0);
}

static int64_t nanos(const json_t *event, const char *key)
{
    return llround(1000 * json_number_value(json_object_get(event, key)));
}

static struct slice slice_of(const json_t *e)
{
    return (struct slice){.start = nanos(e, "ts"),
                          .end = nanos(e, "ts") + nanos(e, "dur"),
                          .name = json_string_value(json_object_get(e, "name")),
                          .rank = (int32_t)json_integer_value(json_object_get(e, "pid")),
                          .thread = (int32_t)json_integer_value(json_object_get(e, "tid"))};
}

static int is_of(const struct slice *a, const struct slice *b)
{
    return a->rank == b->rank && a->thread == b->thread;
}

static void expect_events(const json_t *events)
{
    static struct slice slices[RANKS * ROOM];
    int64_t began = 0;
    size_t i, n = 0, flows = 0;
    json_t *e;
    json_array_foreach(events, i, e) if (!strcmp(json_string_value(json_object_get(e, "ph")), "X"))
    {
        struct slice s = slices[n] = slice_of(e);
        size_t before = n++; /* on its thread: index + 1 */
        while (before && !is_of(&slices[before - 1], &s))
            before--;
        ck_assert(s.thread > 0 && s.start >= 0 && s.end >= s.start);
        ck_assert_msg(!before || slices[before - 1].end <= s.start, "rank %d: %s begins too early", s.rank, s.name);
    }
    json_array_foreach(events, i, e) if (strchr("stf", *json_string_value(json_object_get(e, "ph"))))
    {
        struct slice f = slice_of(e);
        int ends = *json_string_value(json_object_get(e, "ph")) != 's', in = 0;
        for (const struct slice *s = slices; s < slices + n; s++)
            if (is_of(s, &f) && s->start <= f.start && f.start < s->end)
                in += !strcmp(s->name, f.name) || (!strcmp(f.name, "send") && !strcmp(s->name, "recv"));
        ck_assert_msg(in == 1, "rank %d: an arrow of %s %s in %d events", f.rank, f.name, ends ? "ends" : "begins", in);
        ck_assert_msg(!ends || f.start >= began, "rank %d: an arrow of %s ends before it begins", f.rank, f.name);
        began = ends ? began : f.start;
        flows += (size_t)ends;
    }
    ck_assert_uint_gt(flows, 0);
}

static void expect_trace(const char *mesh, int stage)
{
    struct hd_error err = HD_ERROR_INIT;
    struct compiled job;
    struct scratch scratch;
    struct hd__trace trace[RANKS] = {0};
    struct hd__trace_rank ranks[RANKS] = {0};
    char text[1024];
    uint64_t random = 7;
    snprintf(text, sizeof text, JOB, mesh, stage);
    compile_text(&job, text, NULL, 0, 0);
    scratch_init(&scratch);
    for (int32_t r = 0; r < RANKS; r++) {
        record(&trace[r], hd__compiled_program(job.c, r), &random);
        ranks[r] = (struct hd__trace_rank){
            .events = trace[r].events.at, .count = trace[r].events.count, .rank = r, .offset = 1e-3 * r + 0.3e-9};
    }
    const char *path = scratch_path(&scratch, "trace.json");
    ck_ok(hd__trace_write(job.c, ranks, RANKS, path, &err));
    json_t *root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    expect_events(json_object_get(root, "traceEvents"));
    json_decref(root);
    for (int32_t r = 0; r < RANKS; r++)
        hd__free_array(&trace[r].events);
    scratch_finish(&scratch);
    compiled_free(&job);
}

START_TEST(collectives)
{
    expect_trace("dp: 4", 1);
    expect_trace("dp: 4", 3);
}
END_TEST

START_TEST(messages)
{
    expect_trace("pp: 4", 0);
}
END_TEST

/* Events for which rank 1 has room. */
static uint32_t room_of(const char *trace)
{
    struct compiled job;
    char text[1024];
    const struct hd__launch_env env = {.rank = 1, .size = RANKS, .local_size = RANKS};
    snprintf(text, sizeof text, JOB "metrics: {trace: {file: none.json, steps: 3-4%s}}\n", "dp: 4", 1, trace);
    compile_text(&job, text, NULL, 0, 0);
    struct hd__train_session session = {.compiled = job.c, .env = &env, .store = (void *)&job}; /* there is one */
    struct hd__train_trace t;
    hd__train_trace_init(&t, &session, 0);
    compiled_free(&job);
    ck_assert(t.recorded);
    return t.trace.limit;
}

START_TEST(room)
{
    ck_assert_uint_eq(room_of(", ranks: [1]") / RANKS, room_of(""));
    ck_assert_uint_eq(room_of(", ranks: [1, 3]") / (RANKS / 2), room_of(""));
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"collectives", collectives}, {"messages", messages}, {"room", room}, {NULL, NULL}};
    return scratch_run("trace write", tests);
}
