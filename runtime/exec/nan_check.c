/* NaN check of a step, and the position of a rank in its program. */
#include <math.h>

#include "core/base/dtype.h"
#include "runtime/exec/internal.h"
#include "runtime/rendezvous/store.h"

/* ---- NaN and Inf */

static int all_finite(const struct hd__exec *e, hd_tensor t)
{
    const struct hd__tensor *x = hd__tensor_const(e->p, t);
    const void *data = hd__tensor_address(e->p, t, e->coord, e->host_mirror);
    int64_t n = hd__numel(e->p, x);
    float value[256];
    if (!hd__is_float(x->dtype))
        return 1;
    for (int64_t i = 0; i < n && x->dtype == HD_F64; i++)
        if (!isfinite(((const double *)data)[i]))
            return 0;
    if (x->dtype == HD_F64)
        return 1;
    for (int64_t i = 0, some; i < n; i += some) {
        some = HD__MIN(256, n - i);
        hd__to_f32(x->dtype, (const char *)data + i * (int64_t)hd_dtype_size(x->dtype), value, (uint64_t)some);
        for (int64_t k = 0; k < some; k++)
            if (!isfinite(value[k]))
                return 0;
    }
    return 1;
}

/* *bad: the first tensor that has a NaN or Inf; 0 where all are finite. */
static int32_t first_nonfinite(struct hd__exec *e, const hd_tensor *t, uint32_t n, hd_tensor *bad, struct hd_error *err)
{
    int32_t rc = hd__exec_copy_tensors(e, HD__D2H, t, n, err);
    *bad = 0;
    for (uint32_t k = 0; k < n && !rc && !*bad; k++)
        if (!all_finite(e, t[k]))
            *bad = t[k];
    return rc;
}

/* The instruction to blame has finite inputs only; else a parameter had the NaN before the step. */
int32_t hd__exec_check_finite(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                              struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    int checked = section->prepared[k].kind == HD__PREPARED_KERNEL && !*e->nonfinite;
    hd_tensor read = 0, written = 0;
    int32_t rc = checked ? first_nonfinite(e, i->in, i->n_in, &read, err) : HD_OK;
    if (!rc)
        rc = hd__exec_run_prepared(e, &section->prepared[k], err);
    if (!rc && checked && !read)
        rc = first_nonfinite(e, i->out, i->n_out, &written, err);
    if (rc || !checked)
        return rc;
    if (read && hd__tensor_const(e->p, read)->param && i->phase != HD__PHASE_O)
        snprintf(e->nonfinite, 160, "parameter %s, before the step",
                 e->p->params.at[hd__tensor_const(e->p, read)->param - 1].desc.name);
    else if (written)
        snprintf(e->nonfinite, 160, "block %s, %s (section %s, instruction %u)", e->p->blocks.at[i->block],
                 hd__instr_name(i), section->of->name, k);
    return HD_OK;
}

int32_t hd__exec_find_nonfinite(struct hd__exec *e, int64_t step, char out[160], struct hd_error *err)
{
    *out = 0;
    e->nonfinite = out;
    int32_t rc = hd__exec_run_step(e, step, err);
    e->nonfinite = NULL;
    return rc ? rc : *out != 0;
}

/* ---- position */

void hd__exec_set_status(struct hd__exec *e, const char *what)
{
    __atomic_store_n(&e->status, what, __ATOMIC_RELEASE); /* with the text that it points to */
}

/* Opening or closing: a call into what others wrote. */
void hd__exec_begin_call(struct hd__exec *e, const char *what)
{
    double since = what ? hd__now() : 0;
    hd__exec_set_status(e, what ? what : "between sections");
    __atomic_store(&e->call_since, &since, __ATOMIC_RELAXED);
}

double hd__exec_call_seconds(struct hd__exec *e)
{
    double since, went_on, waited = e->config.store ? hd__store_last_wait(e->config.store) : 0;
    __atomic_load(&e->call_since, &since, __ATOMIC_RELAXED);
    __atomic_load(&e->transports.flight->went_on, &went_on, __ATOMIC_RELAXED);
    return since > 0 ? HD__MAX(0.0, hd__now() - HD__MAX(since, HD__MAX(waited, went_on))) : 0;
}

static const char *position(struct hd__exec *e, char out[128])
{
    const struct hd__prepared_section *section = __atomic_load_n(&e->current_section, __ATOMIC_ACQUIRE);
    uint32_t k = __atomic_load_n(&e->current_instr, __ATOMIC_RELAXED);
    const struct hd__instr *i, *on = NULL;
    char axes[64], with[80] = "";
    const char *block;
    if (!section || k >= section->n)
        return strcpy(out, __atomic_load_n(&e->status, __ATOMIC_ACQUIRE));
    i = &section->of->code.at[k];
    for (uint32_t j = 0; j < k && i->op == HD_OP_WAIT; j++)
        if (section->of->code.at[j].id == i->wait)
            on = &section->of->code.at[j];
    if (on && hd__op(on->op)->class == HD__CLASS_P2P)
        snprintf(with, sizeof with, " %s stage %d", on->op == HD_OP_RECV ? "from" : "to", on->peer);
    else if (on) {
        hd__axes_text(on->axes, axes);
        snprintf(with, sizeof with, " over %s", axes);
    }
    block = e->p->blocks.at[i->block];
    snprintf(out, 128, "section %s, instruction %u: %s%s%s%s%s%s", section->of->name, k, block, *block ? " " : "",
             hd__instr_name(i), on ? " for " : "", on ? hd__op(on->op)->name : "", with);
    return out;
}

const char *hd__exec_position(struct hd__exec *e, char out[128])
{
    pthread_mutex_lock(&e->positions);
    position(e, out);
    pthread_mutex_unlock(&e->positions);
    return out;
}
