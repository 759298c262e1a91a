/* Matrix products by oneDNN, and the only file that knows it. The C API changed between 2.x and 3.x: the two
 * halves of the shim below are the only difference. Without oneDNN the engine declines. */
#include "products/products.h"

#include "isa.h"

#ifndef HAVE_ONEDNN

int32_t cpu_gemm_onednn(struct cpu_gemm *g, struct hd_error *err)
{
    (void)g;
    return hd_fail(err, HD_E_UNSUPPORTED, "built without oneDNN");
}

void cpu_gemm_onednn_close(void *engine)
{
    (void)engine;
}

#else

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct engine {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

enum { SRC, WEIGHTS, DST, SCRATCH, MEMORIES };
static const int arg_of[MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

struct product {
    struct engine *engine;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[MEMORIES];
};

/* ---- the shim */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t const_desc;

static dnnl_status_t desc_init(desc *md, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(md, 2, dims, type, strides);
}

static void desc_finish(desc *md)
{
    if (*md)
        dnnl_memory_desc_destroy(*md);
}

static const_desc desc_ref(const desc *md)
{
    return *md;
}

static size_t desc_bytes(const_desc md)
{
    return dnnl_memory_desc_get_size(md);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t matmul(dnnl_primitive_desc_t *pd, const desc *md, const_dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, md[SRC], md[WEIGHTS], NULL, md[DST], attr);
}

#else

typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *const_desc;

static dnnl_status_t desc_init(desc *md, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

static void desc_finish(desc *md)
{
    (void)md;
}

static const_desc desc_ref(const desc *md)
{
    return md;
}

static size_t desc_bytes(const_desc md)
{
    return dnnl_memory_desc_get_size(md);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t matmul(dnnl_primitive_desc_t *pd, const desc *md, const_dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine)
{
    dnnl_matmul_desc_t op;
    dnnl_status_t status = dnnl_matmul_desc_init(&op, &md[SRC], &md[WEIGHTS], NULL, &md[DST]);
    return status ? status : dnnl_primitive_desc_create(pd, &op, attr, engine, NULL);
}

#endif

/* ---- engine */

/* oneDNN cuts the work for omp_get_max_threads(), which belongs to the calling thread: set at creation and at
 * run. */
static void set_threads(const struct hd_device *d)
{
#ifdef _OPENMP
    omp_set_num_threads(d->threads);
#else
    (void)d;
#endif
}

/* oneDNN keeps the limit that it had when it first made a kernel: 0 where that was another. */
static int obey_isa(void)
{
    static const dnnl_cpu_isa_t limits[CPU_ISA_COUNT] = {
        [CPU_ISA_AUTO] = dnnl_cpu_isa_all,
        [CPU_ISA_AVX2] = dnnl_cpu_isa_avx2,
        [CPU_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
        [CPU_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
        [CPU_ISA_AMX] = dnnl_cpu_isa_avx512_core_amx,
    };
    static int limited; /* to another than all: under one device at a time */
    int asked = cpu_isa_asked();
    if (asked == limited)
        return 1;
    if (dnnl_set_max_cpu_isa(limits[asked]))
        return 0;
    limited = asked;
    return 1;
}

static struct engine *engine_get(struct hd_device *d)
{
    struct cpu_fast *fast = cpu_fast_state(d);
    struct engine *e;
    if (!fast || fast->engine)
        return fast ? fast->engine : NULL;
    if (!obey_isa())
        return NULL;
    e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    if (dnnl_engine_create(&e->engine, dnnl_cpu, 0) || dnnl_stream_create(&e->stream, e->engine, 0)) {
        cpu_gemm_onednn_close(e);
        return NULL;
    }
    return fast->engine = e;
}

void cpu_gemm_onednn_close(void *engine)
{
    struct engine *e = engine;
    if (!e)
        return;
    if (e->stream)
        dnnl_stream_destroy(e->stream);
    if (e->engine)
        dnnl_engine_destroy(e->engine);
    free(e);
}

/* ---- products */

static void product_release(struct cpu_gemm *g)
{
    struct product *p = g->state;
    if (!p)
        return;
    for (int i = 0; i < MEMORIES; i++)
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    free(p);
    g->state = NULL;
}

static void product_run(struct cpu_gemm *g, const void *a, const void *b, void *c)
{
    struct product *p = g->state;
    void *data[MEMORIES] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, cpu_scratch(g->device)};
    dnnl_exec_arg_t args[MEMORIES];
    for (int i = 0; i < MEMORIES; i++) {
        dnnl_memory_set_data_handle(p->memory[i], data[i]);
        args[i] = (dnnl_exec_arg_t){arg_of[i], p->memory[i]};
    }
    set_threads(g->device);
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, p->engine->stream, MEMORIES, args);
    if (!status)
        status = dnnl_stream_wait(p->engine->stream);
    if (status)
        g->device->onednn_failed = (int32_t)status;
}

static dnnl_status_t matrix_desc(desc *md, const struct cpu_matrix *x, int64_t rows, int64_t cols)
{
    dnnl_dims_t dims = {rows, cols}, strides = {x->rs, x->cs};
    return desc_init(md, dims, x->dtype == HD_F32 ? dnnl_f32 : x->dtype == HD_F16 ? dnnl_f16 : dnnl_bf16, strides);
}

static dnnl_status_t attr_create(dnnl_primitive_attr_t *attr, int32_t accumulate)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (!status)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status || !accumulate)
        return status;
    status = dnnl_post_ops_create(&ops);
    if (!status)
        status = append_sum(ops);
    if (!status)
        status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops)
        dnnl_post_ops_destroy(ops);
    return status;
}

/* The reference matmul of oneDNN is slower than ours. */
static int is_reference(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) || !name || strstr(name, "ref");
}

static dnnl_status_t product_create(struct product *p, dnnl_primitive_desc_t pd, const desc *md, struct hd_device *d,
                                    struct hd_error *err)
{
    dnnl_status_t status = dnnl_primitive_create(&p->primitive, pd);
    const_desc scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    for (int i = 0; i < MEMORIES && !status; i++)
        status = dnnl_memory_create(&p->memory[i], i == SCRATCH ? scratch : desc_ref(&md[i]), p->engine->engine,
                                    DNNL_MEMORY_NONE);
    if (!status && cpu_scratch_reserve(d, desc_bytes(scratch), err))
        status = dnnl_out_of_memory;
    return status;
}

static dnnl_status_t product_build(struct product *p, const struct cpu_gemm *g, struct hd_error *err)
{
    desc md[3];
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status;
    memset(md, 0, sizeof md);
    set_threads(g->device);
    status = matrix_desc(&md[SRC], &g->a, g->m, g->k);
    if (!status)
        status = matrix_desc(&md[WEIGHTS], &g->b, g->k, g->n);
    if (!status)
        status = matrix_desc(&md[DST], &g->c, g->m, g->n);
    if (!status)
        status = attr_create(&attr, g->accumulate);
    if (!status)
        status = matmul(&pd, md, attr, p->engine->engine);
    if (!status && is_reference(pd))
        status = dnnl_unimplemented;
    if (!status)
        status = product_create(p, pd, md, g->device, err);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 3; i++)
        desc_finish(&md[i]);
    return status;
}

int32_t cpu_gemm_onednn(struct cpu_gemm *g, struct hd_error *err)
{
    struct product *p;
    struct engine *engine = engine_get(g->device);
    dnnl_status_t status;
    if (!engine)
        return hd_fail(err, HD_E_UNSUPPORTED, "oneDNN offers no CPU engine here%s",
                       cpu_isa_asked() == CPU_ISA_AUTO ? "" : " that keeps to device.isa");
    p = g->state = calloc(1, sizeof *p);
    if (!p)
        return hd_fail(err, HD_E_NOMEM, "no memory for a matrix product");
    p->engine = engine;
    status = product_build(p, g, err);
    if (status) {
        product_release(g);
        if (status == dnnl_out_of_memory)
            return hd_fail(err, HD_E_NOMEM, "no memory for a matrix product of oneDNN");
        return hd_fail(err, HD_E_UNSUPPORTED, "oneDNN has no fast product of this kind (status %d)", (int)status);
    }
    g->run = product_run;
    g->release = product_release;
    return HD_OK;
}

#endif
