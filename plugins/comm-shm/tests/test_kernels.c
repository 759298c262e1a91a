/* Each vector kernel of comm-shm against the plain one: the same bits. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "heddle/types.h"
#include "plugins/comm-shm/kernels.h"
#include "tests/suite.h"

enum { MOST = 1500, SOURCES = 66 };

static uint64_t state = 88172645463325252u;
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Any finite bit pattern, subnormals and infinities among them; NaNs only for maxima, since which NaN a sum of two
 * gives is the processor's choice. */
static void fill(uint8_t *p, size_t bytes, uint32_t dtype, int specials)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)draw();
    if (dtype == HD_F32)
        for (size_t i = 0; i + 4 <= bytes; i += 4) {
            uint32_t u;
            memcpy(&u, p + i, 4);
            u = (u >> 23 & 255) == 255 ? u & 0x807fffff : u;
            if (!specials)
                u = (u & 0x80ffffff) | 0x3f000000;
            memcpy(p + i, &u, 4);
        }
    else if (dtype == HD_BF16 || dtype == HD_F16)
        for (size_t i = 0; i + 2 <= bytes; i += 2) {
            uint16_t u, top = dtype == HD_BF16 ? 0x7f80 : 0x7c00;
            memcpy(&u, p + i, 2);
            u = (u & top) == top ? (uint16_t)(u & ~top) : u;
            memcpy(p + i, &u, 2);
        }
}

static void compare(const struct shm_kernels *set, uint32_t dtype, uint32_t redop, int n, int m, size_t count,
                    size_t skew, int stream, int in_place)
{
    static uint8_t in[SOURCES][MOST * 4 + 128], out[SOURCES][MOST * 4 + 128], want[MOST * 4 + 128];
    size_t esize = hd_dtype_size(dtype), bytes = count * esize;
    const uint8_t *src[SOURCES];
    uint8_t *dst[SOURCES], *ref = want;
    for (int j = 0; j < n; j++) {
        src[j] = in[j] + skew * (size_t)(j + 1) % 5 * esize;
        fill(in[j], sizeof in[j], dtype, draw() & 1);
    }
    for (int j = 0; j < m; j++) {
        dst[j] = in_place && j < n ? (uint8_t *)(uintptr_t)src[j] : out[j] + skew * esize;
        if (!in_place)
            memset(out[j], 0xa5, sizeof out[j]);
    }
    shm_kernels_reference.reduce[dtype][redop](&ref, 1, src, n, count, 0);
    shm_kernel(set, dtype, redop)(dst, m, src, n, count, stream);
    set->fence();
    for (int j = 0; j < m; j++) {
        ck_assert_msg(memcmp(dst[j], want, bytes) == 0, "%s %s redop %u n %d m %d count %zu skew %zu stream %d",
                      set->name, hd_dtype_name(dtype), redop, n, m, count, skew, stream);
        if (!in_place)
            for (size_t i = 0; i < 32; i++)
                ck_assert_int_eq(dst[j][bytes + i], 0xa5);
    }
}

static const char *const names[] = {"reference", "avx2", "avx512"};

START_TEST(same_bits)
{
    const struct shm_kernels *set = shm_kernels_named(names[_i]);
    if (!set)
        return; /* not on this processor */
    for (uint32_t dtype = HD_F32; dtype <= HD_U8; dtype++)
        for (uint32_t redop = HD_SUM; redop <= HD_AVG; redop++)
            for (int n = 1; n <= 5; n++)
                for (int k = 0; k < 24; k++) {
                    int m = k & 1 ? n : 1;
                    size_t room = MOST / hd_dtype_size(dtype) - 8;
                    compare(set, dtype, redop, n, m, k < 4 ? (size_t)k : draw() % room, draw() % 4, k >> 1 & 1,
                            k % 5 == 0);
                }
}
END_TEST

/* As many sources as vectors are kept for, and more. */
START_TEST(many_sources)
{
    const struct shm_kernels *set = shm_kernels_named(names[_i]);
    static const int numbers[] = {6, 7, 8, 13, 31, 32, 33, 63, 64, 65, 66};
    for (uint32_t dtype = HD_F32; set && dtype <= HD_F16; dtype++)
        for (uint32_t redop = HD_SUM; redop <= HD_AVG; redop++)
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
                compare(set, dtype, redop, numbers[k], k & 1 ? numbers[k] : 1, 1 + draw() % 100, draw() % 4, k & 2, 0);
}
END_TEST

/* Short ones that end where memory does: what a vector has beyond them is neither read nor written. */
START_TEST(at_the_end_of_memory)
{
    enum { PAGE = 4096, PAGES = 4 };
    const struct shm_kernels *set = shm_kernels_named(names[_i]);
    uint8_t *base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), want[512],
            *ref = want;
    ck_assert(base != MAP_FAILED && !mprotect(base + PAGE, PAGE, PROT_NONE) &&
              !mprotect(base + 3 * PAGE, PAGE, PROT_NONE));
    for (uint32_t dtype = HD_F32; set && dtype <= HD_U8; dtype++)
        for (uint32_t redop = HD_SUM; redop <= HD_AVG; redop++)
            for (size_t count = 1; count < 40; count++)
                for (int n = 1; n <= 3; n++) {
                    size_t bytes = count * hd_dtype_size(dtype);
                    uint8_t *dst = base + PAGE - bytes;
                    const uint8_t *src[] = {base + 3 * PAGE - bytes, base + 2 * PAGE, base + 2 * PAGE + 1024};
                    fill(base + 2 * PAGE, PAGE, dtype, 0);
                    memset(base, 0xa5, PAGE);
                    shm_kernels_reference.reduce[dtype][redop](&ref, 1, src, n, count, 0);
                    shm_kernel(set, dtype, redop)(&dst, 1, src, n, count, 0);
                    ck_assert_msg(!memcmp(dst, want, bytes) && dst[-1] == 0xa5, "%s %s redop %u n %d count %zu",
                                  set->name, hd_dtype_name(dtype), redop, n, count);
                }
    munmap(base, PAGES * PAGE);
}
END_TEST

START_TEST(copies)
{
    const struct shm_kernels *set = shm_kernels_named(names[_i]);
    static uint8_t from[5000], to[5000];
    if (!set)
        return;
    for (int k = 0; k < 300; k++) {
        size_t a = draw() % 100, b = draw() % 100, n = draw() % 4800;
        fill(from, sizeof from, HD_U8, 0);
        memset(to, 0xa5, sizeof to);
        set->copy_stream(to + a, from + b, n);
        set->fence();
        ck_assert(memcmp(to + a, from + b, n) == 0);
        for (size_t i = 0; i < a; i++)
            ck_assert_int_eq(to[i], 0xa5);
        for (size_t i = a + n; i < sizeof to; i++)
            ck_assert_int_eq(to[i], 0xa5);
    }
}
END_TEST

/* What the plain kernels must give, by hand: rounding, NaN, wrapping, truncation. */
START_TEST(meaning)
{
    const uint16_t a[] = {0x3f80, 0x3f80, 0x7f80, 0x0001}, b[] = {0x3b80, 0x3b81, 0x4000, 0x0001};
    const uint16_t sum[] = {0x3f80, 0x3f81, 0x7f80, 0x0002}; /* ties to even; above the tie; infinity; subnormal */
    const uint16_t h[] = {0x3c00, 0x7bff, 0x0001, 0x8001}, g[] = {0x1000, 0x4c00, 0x0001, 0x0001};
    const uint16_t hsum[] = {0x3c00, 0x7c00, 0x0002,
                             0x0000}; /* 1 + 2^-11 ties to even; 65504 + 16; subnormals; -x + x */
    const int32_t i[] = {INT32_MAX, -3, 5}, j[] = {1, -2, 2}, wrap[] = {INT32_MIN, -5, 7}, mean[] = {1 << 30, -2, 3};
    const float nan[] = {NAN, 1, -1}, one[] = {1, NAN, 2};
    uint8_t out[16], *dst = out;
    const uint8_t *src[] = {(const uint8_t *)a, (const uint8_t *)b};
    shm_kernels_reference.reduce[HD_BF16][HD_SUM](&dst, 1, src, 2, 4, 0);
    ck_assert(memcmp(out, sum, sizeof sum) == 0);
    src[0] = (const uint8_t *)h, src[1] = (const uint8_t *)g;
    shm_kernels_reference.reduce[HD_F16][HD_SUM](&dst, 1, src, 2, 4, 0);
    ck_assert(memcmp(out, hsum, sizeof hsum) == 0);
    src[0] = (const uint8_t *)i, src[1] = (const uint8_t *)j;
    shm_kernels_reference.reduce[HD_I32][HD_SUM](&dst, 1, src, 2, 3, 0);
    ck_assert(memcmp(out, wrap, sizeof wrap) == 0);
    shm_kernels_reference.reduce[HD_I32][HD_AVG](&dst, 1, src, 2, 3, 0);
    ck_assert(memcmp(out, mean, sizeof mean) == 0);
    src[0] = (const uint8_t *)nan, src[1] = (const uint8_t *)one;
    shm_kernels_reference.reduce[HD_F32][HD_MAX](&dst, 1, src, 2, 3, 0);
    float got[3];
    memcpy(got, out, sizeof got);
    ck_assert(isnan(got[0]) && isnan(got[1]) && got[2] == 2);
}
END_TEST

/* Every fp16 and bf16 value goes through load and store unchanged (NaNs stay NaNs). */
START_TEST(round_trip)
{
    const struct shm_kernels *set = shm_kernels_named(names[_i]);
    static uint16_t in[65536], out[65536];
    uint8_t *dst = (uint8_t *)out;
    const uint8_t *src = (const uint8_t *)in;
    if (!set)
        return;
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (uint32_t dtype = HD_BF16; dtype <= HD_F16; dtype++) {
        uint16_t top = dtype == HD_BF16 ? 0x7f80 : 0x7c00;
        shm_kernel(set, dtype, HD_SUM)(&dst, 1, &src, 1, 65536, 0);
        for (uint32_t i = 0; i < 65536; i++) {
            int nan = (i & top) == top && (i & ~(uint32_t)top & 0x7fff);
            int stays = (out[i] & top) == top && (out[i] & (uint16_t)~top & 0x7fff);
            ck_assert_msg(nan ? stays : out[i] == i, "%s %04x became %04x", hd_dtype_name(dtype), i, out[i]);
        }
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("kernels");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, same_bits, 0, 3);
    tcase_add_loop_test(tc, many_sources, 0, 3);
    tcase_add_loop_test(tc, at_the_end_of_memory, 0, 3);
    tcase_add_loop_test(tc, copies, 0, 3);
    tcase_add_loop_test(tc, round_trip, 0, 3);
    tcase_add_test(tc, meaning);
    return suite_run_case("kernels", tc);
}
