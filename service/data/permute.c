/* A permutation: a Feistel network over the smallest even number of bits that holds n, walked until the value is below
 * n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The domain has less than 4 n values, so that
 * less than four walks are expected. */
#include "service/data/data.h"

uint64_t hd__data_permute(uint64_t i, uint64_t n, uint64_t key)
{
    enum { ROUNDS = 6 };
    uint32_t half = 1;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < n)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    key = hd__mix64(key); /* neighbouring keys share no round keys */
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (hd__mix64(right ^ hd__mix64(key + r)) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

uint64_t hd__data_permute_windows(uint64_t i, uint64_t n, uint64_t window, uint64_t key)
{
    uint64_t run = HD__DATA_SHUFFLE_RUN, runs = n / run, per = HD__MAX(window / run, 1);
    if (i >= runs * run)
        return runs * run + hd__data_permute(i - runs * run, n - runs * run, key);
    uint64_t nth = i / (per * run), first = nth * per, size = HD__MIN(per, runs - first) * run;
    uint64_t j = hd__data_permute(i - first * run, size, key ^ hd__mix64(nth + 1));
    return hd__data_permute(first + j / run, runs, key) * run + j % run;
}
