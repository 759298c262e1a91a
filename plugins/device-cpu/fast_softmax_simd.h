/* Rows of scores with one set of vectors. Included by fast_softmax.c with LANES, TARGET, NAME(x)
 * and HALF_WIDEN(x) defined. */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t NAME(halves) __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
#define FLOATS NAME(floats)
#define INTS NAME(ints)
#define INLINE TARGET static inline __attribute__((always_inline))

INLINE FLOATS NAME(at)(const float *x)
{
    return *(const FLOATS *)x;
}

/* a where the mask is set, b elsewhere. */
INLINE FLOATS NAME(select)(INTS mask, FLOATS a, FLOATS b)
{
    return (FLOATS)((mask & (INTS)a) | (~mask & (INTS)b));
}

INLINE INTS NAME(kept)(struct cpu_kept kept, int64_t i)
{
    INTS at = *(const INTS *)count_up;
    return (at >= (int32_t)(kept.first - i)) & (at < (int32_t)(kept.last - i));
}

INLINE float NAME(sum)(FLOATS x)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum;
}

/* exp(x) = 2^r exp(f), r = round(x / ln 2), f in [-ln 2 / 2, ln 2 / 2]: the polynomial of Cephes' expf, 2
 * ulp. From -87 down it stays at e^-87; a NaN stays one. Not for x above 88. */
INLINE FLOATS NAME(expv)(FLOATS x)
{
    const FLOATS least = (FLOATS){0} - 87.0f;
    x = NAME(select)(x < least, least, x);
    FLOATS r = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    FLOATS f = x - r * 0.693359375f + r * 2.12194440e-4f;
    FLOATS p = f * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * (f * f) + f + 1.0f;
    return p * (FLOATS)((__builtin_convertvector(r, INTS) + 127) << 23);
}

TARGET static float NAME(most)(const float *x, struct cpu_kept kept)
{
    FLOATS most = (FLOATS){0} - INFINITY;
    float best = -INFINITY;
    for (int64_t i = kept.first / LANES * LANES; i < kept.last; i += LANES) {
        FLOATS v = NAME(at)(x + i);
        most = NAME(select)(NAME(kept)(kept, i) & (v > most), v, most);
    }
    for (int i = 0; i < LANES; i++)
        best = most[i] > best ? most[i] : best;
    return best;
}

INLINE void NAME(zero)(float *x, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += LANES)
        *(FLOATS *)(x + i) = (FLOATS){0};
}

TARGET static float NAME(exp)(float *x, struct cpu_kept kept, float scale, float shift)
{
    FLOATS sum = {0};
    int64_t i = kept.first / LANES * LANES;
    NAME(zero)(x, 0, i);
    for (; i < kept.last; i += LANES) {
        FLOATS e = NAME(expv)(NAME(at)(x + i) * scale - shift);
        e = (FLOATS)((INTS)e & NAME(kept)(kept, i));
        sum += e;
        *(FLOATS *)(x + i) = e;
    }
    NAME(zero)(x, i, kept.total);
    return NAME(sum)(sum);
}

TARGET static void NAME(grad)(float *x, float *dp, const float *lse, const float *delta, struct cpu_kept kept,
                              float scale)
{
    int64_t i = kept.first / LANES * LANES;
    NAME(zero)(x, 0, i);
    NAME(zero)(dp, 0, i);
    for (; i < kept.last; i += LANES) {
        INTS mask = NAME(kept)(kept, i);
        FLOATS p = NAME(expv)(NAME(at)(x + i) * scale - NAME(at)(lse + i));
        FLOATS ds = p * (NAME(at)(dp + i) - NAME(at)(delta + i)) * scale;
        *(FLOATS *)(x + i) = (FLOATS)((INTS)p & mask);
        *(FLOATS *)(dp + i) = (FLOATS)((INTS)ds & mask);
    }
    NAME(zero)(x, i, kept.total);
    NAME(zero)(dp, i, kept.total);
}

INLINE FLOATS NAME(load)(const void *x, uint32_t dtype, int64_t i)
{
    if (dtype == HD_F32)
        return *(const FLOATS *)((const float *)x + i);
    if (dtype == HD_F16)
        return (FLOATS)HALF_WIDEN(*(const NAME(halves) *)((const uint16_t *)x + i));
    return (FLOATS)(__builtin_convertvector(*(const NAME(halves) *)((const uint16_t *)x + i), INTS) << 16);
}

TARGET static float NAME(dot)(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype, int64_t n)
{
    FLOATS sum = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum += NAME(load)(a, a_dtype, i) * NAME(load)(b, b_dtype, i);
    float total = NAME(sum)(sum);
    for (; i < n; i++)
        total += load_one(a, a_dtype, i) * load_one(b, b_dtype, i);
    return total;
}

TARGET static void NAME(scale)(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += LANES)
        *(FLOATS *)(x + i) *= factor;
}

static const struct cpu_softmax NAME(softmax) = {NAME(most), NAME(exp), NAME(grad), NAME(dot), NAME(scale)};

#undef FLOATS
#undef INTS
#undef INLINE
#undef HALF_WIDEN
#undef LANES
#undef TARGET
#undef NAME
