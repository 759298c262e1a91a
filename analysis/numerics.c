/* The same job on its mesh and on one rank, compared value by value. See numerics.h. */
#include "analysis/numerics.h"

#include <math.h>
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "service/checkpoint/param_init.h"
#include "service/checkpoint/shard_map.h"

struct side { /* one of the two runs */
    struct hd__compiled *compiled;
    struct hd__sim *machine;
    const struct hd_device_ops *ops;
    struct hd_device *device;
    const int32_t *tokens; /* [batch][seq_len + 1] of this step */
    /* micro-batch of an evaluation, from 1; 0: a training step, whose micro-batches the machine counts */
    int32_t evaluates;
    int32_t reserved;
};

/* ---- what the machine calls */

static int32_t prepare(void *user, int32_t rank, const struct hd_instr_desc *desc, void **kernel, struct hd_error *err)
{
    struct side *s = user;
    struct hd_kernel *made;
    int32_t rc = s->ops->prepare(s->device, desc, &made, err);
    (void)rank;
    if (!rc)
        *kernel = made;
    return rc;
}

static int32_t run(void *user, int32_t rank, void *kernel, struct hd_error *err)
{
    struct side *s = user;
    (void)rank;
    return s->ops->launch(s->device, kernel, 0, err);
}

static void release(void *user, int32_t rank, void *kernel)
{
    struct side *s = user;
    (void)rank;
    s->ops->release(s->device, kernel);
}

/* Every third token id, or so, ends a document. */
static int32_t position_in_document(const int32_t *row, int64_t at)
{
    int32_t n = 0;
    while (n < at && row[at - n - 1] % 3)
        n++;
    return n;
}

/* With exact sums the rows of a rank are contiguous: deterministic.c. */
static int32_t feed(void *user, int32_t rank, const struct hd__instr *i, int32_t micro, const struct hd_operand *out,
                    struct hd_error *err)
{
    struct side *s = user;
    const struct hd_program *p = hd__compiled_program(s->compiled, rank);
    int64_t length = s->compiled->job->seq_len + 1;
    int32_t input = hd__program_input(p, i->out[0]);
    int32_t *to = out->data;
    micro = s->evaluates ? s->evaluates - 1 : micro;
    if (out->ndim != 2 || out->dtype != HD_I32)
        return hd_fail(err, HD_E_INTERNAL, "%s is not a table of token ids", hd__tensor_const(p, i->out[0])->name);
    int64_t batch = s->compiled->job->batch;
    int64_t first =
        p->exact ? out->start[0] * p->accumulation + micro * out->extent[0] : hd__first_sequence(p, rank, micro);
    for (int64_t b = 0; b < out->extent[0]; b++) {
        const int32_t *row = s->tokens + (first + b) * length + (input == HD__INPUT_LABELS);
        for (int64_t k = 0; k < out->extent[1]; k++) {
            int64_t at = hd__sequence_position(p, out->start[1] + k);
            if (first + b >= batch) /* data.pad_batch */
                *to++ = input == HD__INPUT_POSITIONS ? (int32_t)at : -(input == HD__INPUT_LABELS);
            else
                *to++ = input == HD__INPUT_POSITIONS ? position_in_document(row, at) : row[at];
        }
    }
    return HD_OK;
}

/* ---- opening */

static int32_t open_device(struct side *s, struct hd_error *err)
{
    struct hd__chosen chosen;
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1, .threads = 1};
    int32_t rc = hd__compile_choose(s->compiled->job, s->compiled->plugins, HD_KIND_DEVICE, s->compiled->job->device,
                                    &chosen, err);
    if (rc)
        return rc;
    s->ops = &chosen.component->ops.device;
    if (!(s->ops->caps & HD_DEVICE_HOST_MEMORY))
        return hd__job_fail(s->compiled->job, "device.use", err,
                            "all ranks are computed in this process, in host memory, which "
                            "device-%s does not reach: device.use=cpu",
                            s->compiled->job->device->use);
    return s->ops->open(hd__exec_host_table(), chosen.settings, &place, &s->device, err);
}

static int32_t initialise(struct side *s, int32_t rank, uint64_t seed, struct hd_error *err)
{
    struct hd_program *p = hd__compiled_program(s->compiled, rank);
    int32_t coord[HD_AXIS_COUNT];
    char *arena = hd__sim_arena(s->machine, rank);
    if (!arena)
        return hd_fail(err, HD_E_NOMEM, "no memory for the emulated arena of rank %d", rank);
    hd__mesh_coord(&s->compiled->mesh, rank, coord);
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_OPTIM_STATE, &t);)
        memset(hd__tensor_address(p, t.tensor, coord, arena), 0,
               (size_t)hd__tensor_bytes(p, hd__tensor_const(p, t.tensor)));
    hd__ckpt_init_zeros(p, coord, arena);
    return hd__ckpt_init_params(p, coord, arena, seed, err);
}

static int32_t open_side(struct side *s, struct hd__compiled *compiled, uint64_t seed, struct hd_error *err)
{
    const struct hd_program **programs = hd__alloc((size_t)compiled->mesh.ranks * sizeof *programs);
    struct hd__sim_kernels kernels = {s, prepare, run, release, feed};
    s->compiled = compiled;
    for (int32_t r = 0; r < compiled->mesh.ranks; r++)
        programs[r] = hd__compiled_program(compiled, r);
    s->machine =
        hd__sim_create(&compiled->mesh, programs, &(struct hd__sim_options){.kernels = &kernels, .seed = seed});
    free(programs);
    int32_t rc = open_device(s, err);
    for (int32_t r = 0; r < compiled->mesh.ranks && !rc; r++)
        rc = initialise(s, r, seed, err);
    return rc;
}

static void close_side(struct side *s)
{
    hd__sim_destroy(s->machine); /* releases kernels */
    if (s->device)
        s->ops->close(s->device);
}

static double loss_scale(const struct side *s)
{
    return s->compiled->job->precision.loss_scaling == HD__LOSS_SCALE_NONE ? 1 : s->compiled->job->precision.loss_scale;
}

static int32_t run_step(struct side *s, int64_t step, const int32_t *tokens, struct hd_error *err)
{
    s->tokens = tokens;
    for (int32_t r = 0; r < s->compiled->mesh.ranks; r++) {
        const struct hd_program *p = hd__compiled_program(s->compiled, r);
        const hd_tensor scales[] = {p->scale, p->auxiliary_scale};
        double *hyper = hd__sim_tensor_data(s->machine, r, p->hyper);
        memset(hyper, 0, HD_HYPER_COUNT * sizeof *hyper);
        hyper[HD_HYPER_LR] = s->compiled->job->schedule.lr;
        hyper[HD_HYPER_STEP] = (double)step;
        hyper[HD_HYPER_INV_SCALE] = 1 / loss_scale(s);
        for (size_t k = 0; k < HD__COUNT(scales) && scales[k]; k++)
            *(double *)hd__sim_tensor_data(s->machine, r, scales[k]) = loss_scale(s);
    }
    return hd__sim_run(s->machine, NULL, step, err);
}

static int32_t run_section(struct side *s, uint8_t kind, struct hd_error *err)
{
    const struct hd__code_section *section = hd__program_section_of(s->compiled->stage[0], kind);
    return section ? hd__sim_run(s->machine, section, 1, err) : HD_OK;
}

/* One batch, as hd__train_session_evaluate does it. */
static int32_t run_evaluation(struct side *s, const int32_t *tokens, struct hd_error *err)
{
    int32_t rc = run_section(s, HD__SECTION_RESTORE, err);
    s->tokens = tokens;
    if (!rc)
        rc = run_section(s, HD__SECTION_BEGIN, err);
    for (s->evaluates = 1; s->evaluates <= s->compiled->job->accumulation && !rc; s->evaluates++)
        rc = run_section(s, HD__SECTION_EVAL, err);
    s->evaluates = 0;
    return rc ? rc : run_section(s, HD__SECTION_EVAL_END, err);
}

/* ---- values by parameter, global and row-major */

enum { PARAMETER = 0, GRADIENT, AVERAGE, COMMON, MOMENTUM, VALUES };

struct values {
    double **at[VALUES];
    double *scale[AVERAGE + 1]; /* by parameter: what its differences are relative to */
};

static void open_values(struct values *v, const struct hd_program *p)
{
    for (int32_t what = 0; what < VALUES; what++) {
        v->at[what] = hd__alloc((p->params.count + 1) * sizeof **v->at);
        for (uint32_t k = 0; k < p->params.count; k++)
            v->at[what][k] =
                hd__alloc((size_t)hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor)) * sizeof ***v->at);
    }
    for (int32_t what = 0; what <= AVERAGE; what++)
        v->scale[what] = hd__alloc((p->params.count + 1) * sizeof **v->scale);
}

static void close_values(struct values *v, const struct hd_program *p)
{
    for (int32_t what = 0; what < VALUES; what++) {
        for (uint32_t k = 0; k < p->params.count; k++)
            free(v->at[what][k]);
        free(v->at[what]);
    }
    for (int32_t what = 0; what <= AVERAGE; what++)
        free(v->scale[what]);
}

/* The largest of each parameter's values, but no less than a share of the largest of all: of a gradient that should be
 * zero (of a bias of keys, which softmax cancels) only rounding is left, and Adam makes steps of it. */
static void find_scales(struct values *v, const struct hd_program *p, int32_t what)
{
    double all = 0, share = what == GRADIENT ? 1e-3 : 0.1;
    for (uint32_t k = 0; k < p->params.count; k++) {
        int64_t n = hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor));
        v->scale[what][k] = 0;
        for (int64_t e = 0; e < n; e++)
            v->scale[what][k] = fmax(v->scale[what][k], fabs(v->at[what][k][e]));
        all = fmax(all, v->scale[what][k]);
    }
    for (uint32_t k = 0; k < p->params.count; k++)
        v->scale[what][k] = all > 0 ? fmax(v->scale[what][k], share * all) : 1;
}

/* 0: there is none. */
static hd_tensor tensor_of(const struct hd_program *p, const struct hd__flat *flat, int32_t what)
{
    if (what != AVERAGE)
        return flat->tensor[what == GRADIENT ? HD__FLAT_SHARD : HD__FLAT_MASTER];
    for (uint32_t n = 0; n < p->strategy_states.count; n++)
        if (!strcmp(p->strategy_states.at[n], "ema"))
            return flat->tensor[HD__FLAT_STRATEGY + n];
    return 0;
}

/* ---- comparing */

struct comparison {
    struct hd__numerics *result;
    double factor;   /* of the rank's gradients */
    double scale;    /* differences are relative to it */
    double limit;    /* the largest that passes */
    double *largest; /* field of result */
    const char *what;
    int64_t step;
    int32_t rank, reserved;
};

static void compare(struct comparison *c, double is, double expected, const char *name)
{
    struct hd__numerics *r = c->result;
    double d = fabs(is - expected) / c->scale;
    if (isnan(d))
        d = INFINITY;
    if (d > c->limit && !r->failed[0])
        snprintf(r->failed, sizeof r->failed, "step %lld, rank %d, %s%s: %s%.3g, above %g", (long long)c->step, c->rank,
                 c->what, name, c->limit > 0 ? "the difference is " : "the bits differ by ", d, c->limit);
    if (d > *c->largest)
        *c->largest = d;
    if (d <= r->worst)
        return;
    r->worst = d;
    snprintf(r->where, sizeof r->where, "step %lld, rank %d, %s%s", (long long)c->step, c->rank, c->what, name);
}

static void compare_scalar(struct comparison *c, double is, double expected)
{
    c->scale = expected != 0 ? fabs(expected) : 1;
    compare(c, is, expected, "");
}

/* Copies values of a rank to their positions in the global arrays, or, with a comparison, compares them. */
static void walk_flats(struct side *s, int32_t rank, int32_t what, struct values *v, struct comparison *c)
{
    const struct hd_program *p = hd__compiled_program(s->compiled, rank);
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&s->compiled->mesh, rank, coord);
    for (uint32_t k = 0; k < p->flats.count; k++) {
        struct hd__ckpt_shard_walk walk = {.p = p, .flat = &p->flats.at[k], .coord = coord};
        struct hd__ckpt_shard_run run;
        walk.tensor = tensor_of(p, walk.flat, what);
        if (!walk.tensor)
            continue;
        const double *data = hd__sim_tensor_data(s->machine, rank, walk.tensor);
        while (hd__ckpt_shard_next(&walk, &run)) {
            double *whole = v->at[what][run.param] + run.first;
            if (!c)
                memcpy(whole, data + run.offset, (size_t)run.count * sizeof *whole);
            else
                c->scale = v->scale[what][run.param];
            for (int64_t n = 0; c && n < run.count; n++)
                compare(c, data[run.offset + n] / c->factor, whole[n], p->params.at[run.param].desc.name);
        }
    }
}

static double scalar(struct side *s, int32_t rank, hd_tensor t)
{
    return *(const double *)hd__sim_tensor_data(s->machine, rank, t);
}

static void compare_rank(struct side *one, struct side *many, int32_t rank, int64_t step, struct values *v,
                         struct hd__numerics *result)
{
    static const char *const names[] = {"parameter ", "gradient of ", "average of "};
    const struct hd_program *p = hd__compiled_program(many->compiled, rank),
                            *q = hd__compiled_program(one->compiled, 0);
    struct comparison c = {.result = result, .factor = 1, .limit = result->limit, .step = step, .rank = rank};
    double *const fields[] = {&result->parameter, &result->gradient, &result->average};
    const double factor = loss_scale(many) / loss_scale(one);
    c.largest = &result->loss;
    c.what = "loss";
    compare_scalar(&c, scalar(many, rank, p->loss_sum), scalar(one, 0, q->loss_sum));
    c.largest = &result->norm;
    c.what = "gradient norm";
    if (!p->independent_axes) /* else gradients are local to each rank */
        compare_scalar(&c, sqrt(scalar(many, rank, p->norm2)) / factor, sqrt(scalar(one, 0, q->norm2)));
    for (int32_t what = PARAMETER; what <= AVERAGE; what++) {
        if (what == GRADIENT && p->independent_axes)
            continue;
        c.largest = fields[what];
        c.what = names[what];
        c.factor = what == GRADIENT ? factor : 1;
        walk_flats(many, rank, what, v, &c);
    }
}

static void compare_evaluation(struct side *one, struct side *many, struct hd__numerics *result)
{
    struct comparison c = {
        .result = result, .limit = HD__NUMERICS_LIMIT, .largest = &result->evaluation, .what = "loss of an evaluation"};
    for (c.rank = 0; c.rank < many->compiled->mesh.ranks; c.rank++)
        compare_scalar(&c, scalar(many, c.rank, hd__compiled_program(many->compiled, c.rank)->loss_sum),
                       scalar(one, 0, one->compiled->stage[0]->loss_sum));
}

/* ---- what strategies do between steps, by the formulas of their papers: the one rank has neither */

static double setting(const struct hd__job *job, const char *use, const char *key)
{
    for (uint64_t n = 0; n < job->n_strategies; n++) {
        char path[160];
        const struct hd__job_value *value;
        snprintf(path, sizeof path, "%s.%s", job->strategies[n]->path, key);
        if (!strcmp(job->strategies[n]->use, use) && (value = hd__job_value_get(job, path)) != NULL)
            return strcmp(value->text, "true") ? strtod(value->text, NULL) : 1;
    }
    return 0;
}

/* Parameters of the one rank from here on. */
static void set_params(struct side *one, const struct values *v)
{
    const struct hd_program *p = one->compiled->stage[0];
    const int32_t coord[HD_AXIS_COUNT] = {0};
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, &t);) {
        struct hd__ckpt_shard_walk walk = {.p = p, .flat = &p->flats.at[t.flat], .coord = coord, .tensor = t.tensor};
        struct hd__ckpt_shard_run run;
        double *data = hd__sim_tensor_data(one->machine, 0, t.tensor);
        while (t.role < HD__FLAT_STRATEGY && hd__ckpt_shard_next(&walk, &run))
            memcpy(data + run.offset, v->at[PARAMETER][run.param] + run.first, (size_t)run.count * sizeof *data);
    }
}

/* DiLoCo (arXiv 2311.08105, algorithm 1) with a meeting in every step and a linear inner step, so that the replicas'
 * mean is what one rank trains from the mean of their gradients. */
static void outer_step(struct side *one, const struct hd__job *job, struct values *v)
{
    const struct hd_program *p = one->compiled->stage[0];
    double lr = setting(job, "localsgd", "outer_lr"), momentum = setting(job, "localsgd", "momentum"),
           ahead = setting(job, "localsgd", "nesterov") != 0 ? momentum : 0;
    for (uint32_t k = 0; k < p->params.count; k++) {
        double *x = v->at[PARAMETER][k], *common = v->at[COMMON][k], *m = v->at[MOMENTUM][k];
        for (int64_t e = 0; e < hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor)); e++) {
            double d = common[e] - x[e];
            m[e] = momentum * m[e] + d;
            x[e] = common[e] -= lr * (ahead > 0 ? d + ahead * m[e] : m[e]);
        }
    }
    set_params(one, v);
}

static void average(const struct hd__job *job, const struct hd_program *p, int64_t step, struct values *v)
{
    double decay = setting(job, "ema", "decay");
    int64_t every = (int64_t)setting(job, "ema", "every");
    for (uint32_t k = 0; every && step % every == 0 && k < p->params.count; k++)
        for (int64_t e = 0; e < hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor)); e++)
            v->at[AVERAGE][k][e] = decay * v->at[AVERAGE][k][e] + (1 - decay) * v->at[PARAMETER][k][e];
}

/* ---- the whole */

typedef HD__ARRAY(int64_t) steps_list;

/* The first steps, and where a section runs in none of them (behind a warm-up, every so many steps), the next that has
 * it, and the one after. */
static steps_list choose_steps(const struct hd__compiled *c, int32_t first)
{
    steps_list list = {0};
    for (int64_t step = 1; step <= first; step++)
        hd__push(&list, step);
    for (int32_t stage = 0; stage < c->n_stages; stage++)
        for (uint32_t n = 0; n < c->stage[stage]->sections.count; n++) {
            const struct hd__code_section *s = &c->stage[stage]->sections.at[n];
            int64_t step = HD__MAX(list.at[list.count - 1], s->after) + 1;
            uint32_t due = 0;
            for (uint32_t k = 0; k < list.count; k++)
                due += (uint32_t)hd__section_due(s, list.at[k]);
            if (s->every)
                step = (step + s->every - 1) / s->every * s->every;
            if (due || !hd__section_due(s, step))
                continue;
            hd__push(&list, step);
            step++;
            hd__push(&list, step);
        }
    return list;
}

static void begin_values(struct side *one, struct values *v)
{
    const struct hd_program *p = one->compiled->stage[0];
    walk_flats(one, 0, PARAMETER, v, NULL);
    for (uint32_t k = 0; k < p->params.count; k++) {
        size_t bytes =
            (size_t)hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor)) * sizeof *v->at[PARAMETER][k];
        memcpy(v->at[AVERAGE][k], v->at[PARAMETER][k], bytes);
        memcpy(v->at[COMMON][k], v->at[PARAMETER][k], bytes);
    }
}

static int32_t run_steps(struct side *one, struct side *many, const steps_list *steps, uint64_t seed,
                         struct hd__numerics *result, struct hd_error *err)
{
    const struct hd_program *p = one->compiled->stage[0];
    const struct hd__job *job = many->compiled->job;
    int64_t count = one->compiled->job->batch * (one->compiled->job->seq_len + 1);
    int32_t *tokens = hd__alloc((size_t)count * sizeof *tokens), rc = HD_OK;
    struct values v;
    open_values(&v, p);
    begin_values(one, &v);
    for (uint32_t k = 0; k < steps->count && !rc; k++) {
        int64_t step = steps->at[k];
        for (int64_t n = 0; n < count; n++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            tokens[n] = (int32_t)((seed >> 33) % (uint64_t)one->compiled->info.vocab);
        }
        if (step == 1 && !(rc = run_evaluation(one, tokens, err)) && !(rc = run_evaluation(many, tokens, err)))
            compare_evaluation(one, many, result); /* before the step, whose rounding changes parameters */
        if (rc || (rc = run_step(one, step, tokens, err)) || (rc = run_step(many, step, tokens, err)))
            break;
        walk_flats(one, 0, PARAMETER, &v, NULL);
        walk_flats(one, 0, GRADIENT, &v, NULL);
        if (many->compiled->stage[0]->independent_axes)
            outer_step(one, job, &v);
        average(job, p, step, &v);
        for (int32_t what = 0; what <= AVERAGE; what++)
            find_scales(&v, p, what);
        for (int32_t r = 0; r < many->compiled->mesh.ranks; r++)
            compare_rank(one, many, r, step, &v, result);
    }
    free(tokens);
    close_values(&v, p);
    return rc;
}

/* Exact sums give one rank's bits on any number of data ranks and pipeline stages; other axes cut within a
 * micro-batch. */
static double limit_of(const struct hd__compiled *c)
{
    const int32_t *size = c->mesh.size;
    return c->stage[0]->exact && size[HD_AXIS_CP] * size[HD_AXIS_EP] * size[HD_AXIS_TP] * size[HD_AXIS_TQ] == 1
               ? 0
               : HD__NUMERICS_LIMIT;
}

int32_t hd__numerics(struct hd__compiled *one, struct hd__compiled *many, int32_t steps, uint64_t seed,
                     struct hd__numerics *result, struct hd_error *err)
{
    struct side a = {0}, b = {0};
    steps_list list = choose_steps(many, steps);
    const struct hd_program *p = one->stage[0], *q = many->stage[0];
    int32_t rc = HD_OK;
    if (one->mesh.ranks != 1 || p->params.count != q->params.count || p->precision.compute != HD_F64 ||
        q->precision.compute != HD_F64)
        rc = hd_fail(err, HD_E_INVALID,
                     "the numbers of a job are compared in fp64 with those of the same model on one rank");
    *result = (struct hd__numerics){
        .ranks = many->mesh.ranks, .steps = (int32_t)list.count, .limit = limit_of(many), .memory_ratio = 1};
    result->loss = result->norm = result->gradient = result->parameter = result->average = result->evaluation = -1;
    for (int32_t s = 0; s < many->n_stages; s++)
        if (many->stage[s]->temp_bound)
            result->memory_ratio =
                HD__MAX(result->memory_ratio, (double)many->stage[s]->temp_bytes / (double)many->stage[s]->temp_bound);
    if (!rc)
        rc = open_side(&a, one, seed, err);
    if (!rc)
        rc = open_side(&b, many, seed, err);
    if (!rc)
        rc = run_steps(&a, &b, &list, seed, result, err);
    hd__free_array(&list);
    close_side(&a);
    close_side(&b);
    return rc;
}
