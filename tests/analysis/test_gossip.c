/* Ranks that are never together: strategy-gossip (tests/plugins/gossip.c), which the core does not know, on emulated
 * ranks in fp64. Each step is that of one rank after the other, trained by itself, and a mean of neighbours in plain C;
 * what is wrong with its program is found by name. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "conformance/edits.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "runtime/exec/select.h"
#include "service/checkpoint/param_init.h"
#include "tests/suite.h"

enum { MOST = 4, SEQUENCES = 2, LENGTH = 4, VOCAB = 16, STEPS = 40 };
#define SELF 0.4
#define LR 0.5

static struct hd__plugins *plugins;
static struct hd_error err;

static void setup(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err) && !hd__plugins_add_folder(plugins, GOSSIP, &err),
                  "%s", err.message);
}

static void teardown(void)
{
    hd__plugins_destroy(plugins);
}

/* ---- jobs, and machines that run them */

struct side {
    struct hd__job *job;
    struct hd__compiled *c;
    struct hd__sim *machine;
    const struct hd_device_ops *ops;
    struct hd_device *device;
    int32_t ranks, data; /* data: of which rank this side's first one has the sequences */
};

static int32_t try_open(struct side *s, int32_t ranks, const char *mesh, const char *strategies)
{
    char text[1024];
    *s = (struct side){.ranks = ranks};
    snprintf(text, sizeof text,
             "job: {name: gossip, steps: 9}\nmesh: {%s}\nstrategies: [%s]\noptimizer: {use: sgd, lr: %g}\n"
             "model: {use: transformer, family: llama, layers: 2, hidden: 8, heads: 2, ffn: 12, vocab: %d, "
             "max_seq_len: %d}\n"
             "data: {train: none, seq_len: %d, batch: %d, micro_batch: 1}\nprecision: {compute: fp64}\n"
             "device: {use: cpu, kernels: reference, threads: 1}\n",
             mesh, strategies, LR, VOCAB, LENGTH, LENGTH, SEQUENCES * ranks);
    err = (struct hd_error)HD_ERROR_INIT;
    return hd__job_parse("job", text, strlen(text), NULL, 0, &s->job, &err) || hd__job_resolve(s->job, 0, &err) ||
           hd__exec_compile(s->job, plugins, &s->c, &err);
}

static void open_job(struct side *s, int32_t ranks, const char *mesh, const char *strategies)
{
    ck_assert_msg(!try_open(s, ranks, mesh, strategies), "%s", err.message);
}

static int32_t prepare(void *user, int32_t rank, const struct hd_instr_desc *desc, void **kernel, struct hd_error *e)
{
    struct side *s = user;
    struct hd_kernel *made = NULL;
    int32_t rc = s->ops->prepare(s->device, desc, &made, e);
    (void)rank;
    *kernel = made;
    return rc;
}

static int32_t run(void *user, int32_t rank, void *kernel, struct hd_error *e)
{
    struct side *s = user;
    (void)rank;
    return s->ops->launch(s->device, kernel, 0, e);
}

static void release(void *user, int32_t rank, void *kernel)
{
    struct side *s = user;
    (void)rank;
    s->ops->release(s->device, kernel);
}

/* Every rank has two sequences of its own, the same in each step: counting up, from its number on. */
static int32_t feed(void *user, int32_t rank, const struct hd__instr *i, int32_t micro, const struct hd_operand *out,
                    struct hd_error *e)
{
    struct side *s = user;
    const struct hd_program *p = s->c->stage[0];
    int labels = hd__tensor_const(p, i->out[0])->origin == hd__tensor_const(p, p->labels)->origin;
    (void)e;
    for (int64_t n = 0; n < hd_operand_count(out); n++)
        ((int32_t *)out->data)[n] = (int32_t)(3 * (rank + s->data) + 7 * micro + n + labels) % VOCAB;
    return HD_OK;
}

static void start(struct side *s)
{
    const struct hd__sim_kernels kernels = {s, prepare, run, release, feed};
    const struct hd_program *programs[MOST];
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1, .threads = 1};
    for (int32_t r = 0; r < s->ranks; r++)
        programs[r] = s->c->stage[0];
    s->ops = &s->c->device_choice.component->ops.device;
    ck_assert(!s->ops->open(hd__exec_host_table(), s->c->device_choice.settings, &place, &s->device, &err));
    s->machine = hd__sim_create(&s->c->mesh, programs, &(struct hd__sim_options){.kernels = &kernels, .seed = 1});
    for (int32_t r = 0; r < s->ranks; r++) {
        int32_t coord[HD_AXIS_COUNT];
        hd__mesh_coord(&s->c->mesh, r, coord);
        ck_assert(!hd__ckpt_init_params(s->c->stage[0], coord, hd__sim_arena(s->machine, r), 1, &err));
    }
}

static void close_side(struct side *s)
{
    if (s->machine) {
        hd__sim_destroy(s->machine);
        s->ops->close(s->device);
    }
    hd__exec_compiled_free(s->c);
    hd__job_free(s->job);
}

/* The loss of the step, of all its ranks. */
static double run_step(struct side *s, int64_t number)
{
    const struct hd_program *p = s->c->stage[0];
    for (int32_t r = 0; r < s->ranks; r++) {
        double *hyper = hd__sim_tensor_data(s->machine, r, p->hyper);
        memset(hyper, 0, HD_HYPER_COUNT * sizeof *hyper);
        hyper[HD_HYPER_LR] = LR;
        hyper[HD_HYPER_INV_SCALE] = 1;
        hyper[HD_HYPER_STEP] = (double)number;
    }
    ck_assert_msg(!hd__sim_run(s->machine, NULL, number, &err), "%s", err.message);
    return *(double *)hd__sim_tensor_data(s->machine, 0, p->loss_sum);
}

/* ---- parameters of a rank, flat by flat */

/* Elements of parameters, without what pads them. */
static int64_t count_of(const struct side *s)
{
    const struct hd_program *prog = s->c->stage[0];
    int64_t n = 0;
    for (uint32_t k = 0; k < prog->params.count; k++)
        n += hd__numel(prog, hd__tensor_const(prog, prog->params.at[k].tensor));
    return n;
}

static void move(struct side *s, int32_t rank, uint32_t role, double *values, int set)
{
    const struct hd_program *prog = s->c->stage[0];
    for (uint32_t f = 0; f < prog->flats.count; f++)
        for (uint32_t k = 0; k < prog->flats.at[f].n_params; k++) {
            const struct hd__flat *flat = &prog->flats.at[f];
            double *here = hd__sim_tensor_data(s->machine, rank, flat->tensor[role]);
            int64_t n = hd__numel(prog, hd__tensor_const(prog, prog->params.at[flat->params[k]].tensor));
            here += flat->offset[k];
            memcpy(set ? here : values, set ? values : here, (size_t)n * sizeof *here);
            values += n;
        }
}

/* ---- the reference: ranks one after the other, then means of neighbours */

struct reference {
    struct side one;
    int64_t n;
    double *trained[MOST], *mixed[MOST];
};

static void open_reference(struct reference *x)
{
    open_job(&x->one, 1, "dp: 1", "{use: zero}");
    start(&x->one);
    x->n = count_of(&x->one);
    for (int r = 0; r < MOST; r++) {
        x->trained[r] = malloc((size_t)x->n * sizeof(double));
        x->mixed[r] = malloc((size_t)x->n * sizeof(double));
    }
}

static void close_reference(struct reference *x)
{
    close_side(&x->one);
    for (int r = 0; r < MOST; r++) {
        free(x->trained[r]);
        free(x->mixed[r]);
    }
}

/* From mixed, what `ranks` have before a step, to what they have after it; the mean of their losses. */
static double reference_step(struct reference *x, int32_t ranks, int64_t number)
{
    double loss = 0;
    for (int32_t r = 0; r < ranks; r++) {
        x->one.data = r;
        move(&x->one, 0, HD__FLAT_MASTER, x->mixed[r], 1);
        loss += run_step(&x->one, number) / ranks;
        move(&x->one, 0, HD__FLAT_MASTER, x->trained[r], 0);
    }
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t e = 0; e < x->n; e++)
            x->mixed[r][e] = SELF * x->trained[r][e] + (1 - SELF) / 2 * x->trained[(r + 1) % ranks][e] +
                             (1 - SELF) / 2 * x->trained[(r + ranks - 1) % ranks][e];
    return loss;
}

static double mean_of(double *const *values, int32_t ranks, int64_t e)
{
    double sum = 0;
    for (int32_t r = 0; r < ranks; r++)
        sum += values[r][e];
    return sum / ranks;
}

/* How far ranks are from their mean, and how far a step moved them: the norm over all ranks. */
static double apart_by(const struct reference *x, int32_t ranks)
{
    double sum = 0;
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t e = 0; e < x->n; e++)
            sum += pow(x->mixed[r][e] - mean_of(x->mixed, ranks, e), 2);
    return sqrt(sum);
}

/* The second largest weight in magnitude of the mixing matrix: what is left of the distance after one mixing. */
static double contraction(int32_t ranks)
{
    double most = 0;
    for (int32_t k = 1; k < ranks; k++)
        most = fmax(most, fabs(SELF + (1 - SELF) * cos(2 * M_PI * k / ranks)));
    return most;
}

START_TEST(as_ranks_one_after_the_other)
{
    static const int32_t sizes[] = {2, 3, 4};
    int32_t ranks = sizes[_i];
    char mesh[32];
    struct side all;
    struct reference x;
    double first = 0, last = 0, moved = 0, rate = contraction(ranks);
    snprintf(mesh, sizeof mesh, "dp: %d", ranks);
    open_job(&all, ranks, mesh, "{use: zero}, {use: gossip, self: 0.4, mean: 4}");
    start(&all);
    open_reference(&x);
    ck_assert_int_eq(count_of(&all), x.n);
    double *is = malloc((size_t)x.n * sizeof *is);
    for (int32_t r = 0; r < ranks; r++)
        move(&all, r, HD__FLAT_MASTER, x.mixed[r], 0);
    for (int64_t step = 1; step <= STEPS; step++) {
        double step_moved = 0;
        last = run_step(&all, step);
        first = step == 1 ? last : first;
        double *old = malloc((size_t)(x.n * ranks) * sizeof *old);
        for (int32_t r = 0; r < ranks; r++)
            memcpy(old + r * x.n, x.mixed[r], (size_t)x.n * sizeof *old);
        ck_assert_double_eq_tol(reference_step(&x, ranks, step), last, 1e-9);
        for (int32_t r = 0; r < ranks; r++) {
            move(&all, r, HD__FLAT_MASTER, is, 0);
            for (int64_t e = 0; e < x.n; e++) {
                ck_assert_msg(fabs(is[e] - x.mixed[r][e]) < 1e-9, "step %d, rank %d, element %d: %g, not %g", (int)step,
                              r, (int)e, is[e], x.mixed[r][e]);
                ck_assert(fabs(mean_of(x.mixed, ranks, e) - mean_of(x.trained, ranks, e)) < 1e-12);
                step_moved += pow(x.trained[r][e] - old[r * x.n + e], 2);
            }
            move(&all, r, HD__FLAT_GLOBAL_COPY, is, 0);
            for (int64_t e = 0; e < x.n && step % 4 == 0; e++)
                ck_assert(fabs(is[e] - mean_of(x.mixed, ranks, e)) < 1e-12);
        }
        free(old);
        moved = fmax(moved, sqrt(step_moved));
        ck_assert_double_le(apart_by(&x, ranks), rate / (1 - rate) * moved + 1e-12);
    }
    printf("%d ranks: the loss falls from %.3f to %.3f; apart by %.3g, bound %.3g\n", ranks, first, last,
           apart_by(&x, ranks), rate / (1 - rate) * moved);
    ck_assert_double_lt(last, 0.7 * first);
    ck_assert_double_gt(apart_by(&x, ranks), 1e-6); /* they are not together */
    free(is);
    close_reference(&x);
    close_side(&all);
}
END_TEST

/* ---- what is wrong is found */

static struct hd_program *p;
static hd__code *code; /* of section gossip, of four ranks: two shifts and a blend a flat */

static uint32_t at(uint16_t op)
{
    uint32_t n = 0;
    while (n < code->count && code->at[n].op != op)
        n++;
    ck_assert_uint_lt(n, code->count);
    return n;
}

static void set_weights(double a, double b, double c)
{
    struct hd__instr *i = &code->at[at(HD_OP_BLEND)];
    struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
    const double table[] = {a, b, c};
    attrs->table = hd__arena_copy(&p->arena, table, sizeof table);
    attrs->n_table = i->n_in;
    i->attrs = attrs;
}

static void set_steps(uint32_t n, uint32_t steps)
{
    struct hd_attrs *attrs = hd__attrs_new(p, code->at[n].attrs);
    attrs->index = steps;
    code->at[n].attrs = attrs;
}

static void use(const char *section)
{
    code = &hd__program_section(p, section)->code;
}

static struct hd__instr instr_of(uint16_t op, hd_tensor in, hd_tensor out)
{
    return (struct hd__instr){
        .id = ++p->next_id, .op = op, .n_in = 1, .n_out = 1, .micro = -1, .peer = -1, .in = {in}, .out = {out}};
}

static void remove_with_wait(uint32_t n)
{
    uint32_t wait = wait_of(code, code->at[n].id);
    if (wait < code->count)
        erase(code, wait);
    erase(code, n);
}

static hd_tensor tensor(uint32_t role)
{
    return p->flats.at[0].tensor[role];
}

#define WRONG(name, ...)   \
    static void name(void) \
    {                      \
        __VA_ARGS__;       \
    }

WRONG(weights_above_one, set_weights(0.5, 0.3, 0.3))
WRONG(negative_weight, set_weights(1.4, -0.2, -0.2))
WRONG(only_its_own, set_weights(1, 0, 0))
WRONG(only_the_neighbour, set_weights(0, 1, 0))
WRONG(two_that_go_around, set_weights(0, 0.5, 0.5))
WRONG(every_second_rank, set_steps(at(HD_OP_SHIFT), 2); set_steps(at(HD_OP_SHIFT) + 1, 2))
WRONG(from_itself, set_steps(at(HD_OP_SHIFT), 4))
WRONG(not_blended, erase(code, at(HD_OP_BLEND)))
WRONG(not_shifted, remove_with_wait(at(HD_OP_SHIFT)))
WRONG(not_waited, erase(code, wait_of(code, code->at[at(HD_OP_SHIFT)].id)))
WRONG(a_term_of_a_mean, code->at[at(HD_OP_BLEND)].axes = p->independent_axes)
WRONG(summed, struct hd__instr *i = &code->at[at(HD_OP_SHIFT)]; i->op = HD_OP_ALL_REDUCE; i->redop = HD_SUM)
WRONG(along_no_axis, code->at[at(HD_OP_SHIFT)].axes = HD_AXIS_BIT(HD_AXIS_TP))
WRONG(some_members, code->at[at(HD_OP_SHIFT)].members = 3)
WRONG(of_another_flat, uint32_t n = at(HD_OP_SHIFT); code->at[n].in[0] = p->flats.at[1].tensor[HD__FLAT_MASTER])
WRONG(nothing_declared, hd__program_section(p, "gossip")->declares = 0)
WRONG(no_axes_declared, hd__program_section(p, "gossip")->mixed_axes = 0)
WRONG(said_to_be_equal, struct hd__code_section *s = hd__program_section(p, "gossip"); s->equal_axes = s->mixed_axes;
      s->mixed_axes = 0; s->declares = HD_FACT_EQUAL)
WRONG(no_model, p->flats.at[0].tensor[HD__FLAT_GLOBAL_COPY] = 0)
WRONG(model_of_no_fact, p->facts.at[0].what = HD_FACT_EQUAL; p->facts.at[0].section = NULL)
WRONG(model_differs, p->facts.at[0].axes = 0)
WRONG(mean_not_summed, use("mean"); remove_with_wait(at(HD_OP_ALL_REDUCE)))
WRONG(mean_of_no_terms, use("mean"); code->at[at(HD_OP_BLEND)].axes = 0)
WRONG(mean_left_out, use("mean"); remove_with_wait(at(HD_OP_ALL_REDUCE)); erase(code, at(HD_OP_BLEND)))
WRONG(mean_into_weights, use("mean");
      hd__push(code, instr_of(HD_OP_COPY, tensor(HD__FLAT_GLOBAL_COPY), tensor(HD__FLAT_MASTER))))
WRONG(mean_elsewhere, hd__push(code, instr_of(HD_OP_COPY, tensor(HD__FLAT_MASTER), tensor(HD__FLAT_GLOBAL_COPY))))
WRONG(broadcast_in_the_update, use("update");
      struct hd__instr i = instr_of(HD_OP_BROADCAST, tensor(HD__FLAT_MASTER), tensor(HD__FLAT_MASTER));
      i.axes = p->independent_axes; i.stream = HD__STREAM_AXIS + HD_AXIS_DP_SHARD; hd__push(code, i);
      struct hd__instr wait = {.id = ++p->next_id, .op = HD_OP_WAIT, .wait = i.id, .micro = -1, .peer = -1};
      hd__push(code, wait))

#define ROW(name, words)   \
    {                      \
#name, name, words \
    }

static const struct {
    const char *name;
    void (*plant)(void);
    const char *words;
} rows[] = {
    ROW(weights_above_one, "weights of the parameters in it sum to 1.1, not 1"),
    ROW(negative_weight, "is no mean of what ranks trained: a weight is -0.2"),
    ROW(only_its_own, "is mixed, and never comes closer to what some ranks trained along dp_shard"),
    ROW(only_the_neighbour, "is mixed, and never comes closer"),
    ROW(two_that_go_around, "is mixed, and never comes closer"),
    ROW(every_second_rank, "is mixed, and never comes closer"),
    ROW(from_itself, "is to come from another rank along one axis"),
    ROW(not_blended, "is mixed, and never comes closer"),
    ROW(not_shifted, "before its definition"),
    ROW(not_waited, "missing wait"),
    ROW(a_term_of_a_mean, "is left partial, its mean not reduced over dp_shard"),
    ROW(summed, "is reduced, but it is not a partial mean over dp_shard"),
    ROW(along_no_axis, "is to come from another rank along one axis"),
    ROW(some_members, "is to come from another rank along one axis"),
    ROW(of_another_flat, "size"),
    ROW(nothing_declared, "is changed, and nothing is declared of the parameters"),
    ROW(no_axes_declared, "is mixed along other axes than"),
    ROW(said_to_be_equal, "differs between ranks along dp_shard"),
    ROW(no_model, "a checkpoint has no model: HD_FLAT_COMMON"),
    ROW(model_of_no_fact, "checkpoints have one of it: declare it HD_FACT_AVERAGE"),
    ROW(model_differs, "and HD_FACT_EQUAL along all axes of `apart`"),
    ROW(mean_not_summed, "is left partial, its mean not reduced over dp_shard"),
    ROW(mean_of_no_terms, "is reduced, but it is not a partial mean over dp_shard"),
    ROW(mean_left_out, "does not depend on the trained parameters"),
    ROW(mean_into_weights, "is changed, and nothing is declared of the parameters"),
    ROW(mean_elsewhere, "is declared of section mean: only that section may write it"),
    ROW(broadcast_in_the_update, "crosses ranks that are apart"),
};

START_TEST(wrong_ones_are_found)
{
    struct side s;
    open_job(&s, 4, "dp: 4", "{use: zero, bucket: 0}, {use: gossip}");
    p = s.c->stage[0];
    use("gossip");
    rows[_i].plant();
    err.message[0] = 0;
    ck_assert_msg(hd__verify(p, &err), "%s is not found", rows[_i].name);
    ck_assert_msg(strstr(err.message, rows[_i].words), "%s: %s", rows[_i].name, err.message);
    close_side(&s);
}
END_TEST

/* On a grid a rank has neighbours along both axes; one of them alone leaves ranks that never hear of each other. */
START_TEST(on_a_grid)
{
    struct side s;
    open_job(&s, 4, "dp: {replicate: 2, shard: 2}", "{use: zero, bucket: 0}, {use: gossip}");
    p = s.c->stage[0];
    use("gossip");
    while (code->at[at(HD_OP_SHIFT)].axes != HD_AXIS_BIT(HD_AXIS_DP_SHARD)) { /* the first ring's of the first flat */
        uint32_t shift = at(HD_OP_SHIFT), n = shift;
        while (code->at[n].op != HD_OP_BLEND)
            n++;
        erase(code, n);
        remove_with_wait(shift);
    }
    ck_assert(hd__verify(p, &err));
    ck_assert_msg(strstr(err.message, "never comes closer"), "%s", err.message);
    close_side(&s);
}
END_TEST

START_TEST(refused_by_name)
{
    static const char *const jobs[][2] = {
        {"{use: gossip}", "a strategy that holds and updates a rank's parameters must stand before it"},
        {"{use: zero}, {use: gossip, self: 1}", "strategies.gossip.self is 1"},
        {"{use: zero}, {use: gossip}, {use: ema}", "strategies.ema"},
        {"{use: zero, stage: 3}, {use: gossip}", "shards parameters over axes along which"},
    };
    struct side s;
    ck_assert(try_open(&s, 4, "dp: 4", jobs[_i][0]));
    ck_assert_msg(strstr(err.message, jobs[_i][1]), "%s", err.message);
    close_side(&s);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("gossip");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, as_ranks_one_after_the_other, 0, 3);
    tcase_add_loop_test(c, wrong_ones_are_found, 0, HD__COUNT(rows));
    tcase_add_test(c, on_a_grid);
    tcase_add_loop_test(c, refused_by_name, 0, 4);
    return suite_run_case("gossip", c);
}
