/* Ranks that train apart (plugins/strategy-localsgd): what must come out the same comes out the same, what is planted
 * into the section that brings them together is found, and what makes no sense is refused. Numbers of torch:
 * tests/system/test_localsgd.c.
 *
 *     test_localsgd [DRAWS [SEED]] draws more meshes, by hand */
#include <math.h>
#include <stdlib.h>

#include "analysis/numerics.h"
#include "analysis/print.h"
#include "analysis/sim/machine.h"
#include "analysis/sim/simulate.h"
#include "conformance/edits.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compiled.h"

#define TOLERANCE 1e-9

static uint32_t draws = 60;
static uint64_t state = 1;

static uint32_t pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

#define ONE_OF(...) \
    ((const char *const[]){__VA_ARGS__})[pick(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))]

/* ---- meeting in every step, averaging: data parallel SGD
 * A replica's step is linear in its gradient, momentum included, and all begin a step alike: the mean of their
 * parameters is what one rank gets from the mean of their gradients. In fp64, so what differs is an error. */

static void draw(struct hd__text *text)
{
    const char *mesh =
        ONE_OF("dp: 2", "dp: 4", "dp: {replicate: 2, shard: 2}", "dp: 2, tp: 2", "dp: 2, pp: 2", "dp: 2, cp: 2",
               "dp: {replicate: 2, shard: 2}, pp: 2", "dp: {replicate: 2, shard: 2}, tp: 2");
    int hybrid = strstr(mesh, "replicate") && pick(4);
    const char *stage = hybrid ? ONE_OF("0", "1", "2", "3", "1, offload: {optimizer: host}",
                                        "3, offload: {optimizer: host, params: host}")
                               : ONE_OF("0", "0, bucket: 0", "0, overlap: false");
    hd__text_add(text, "job: {name: apart, steps: 3}\nmesh: {%s}\n", mesh);
    hd__text_add(text, "strategies:\n  - {use: 3d, schedule: %s, sequence_parallel: %s}\n  - {use: zero, stage: %s}\n",
                 ONE_OF("gpipe", "1f1b"), ONE_OF("true", "false"), stage);
    hd__text_add(text, "  - {use: localsgd, every: 1, outer_lr: 1, momentum: 0, nesterov: %s, axes: %s}\n",
                 ONE_OF("true", "false"), hybrid ? "[dp_replicate]" : "[dp_replicate, dp_shard]");
    hd__text_add(text, "optimizer: {use: sgd, lr: 0.1, momentum: %s, weight_decay: %s}\n", ONE_OF("0", "0.9"),
                 ONE_OF("0", "0.1"));
    hd__text_add(text,
                 "model: {use: transformer, family: %s, layers: 2, hidden: 8, heads: 4, ffn: 8, vocab: 16, "
                 "max_seq_len: 8, tied: %s}\n",
                 ONE_OF("llama", "gpt2", "qwen3"), ONE_OF("true", "false"));
    hd__text_add(
        text,
        "data: {train: none, seq_len: 8, batch: 16, micro_batch: %s}\nrecompute: %s\nprecision: {loss_scale: %s}\n",
        ONE_OF("1", "2", "4"), ONE_OF("none", "selective", "full"), ONE_OF("none", "64"));
}

START_TEST(meeting_in_every_step_is_data_parallel_sgd)
{
    double worst = 0;
    for (uint32_t n = 0; n < draws; n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd__numerics found;
        struct hd__text text = {0};
        draw(&text);
        ck_assert_msg(!hd__numerics_text(text.at, NULL, 0, plugins, 3, n + 1, &found, &err), "%s\n%s", err.message,
                      text.at);
        ck_assert_msg(found.loss < TOLERANCE && found.parameter < TOLERANCE, "%g: %s\n%s", found.worst, found.where,
                      text.at);
        worst = fmax(worst, found.worst);
        hd__text_free(&text);
    }
    printf("%u draws; largest difference from one rank %.1e\n", draws, worst);
}
END_TEST

/* Replicas reduce nothing along their axes: codes are sent inside a replica, at stage 1 too. The emulation sends codes
 * that lose nothing, so the job agrees with one rank. */
START_TEST(codes_inside_a_replica)
{
    static const char text[] =
        "job: {name: apart, steps: 3}\nmesh: {dp: {replicate: 2, shard: 2}}\n"
        "strategies:\n  - {use: zero, stage: 1, compress: {kind: int8, block: 64}}\n"
        "  - {use: localsgd, every: 1, outer_lr: 1, momentum: 0, axes: [dp_replicate]}\n"
        "optimizer: {use: sgd, lr: 0.1}\n"
        "model: {use: transformer, family: llama, layers: 2, hidden: 8, heads: 4, ffn: 8, vocab: 16}\n"
        "data: {train: none, seq_len: 8, batch: 16, micro_batch: 2}\n";
    static const char *const more[] = {"strategies.zero.stage=0", "strategies.zero.compress.kind=none"};
    for (size_t n = 0; n <= HD__COUNT(more); n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd__numerics found;
        ck_assert_msg(!hd__numerics_text(text, &more[n ? n - 1 : 0], n > 0, plugins, 3, 1, &found, &err), "%s",
                      err.message);
        ck_assert_msg(found.parameter < TOLERANCE, "%zu: %g", n, found.parameter);
    }
}
END_TEST

/* ---- compiled jobs */

#define APART(more) "{use: zero, bucket: 0}, {use: localsgd, every: 4" more "}"

/* ---- bytes: the parameters once every 4 steps, where data parallelism has the gradients in every one; the loss, a
 * scalar, in all */

static double sent(const struct job *j)
{
    struct hd__cost_totals totals;
    double sum = 0;
    hd__cost_totals(j->c->stage[0], NULL, &totals);
    for (uint32_t axes = 1; axes < HD__COUNT(totals.sent); axes++)
        sum += totals.sent[axes];
    return sum;
}

START_TEST(a_quarter_of_the_bytes)
{
    struct job apart, together;
    double scalars = 2 * 4.0 * 3 / 4;
    expect_job(&together, "dp: 4", "{use: zero, bucket: 0}");
    expect_job(&apart, "dp: 4", APART(""));
    ck_assert_double_gt(sent(&together), 1000);
    ck_assert_double_eq(sent(&apart) - scalars, (sent(&together) - scalars) / 4);
    close_job(&together);
    close_job(&apart);
}
END_TEST

/* ---- memory: what the replicas have in common, and its momentum, beside what stage 0 has */

START_TEST(eight_bytes_a_parameter_more)
{
    struct job apart, plain, together;
    int64_t count = 0;
    expect_job(&together, "dp: 4", "{use: zero, bucket: 0}");
    expect_job(&apart, "dp: 4", APART(""));
    expect_job(&plain, "dp: 4", APART(", momentum: 0"));
    for (uint32_t f = 0; f < apart.c->stage[0]->flats.count; f++)
        count += apart.c->stage[0]->flats.at[f].count;
    ck_assert_int_eq(apart.c->stage[0]->persistent_bytes - together.c->stage[0]->persistent_bytes, 8 * count);
    ck_assert_int_eq(plain.c->stage[0]->persistent_bytes - together.c->stage[0]->persistent_bytes, 4 * count);
    close_job(&together);
    close_job(&plain);
    close_job(&apart);
}
END_TEST

/* ---- the estimate of a step has its share of the section */

START_TEST(a_step_has_its_share)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__sim_rates rates = hd__sim_rates_default();
    const struct hd_program *programs[4];
    struct hd__timeline t;
    struct hd__text text = {0};
    struct job j;
    expect_job(&j, "dp: 4", APART(""));
    for (int32_t r = 0; r < 4; r++)
        programs[r] = j.c->stage[0];
    ck_assert_msg(!hd__sim_timeline(&j.c->mesh, programs, &rates, -1, &t, &err), "%s", err.message);
    ck_assert_uint_eq(t.n_periodic, 1);
    ck_assert_str_eq(t.periodic[0].name, "outer");
    ck_assert_uint_eq(t.periodic[0].every, 4);
    ck_assert(t.periodic[0].seconds > 2 * rates.latency[HD_AXIS_DP_SHARD] && t.periodic[0].seconds < t.seconds);
    hd__timeline_summary(&t, &text);
    ck_assert_msg(strstr(text.at, "section outer, every 4 steps: ") != NULL, "%s", text.at);
    hd__text_free(&text);
    hd__timeline_free(&t);
    close_job(&j);
}
END_TEST

/* ---- faults in the section that brings ranks together: all that can be planted, each is found */

static int dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t id = code->at[at].id;
    (void)p;
    if (code->at[at].op == HD_OP_WAIT)
        return 0;
    erase(code, at);
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == HD_OP_WAIT && code->at[k].wait == id)
            erase(code, k);
    return 1;
}

static int no_axes(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (code->at[at].op != HD_OP_BLEND || !code->at[at].axes)
        return 0;
    code->at[at].axes = 0;
    return 1;
}

static int axes_where_none_are(struct hd_program *p, hd__code *code, uint32_t at)
{
    if (code->at[at].op != HD_OP_BLEND || code->at[at].axes)
        return 0;
    code->at[at].axes = p->independent_axes;
    return 1;
}

static int fewer_axes(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (!hd__is_collective(code->at[at].op) || __builtin_popcount(code->at[at].axes) < 2)
        return 0;
    code->at[at].axes &= code->at[at].axes - 1;
    return 1;
}

static int twice(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr again = code->at[at], wait;
    if (again.op != HD_OP_ALL_REDUCE)
        return 0;
    while (code->at[at].op != HD_OP_WAIT || code->at[at].wait != again.id)
        at++;
    wait = code->at[at];
    again.id = wait.wait = ++p->next_id;
    wait.id = ++p->next_id;
    for (int n = 0; n < 2; n++)
        hd__push(code, wait); /* room */
    memmove(code->at + at + 3, code->at + at + 1, (code->count - at - 3) * sizeof *code->at);
    code->at[at + 1] = again;
    code->at[at + 2] = wait;
    return 1;
}

static int maximum(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (code->at[at].op != HD_OP_ALL_REDUCE)
        return 0;
    code->at[at].redop = HD_MAX;
    return 1;
}

/* An operand of the next flat. */
static int other_flat(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    if (!i->n_in || i->op == HD_OP_WAIT)
        return 0;
    for (uint32_t f = 0; f + 1 < p->flats.count; f++)
        if (i->in[0] == p->flats.at[f].tensor[HD__FLAT_GLOBAL_COPY]) {
            i->in[0] = p->flats.at[f + 1].tensor[HD__FLAT_GLOBAL_COPY];
            return 1;
        }
    return 0;
}

/* Its own parameters instead of what the ranks have in common. */
static int own(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    for (uint32_t k = 0; k < i->n_in && !i->axes; k++)
        for (uint32_t f = 0; f < p->flats.count; f++)
            if (i->in[k] == p->flats.at[f].tensor[HD__FLAT_GLOBAL_COPY] &&
                i->out[0] == p->flats.at[f].tensor[HD__FLAT_GLOBAL_COPY]) {
                i->in[k] = p->flats.at[f].tensor[HD__FLAT_MASTER];
                return 1;
            }
    return 0;
}

/* The parameters go back to what they were at the last meeting. */
static int set_back(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr copy = code->at[at];
    (void)p;
    if (copy.op != HD_OP_COPY || at < 4 || !hd__fact_of(p, copy.in[0])->what)
        return 0;
    memmove(code->at + 1, code->at, at * sizeof *code->at);
    code->at[0] = copy;
    return 1;
}

static const struct fault {
    const char *name;
    int (*plant)(struct hd_program *p, hd__code *code, uint32_t at);
} faults[] = {
    {"left out", dropped},
    {"no share of a mean", no_axes},
    {"a share where none is meant", axes_where_none_are},
    {"not over all axes", fewer_axes},
    {"summed twice", twice},
    {"maximum for sum", maximum},
    {"another flat's", other_flat},
    {"its own", own},
    {"set back", set_back},
};

static uint32_t planted[HD__COUNT(faults)];

/* Plants fault `kind` at every instruction of the section where it can be. */
static void plant(const struct fault *fault, uint32_t *count, const char *mesh, const char *strategies)
{
    struct hd_error err = HD_ERROR_INIT;
    struct job j;
    uint32_t n = 1;
    for (uint32_t at = 0; at < n; at++) {
        hd__code *code;
        char what[128];
        expect_job(&j, mesh, strategies);
        code = &hd__program_section(j.c->stage[0], "outer")->code;
        n = code->count;
        snprintf(what, sizeof what, "%s: instruction %u, %s", fault->name, at, hd__op(code->at[at].op)->name);
        if (fault->plant(j.c->stage[0], code, at)) {
            *count += 1;
            ck_assert_msg(hd__verify(j.c->stage[0], &err), "%s was not found: %s", what, strategies);
        }
        close_job(&j);
    }
}

START_TEST(faults_are_found)
{
    static const struct {
        const char *mesh, *strategies;
    } jobs[] = {
        {"dp: 2", APART("")},
        {"dp: 2", APART(", nesterov: false")},
        {"dp: {replicate: 2, shard: 2}", APART(", momentum: 0")},
        {"dp: {replicate: 2, shard: 2}", "{use: zero, stage: 1}, {use: localsgd, axes: [dp_replicate]}"},
        {"dp: {replicate: 2, shard: 2}", "{use: zero, stage: 3}, {use: localsgd, axes: [dp_replicate]}"},
    };
    for (uint32_t k = 0; k < HD__COUNT(faults); k++) {
        for (uint32_t n = 0; n < HD__COUNT(jobs); n++)
            plant(&faults[k], &planted[k], jobs[n].mesh, jobs[n].strategies);
        printf("%-28s %3u planted, all found\n", faults[k].name, planted[k]);
        ck_assert_uint_gt(planted[k], 0);
    }
}
END_TEST

/* Outside that section: what ranks have in common stays as it is, and no gradient crosses. */
START_TEST(nothing_else_crosses)
{
    struct hd_error err = HD_ERROR_INIT;
    struct job j;
    struct hd_program *p;
    struct hd__code_section *update;
    expect_job(&j, "dp: 2", APART(""));
    p = j.c->stage[0];
    update = hd__program_section(p, "update");
    struct hd__instr copy = {.id = ++p->next_id,
                             .op = HD_OP_COPY,
                             .n_in = 1,
                             .n_out = 1,
                             .micro = -1,
                             .peer = -1,
                             .in = {p->flats.at[0].tensor[HD__FLAT_MASTER]},
                             .out = {p->flats.at[0].tensor[HD__FLAT_GLOBAL_COPY]}};
    hd__push(&update->code, copy);
    ck_assert(hd__verify(p, &err));
    ck_assert_msg(strstr(err.message, "is declared of section outer: only that section may write it") != NULL, "%s",
                  err.message);
    close_job(&j);
    expect_job(&j, "dp: 2", APART(""));
    p = j.c->stage[0];
    hd__program_section(p, "outer")->equal_axes = 0;
    ck_assert(hd__verify(p, &err));
    ck_assert_msg(strstr(err.message, "no section brings ranks together") != NULL, "%s", err.message);
    close_job(&j);
}
END_TEST

/* ---- refusals */

START_TEST(refused_by_name)
{
    static const struct {
        const char *mesh, *strategies, *more, *why;
    } jobs[] = {
        {"dp: 2", "{use: zero, stage: 1}, {use: localsgd}", "",
         "strategies.zero.stage 1 shards parameters over axes along which"},
        {"dp: 2", "{use: zero, stage: 3}, {use: localsgd}", "", "shard inside each replica"},
        {"dp: 2", "{use: localsgd}", "", "localsgd has nothing to bring together"},
        {"dp: 2", "{use: localsgd}, {use: zero}", "", "must stand before it"},
        {"dp: 2", "{use: zero}, {use: localsgd, axes: [tp]}", "", "'tp' is no axis of replicas"},
        {"dp: 2", "{use: zero, compress: {kind: int8}}, {use: localsgd}", "", "no gradient is reduced"},
        {"dp: 2", "{use: zero}, {use: localsgd}", "precision.compute=fp16", "excludes precision.loss_scale dynamic"},
        {"dp: 2", "{use: zero}, {use: localsgd}", "job.deterministic=exact", "excludes job.deterministic exact"},
        {"dp: 2", "{use: zero}, {use: localsgd, every: 0}", "", "every"},
        /* one replica */
        {"dp: 2", "{use: zero, stage: 3}, {use: localsgd, axes: [dp_replicate]}", "",
         "mesh.dp is {replicate: 1, shard: 2}, and axes is [dp_replicate]; say mesh: {dp: {replicate: N, shard: M}}"},
        {"dp: 2", "{use: zero}, {use: localsgd, axes: []}", "", "and axes is []; say mesh: {dp: "},
        {"dp: 2", "{use: zero}, {use: localsgd, axes: [dp_replicate], outer_lr: 1, momentum: 0}", "", "one replica"},
        {"dp: {replicate: 2, shard: 1}", "{use: zero}, {use: localsgd, axes: [dp_shard]}", "", "one replica"},
        {"dp: 1", "{use: zero}, {use: localsgd}", "", "since mesh.dp is 1"},
        {"pp: 2", "{use: zero}, {use: localsgd}", "", "since mesh.dp is 1"},
    };
    for (uint32_t n = 0; n < HD__COUNT(jobs); n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct job j;
        ck_assert_msg(open_job(&j, jobs[n].mesh, jobs[n].strategies, jobs[n].more, &err), "%s was not refused",
                      jobs[n].strategies);
        ck_assert_msg(strstr(err.message, jobs[n].why) != NULL, "%s: %s", jobs[n].why, err.message);
        close_job(&j);
    }
}
END_TEST

int main(int argc, char **argv)
{
    const TTest *const tests[] = {meeting_in_every_step_is_data_parallel_sgd,
                                  codes_inside_a_replica,
                                  a_quarter_of_the_bytes,
                                  eight_bytes_a_parameter_more,
                                  a_step_has_its_share,
                                  faults_are_found,
                                  nothing_else_crosses,
                                  refused_by_name};
    TCase *c = tcase_create("localsgd");
    if (argc > 1)
        draws = (uint32_t)atoi(argv[1]);
    if (argc > 2)
        state = strtoull(argv[2], NULL, 10);
    tcase_set_timeout(c, draws > 60 ? 0 : 60);
    tcase_add_checked_fixture(c, setup, teardown);
    for (uint32_t n = 0; n < HD__COUNT(tests); n++)
        tcase_add_test(c, tests[n]);
    return suite_run_case("localsgd", c);
}
