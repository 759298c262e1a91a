/* The result of autotuning; and where the real cuDNN is (HEDDLE_TEST_CUDNN: its file), what it says of the graphs:
 * without a GPU it can be asked what kernels it would propose for one that is described to it. It wants a
 * libcuda.so.1 for that: HEDDLE_TEST_LIBCUDA, the toolkit's stub. It is asked, and computes nothing. */
#include "plugins/device-cuda/attention/cudnn_attention.h"
#include "tests/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
/* The real cuDNN keeps what it allocates, in code that no name of a suppression reaches. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

/* ---- the verdict */

START_TEST(the_worst_row_counts)
{
    const float rows[][2] = {{0, 4}, {0.01f, 4}, {0.0001f, 1}};
    ck_assert_double_eq_tol(cu_verify_error(rows, 3), 0.05, 1e-6);
}
END_TEST

/* 100 rows of norm 1, and one of 1e-3 that is off by all of itself: it is not seen. One of 1/2 that is, is. */
START_TEST(rows_are_measured_by_the_mean_where_they_are_small)
{
    float rows[101][2];
    for (int n = 0; n < 100; n++)
        rows[n][0] = 0, rows[n][1] = 1;
    rows[100][0] = rows[100][1] = 1e-6f;
    ck_assert_double_le(cu_verify_error((const float(*)[2])rows, 101), 2e-3);
    rows[100][0] = rows[100][1] = 0.25f;
    ck_assert_double_ge(cu_verify_error((const float(*)[2])rows, 101), 0.5);
}
END_TEST

START_TEST(what_is_no_number_is_infinitely_far)
{
    const float theirs[][2] = {{0, 1}, {NAN, 1}}, ours[][2] = {{0, INFINITY}}, nothing[][2] = {{0, 0}},
                something[][2] = {{1, 0}};
    ck_assert(isinf(cu_verify_error(theirs, 2)));
    ck_assert(isinf(cu_verify_error(ours, 1)));
    ck_assert(isinf(cu_verify_error(something, 1)));
    ck_assert_double_eq(cu_verify_error(nothing, 1), 0);
}
END_TEST

START_TEST(it_is_taken_where_it_is_right_and_asked_for_or_faster)
{
    ck_assert(cu_autotune_accepts(CU_ATTENTION_CUDNN, 0.01, 0.05, 1, 2));
    ck_assert(!cu_autotune_accepts(CU_ATTENTION_CUDNN, 0.06, 0.05, 2, 1));
    ck_assert(!cu_autotune_accepts(CU_ATTENTION_CUDNN, INFINITY, 0.05, 2, 1));
    ck_assert(!cu_autotune_accepts(CU_ATTENTION_CUDNN, NAN, 0.05, 2, 1));
    ck_assert(cu_autotune_accepts(CU_ATTENTION_AUTO, 0.01, 0.05, 2, 1));
    ck_assert(!cu_autotune_accepts(CU_ATTENTION_AUTO, 0.01, 0.05, 1, 2));
    ck_assert(!cu_autotune_accepts(CU_ATTENTION_AUTO, 0.01, 0.05, INFINITY, INFINITY));
}
END_TEST

/* ---- the real one */

/* cudnn_graph.h's, not needed otherwise. */
enum { TYPE_CHAR = 24, BACKEND_DEVICEPROP = 38, ENGINEHEUR_DEVICEPROP = 204, DEVICEPROP_JSON = 2702, PROPOSALS = 8 };

static const struct {
    const char *name;
    int capability, processors, shared;
} gpus[] = {{"A100", 800, 108, 166912}, {"H100", 900, 132, 232448}, {"B200", 1000, 148, 232448}};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

/* batch, sequence, kv heads, heads, head size: GPT-2 124M and 1.5B, a Llama 1B, sizes that are no whole tile. */
static const struct dnn_shape shapes[] = {
    {32, 1024, 12, 12, 64, HD_BF16, 0}, {4, 1024, 25, 25, 64, HD_BF16, 0}, {4, 4096, 8, 32, 64, HD_BF16, 0},
    {1, 4096, 8, 32, 128, HD_BF16, 0},  {8, 2048, 16, 16, 96, HD_F16, 0},  {2, 1000, 2, 6, 128, HD_F16, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int describe(int gpu, char *text, size_t bytes)
{
    return snprintf(
        text, bytes,
        "{\"deviceVer\": %d, \"deviceName\": \"%s\", \"cudaDeviceId\": 0, \"driverVer\": 13000, "
        "\"maxGridSize\": [2147483647, 65535, 65535], "
        "\"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32, "
        "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": "
        "1024, "
        "\"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, "
        "\"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": 80000000000, "
        "\"smClockRateKHz\": 1800000, \"memClockRateKHz\": 2600000, \"l2CacheSize\": 50000000}",
        gpus[gpu].capability, gpus[gpu].name, gpus[gpu].processors, gpus[gpu].shared);
}

static int64_t proposals(struct dnn_graph *g, int gpu)
{
    char text[2048];
    int length = describe(gpu, text, sizeof text), mode = DNN_HEUR_MODE_A;
    dnn_descriptor device = dnn_make(g, BACKEND_DEVICEPROP), asked = dnn_make(g, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
                   found[PROPOSALS];
    int64_t n = 0;
    dnn_set(g, device, DEVICEPROP_JSON, TYPE_CHAR, length, text);
    dnn_finalize(g, device, "a device");
    dnn_set(g, asked, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->graph);
    dnn_set(g, asked, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode);
    dnn_set(g, asked, ENGINEHEUR_DEVICEPROP, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    dnn_finalize(g, asked, "asking for kernels");
    for (int i = 0; i < PROPOSALS; i++)
        found[i] = dnn_make(g, DNN_BACKEND_ENGINECFG_DESCRIPTOR);
    ck_assert_msg(g->rc == HD_OK, "%s", g->err->message);
    ck_assert_int_eq(g->api->BackendGetAttribute(asked, DNN_ATTR_ENGINEHEUR_RESULTS, DNN_TYPE_BACKEND_DESCRIPTOR,
                                                 PROPOSALS, &n, found),
                     0);
    return n;
}

START_TEST(cudnn_has_kernels_for_these_graphs)
{
    struct hd_error err = HD_ERROR_INIT;
    struct dnn_shape shape = shapes[_i / 2];
    struct dnn_graph *g = calloc(1, sizeof *g);
    struct dnn_api api;
    shape.back = _i % 2;
    ck_assert_ptr_nonnull(dlopen(getenv("HEDDLE_TEST_LIBCUDA"), RTLD_NOW | RTLD_GLOBAL));
    ck_assert_msg(dnn_open(&api, getenv("HEDDLE_TEST_CUDNN"), &err) == HD_OK, "%s", err.message);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        ck_assert_msg(dnn_graph_make(g, &api, NULL, &shape, &err) == HD_OK, "%s", err.message);
        ck_assert_msg(proposals(g, gpu) > 0, "cuDNN %zu has no kernel on an %s for shape %d%s", api.version,
                      gpus[gpu].name, _i / 2, shape.back ? ", backward" : "");
        dnn_graph_free(g);
    }
    free(g);
}
END_TEST

/* So that the test above can fail. */
START_TEST(cudnn_has_none_for_others)
{
    struct hd_error err = HD_ERROR_INIT;
    struct dnn_graph *g = calloc(1, sizeof *g);
    struct dnn_shape shape = shapes[2];
    struct dnn_api api;
    ck_assert_ptr_nonnull(dlopen(getenv("HEDDLE_TEST_LIBCUDA"), RTLD_NOW | RTLD_GLOBAL));
    ck_assert_msg(dnn_open(&api, getenv("HEDDLE_TEST_CUDNN"), &err) == HD_OK, "%s", err.message);
    ck_assert_int_eq(dnn_graph_make(g, &api, NULL, &shape, &err), HD_OK);
    g->n_ops--; /* without P V */
    g->graph = dnn_make(g, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    dnn_set(g, g->graph, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
    dnn_finalize(g, g->graph, "a part of a graph");
    ck_assert(g->rc != HD_OK || proposals(g, 1) == 0);
    dnn_graph_free(g);
    free(g);
}
END_TEST

static int there(const char *variable)
{
    const char *path = getenv(variable);
    FILE *f = path && *path ? fopen(path, "r") : NULL;
    if (f)
        fclose(f);
    return f != NULL;
}

int main(void)
{
    TCase *t = tcase_create("cudnn graph");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, the_worst_row_counts);
    tcase_add_test(t, rows_are_measured_by_the_mean_where_they_are_small);
    tcase_add_test(t, what_is_no_number_is_infinitely_far);
    tcase_add_test(t, it_is_taken_where_it_is_right_and_asked_for_or_faster);
    if (there("HEDDLE_TEST_CUDNN") && there("HEDDLE_TEST_LIBCUDA")) {
        tcase_add_loop_test(t, cudnn_has_kernels_for_these_graphs, 0, 2 * SHAPES);
        tcase_add_test(t, cudnn_has_none_for_others);
    } else
        fprintf(stderr, "cuDNN is not here: it was not asked about the graphs\n");
    return suite_run_case("cudnn graph", t);
}
