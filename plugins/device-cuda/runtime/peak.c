/* Peak rates of matrix products, by what tensor cores do a clock in a multiprocessor: NVIDIA's architecture whitepapers
 * for GA100, GH100 and GB100 (dense). Times the multiprocessors and the clock that the device says, or for tensor cores
 * the lower one that the datasheets' dense figures are of: 989 TFLOP/s in 16 bits for H100 and H200 (SXM), 2250 for
 * B200. */
#include "internal.h"
#include <math.h>

struct rates {
    int32_t major, minor;
    double f32, tf32, half, f64; /* FLOP a clock and multiprocessor */
    double tensor;               /* kHz of tensor cores at most */
};

static const struct rates known[] = {
    {8, 0, 128, 1024, 2048, 128, 1.410e6},  /* A100 */
    {8, 6, 256, 256, 512, 4, INFINITY},     /* GA10x, fp32 sums */
    {8, 9, 256, 512, 1024, 4, INFINITY},    /* AD10x */
    {9, 0, 256, 2048, 4096, 256, 1.830e6},  /* H100, H200 */
    {10, 0, 256, 4096, 8192, 128, 1.856e6}, /* B200 */
    {12, 0, 256, 512, 1024, 4, INFINITY},   /* GB20x */
};

double cu_peak_flops(struct hd_device *d, uint32_t dtype)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct rates *r = &known[i];
        if (r->major != d->major || r->minor != d->minor)
            continue;
        int tensor = dtype == HD_F32 ? d->settings->tf32 : dtype != HD_F64;
        double rate = dtype == HD_F64 ? r->f64 : dtype == HD_F32 ? (tensor ? r->tf32 : r->f32) : r->half;
        return rate * d->processors * 1e3 * (tensor ? fmin(d->clock, r->tensor) : d->clock);
    }
    return 0;
}
