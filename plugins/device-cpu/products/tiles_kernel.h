/* A micro-kernel of ROWS x 2 LANES sums for one instruction set. Included with LANES, ROWS (mr), TARGET and NAME(x)
 * defined, WORD_TERMS of k in a word of 32 bits, and FMA, the instruction that multiplies words and adds, where it is
 * not that of floats. */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Three rows of a have a pointer: of an address at most twice a stride is added. */
enum { NAME(cols) = 2 * LANES, NAME(pointers) = (ROWS + 2) / 3 };

/* Pairs are slower so, by a third: the compiler runs out of registers. */
#if WORD_TERMS == 1
#define TURNS _Pragma("GCC unroll 2")
#else
#define TURNS
#endif

#define INLINE TARGET static inline __attribute__((always_inline))

/* acc += x y. The sums stay in their registers: left alone, the compiler moves some of them about in the loop. */
INLINE void NAME(fma)(NAME(floats) * acc, NAME(floats) x, NAME(floats) y)
{
#ifdef FMA
    __asm__(FMA : "+v"(*acc) : "v"(x), "v"(y));
#else
    *acc += x * y;
#endif
}

/* The block of c is on its way to the first cache while terms are summed. */
INLINE void NAME(fetch)(const float *c, int64_t ldc)
{
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++, c += ldc)
    {
        __builtin_prefetch(c);
        __builtin_prefetch(c + 2 * LANES - 1);
    }
}

INLINE NAME(floats) NAME(spread)(const char *word)
{
    uint32_t x;
    memcpy(&x, word, sizeof x);
    return (NAME(floats))(x - (NAME(bits)){0});
}

/* `step`: bytes of a from word to word of a row. */
INLINE void NAME(sum)(NAME(floats) acc[ROWS][2], int64_t k, const char *a, int64_t rs, int64_t step, const float *b)
{
    const char *row[NAME(pointers)];
    for (int i = 0; i < NAME(pointers); i++)
        row[i] = a + 3 * i * rs;
    TURNS for (int64_t p = 0; p < k; p += WORD_TERMS, b += 2 * LANES)
    {
        NAME(floats) b0 = *(const NAME(floats) *)b, b1 = *(const NAME(floats) *)(b + LANES);
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)
        {
            NAME(floats) x = NAME(spread)(row[i / 3] + i % 3 * rs);
            NAME(fma)(&acc[i][0], x, b0);
            NAME(fma)(&acc[i][1], x, b1);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < NAME(pointers); i++) row[i] += step;
    }
}

TARGET static void NAME(kernel_rows)(int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, float *c,
                                     int64_t ldc, int add)
{
    NAME(floats) acc[ROWS][2];
    NAME(fetch)(c, ldc);
    __asm__("" : "+r"(ldc)); /* addresses are made again: they would take registers from the loop */
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) acc[i][0] = acc[i][1] = (NAME(floats)){0};
    NAME(sum)(acc, k, a, rs, WORD_TERMS * cs, b);
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++, c += ldc)
    {
        NAME(floats) *row = (NAME(floats) *)c;
        if (add) {
            acc[i][0] += row[0];
            acc[i][1] += row[1];
        }
        row[0] = acc[i][0];
        row[1] = acc[i][1];
    }
}

/* A packed panel is words of all rows, word after word. */
TARGET static void NAME(kernel)(int64_t k, const void *a, const void *b, float *c, int64_t ldc, int add)
{
    NAME(kernel_rows)(k, a, 4, 4 * ROWS / WORD_TERMS, b, c, ldc, add);
}

static void NAME(nothing)(void)
{
}

#undef TURNS
#undef INLINE
