/* What a warp does together: each lane gives the others its registers and computes its part of the result. */
#include "cuda_runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace
{

struct copy {
    void *to;
    const void *from;
    int there, group, done;
};

/* A warp's product on this lane, with two of the 16 rows. */
struct product {
    emulate_group_product of;
    uint16_t a[2][16];           /* where a is in registers */
    std::vector<float> expected; /* in c; empty: another product will have added to it */
    int group;
};

struct queue {
    std::vector<copy> copies;
    std::vector<product> products;
    int group, product_group; /* that are being filled */
    int begun;                /* a product may be */
    int unfenced;             /* copies were waited for since the last fence */
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

[[noreturn]] void broken(const char *what)
{
    fprintf(stderr, "emulated kernel: %s\n", what);
    abort();
}

void check_aligned(const void *p)
{
    if ((uintptr_t)p % 16 == 0)
        return;
    fprintf(stderr, "emulated kernel: %p is not 16-byte aligned\n", p);
    abort();
}

void copy_now(const copy &c)
{
    if (c.there)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

/* ---- products of a warpgroup */

/* A descriptor of the 128-byte swizzle: an element, by its row (what a product keeps) and k. Rows of 128 bytes hold
 * either 64 of k, or, transposed, 64 rows. */
uint16_t element(uint64_t descriptor, int transposed, int row, int k)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
             stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, at;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7))
        broken("a matrix descriptor of another kind than the 128-byte swizzle");
    if (transposed)
        at = start + (uint32_t)(row / 64) * leading + (uint32_t)(k / 8) * stride + (uint32_t)(k % 8) * 128 +
             (uint32_t)(row % 64) * 2;
    else
        at = start + (uint32_t)(row / 8) * stride + (uint32_t)(row % 8) * 128 + (uint32_t)k * 2;
    at ^= (at >> 7 & 7) << 4;
    uint16_t x;
    memcpy(&x, static_cast<unsigned char *>(emulate_dynamic()) + at, sizeof x);
    return x;
}

/* This lane's rows of c. */
void multiply(product &p)
{
    const emulate_group_product &o = p.of;
    int lane = (int)emulate_thread() % 128, first = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
    float a[2][16];
    if (!p.expected.empty() && memcmp(p.expected.data(), o.c, p.expected.size() * sizeof(float)))
        broken("sums of a product were written while it was under way");
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++)
            a[half][k] = o.widen(o.a ? p.a[half][k] : element(o.a_at, 0, first + 8 * half, k));
    for (int n = 0; n < o.n; n++)
        for (int column = 0; column < 2; column++) {
            float b[16];
            for (int k = 0; k < 16; k++)
                b[k] = o.widen(element(o.b_at, o.transposed, 8 * n + 2 * t + column, k));
            for (int half = 0; half < 2; half++) {
                float *c = &o.c[4 * n + 2 * half + column];
                double sum = o.add ? *c : 0;
                for (int k = 0; k < 16; k++)
                    sum += (double)a[half][k] * b[k];
                *c = (float)sum;
            }
        }
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
    double rows[2][16], columns[2][16];
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++) {
            rows[half][k] = widen(a_at(all, lane / 4 + half * 8, k));
            columns[half][k] = widen(b_at(all, k, lane % 4 * 2 + half));
        }
    for (int i = 0; i < 4; i++) {
        double sum = c[i];
        for (int k = 0; k < 16; k++)
            sum += rows[i / 2][k] * columns[i % 2][k];
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
    copy c = {to, from, there, mine().group, (int)emulate_random(2)};
    if (c.done)
        copy_now(c);
    mine().copies.push_back(c);
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
        if (!c.done)
            copy_now(c);
        q.unfenced = 1;
    }
    q.copies.resize(left);
}

void emulate_fence_async(void)
{
    mine().unfenced = 0;
}

void emulate_wgmma_begin(void)
{
    mine().begun = 1;
}

/* All lanes of the warp issue it; registers are read now. */
void emulate_wgmma(const emulate_group_product &o)
{
    queue &q = mine();
    product p = {o, {}, {}, q.product_group};
    if (!q.begun)
        broken("a product of a warpgroup without a fence for its registers");
    if (q.unfenced)
        broken("a product of a warpgroup behind copies that no fence followed");
    registers given = {};
    if (o.a)
        memcpy(given.a, o.a, sizeof given.a);
    const unsigned char *all = emulate_exchange(0xffffffffu, &given, sizeof given);
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++)
            p.a[half][k] = a_at(all, (int)emulate_lane() / 4 + 8 * half, k);
    int first = 1;
    for (const product &before : q.products)
        first &= before.of.c != o.c;
    if (first && o.add) /* else what is there does not matter, or is not there yet */
        p.expected.assign(o.c, o.c + 4 * o.n);
    q.products.push_back(p);
    if (emulate_random(2))
        return;
    for (product &one : q.products)
        multiply(one);
    q.products.clear();
}

void emulate_wgmma_commit(void)
{
    mine().product_group++;
}

void emulate_wgmma_wait(int groups)
{
    queue &q = mine();
    size_t done = 0;
    q.begun = 0; /* what is waited for is then read and written */
    while (done < q.products.size() && q.products[done].group < q.product_group - groups)
        multiply(q.products[done++]);
    q.products.erase(q.products.begin(), q.products.begin() + (ptrdiff_t)done);
}

int emulate_products_left(void)
{
    int left = 0;
    for (queue &q : queues) {
        left |= !q.products.empty();
        q.product_group = q.begun = q.unfenced = 0;
    }
    return left;
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
