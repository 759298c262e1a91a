/* Memory of another system by closed forms: Korthikanti et al. 2022 (arXiv 2205.05198), equations 1 to 6, of the
 * blocks of a GPT on the first stage of its pipeline. */
#include "analysis/plan/plan.h"
#include "core/program/ops.h"

struct block { /* in the paper's letters */
    double s, b, h, a, t;
    int sequence_parallel;
};

/* Is the residual stream cut along the sequence? Its norms say so. */
static int is_sequence_parallel(const struct hd_program *p, int64_t seq_len)
{
    for (uint32_t k = 0; k < p->sections.count; k++)
        for (uint32_t n = 0; n < p->sections.at[k].code.count; n++) {
            const struct hd__instr *i = &p->sections.at[k].code.at[n];
            if (i->op == HD_OP_LAYERNORM || i->op == HD_OP_RMSNORM)
                return hd__local_extent(p, hd__tensor_const(p, i->in[0]), 1) < seq_len;
        }
    return 0;
}

static int64_t chunks_of(const struct hd_program *p)
{
    int64_t last = 0, first = INT16_MAX, stages = p->mesh.size[HD_AXIS_PP];
    for (uint32_t k = 0; k < p->sections.count; k++)
        for (uint32_t n = 0; n < p->sections.at[k].code.count; n++)
            if (p->sections.at[k].code.at[n].phase == HD__PHASE_F && !hd__is_async(&p->sections.at[k].code.at[n])) {
                last = HD__MAX(last, p->sections.at[k].code.at[n].chunk);
                first = HD__MIN(first, p->sections.at[k].code.at[n].chunk);
            }
    return first > last ? 1 : (last - first) / stages + 1;
}

/* Bytes that a block keeps of a micro-batch, in 16 bits with masks of a byte. */
static double kept_bytes(const struct block *x, const struct hd__assume *assume, int32_t recompute)
{
    double masks = assume->dropout ? 2 : 0, scores = assume->dropout ? 5 : 2;
    double cut = 24, whole = 8 + masks, tokens = x->s * x->b * x->h;
    if (recompute == HD__RECOMPUTE_FULL)
        return 2 * tokens / (x->sequence_parallel ? x->t : 1);
    if (recompute == HD__RECOMPUTE_SELECTIVE || !assume->unfused_attention)
        scores = 0;
    return tokens * (whole / (x->sequence_parallel ? x->t : 1) + cut / x->t + scores * x->a * x->s / x->h / x->t);
}

int32_t hd__plan_closed_form(const struct hd__compiled *c, const struct hd__assume *assume, struct hd__plan *plan,
                             struct hd_error *err)
{
    const struct hd_model_info *m = &c->info;
    const struct hd__job *job = c->job;
    double p = c->n_stages, v = (double)chunks_of(c->stage[0]), micros;
    struct block x = {.s = (double)job->seq_len,
                      .b = (double)job->micro_batch,
                      .h = (double)m->hidden,
                      .a = (double)m->heads,
                      .t = c->mesh.size[HD_AXIS_TP] * c->mesh.size[HD_AXIS_TQ],
                      .sequence_parallel = is_sequence_parallel(c->stage[0], job->seq_len)};
    if (m->experts || m->ffn != 4 * m->hidden || m->kv_heads != m->heads)
        return hd_fail(err, HD_E_INVALID,
                       "--assume: states: the closed forms are of a GPT's blocks, with as many kv_heads as heads and "
                       "ffn 4 x hidden, and this model has others: leave states out");
    micros = (double)job->accumulation * c->mesh.size[HD_AXIS_EP];
    plan->assumed_states = 12 * x.h * x.h * (double)m->layers / p / x.t * assume->states;
    plan->assumed_activations = kept_bytes(&x, assume, job->recompute) * (double)m->layers * HD__MIN(1, micros / p) *
                                (v > 1 ? 1 + (p - 1) / (p * v) : 1);
    return HD_OK;
}
