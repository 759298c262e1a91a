/* Rows of scores with one set of vectors. Included by softmax.c with LANES, TARGET, NAME(x), HALF_WIDEN(x),
 * LARGER(x, y), which is x > y ? x : y, and, where an instruction does it, BF16_ROUND(x) defined. */

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

/* 2^t, t = by x: 2^n 2^f with n = round(t), f in [-1/2, 1/2], a polynomial for 2^f. From -125 down t stays there; a NaN
 * stays one. Not for t above 127. */
INLINE FLOATS NAME(power)(FLOATS x, float by)
{
    const float round = 12582912.0f + 127; /* its last bit is worth 1: of the sum, the last bits are n + 127 */
    x = LARGER((FLOATS){0} - 125.0f / by, x);
    FLOATS n = x * by + round, whole = n - round;
#ifdef NO_FMA /* x by would be rounded before n is taken off: n ln 2 is, in two parts, the first exact */
    FLOATS f = ((x - whole * 0.693359375f) + whole * 2.12194440e-4f) * LOG2_E;
#else
    FLOATS f = x * by - whole;
#endif
    FLOATS p = f * EXP2_5 + EXP2_4;
    p = p * f + EXP2_3;
    p = p * f + EXP2_2;
    p = p * f + EXP2_1;
    p = p * f + 1.0f;
    return p * (FLOATS)((INTS)n << 23);
}

INLINE FLOATS NAME(expv)(FLOATS x)
{
    return NAME(power)(x, LOG2_E);
}

TARGET static float NAME(most)(const float *x, const struct cpu_visible_span *visible)
{
    FLOATS least = (FLOATS){0} - INFINITY, most = least, other = least;
    int64_t first = visible->first, last = visible->last, i = first / LANES * LANES;
    if (i < last)
        other = NAME(select)(NAME(visible)(first, last, i), NAME(at)(x + i), least);
    for (i += LANES; i + 2 * LANES <= last; i += 2 * LANES) {
        most = LARGER(NAME(at)(x + i), most);
        other = LARGER(NAME(at)(x + i + LANES), other);
    }
    for (; i < last; i += LANES)
        most = LARGER(NAME(select)(NAME(visible)(first, last, i), NAME(at)(x + i), least), most);
    most = LARGER(other, most);
    _Pragma("GCC unroll 4") for (int by = 1; by < LANES; by *= 2) most = LARGER(NAME(across)(most, by), most);
    return most[0];
}

/* Writes LANES values from element i of a row on. */
INLINE void NAME(put)(void *to, int64_t i, FLOATS x, int bf16)
{
#ifdef BF16_ROUND
    if (bf16) {
        *(NAME(halves) *)((uint16_t *)to + i) = (NAME(halves))BF16_ROUND(x);
        return;
    }
#endif
    (void)bf16;
    *(FLOATS *)((float *)to + i) = x;
}

INLINE void NAME(zero)(void *to, int64_t from, int64_t end, int bf16)
{
    for (int64_t i = from; i < end; i += LANES)
        NAME(put)(to, i, (FLOATS){0}, bf16);
}

/* Zero where not visible. */
INLINE FLOATS NAME(mask)(FLOATS x, int64_t first, int64_t last, int64_t i)
{
    return i >= first && i + LANES <= last ? x : (FLOATS)((INTS)x & NAME(visible)(first, last, i));
}

INLINE float NAME(exp_row)(const float *x, void *to, const struct cpu_visible_span *visible, float scale, float shift,
                           int bf16)
{
    FLOATS sum = {0};
    int64_t first = visible->first, last = visible->last, i = first / LANES * LANES;
    NAME(zero)(to, 0, i, bf16);
    for (; i < last; i += LANES) {
        FLOATS e = NAME(mask)(NAME(expv)(NAME(at)(x + i) * scale - shift), first, last, i);
        sum += e;
        NAME(put)(to, i, e, bf16);
    }
    NAME(zero)(to, i, visible->total, bf16);
    return NAME(sum)(sum);
}

INLINE void NAME(grad_row)(const struct cpu_softmax_row *row, void *p, void *ds, const struct cpu_visible_span *visible,
                           float scale, int bf16, int capped)
{
    int64_t first = visible->first, last = visible->last, i = first / LANES * LANES;
    NAME(zero)(p, 0, i, bf16);
    NAME(zero)(ds, 0, i, bf16);
    for (; i < last; i += LANES) {
        FLOATS e = NAME(expv)(NAME(at)(row->scores + i) * scale - NAME(at)(row->lse + i));
        FLOATS slope = e * (NAME(at)(row->dp + i) - NAME(at)(row->delta + i)) * scale;
        if (capped)
            slope *= NAME(at)(row->slopes + i);
        NAME(put)(p, i, NAME(mask)(e, first, last, i), bf16);
        NAME(put)(ds, i, NAME(mask)(slope, first, last, i), bf16);
    }
    NAME(zero)(p, i, visible->total, bf16);
    NAME(zero)(ds, i, visible->total, bf16);
}

/* exp and grad of struct cpu_softmax, which write fp32 or bf16. */
#define ROW_KERNELS(exp, grad, bf16)                                                                             \
    TARGET static float NAME(exp)(const float *x, void *to, const struct cpu_visible_span *visible, float scale, \
                                  float shift)                                                                   \
    {                                                                                                            \
        return NAME(exp_row)(x, to, visible, scale, shift, bf16);                                                \
    }                                                                                                            \
    TARGET static void NAME(grad)(const struct cpu_softmax_row *row, void *p, void *ds,                          \
                                  const struct cpu_visible_span *visible, float scale)                           \
    {                                                                                                            \
        if (row->slopes)                                                                                         \
            NAME(grad_row)(row, p, ds, visible, scale, bf16, 1);                                                 \
        else                                                                                                     \
            NAME(grad_row)(row, p, ds, visible, scale, bf16, 0);                                                 \
    }

ROW_KERNELS(exp, grad, 0)
#ifdef BF16_ROUND
ROW_KERNELS(exp_bf16, grad_bf16, 1)

typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Words of two rows' values, rounded to nearest, ties away from zero. */
INLINE NAME(words) NAME(pair)(FLOATS low, FLOATS high)
{
    return ((NAME(words))low + 0x8000) >> 16 | (((NAME(words))high + 0x8000) & 0xffff0000);
}

/* The greatest value of each column. */
INLINE void NAME(column_most)(const float *s, int64_t keys, FLOATS most[2])
{
    FLOATS m[4];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) m[i] = (FLOATS){0} - INFINITY;
    for (int64_t r = 0; r < keys; r += 2, s += 4 * LANES)
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) m[i] = LARGER(NAME(at)(s + i * LANES), m[i]);
    most[0] = LARGER(m[0], m[2]);
    most[1] = LARGER(m[1], m[3]);
}

INLINE FLOATS NAME(column_exp)(const float *s, float scale2, FLOATS shift, int partial)
{
    FLOATS x = NAME(at)(s), e = NAME(power)(x * scale2 - shift, 1);
    return partial ? NAME(select)((INTS)(x == -INFINITY), (FLOATS){0}, e) : e;
}

/* 16 pairs of keys of half the columns. */
INLINE FLOATS NAME(column_weights)(const float *s, NAME(words) * to, FLOATS shift, float scale2, int partial)
{
    FLOATS even = {0}, odd = {0};
    for (int i = 0; i < LANES; i++, s += 4 * LANES) {
        FLOATS low = NAME(column_exp)(s, scale2, shift, partial);
        FLOATS high = NAME(column_exp)(s + 2 * LANES, scale2, shift, partial);
        even += low;
        odd += high;
        to[i] = NAME(pair)(low, high);
    }
    return even + odd;
}

/* Weights of up to 2^8 are as exact as those of up to 1: as long as no maximum rises by more, none moves. */
TARGET static int NAME(columns)(const float *s, const struct cpu_columns *c, void *panel, float scale)
{
    NAME(words) *to = panel;
    float scale2 = scale * LOG2_E;
    FLOATS most[2], shift[2], sum[2] = {{0}, {0}};
    INTS rise = {0};
    NAME(column_most)(s, c->keys, most);
    for (int h = 0; h < 2; h++) {
        most[h] = most[h] * scale2;
        rise |= (INTS)(most[h] > NAME(at)(c->most2 + h * LANES) + 8.0f);
    }
    int moved = 0;
    for (int i = 0; i < LANES; i++)
        moved |= rise[i];
    for (int h = 0; h < 2; h++) {
        FLOATS *now = (FLOATS *)(c->most2 + h * LANES), before = *now;
        if (moved)
            *now = LARGER(most[h], before);
        shift[h] = NAME(select)((INTS)(*now == -INFINITY), (FLOATS){0}, *now);
        if (moved)
            *(FLOATS *)(c->shrink + h * LANES) = NAME(power)(before - shift[h], 1);
    }
    for (int64_t k = 0; k < c->keys; k += 2 * LANES)
        for (int h = 0; h < 2; h++, to += LANES) {
            const float *from = s + k * 2 * LANES + h * LANES;
            if (k >= c->all.first && k + 2 * LANES <= c->all.last)
                sum[h] += NAME(column_weights)(from, to, shift[h], scale2, 0);
            else
                sum[h] += NAME(column_weights)(from, to, shift[h], scale2, 1);
        }
    for (int h = 0; h < 2; h++) {
        FLOATS *total = (FLOATS *)(c->total + h * LANES);
        if (moved)
            *total *= NAME(at)(c->shrink + h * LANES);
        *total += sum[h];
    }
    return moved != 0;
}

#define ROUNDED(name) NAME(name##_bf16)
#define COLUMNS NAME(columns)
#else
#define COLUMNS NULL
#define ROUNDED(name) NULL
#endif

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

static const struct cpu_softmax NAME(softmax) = {
    .most = NAME(most),
    .exp = {NAME(exp), ROUNDED(exp)},
    .grad = {NAME(grad), ROUNDED(grad)},
    .columns = COLUMNS,
    .cap = NAME(cap),
    .dot = NAME(dot),
    .scale = NAME(scale),
};

#undef FLOATS
#undef INTS
#undef INLINE
#undef HALF_WIDEN
#undef ROUNDED
#undef ROW_KERNELS
#undef NO_FMA
#undef COLUMNS
#undef BF16_ROUND
#undef LARGER
#undef LANES
#undef TARGET
#undef NAME
