/* The scratch memory that fast kernels of one device share. */
#include "products/products.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* Huge pages where the kernel gives them: panels are read in a pattern that is hard on the TLB. */
static void *scratch_new(size_t bytes)
{
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    void *memory = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!memory)
        return NULL;
    if (align == HUGE_PAGE)
        madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

struct cpu_fast *cpu_fast_state(struct hd_device *d)
{
    if (!d->onednn)
        d->onednn = calloc(1, sizeof(struct cpu_fast));
    d->onednn_close = cpu_fast_close;
    return d->onednn;
}

static int32_t reserve(struct cpu_scratch *s, size_t bytes, struct hd_error *err)
{
    void *memory;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (bytes <= s->bytes)
        return HD_OK;
    memory = scratch_new(bytes);
    if (!memory)
        return hd_fail(err, HD_E_NOMEM,
                       "no memory for %zu bytes of kernel scratch: use fewer threads or a smaller "
                       "micro-batch",
                       bytes);
    free(s->at);
    *s = (struct cpu_scratch){memory, bytes};
    return HD_OK;
}

static int32_t no_state(struct hd_error *err)
{
    return hd_fail(err, HD_E_NOMEM, "no memory for the state of a device");
}

int32_t cpu_scratch_reserve(struct hd_device *d, size_t bytes, struct hd_error *err)
{
    struct cpu_fast *fast = cpu_fast_state(d);
    return fast ? reserve(&fast->scratch, bytes, err) : no_state(err);
}

void *cpu_scratch(struct hd_device *d)
{
    struct cpu_fast *fast = d->onednn;
    return fast ? fast->scratch.at : NULL;
}

int32_t cpu_rows_reserve(struct hd_device *d, size_t bytes, struct hd_error *err)
{
    struct cpu_fast *fast = cpu_fast_state(d);
    return fast ? reserve(&fast->rows, bytes, err) : no_state(err);
}

void *cpu_rows(struct hd_device *d)
{
    struct cpu_fast *fast = d->onednn;
    return fast ? fast->rows.at : NULL;
}

void cpu_fast_close(struct hd_device *d)
{
    struct cpu_fast *fast = d->onednn;
    if (!fast)
        return;
    cpu_gemm_onednn_close(fast->engine);
    free(fast->scratch.at);
    free(fast->rows.at);
    free(fast);
    d->onednn = NULL;
}
