/* The mean over the global batch. Each token's loss is weighted by 1 / (batch x seq_len) when the model emits its loss
 * (hd_builder_api.loss_scale), so gradients of micro-batches and data-parallel ranks are only added up, never averaged:
 * after the last micro-batch and the reduction, the sum is the gradient of the mean. attributes.c proves it. */
#include "core/compile/internal.h"

void hd__compile_micro_batch_mean(const struct hd__job *job, struct hd_program *p)
{
    p->accumulation = (int32_t)job->accumulation; /* micro-batches of a rank and step */
    for (uint32_t d = 0; d < job->micro_batches.count; d++)
        if (job->micro_batches.at[d] != p->accumulation)
            p->micro_batches = job->micro_batches.at;
    p->empty = hd__job_empty_sequences(job);
    p->token_weight = 1.0 / ((double)job->batch * (double)job->seq_len);
}
