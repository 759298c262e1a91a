/* Peak rates of matrix products, by what tensor cores do a clock in a multiprocessor: NVIDIA's architecture whitepapers
 * for GA100, GH100 and GB100 (dense). Times what the device says of its clock and its multiprocessors. */
#include "internal.h"

struct rates {
    int32_t major, minor;
    double f32, tf32, half, f64; /* FLOP a clock and multiprocessor */
};

static const struct rates known[] = {
    {8, 0, 128, 1024, 2048, 128},  /* A100 */
    {8, 6, 256, 256, 512, 4},      /* GA10x, fp32 sums */
    {8, 9, 256, 512, 1024, 4},     /* AD10x */
    {9, 0, 256, 2048, 4096, 256},  /* H100, H200 */
    {10, 0, 256, 4096, 8192, 128}, /* B200 */
    {12, 0, 256, 512, 1024, 4},    /* GB20x */
};

double cu_peak_flops(struct hd_device *d, uint32_t dtype)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct rates *r = &known[i];
        if (r->major != d->major || r->minor != d->minor)
            continue;
        double rate = dtype == HD_F64 ? r->f64 : dtype == HD_F32 ? (d->settings->tf32 ? r->tf32 : r->f32) : r->half;
        return rate * d->processors * d->clock * 1e3;
    }
    return 0;
}
