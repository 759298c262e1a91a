/* An optimizer's own step, with the device's products and threads. Which products it makes is known when it makes them:
 * they are prepared in its first step and kept. */
#include "products/products.h"
#include "reference/reference.h"

struct kept {
    struct kept *next;
    struct cpu_gemm gemm;
};

struct optim_step {
    struct hd_optim_host host;
    struct kept *kept;
};

static int alike(const struct cpu_gemm *a, const struct cpu_gemm *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && !memcmp(&a->a, &b->a, sizeof a->a) &&
           !memcmp(&a->b, &b->b, sizeof a->b) && !memcmp(&a->c, &b->c, sizeof a->c);
}

static struct cpu_gemm *find(const struct hd_kernel *k, const struct cpu_gemm *wanted, struct hd_error *err)
{
    struct optim_step *s = k->state;
    struct kept *one = s->kept;
    while (one && !alike(&one->gemm, wanted))
        one = one->next;
    if (one)
        return &one->gemm;
    if (!(one = k->device->host->alloc(sizeof *one))) {
        hd_fail(err, HD_E_NOMEM, "%s: no memory for a matrix product", k->d.label);
        return NULL;
    }
    one->gemm = *wanted;
    if (cpu_gemm_prepare(&one->gemm, err)) {
        k->device->host->free(one);
        return NULL;
    }
    one->next = s->kept;
    s->kept = one;
    return &one->gemm;
}

static int32_t product(void *context, uint32_t dtype, int64_t m, int64_t n, int64_t k, const struct hd_optim_matrix *a,
                       const struct hd_optim_matrix *b, const struct hd_optim_matrix *c, struct hd_error *err)
{
    const struct hd_kernel *kernel = context;
    const struct cpu_gemm wanted = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = {.dtype = dtype, .rs = a->row, .cs = a->col},
                                    .b = {.dtype = dtype, .rs = b->row, .cs = b->col},
                                    .c = {.dtype = HD_F32, .rs = c->row, .cs = 1},
                                    .device = kernel->device};
    struct cpu_gemm *g;
    int32_t rc = cpu_check_product(dtype, a, b, c, err);
    if (rc)
        return rc;
    if (!(g = find(kernel, &wanted, err)))
        return err && err->code ? err->code : HD_E_NOMEM;
    g->run(g, a->data, b->data, c->data);
    return HD_OK;
}

static void parallel(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user)
{
    const struct hd_kernel *kernel = context;
    cpu_parallel(kernel->device, n, 1, fn, user);
}

static void run(struct hd_kernel *k)
{
    const struct optim_step *s = k->state;
    cpu_optim_step(k, &s->host);
}

static void release(struct hd_kernel *k)
{
    struct optim_step *s = k->state;
    for (struct kept *one = s->kept, *next; one; one = next) {
        next = one->next;
        if (one->gemm.release)
            one->gemm.release(&one->gemm);
        k->device->host->free(one);
    }
    k->device->host->free(s);
}

int32_t cpu_fast_optim_step(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_check_optim_step(k, err);
    struct optim_step *s;
    if (rc || (rc = cpu_kernel_state(k, sizeof *s, err)))
        return rc;
    s = k->state;
    s->host =
        (struct hd_optim_host){.struct_size = sizeof s->host, .context = k, .product = product, .parallel = parallel};
    k->release = release;
    k->run = run;
    return HD_OK;
}
