/* device-plain: six kernels on host memory, each as its row in heddle/ops.h says, for fp32 and fp64. A job that needs
 * others is refused by their names; `heddle test device-plain` compares these with heddle's own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/device.h"

struct hd_device {
    const struct hd_host *host; /* log, small memory */
};

/* An instruction, made ready: the descriptor may be gone when it is launched, the memory stays. */
struct hd_kernel {
    void (*run)(const struct hd_kernel *k);
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    uint32_t n_in, n_out;
    int accumulate;
    /* einsum: the loop over all dims, and by how much an operand's index moves with each */
    int64_t extent[3 * HD_MAX_DIMS], step[3][3 * HD_MAX_DIMS];
    uint8_t dim[3 * HD_MAX_DIMS];
    uint32_t n_outer, n_dims;
};

static double get(const struct hd_operand *o, int64_t i)
{
    return o->dtype == HD_F64 ? ((const double *)o->data)[i] : (double)((const float *)o->data)[i];
}

static void put(const struct hd_kernel *k, const struct hd_operand *o, int64_t i, double x)
{
    x += k->accumulate ? get(o, i) : 0;
    if (o->dtype == HD_F64)
        ((double *)o->data)[i] = x;
    else
        ((float *)o->data)[i] = (float)x;
}

static void run_fill0(const struct hd_kernel *k)
{
    for (int64_t i = 0; i < hd_operand_count(&k->out[0]); i++)
        put(k, &k->out[0], i, 0);
}

/* copy, and accum, which always adds */
static void run_copy(const struct hd_kernel *k)
{
    for (int64_t i = 0; i < hd_operand_count(&k->out[0]); i++)
        put(k, &k->out[0], i, get(&k->in[0], i));
}

static void run_add(const struct hd_kernel *k)
{
    for (int64_t i = 0; i < hd_operand_count(&k->out[0]); i++) {
        double sum = 0;
        for (uint32_t n = 0; n < k->n_in; n++)
            sum += get(&k->in[n], i);
        put(k, &k->out[0], i, sum);
    }
}

static void run_gelu(const struct hd_kernel *k)
{
    for (int64_t i = 0; i < hd_operand_count(&k->out[0]); i++) {
        double x = get(&k->in[0], i);
        put(k, &k->out[0], i, 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
    }
}

/* The innermost dims are those that are contracted. */
static double dot(const struct hd_kernel *k, uint32_t dim, int64_t a, int64_t b)
{
    double sum = 0;
    if (dim == k->n_dims)
        return get(&k->in[0], a) * get(&k->in[1], b);
    for (int64_t i = 0; i < k->extent[dim]; i++)
        sum += dot(k, dim + 1, a + i * k->step[0][dim], b + i * k->step[1][dim]);
    return sum;
}

static void loop(const struct hd_kernel *k, uint32_t dim, int64_t a, int64_t b, int64_t c)
{
    if (dim == k->n_outer)
        put(k, &k->out[0], c, dot(k, dim, a, b));
    else
        for (int64_t i = 0; i < k->extent[dim]; i++)
            loop(k, dim + 1, a + i * k->step[0][dim], b + i * k->step[1][dim], c + i * k->step[2][dim]);
}

static void run_einsum(const struct hd_kernel *k)
{
    loop(k, 0, 0, 0, 0);
}

static const struct {
    uint32_t op, n_in, most_in;
    void (*run)(const struct hd_kernel *k);
} table[] = {
    {HD_OP_FILL0, 0, 0, run_fill0},     {HD_OP_COPY, 1, 1, run_copy}, {HD_OP_ACCUM, 1, 1, run_copy},
    {HD_OP_ADD, 1, HD_MAX_IN, run_add}, {HD_OP_GELU, 1, 1, run_gelu}, {HD_OP_EINSUM, 2, 2, run_einsum},
};

/* ---- einsum: equal dim ids are one dim */

static int64_t step_of(const struct hd_operand *o, uint8_t dim)
{
    int64_t step = 1;
    for (uint32_t n = o->ndim; n-- > 0; step *= o->extent[n])
        if (o->dim[n] == dim)
            return step;
    return 0;
}

static void add_dims(struct hd_kernel *k, const struct hd_operand *o)
{
    for (uint32_t n = 0; n < o->ndim; n++) {
        if (memchr(k->dim, o->dim[n], k->n_dims))
            continue;
        k->dim[k->n_dims] = o->dim[n];
        k->extent[k->n_dims] = o->extent[n];
        k->step[0][k->n_dims] = step_of(&k->in[0], o->dim[n]);
        k->step[1][k->n_dims] = step_of(&k->in[1], o->dim[n]);
        k->step[2][k->n_dims++] = step_of(&k->out[0], o->dim[n]);
    }
}

/* ---- the table of slots */

static int32_t open_device(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                           struct hd_device **device, struct hd_error *err)
{
    struct hd_device *d = calloc(1, sizeof *d);
    (void)settings, (void)place; /* one thread; a device of more has the same bits with any number */
    if (!d)
        return hd_fail(err, HD_E_NOMEM, "device-plain: no memory");
    d->host = host;
    *device = d;
    return HD_OK;
}

static void close_device(struct hd_device *device)
{
    free(device);
}

/* Also before a device is open, with NULL. */
static int32_t supports(struct hd_device *device, uint32_t op, uint32_t dtype)
{
    (void)device;
    for (size_t n = 0; n < sizeof table / sizeof *table; n++)
        if (table[n].op == op)
            return dtype == HD_F32 || dtype == HD_F64;
    return 0;
}

static int is_known(const struct hd_operand *o)
{
    return o->dtype == HD_F32 || o->dtype == HD_F64;
}

static int32_t prepare(struct hd_device *device, const struct hd_instr_desc *d, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    size_t n = 0;
    (void)device;
    while (n < sizeof table / sizeof *table && table[n].op != d->op)
        n++;
    if (n == sizeof table / sizeof *table)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: device-plain has no kernel for op %u: use device-cpu", d->label,
                       d->op);
    if (d->n_in < table[n].n_in || d->n_in > table[n].most_in || d->n_out != 1)
        return hd_fail(err, HD_E_INVALID, "%s: %u inputs and %u outputs", d->label, d->n_in, d->n_out);
    struct hd_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return hd_fail(err, HD_E_NOMEM, "device-plain: no memory");
    k->run = table[n].run;
    k->n_in = d->n_in;
    k->n_out = d->n_out;
    k->out[0] = d->out[0];
    k->accumulate = d->op == HD_OP_ACCUM || (d->attrs.flags & HD_ATTR_ACCUMULATE);
    int known = is_known(&d->out[0]);
    for (uint32_t i = 0; i < d->n_in; i++) {
        k->in[i] = d->in[i];
        known &= is_known(&d->in[i]);
        known &= d->op == HD_OP_EINSUM || hd_operand_count(&d->in[i]) == hd_operand_count(&d->out[0]);
    }
    if (!known)
        return free(k), hd_fail(err, HD_E_UNSUPPORTED, "%s: operands of other dtypes or sizes", d->label);
    if (d->op == HD_OP_EINSUM) {
        add_dims(k, &k->out[0]);
        k->n_outer = k->n_dims;
        add_dims(k, &k->in[0]);
        add_dims(k, &k->in[1]);
    }
    *kernel = k;
    return HD_OK;
}

static int32_t launch(struct hd_device *device, struct hd_kernel *k, uint32_t stream, struct hd_error *err)
{
    (void)device, (void)stream, (void)err;
    k->run(k);
    return HD_OK;
}

static void release(struct hd_device *device, struct hd_kernel *k)
{
    (void)device;
    free(k);
}

static const struct hd_device_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_DEVICE_HOST_MEMORY,
    .open = open_device,
    .close = close_device,
    .supports = supports,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};

HD_PLUGIN("device-plain", "1.0.0", "Apache-2.0", .kind = HD_KIND_DEVICE, .name = "plain",
          .summary = "six kernels in plain C", .ops = &ops)
