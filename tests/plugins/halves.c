/* strategy-halves: sums the buckets of strategy-zero, stage 0, with halves: an op that halves, an all_reduce, and a map
 * that doubles, and leaves what is larger than 100. For tests of `heddle test`. */
#include "heddle/experimental/strategy.h"
#include "heddle/host.h"

static int32_t halve(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const float *x = d->in[0].data;
    float *y = d->out[0].data;
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < d->in[0].extent[0]; i++)
        y[i] = x[i] / 2;
    return HD_OK;
}

static int32_t twice(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const float *x = d->in[0].data;
    float *y = d->out[0].data;
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < d->in[0].extent[0]; i++)
        y[i] = x[i] > 100 ? x[i] : 2 * x[i];
    return HD_OK;
}

static const struct hd_custom_op halve_op = {
    .struct_size = sizeof halve_op, .name = "halve", .in = "f", .out = "f", .proof = HD_CUSTOM_LINEAR, .run = halve};
static const struct hd_custom_op twice_op = {
    .struct_size = sizeof twice_op, .name = "twice", .in = "f", .out = "f", .proof = HD_CUSTOM_MAP, .run = twice};

static int32_t reduce(const struct hd_host *host, const void *settings, struct hd_program *p,
                      const struct hd_pass_bucket *b, struct hd_error *err)
{
    const struct hd_pass_api *api = host->pass;
    struct hd_pass_flat flat;
    (void)settings;
    if (b->out != b->grad || api->axis_size(p, HD_AXIS_PP) > 1)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "strategies.halves sums whole gradients of one stage: use zero with "
                       "stage 0, without mesh.pp");
    api->flat_get(p, b->flat, &flat);
    hd_tensor half = api->vector_like(p, "half", b->grad, 0, HD_LIFE_TEMP),
              sum = api->vector_like(p, "sum", b->grad, 0, HD_LIFE_TEMP);
    struct hd_pass_instr steps[] = {{.op = api->custom_op(p, &halve_op), .in = {b->grad}, .out = {half}},
                                    {.op = HD_OP_ALL_REDUCE, .in = {half}, .out = {sum}, .axes = b->axes},
                                    {.op = api->custom_op(p, &twice_op), .in = {sum}, .out = {b->out}}};
    for (uint32_t k = 0; k < 3; k++) {
        steps[k].struct_size = sizeof steps[k];
        steps[k].block = flat.block;
        steps[k].phase = HD_PHASE_O;
        steps[k].n_in = steps[k].n_out = 1;
        api->insert(p, b->section, k < 2 ? b->index : b->last, 1, &steps[k]);
    }
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .reduce = reduce};

HD_PLUGIN("strategy-halves", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "halves",
          .summary = "sums halves of gradients: for tests", .ops = &ops)
