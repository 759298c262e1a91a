/* The peak for MFU is what the machine's best matrix product gives: a large one, for long enough that the clock has
 * settled, the best. In fp32 a side of 512 is as fast as a larger one, and every job waits for the measurement.
 *
 * The operands have values as weights have them: processors multiply zeros faster, by a tenth on AMX, as they need less
 * power for it. */
#include "reference/value.h"
#include <stdlib.h>
#include <time.h>

enum { SIDE = 512, SIDE_SHORT = 768 };
#define SECONDS_LEAST 0.02
#define SECONDS_MOST 0.05 /* longer than a scheduler keeps a thread off its core */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t side_of(uint32_t dtype)
{
    return hd_dtype_size(dtype) == 2 ? SIDE_SHORT : SIDE;
}

static struct hd_operand matrix(void *data, uint32_t dtype, uint8_t row, uint8_t column)
{
    int64_t n = side_of(dtype);
    return (struct hd_operand){.data = data, .dtype = dtype, .ndim = 2, .dim = {row, column}, .extent = {n, n}};
}

/* Until two tries agree that nothing can be faster: what disturbs a try does not take the same time from another. */
static double best_rate(struct hd_kernel *k, double side)
{
    double best = 0, second = 0, begun = now(), spent = 0;
    k->run(k); /* warm */
    while (spent < SECONDS_LEAST || (spent < SECONDS_MOST && second < 0.99 * best)) {
        double start = now();
        k->run(k);
        double rate = 2 * side * side * side / (now() - start);
        second = rate > best ? best : rate > second ? rate : second;
        best = rate > best ? rate : best;
        spent = now() - begun;
    }
    return best;
}

static void fill(const struct hd_operand *o)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < hd_operand_count(o); i++) {
        state = state * 1664525 + 1013904223;
        cpu_store(o, i, (double)(state >> 8) / (1 << 22) - 2);
    }
}

/* c[m n] <- a[m k] b[k n] through the fast einsum. */
static double measure(struct hd_device *device, uint32_t dtype, char *memory)
{
    int64_t side = side_of(dtype);
    size_t bytes = (size_t)(side * side) * hd_dtype_size(dtype);
    struct hd_operand in[2] = {matrix(memory, dtype, 'm', 'k'), matrix(memory + bytes, dtype, 'k', 'n')};
    struct hd_operand out[1] = {matrix(memory + 2 * bytes, dtype, 'm', 'n')};
    struct hd_instr_desc d = {
        .struct_size = sizeof d, .op = HD_OP_EINSUM, .n_in = 2, .n_out = 1, .in = in, .out = out, .label = "peak"};
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    double rate = 0;
    fill(&in[0]);
    fill(&in[1]);
    if (!cpu_fast(HD_OP_EINSUM) || cpu_kernel_new(device, &d, &k, &err))
        return 0;
    if (!cpu_fast(HD_OP_EINSUM)(k, &err))
        rate = best_rate(k, (double)side);
    cpu_kernel_free(k);
    return rate;
}

double cpu_peak_flops(struct hd_device *device, uint32_t dtype)
{
    int which = dtype == HD_BF16 ? 1 : dtype == HD_F16 ? 2 : 0;
    if (!cpu_fast_dtype(dtype))
        return 0;
    if (device->peak[which] == 0) {
        char *memory = calloc(3 * (size_t)(side_of(dtype) * side_of(dtype)), hd_dtype_size(dtype));
        if (memory)
            device->peak[which] = measure(device, dtype, memory);
        free(memory);
    }
    return device->peak[which];
}
