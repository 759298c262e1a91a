/* The global norm and the optimizers' updates, over flat buffers cut by ranges. */
#include <fenv.h>
#include <math.h>
#include <stdatomic.h>

#include "reference/reference.h"

double cpu_range_value(const struct hd_attrs *a, int64_t at, double fallback)
{
    for (uint64_t i = 0; i < a->n_ranges; i++)
        if (at >= a->ranges[i].first && at - a->ranges[i].first < a->ranges[i].count)
            return a->ranges[i].value;
    return fallback;
}

static double sum_of_squares(const struct hd_kernel *k)
{
    const struct hd_operand *x = &k->in[0];
    int64_t n = hd_operand_count(x);
    double total = 0;
    for (uint64_t i = 0; i < k->d.attrs.n_ranges; i++) {
        const struct hd_range *r = &k->d.attrs.ranges[i];
        int64_t first = r->first - x->start[0], last = first + r->count;
        double sum = 0;
        for (int64_t j = first > 0 ? first : 0; j < last && j < n; j++) {
            double v = cpu_load(x, j);
            sum += v * v;
        }
        total += r->value * sum;
    }
    return total;
}

/* Digit by digit, from the highest: what is left of a square is below 2^16 units of the next one. */
static void add_digits(const struct hd_operand *y, double square, double value)
{
    int last = HD_SUM_DIGITS - 1;
    const double beyond = ldexp(1, HD_SUM_SHIFT);
    double unit = ldexp(1, 16 * (HD_SUM_DIGITS - 1) - HD_SUM_SHIFT);
    if (!(square < beyond))
        cpu_store(y, last, cpu_load(y, last) + square * INFINITY);
    for (int k = last; k >= 0 && square < beyond && square > 0; k--, unit /= 65536)
        if (square >= unit) {
            double part = floor(square / unit) * unit;
            cpu_store(y, k, cpu_load(y, k) + value * part);
            square -= part;
        }
}

static void sum_digits(const struct hd_kernel *k)
{
    const struct hd_operand *x = &k->in[0];
    for (uint64_t i = 0; i < k->d.attrs.n_ranges; i++) {
        const struct hd_range *r = &k->d.attrs.ranges[i];
        int64_t first = r->first - x->start[0], last = first + r->count;
        for (int64_t j = first > 0 ? first : 0; r->value > 0 && j < last && j < hd_operand_count(x); j++)
            add_digits(&k->out[0], cpu_load(x, j) * cpu_load(x, j), r->value);
    }
}

void cpu_ref_sumsq(struct hd_kernel *k)
{
    if (hd_operand_count(&k->out[0]) == HD_SUM_DIGITS)
        sum_digits(k);
    else
        cpu_store(&k->out[0], 0, cpu_load(&k->out[0], 0) + sum_of_squares(k));
}

/* The factor of a gradient: undoes the loss scale and clips. 0 in *run where the update is to be skipped. */
static double gradient_factor(const struct hd_kernel *k, int *run)
{
    double inv_scale = cpu_load(&k->in[2], HD_HYPER_INV_SCALE);
    *run = hd_update_runs(k->in[2].data, cpu_load(&k->in[1], 0));
    return inv_scale * hd_clip_factor(cpu_load(&k->in[1], 0) * inv_scale * inv_scale, k->d.attrs.clip, sqrt);
}

/* The rules stand in heddle/optimizer.h. */
void cpu_ref_adamw(struct hd_kernel *k)
{
    const struct hd_attrs *a = &k->d.attrs;
    struct hd_operand *p = &k->out[0], *m = &k->out[1], *v = &k->out[2];
    int64_t n = hd_operand_count(p);
    int run;
    double factor = gradient_factor(k, &run), lr = cpu_load(&k->in[2], HD_HYPER_LR);
    double t = cpu_load(&k->in[2], HD_HYPER_STEP);
    double fix1 = 1 - pow(a->beta1, t), fix2 = 1 - pow(a->beta2, t);
    int stochastic = a->flags & HD_ATTR_STOCHASTIC && p->dtype == HD_BF16;
    uint64_t key = hd_round_stochastic_key(a->index, t);
    for (int64_t i = 0; run && i < n; i++) {
        double g = cpu_load(&k->in[0], i) * factor;
        double decay = cpu_range_value(a, p->start[0] + i, 0);
        double m1 = a->beta1 * cpu_load(m, i) + (1 - a->beta1) * g;
        double v1 = a->beta2 * cpu_load(v, i) + (1 - a->beta2) * g * g;
        double p1 = cpu_load(p, i) * (1 - lr * decay) - lr * (m1 / fix1) / (sqrt(v1 / fix2) + a->eps);
        if (stochastic)
            p1 = hd_round_stochastic_bf16((float)p1, key, p->start[0] + i);
        cpu_store(m, i, m1);
        cpu_store(v, i, v1);
        cpu_store(p, i, p1);
        if (k->d.n_out > 3)
            cpu_store(&k->out[3], i, p1);
    }
}

/* The momentum is the second output where attrs.beta1 is not 0; the low precision copy is the output after it. */
void cpu_ref_sgd(struct hd_kernel *k)
{
    const struct hd_attrs *a = &k->d.attrs;
    struct hd_operand *p = &k->out[0], *m = a->beta1 != 0 ? &k->out[1] : NULL;
    uint32_t low = m ? 2 : 1;
    int64_t n = hd_operand_count(p);
    int run;
    double factor = gradient_factor(k, &run), lr = cpu_load(&k->in[2], HD_HYPER_LR);
    for (int64_t i = 0; run && i < n; i++) {
        double p1 = cpu_load(p, i);
        double step = cpu_load(&k->in[0], i) * factor + cpu_range_value(a, p->start[0] + i, 0) * p1;
        if (m) {
            step += a->beta1 * cpu_load(m, i);
            cpu_store(m, i, step);
        }
        p1 -= lr * step;
        cpu_store(p, i, p1);
        if (k->d.n_out > low)
            cpu_store(&k->out[low], i, p1);
    }
}

/* ---- an optimizer's own step */

static double matrix_load(uint32_t dtype, const struct hd_optim_matrix *m, int64_t i, int64_t j)
{
    const struct hd_operand x = {.data = m->data, .dtype = dtype};
    return cpu_load(&x, i * m->row + j * m->col);
}

int32_t cpu_check_product(uint32_t dtype, const struct hd_optim_matrix *a, const struct hd_optim_matrix *b,
                          const struct hd_optim_matrix *c, struct hd_error *err)
{
    if (dtype != HD_F32 && dtype != HD_BF16)
        return hd_fail(err, HD_E_INVALID, "a product of matrices in %s: fp32 or bf16", hd_dtype_name(dtype));
    if (!a->data || !b->data || !c->data)
        return hd_fail(err, HD_E_INVALID, "a product of matrices of which one has no data");
    if ((a->row != 1 && a->col != 1) || (b->row != 1 && b->col != 1) || c->col != 1)
        return hd_fail(err, HD_E_INVALID, "a product of matrices whose elements lie apart: row or col is to be 1");
    return HD_OK;
}

static int32_t plain_product(void *context, uint32_t dtype, int64_t m, int64_t n, int64_t k,
                             const struct hd_optim_matrix *a, const struct hd_optim_matrix *b,
                             const struct hd_optim_matrix *c, struct hd_error *err)
{
    int32_t rc = cpu_check_product(dtype, a, b, c, err);
    (void)context;
    if (rc)
        return rc;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t t = 0; t < k; t++)
                sum += matrix_load(dtype, a, i, t) * matrix_load(dtype, b, t, j);
            ((float *)c->data)[i * c->row + j] = (float)sum;
        }
    return HD_OK;
}

static void plain_parallel(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user)
{
    (void)context;
    if (n > 0)
        fn(user, 0, n);
}

/* Parameters of which this shard has elements: they lie in ascending order. */
static void cut_params(const struct hd_instr_desc *d, struct hd_optim_args *args)
{
    uint32_t first = 0, last = d->n_params;
    while (first < last && d->params[first].first + d->params[first].count <= args->first)
        first++;
    while (last > first && d->params[last - 1].first >= args->first + args->count)
        last--;
    args->params = d->params + first;
    args->n_params = last - first;
}

void cpu_ref_optim_step(struct hd_kernel *k)
{
    static const struct hd_optim_host host = {
        .struct_size = sizeof host, .product = plain_product, .parallel = plain_parallel};
    cpu_optim_step(k, &host);
}

/* Outputs as for adamw: p, the optimizer's states, the low-precision copy where there is one; then scratch memory. */
void cpu_optim_step(struct hd_kernel *k, const struct hd_optim_host *host)
{
    const struct hd_attrs *a = &k->d.attrs;
    int64_t n = hd_operand_count(&k->out[0]);
    uint32_t states = a->index, low = k->d.n_out - (a->parts > 0) > states + 1 ? states + 1 : 0;
    double hyper[HD_HYPER_COUNT];
    struct hd_error why = HD_ERROR_INIT;
    static atomic_int said;
    fenv_t floats;
    int rounding = fegetround();
    for (int64_t i = 0; i < HD_HYPER_COUNT; i++)
        hyper[i] = cpu_load(&k->in[2], i);
    struct hd_optim_args args = {.struct_size = sizeof args,
                                 .first = k->out[0].start[0],
                                 .count = n,
                                 .grad = k->in[0].data,
                                 .param = k->out[0].data,
                                 .norm2 = cpu_load(&k->in[1], 0),
                                 .hyper = hyper,
                                 .decay = a->ranges,
                                 .n_decay = a->n_ranges,
                                 .err = &why,
                                 .scratch = a->parts ? k->out[a->parts - 1].data : NULL,
                                 .host = host};
    cut_params(&k->d, &args);
    for (uint32_t i = 0; i < states; i++)
        args.state[i] = k->out[1 + i].data;
    if (!hd_update_runs(hyper, args.norm2))
        return;
    fegetenv(&floats);
    k->failed = a->step(a->settings, &args);
    if (fegetround() != rounding && !atomic_exchange(&said, 1))
        k->device->host->log(HD_LOG_WARN, "device-cpu",
                             "the optimizer's step left another rounding of floats (fesetround): it is put back");
    fesetenv(&floats); /* that, and whether denormals are 0 */
    if (k->failed) {
        if (!why.message[0])
            snprintf(why.message, sizeof why.message, "code %d, without a message (hd_fail)", k->failed);
        k->failed = k->failed < 0 ? k->failed : HD_E_INTERNAL;
        hd_fail(k->err, k->failed, "%s: the optimizer's step failed: %s", k->d.label, why.message);
        return;
    }
    for (int64_t i = 0; low && i < n; i++)
        cpu_store(&k->out[low], i, cpu_load(&k->out[0], i));
}

/* ---- a strategy's own function */

void cpu_ref_custom(struct hd_kernel *k)
{
    struct hd_error why = HD_ERROR_INIT;
    if ((k->failed = k->d.custom->run(k->d.custom->settings, &k->d, NULL, &why)))
        hd_fail(k->err, k->failed, "%s failed: %s", k->d.label, why.message[0] ? why.message : hd_code_name(k->failed));
}
