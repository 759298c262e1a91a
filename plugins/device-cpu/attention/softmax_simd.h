/* Rows of scores with one set of vectors. Included by softmax.c with LANES, TARGET, NAME(x)
 * HALF_WIDEN(x) and LARGER(x, y), which is x > y ? x : y, defined. */

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

INLINE INTS NAME(visible)(int64_t first, int64_t last, int64_t i)
{
    INTS at = *(const INTS *)count_up;
    return (at >= (int32_t)(first - i)) & (at < (int32_t)(last - i));
}

/* Lane i beside lane i ^ by. */
INLINE FLOATS NAME(across)(FLOATS x, int by)
{
    return __builtin_shuffle(x, *(const INTS *)count_up ^ by);
}

INLINE float NAME(sum)(FLOATS x)
{
    _Pragma("GCC unroll 4") for (int by = 1; by < LANES; by *= 2) x += NAME(across)(x, by);
    return x[0];
}

/* exp(x) = 2^r exp(f), r = round(x / ln 2), f in [-ln 2 / 2, ln 2 / 2]: the polynomial of Cephes' expf, 2
 * ulp. From -87 down it stays at e^-87; a NaN stays one. Not for x above 88. */
INLINE FLOATS NAME(expv)(FLOATS x)
{
    x = LARGER((FLOATS){0} - 87.0f, x);
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

TARGET static float NAME(most)(const float *x, const struct cpu_visible_span *visible)
{
    FLOATS least = (FLOATS){0} - INFINITY, most = least;
    int64_t first = visible->first, last = visible->last;
    for (int64_t i = first / LANES * LANES; i < last; i += LANES)
        most = LARGER(NAME(select)(NAME(visible)(first, last, i), NAME(at)(x + i), least), most);
    _Pragma("GCC unroll 4") for (int by = 1; by < LANES; by *= 2) most = LARGER(NAME(across)(most, by), most);
    return most[0];
}

INLINE void NAME(zero)(float *x, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += LANES)
        *(FLOATS *)(x + i) = (FLOATS){0};
}

TARGET static float NAME(exp)(float *x, const struct cpu_visible_span *visible, float scale, float shift)
{
    FLOATS sum = {0};
    int64_t first = visible->first, last = visible->last, i = first / LANES * LANES;
    NAME(zero)(x, 0, i);
    for (; i < last; i += LANES) {
        FLOATS e = NAME(expv)(NAME(at)(x + i) * scale - shift);
        e = (FLOATS)((INTS)e & NAME(visible)(first, last, i));
        sum += e;
        *(FLOATS *)(x + i) = e;
    }
    NAME(zero)(x, i, visible->total);
    return NAME(sum)(sum);
}

TARGET static void NAME(grad)(float *x, float *dp, const float *lse, const float *delta,
                              const struct cpu_visible_span *visible, float scale)
{
    int64_t first = visible->first, last = visible->last, i = first / LANES * LANES;
    NAME(zero)(x, 0, i);
    NAME(zero)(dp, 0, i);
    for (; i < last; i += LANES) {
        INTS mask = NAME(visible)(first, last, i);
        FLOATS p = NAME(expv)(NAME(at)(x + i) * scale - NAME(at)(lse + i));
        FLOATS ds = p * (NAME(at)(dp + i) - NAME(at)(delta + i)) * scale;
        *(FLOATS *)(x + i) = (FLOATS)((INTS)p & mask);
        *(FLOATS *)(dp + i) = (FLOATS)((INTS)ds & mask);
    }
    NAME(zero)(x, i, visible->total);
    NAME(zero)(dp, i, visible->total);
}

/* tanh from exp(-2 |x|), and by its series where that would cancel. */
TARGET static void NAME(cap)(float *x, float *slopes, const struct cpu_visible_span *visible, float scale)
{
    for (int64_t i = visible->first / LANES * LANES; i < visible->last; i += LANES) {
        FLOATS u = NAME(at)(x + i) * scale, size = LARGER(u, -u), e = NAME(expv)(size * -2.0f), square = u * u;
        FLOATS far = (1.0f - e) / (1.0f + e);
        far = NAME(select)((INTS)(u < 0), -far, far);
        FLOATS near = u * (1.0f - square * (0.333333333f - square * (0.133333333f - square * 0.0539682540f)));
        FLOATS t = NAME(select)((INTS)(size < 0.15f), near, far);
        *(FLOATS *)(x + i) = t / scale;
        if (slopes)
            *(FLOATS *)(slopes + i) = 1.0f - t * t;
    }
}

INLINE FLOATS NAME(load)(const void *x, uint32_t dtype, int64_t i)
{
    if (dtype == HD_F32)
        return *(const FLOATS *)((const float *)x + i);
    if (dtype == HD_F16)
        return (FLOATS)HALF_WIDEN(*(const NAME(halves) *)((const uint16_t *)x + i));
    return (FLOATS)(__builtin_convertvector(*(const NAME(halves) *)((const uint16_t *)x + i), INTS) << 16);
}

INLINE float NAME(dot_of)(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype, int64_t n)
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

TARGET static float NAME(dot)(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype, int64_t n)
{
    if (a_dtype == HD_BF16 && b_dtype == HD_BF16)
        return NAME(dot_of)(a, HD_BF16, b, HD_BF16, n);
    return NAME(dot_of)(a, a_dtype, b, b_dtype, n);
}

TARGET static void NAME(scale)(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += LANES)
        *(FLOATS *)(x + i) *= factor;
}

static const struct cpu_softmax NAME(softmax) = {NAME(most), NAME(exp), NAME(grad), NAME(cap), NAME(dot), NAME(scale)};

#undef FLOATS
#undef INTS
#undef INLINE
#undef HALF_WIDEN
#undef LARGER
#undef LANES
#undef TARGET
#undef NAME
