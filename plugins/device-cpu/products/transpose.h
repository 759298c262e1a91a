/* Square transposes in registers. Included once for each instruction set, with LANES (32-bit words a vector:
 * 4, 8 or 16), TARGET (function attributes) and NAME(x) defined.
 *
 * Stage s swaps the off-diagonal s x s blocks of each 2s x 2s block (Eklundh); after stages 1, 2, 4, ... rows
 * are columns. */

typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define LOW(j, s) ((j) & (s) ? (j) - (s) + LANES : (j))
#define HIGH(j, s) ((j) & (s) ? (j) + LANES : (j) + (s))
#if LANES == 16
#define EACH(f, s)                                                                                                \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#elif LANES == 8
#define EACH(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define EACH(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif

#define STAGE(s)                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & (s))) \
    {                                                                        \
        NAME(words) x = r[i], y = r[i + (s)];                                \
        r[i] = __builtin_shufflevector(x, y, EACH(LOW, s));                  \
        r[i + (s)] = __builtin_shufflevector(x, y, EACH(HIGH, s));           \
    }

/* r[i] is row i. */
TARGET static inline __attribute__((always_inline)) void NAME(transpose)(NAME(words) r[LANES])
{
#if LANES > 8
    STAGE(8)
#endif
#if LANES > 4
    STAGE(4)
#endif
    STAGE(2)
    STAGE(1)
}

#undef LOW
#undef HIGH
#undef EACH
#undef STAGE
