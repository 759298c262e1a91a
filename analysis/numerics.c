/* The same job on its mesh and on one rank, compared value by value. See numerics.h. */
#include "analysis/numerics.h"

#include <math.h>
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "core/program/fusion.h"
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

/* Rows of micro-batch m are rows [m b, (m + 1) b) of the batch; b is the extent of dim b over all data ranks. With
 * exact sums the rows of a rank are contiguous: deterministic.c. */
static int32_t feed(void *user, int32_t rank, const struct hd__instr *i, int32_t micro, const struct hd_operand *out,
                    struct hd_error *err)
{
    struct side *s = user;
    const struct hd_program *p = hd__compiled_program(s->compiled, rank);
    int64_t rows = p->dims.at[p->letter['b']].extent, length = s->compiled->job->seq_len + 1;
    int shift = hd__tensor_const(p, i->out[0])->origin == hd__tensor_const(p, p->labels)->origin;
    int32_t *to = out->data;
    micro = s->evaluates ? s->evaluates - 1 : micro;
    if (out->ndim != 2 || out->dtype != HD_I32)
        return hd_fail(err, HD_E_INTERNAL, "%s is not a table of token ids", hd__tensor_const(p, i->out[0])->name);
    int64_t first = p->exact ? out->start[0] * p->accumulation + micro * out->extent[0] : micro * rows + out->start[0];
    for (int64_t b = 0; b < out->extent[0]; b++) {
        const int32_t *row = s->tokens + (first + b) * length + shift;
        for (int64_t at = 0; at < out->extent[1]; at++)
            *to++ = row[hd__sequence_position(p, out->start[1] + at)];
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
    int32_t rc;
    s->compiled = compiled;
    for (int32_t r = 0; r < compiled->mesh.ranks; r++)
        programs[r] = hd__compiled_program(compiled, r);
    s->machine =
        hd__sim_create(&compiled->mesh, programs, &(struct hd__sim_options){.kernels = &kernels, .seed = seed});
    free(programs);
    rc = open_device(s, err);
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

static int32_t run_step(struct side *s, int32_t step, const int32_t *tokens, struct hd_error *err)
{
    s->tokens = tokens;
    for (int32_t r = 0; r < s->compiled->mesh.ranks; r++) {
        double *hyper = hd__sim_tensor_data(s->machine, r, hd__compiled_program(s->compiled, r)->hyper);
        memset(hyper, 0, HD_HYPER_COUNT * sizeof *hyper);
        hyper[HD_HYPER_LR] = s->compiled->job->schedule.lr;
        hyper[HD_HYPER_STEP] = step;
        hyper[HD_HYPER_INV_SCALE] = 1 / loss_scale(s);
        if (hd__compiled_program(s->compiled, r)->scale)
            *(double *)hd__sim_tensor_data(s->machine, r, hd__compiled_program(s->compiled, r)->scale) = loss_scale(s);
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

/* ---- comparing */

struct comparison {
    struct hd__numerics *result;
    double scale;    /* factor of the rank's gradients */
    double *largest; /* field of result */
    const char *what;
    int32_t step, rank;
};

static void compare(struct comparison *c, double is, double expected, const char *name)
{
    double d = fabs(is - expected);
    if (!(d <= *c->largest))
        *c->largest = isnan(d) ? INFINITY : d;
    if (*c->largest <= c->result->worst)
        return;
    c->result->worst = *c->largest;
    snprintf(c->result->where, sizeof c->result->where, "step %d, rank %d, %s%s", c->step, c->rank, c->what, name);
}

/* Copies the gradients or the master weights of a rank to their positions in the global arrays, or, with a
 * comparison, compares them. */
static void walk_flats(struct side *s, int32_t rank, int gradient, double **global, struct comparison *c)
{
    const struct hd_program *p = hd__compiled_program(s->compiled, rank);
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&s->compiled->mesh, rank, coord);
    for (uint32_t k = 0; k < p->flats.count; k++) {
        struct hd__ckpt_shard_walk walk = {.p = p, .flat = &p->flats.at[k], .coord = coord};
        struct hd__ckpt_shard_run run;
        walk.tensor = walk.flat->tensor[gradient ? HD__FLAT_SHARD : HD__FLAT_MASTER];
        const double *data = hd__sim_tensor_data(s->machine, rank, walk.tensor);
        while (hd__ckpt_shard_next(&walk, &run)) {
            double *whole = global[run.param] + run.first;
            if (!c)
                memcpy(whole, data + run.offset, (size_t)run.count * sizeof *whole);
            for (int64_t n = 0; c && n < run.count; n++)
                compare(c, data[run.offset + n] / c->scale, whole[n], p->params.at[run.param].desc.name);
        }
    }
}

static double scalar(struct side *s, int32_t rank, hd_tensor t)
{
    return *(const double *)hd__sim_tensor_data(s->machine, rank, t);
}

static void compare_rank(struct side *one, struct side *many, int32_t rank, int32_t step, double **global[2],
                         struct hd__numerics *result)
{
    const struct hd_program *p = hd__compiled_program(many->compiled, rank),
                            *q = hd__compiled_program(one->compiled, 0);
    struct comparison c = {.result = result, .scale = 1, .step = step, .rank = rank};
    c.largest = &result->loss;
    c.what = "loss";
    compare(&c, scalar(many, rank, p->loss_sum), scalar(one, 0, q->loss_sum), "");
    c.largest = &result->norm;
    c.what = "gradient norm";
    if (!p->local_axes) /* else gradients are local to each rank */
        compare(&c, sqrt(scalar(many, rank, p->norm2)) / loss_scale(many), sqrt(scalar(one, 0, q->norm2)), "");
    for (int gradient = 0; gradient < (p->local_axes ? 1 : 2); gradient++) {
        c.largest = gradient ? &result->gradient : &result->parameter;
        c.what = gradient ? "gradient of " : "parameter ";
        c.scale = gradient ? loss_scale(many) : 1;
        walk_flats(many, rank, gradient, global[gradient], &c);
    }
}

static void compare_evaluation(struct side *one, struct side *many, struct hd__numerics *result)
{
    struct comparison c = {
        .result = result, .scale = 1, .largest = &result->evaluation, .what = "loss of an evaluation"};
    for (c.rank = 0; c.rank < many->compiled->mesh.ranks; c.rank++)
        compare(&c, scalar(many, c.rank, hd__compiled_program(many->compiled, c.rank)->loss_sum),
                scalar(one, 0, one->compiled->stage[0]->loss_sum), "");
}

/* ---- the whole */

static double **global_arrays(const struct hd_program *p)
{
    double **arrays = hd__alloc(p->params.count * sizeof *arrays);
    for (uint32_t k = 0; k < p->params.count; k++)
        arrays[k] =
            hd__alloc((size_t)hd__global_numel(p, hd__tensor_const(p, p->params.at[k].tensor)) * sizeof **arrays);
    return arrays;
}

static void free_arrays(const struct hd_program *p, double **arrays)
{
    for (uint32_t k = 0; k < p->params.count; k++)
        free(arrays[k]);
    free(arrays);
}

static int32_t run_steps(struct side *one, struct side *many, int32_t steps, uint64_t seed, struct hd__numerics *result,
                         struct hd_error *err)
{
    const struct hd_program *p = one->compiled->stage[0];
    double **global[2] = {global_arrays(p), global_arrays(p)};
    int64_t count = one->compiled->job->batch * (one->compiled->job->seq_len + 1);
    int32_t *tokens = hd__alloc((size_t)count * sizeof *tokens), rc = HD_OK;
    for (int32_t step = 1; step <= steps && !rc; step++) {
        for (int64_t n = 0; n < count; n++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            tokens[n] = (int32_t)((seed >> 33) % (uint64_t)one->compiled->info.vocab);
        }
        if (step == 1 && !(rc = run_evaluation(one, tokens, err)) && !(rc = run_evaluation(many, tokens, err)))
            compare_evaluation(one, many, result); /* before the step, whose rounding changes parameters */
        if (rc || (rc = run_step(one, step, tokens, err)) || (rc = run_step(many, step, tokens, err)))
            break;
        for (int gradient = 0; gradient < 2; gradient++)
            walk_flats(one, 0, gradient, global[gradient], NULL);
        for (int32_t r = 0; r < many->compiled->mesh.ranks; r++)
            compare_rank(one, many, r, step, global, result);
    }
    free(tokens);
    free_arrays(p, global[0]);
    free_arrays(p, global[1]);
    return rc;
}

int32_t hd__numerics(struct hd__compiled *one, struct hd__compiled *many, int32_t steps, uint64_t seed,
                     struct hd__numerics *result, struct hd_error *err)
{
    struct side a = {0}, b = {0};
    const struct hd_program *p = one->stage[0], *q = many->stage[0];
    int32_t rc = HD_OK;
    if (one->mesh.ranks != 1 || p->params.count != q->params.count || p->precision.compute != HD_F64 ||
        q->precision.compute != HD_F64)
        rc = hd_fail(err, HD_E_INVALID,
                     "the numbers of a job are compared in fp64 with those of the same model on one rank");
    *result = (struct hd__numerics){.ranks = many->mesh.ranks, .steps = steps, .memory_ratio = 1};
    for (int32_t s = 0; s < many->n_stages; s++)
        if (many->stage[s]->temp_bound)
            result->memory_ratio =
                HD__MAX(result->memory_ratio, (double)many->stage[s]->temp_bytes / (double)many->stage[s]->temp_bound);
    if (!rc)
        rc = open_side(&a, one, seed, err);
    if (!rc)
        rc = open_side(&b, many, seed, err);
    if (!rc)
        rc = run_steps(&a, &b, steps, seed, result, err);
    close_side(&a);
    close_side(&b);
    return rc;
}

/* ---- from a job file */

typedef int32_t loader(const char *from, const char *const *overrides, size_t n, struct hd__job **job,
                       struct hd_error *err);

static int32_t load_text(const char *text, const char *const *overrides, size_t n, struct hd__job **job,
                         struct hd_error *err)
{
    return hd__job_parse("job", text, strlen(text), overrides, n, job, err);
}

/* Loads and compiles with overrides appended to those of the user. */
static int32_t compile_with(loader *load, const char *from, const char *const *overrides, size_t n,
                            const char *const *more, size_t n_more, struct hd__plugins *plugins, uint32_t flags,
                            struct hd__job **job, struct hd__compiled **compiled, struct hd_error *err)
{
    const char **all = hd__alloc((n + n_more) * sizeof *all);
    int32_t rc;
    if (n)
        memcpy(all, overrides, n * sizeof *all);
    memcpy(all + n, more, n_more * sizeof *all);
    rc = load(from, all, n + n_more, job, err);
    free(all);
    if (!rc)
        rc = hd__job_resolve(*job, 0, err);
    return rc ? rc : hd__exec_compile_with(*job, plugins, flags, compiled, err);
}

static int32_t numerics_from(loader *load, const char *from, const char *const *overrides, size_t n,
                             struct hd__plugins *plugins, int32_t steps, uint64_t seed, struct hd__numerics *result,
                             struct hd_error *err)
{
    char micro_batch[48];
    const char *const more[] = {"precision.compute=fp64",
                                "device.kernels=reference",
                                "device.threads=1",
                                "mesh.pp=1",
                                "mesh.dp=1",
                                "mesh.cp=1",
                                "mesh.ep=1",
                                "mesh.tp=1",
                                "launch.ranks=1",
                                "precision.loss_scale=none",
                                "recompute=none",
                                micro_batch};
    struct hd__job *jobs[2] = {NULL, NULL};
    struct hd__compiled *one = NULL, *many = NULL;
    int32_t rc = compile_with(load, from, overrides, n, more, 3, plugins, 0, &jobs[0], &many, err);
    if (!rc) {
        int exact = many->stage[0]->exact; /* bit-identical then: the same micro-batches and the same kernels */
        snprintf(micro_batch, sizeof micro_batch, "data.micro_batch=%lld",
                 (long long)(exact ? jobs[0]->micro_batch : jobs[0]->batch));
        rc = compile_with(load, from, overrides, n, more, HD__COUNT(more), plugins,
                          HD__COMPILE_NO_FUSE((exact ? 0 : HD__FUSE_LOSS_HEAD) | HD__FUSE_NORM_SUMS), &jobs[1], &one,
                          err);
    }
    if (!rc)
        rc = hd__numerics(one, many, steps, seed, result, err);
    hd__exec_compiled_free(one);
    hd__exec_compiled_free(many);
    hd__job_free(jobs[0]);
    hd__job_free(jobs[1]);
    return rc;
}

int32_t hd__numerics_file(const char *file, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err)
{
    return numerics_from(hd__job_load, file, overrides, n, plugins, steps, seed, result, err);
}

int32_t hd__numerics_text(const char *text, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err)
{
    return numerics_from(load_text, text, overrides, n, plugins, steps, seed, result, err);
}
