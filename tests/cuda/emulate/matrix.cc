/* What a warp does together: each lane gives the others its registers and computes its part of the result. */
#include "cuda_runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace {

struct copy {
    void *to;
    const void *from;
    int there, group;
};

struct queue {
    std::vector<copy> copies;
    int group; /* that is being filled */
};

queue queues[1024];

queue &mine(void)
{
    return queues[emulate_thread()];
}

uint16_t half_of(uint32_t pair, int high)
{
    return (uint16_t)(high ? pair >> 16 : pair);
}

struct registers {
    uint32_t a[4], b[2];
};

const registers &of_lane(const unsigned char *all, int lane)
{
    return *reinterpret_cast<const registers *>(all + lane * EMULATE_EXCHANGE);
}

/* Element (row, k) of a and (k, column) of b: which lane has it, in which register. */
uint16_t a_at(const unsigned char *all, int row, int k)
{
    const registers &r = of_lane(all, row % 8 * 4 + k % 8 / 2);
    return half_of(r.a[row / 8 + k / 8 * 2], k % 2);
}

uint16_t b_at(const unsigned char *all, int k, int column)
{
    const registers &r = of_lane(all, column * 4 + k % 8 / 2);
    return half_of(r.b[k / 8], k % 2);
}

void check_aligned(const void *p)
{
    if ((uintptr_t)p % 16 == 0)
        return;
    fprintf(stderr, "emulated kernel: %p is not 16-byte aligned\n", p);
    abort();
}

} // namespace

void emulate_mma(float (*widen)(uint16_t), float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    registers given;
    memcpy(given.a, a, sizeof given.a);
    memcpy(given.b, b, sizeof given.b);
    static_assert(sizeof given <= EMULATE_EXCHANGE, "one exchange");
    const unsigned char *all = emulate_exchange(0xffffffffu, &given, sizeof given);
    int lane = (int)emulate_lane();
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; k++)
            sum += (double)widen(a_at(all, row, k)) * widen(b_at(all, k, column));
        c[i] = (float)sum;
    }
}

void emulate_ldmatrix(uint32_t (&r)[4], const void *row, int transposed)
{
    check_aligned(row);
    const unsigned char *all = emulate_exchange(0xffffffffu, &row, sizeof row);
    int g = (int)emulate_lane() / 4, t = (int)emulate_lane() % 4;
    for (int tile = 0; tile < 4; tile++) {
        uint16_t two[2];
        for (int j = 0; j < 2; j++) {
            const uint16_t *line;
            memcpy(&line, all + (tile * 8 + (transposed ? 2 * t + j : g)) * EMULATE_EXCHANGE, sizeof line);
            two[j] = line[transposed ? g : 2 * t + j];
        }
        r[tile] = two[0] | (uint32_t)two[1] << 16;
    }
    /* The instruction has read shared memory when any lane goes on. */
    __syncwarp();
}

void emulate_copy16(void *to, const void *from, int there)
{
    check_aligned(to);
    if (there)
        check_aligned(from);
    mine().copies.push_back({to, from, there, mine().group});
}

void emulate_copy_commit(void)
{
    mine().group++;
}

void emulate_copy_wait(int groups)
{
    queue &q = mine();
    size_t left = 0;
    for (const copy &c : q.copies) {
        if (c.group >= q.group - groups) {
            q.copies[left++] = c;
            continue;
        }
        if (c.there)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    q.copies.resize(left);
}

int emulate_copies_left(void)
{
    int left = 0;
    for (queue &q : queues) {
        left |= !q.copies.empty();
        q.group = 0;
    }
    return left;
}
