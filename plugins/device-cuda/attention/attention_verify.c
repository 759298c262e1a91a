/* Verification of a candidate kernel for attention: its error, and whether it is used. */
#include "attention/attention_autotune.h"
#include <math.h>

double cu_verify_error(const float (*rows)[2], int64_t n)
{
    double whole = 0, most = 0;
    for (int64_t r = 0; r < n; r++) {
        if (!isfinite(rows[r][0]) || !isfinite(rows[r][1]))
            return INFINITY;
        whole += sqrt(rows[r][1]);
    }
    for (int64_t r = 0; r < n; r++) {
        double norm = fmax(sqrt(rows[r][1]), whole / (double)n), difference = sqrt(rows[r][0]);
        most = fmax(most, difference <= 0 ? 0 : norm > 0 ? difference / norm : INFINITY);
    }
    return most;
}

int32_t cu_autotune_accepts(int32_t option, double error, double tolerance, float ours, float theirs)
{
    return error <= tolerance && (option != CU_ATTENTION_AUTO || theirs < ours);
}

/* Rounding to 16 bits moves a row by 2^-9 (fp16: 2^-12) at each of two or three roundings. */
double cu_verify_tolerance(uint32_t dtype)
{
    return dtype == HD_BF16 ? 0.05 : 0.01;
}
