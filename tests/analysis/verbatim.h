/* strategy-verbatim: custom ops of every kind of proof that lose nothing, in any floating-point dtype, so that a job
 * with them trains like one rank: codes are the elements' own bytes, and the error that they leave is zero.
 *
 *   stage 0 of zero   linear; encode; all_to_all; decode; encode; all_gather; decode (joined); map
 *   stages 1 to 3     linear; encode; all_gather; decode (summed); map */
#ifndef HD_TESTS_ANALYSIS_VERBATIM_H
#define HD_TESTS_ANALYSIS_VERBATIM_H

#include "heddle/host.h"
#include "heddle/strategy.h"

static double verbatim_load(const struct hd_operand *x, const void *data, int64_t i)
{
    return x->dtype == HD_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void verbatim_store(const struct hd_operand *x, int64_t i, double value)
{
    if (x->dtype == HD_F64)
        ((double *)x->data)[i] = value;
    else
        ((float *)x->data)[i] = (float)value;
}

static int32_t verbatim_same(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < hd_operand_count(&d->out[0]); i++)
        verbatim_store(&d->out[0], i, verbatim_load(&d->in[0], d->in[0].data, i));
    return HD_OK;
}

/* g + e, whose error is none. Elements that the last part lacks are zeros. */
static int32_t verbatim_encode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const struct hd_operand *g = &d->in[0], *e = &d->out[1];
    int64_t room = d->out[0].extent[0] / (int64_t)hd_dtype_size(g->dtype);
    struct hd_operand code = {.data = d->out[0].data, .dtype = g->dtype};
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < room; i++)
        verbatim_store(&code, i, i < g->extent[0] ? verbatim_load(g, g->data, i) + verbatim_load(e, e->data, i) : 0);
    for (int64_t i = 0; i < g->extent[0]; i++)
        verbatim_store(e, i, 0);
    return HD_OK;
}

static int32_t verbatim_decode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const struct hd_operand *y = &d->out[0];
    int joins = d->attrs.flags & HD_ATTR_CONCAT;
    int64_t n = y->extent[0], size = (int64_t)hd_dtype_size(y->dtype), all = d->in[0].extent[0] / size,
            part = all / d->attrs.parts, first = part == n ? 0 : y->start[0];
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < n; i++) {
        double sum = joins ? verbatim_load(y, d->in[0].data, i) : 0;
        for (int64_t k = 0; k < d->attrs.parts && !joins; k++)
            sum += verbatim_load(y, d->in[0].data, k * part + first + i);
        verbatim_store(y, i, sum);
    }
    return HD_OK;
}

static const struct hd_custom_op verbatim_ops[] = {{.struct_size = sizeof(struct hd_custom_op),
                                                    .name = "verbatim_linear",
                                                    .in = "*",
                                                    .out = "*",
                                                    .proof = HD_CUSTOM_LINEAR,
                                                    .run = verbatim_same},
                                                   {.struct_size = sizeof(struct hd_custom_op),
                                                    .name = "verbatim_map",
                                                    .in = "*",
                                                    .out = "*",
                                                    .proof = HD_CUSTOM_MAP,
                                                    .run = verbatim_same},
                                                   {.struct_size = sizeof(struct hd_custom_op),
                                                    .name = "verbatim_encode",
                                                    .in = "*",
                                                    .out = "u*",
                                                    .proof = HD_CUSTOM_ENCODE,
                                                    .state = 1 << 1,
                                                    .flops = 1,
                                                    .run = verbatim_encode},
                                                   {.struct_size = sizeof(struct hd_custom_op),
                                                    .name = "verbatim_decode",
                                                    .in = "u",
                                                    .out = "*",
                                                    .proof = HD_CUSTOM_DECODE,
                                                    .flops = 1,
                                                    .run = verbatim_decode}};
enum { VERBATIM_LINEAR, VERBATIM_MAP, VERBATIM_ENCODE, VERBATIM_DECODE, VERBATIM_COUNT };

struct verbatim {
    const struct hd_pass_api *api;
    struct hd_program *p;
    const struct hd_pass_bucket *b;
};

static void verbatim_put(const struct verbatim *v, uint32_t op, hd_tensor in, hd_tensor out, hd_tensor error,
                         int64_t parts, uint32_t flags)
{
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .parts = (uint32_t)parts, .flags = flags};
    struct hd_pass_instr i = {.struct_size = sizeof i, .phase = HD_PHASE_O, .n_in = 1, .n_out = 1 + (error != 0)};
    i.in[0] = in;
    i.out[0] = out;
    i.out[1] = error;
    i.op = op < VERBATIM_COUNT ? v->api->custom_op(v->p, &verbatim_ops[op]) : op;
    i.attrs = op < VERBATIM_COUNT ? &attrs : NULL;
    i.axes = op < VERBATIM_COUNT ? 0 : v->b->axes;
    v->api->insert(v->p, v->b->section, v->b->index, 1, &i);
}

static hd_tensor verbatim_error(const struct verbatim *v, const char *name, hd_tensor like, uint32_t axes)
{
    hd_tensor e = v->api->vector_like(v->p, name, like, axes, HD_LIFE_PERSISTENT);
    v->api->declare(v->p, e, HD_FACT_FEEDBACK, 0, NULL);
    return e;
}

static int32_t verbatim_reduce(const struct hd_host *host, const void *settings, struct hd_program *p,
                               const struct hd_pass_bucket *b, struct hd_error *err)
{
    const struct verbatim v = {host->pass, p, b};
    const struct hd_pass_api *api = host->pass;
    uint32_t dtype = api->dtype(p, "grad"), whole = b->out == b->grad;
    struct hd_pass_flat flat;
    int64_t ways = 1, size = (int64_t)hd_dtype_size(dtype), part;
    (void)settings, (void)err;
    api->flat_get(p, b->flat, &flat);
    for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
        ways *= b->axes & HD_AXIS_BIT(a) ? api->axis_size(p, a) : 1;
    part = (flat.count + ways - 1) / ways;
    hd_tensor g = api->vector_like(p, "g", b->grad, 0, HD_LIFE_TEMP), error = verbatim_error(&v, "E", b->grad, 0);
    verbatim_put(&v, VERBATIM_LINEAR, b->grad, g, 0, 0, 0);
    if (!whole) {
        hd_tensor c = api->vector(p, b->flat, "c", ways * flat.count * size, HD_U8, b->axes, HD_LIFE_TEMP),
                  all = api->vector_like(p, "cg", c, 0, HD_LIFE_TEMP),
                  sum = api->vector_like(p, "s", b->grad, b->axes, HD_LIFE_TEMP);
        verbatim_put(&v, VERBATIM_ENCODE, g, c, error, 1, 0);
        verbatim_put(&v, HD_OP_ALL_GATHER, c, all, 0, 0, 0);
        verbatim_put(&v, VERBATIM_DECODE, all, sum, 0, ways, 0);
        verbatim_put(&v, VERBATIM_MAP, sum, b->out, 0, 0, 0);
        return HD_OK;
    }
    hd_tensor c = api->vector(p, b->flat, "c", ways * part * size, HD_U8, 0, HD_LIFE_TEMP),
              got = api->vector_like(p, "cx", c, 0, HD_LIFE_TEMP),
              sum = api->vector(p, b->flat, "s", ways * part, dtype, b->axes, HD_LIFE_TEMP),
              again = api->vector_like(p, "cs", c, b->axes, HD_LIFE_TEMP),
              all = api->vector_like(p, "cg", c, 0, HD_LIFE_TEMP),
              joined = api->vector_like(p, "j", b->grad, 0, HD_LIFE_TEMP);
    verbatim_put(&v, VERBATIM_ENCODE, g, c, error, ways, 0);
    verbatim_put(&v, HD_OP_ALL_TO_ALL, c, got, 0, 0, 0);
    verbatim_put(&v, VERBATIM_DECODE, got, sum, 0, ways, 0);
    verbatim_put(&v, VERBATIM_ENCODE, sum, again, verbatim_error(&v, "ES", sum, b->axes), 1, 0);
    verbatim_put(&v, HD_OP_ALL_GATHER, again, all, 0, 0, 0);
    verbatim_put(&v, VERBATIM_DECODE, all, joined, 0, ways, HD_ATTR_CONCAT);
    verbatim_put(&v, VERBATIM_MAP, joined, b->out, 0, 0, 0);
    return HD_OK;
}

static const struct hd_strategy_ops verbatim_strategy = {
    .struct_size = sizeof verbatim_strategy, .api = HD_STRATEGY_API, .reduce = verbatim_reduce};
HD_PLUGIN("strategy-verbatim", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "verbatim",
          .summary = "custom ops that lose nothing", .ops = &verbatim_strategy)

#endif
