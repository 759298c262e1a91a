/* A strategy's own kernel for CUDA (hd_custom_kernel with device "cuda"): a function that enqueues on a cudaStream_t.
 * Its operands are kept with it: they are in device memory. */
#include "op_table.h"

struct custom {
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    hd_custom_fn run;
};

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct custom *c = k->state;
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = c->run(c->desc.custom->settings, &c->desc, stream, &why);
    if (rc)
        return hd_fail(err, rc, "%s failed: %s", k->label, why.message[0] ? why.message : hd_code_name(rc));
    return cu_fail(err, cudaGetLastError(), k->label, "launch");
}

int32_t cu_prepare_custom(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    struct custom *c = d->host->alloc(sizeof *c);
    k->state = c;
    if (!c)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for a kernel");
    c->desc = *i;
    memcpy(c->in, i->in, i->n_in * sizeof *c->in);
    memcpy(c->out, i->out, i->n_out * sizeof *c->out);
    c->desc.in = c->in;
    c->desc.out = c->out;
    c->desc.params = NULL;
    c->desc.n_params = 0;
    for (uint64_t n = 0; i->custom && n < i->custom->n_kernels; n++)
        if (!strcmp(i->custom->kernels[n].device, "cuda"))
            c->run = i->custom->kernels[n].run;
    if (!c->run)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "the strategy brings no kernel for device cuda");
    k->run = run;
    return i->custom->check ? i->custom->check(i->custom->settings, i, err) : HD_OK;
}
