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

/* Of a row, and of the row 8 further. */
typedef double pair __attribute__((vector_size(16)));

/* A warp's product on this lane, with two of the 16 rows. */
struct product {
    emulate_group_product of;
    pair a[16];                  /* where a is in registers */
    std::vector<float> expected; /* in c; empty: another product will have added to it */
    int group;
};

struct queue {
    std::vector<copy> copies;
    std::vector<product> products;
    int group, product_group; /* that are being filled */
    int begun;                /* a product may be */
    bool unfenced;            /* copies were waited for since the last fence */
};

queue queues[1024];
int unfenced; /* threads whose copies no fence followed */

queue &mine(void)
{
    return queues[emulate_thread()];
}

void mark(queue &q, bool is_unfenced)
{
    unfenced += is_unfenced - q.unfenced;
    q.unfenced = is_unfenced;
}

typedef float two __attribute__((vector_size(8)));

/* What a lane gives the others: of a, by k, an element of each of its two rows; of b, the elements by k. */
struct registers {
    two a[4];
    float b[4];
};
static_assert(sizeof(registers) == EMULATE_EXCHANGE, "one exchange");

two widen(const float *floats, uint32_t elements)
{
    return two{floats[elements & 0xffff], floats[elements >> 16]};
}

/* The registers of a, each of which has two elements of one row. */
void widen_a(const float *floats, const uint32_t *a, registers &to)
{
    for (int half = 0; half < 2; half++) {
        two upper = widen(floats, a[2 * half]), lower = widen(floats, a[2 * half + 1]);
        to.a[2 * half] = two{upper[0], lower[0]};
        to.a[2 * half + 1] = two{upper[1], lower[1]};
    }
}

/* Rows lane / 4 and 8 more of a, of the lanes that have them. */
inline void rows_of(const registers *all, int lane, pair (&rows)[16])
{
    all += lane / 4 * 4;
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++)
        rows[k] = __builtin_convertvector(all[k % 8 / 2].a[k / 8 * 2 + k % 2], pair);
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

/* An operand by its descriptor, of the 128-byte swizzle. Rows of 128 bytes hold either 64 of k, or, transposed, 64 rows
 * (what a product keeps). */
struct operand {
    const unsigned char *memory;
    const float *floats;
    uint32_t start, leading, stride;
};

operand described(uint64_t descriptor, const float *floats)
{
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7))
        broken("a matrix descriptor of another kind than the 128-byte swizzle");
    return {static_cast<unsigned char *>(emulate_dynamic()), floats, (uint32_t)(descriptor & 0x3fff) << 4,
            (uint32_t)(descriptor >> 16 & 0x3fff) << 4, (uint32_t)(descriptor >> 32 & 0x3fff) << 4};
}

inline float element(const operand &o, const unsigned char *place)
{
    uint16_t x;
    memcpy(&x, place, sizeof x);
    return o.floats[x];
}

/* Swizzled in units of 16 bytes. */
inline const unsigned char *place_of(const operand &o, uint32_t at)
{
    return o.memory + (at ^ (at >> 7 & 7) << 4);
}

/* The 16 of k of a row: two units where it is not transposed, as its place is a multiple of one. */
inline void read(const operand &o, int transposed, uint32_t row, float (&x)[16])
{
    uint32_t at = o.start + (transposed ? row / 64 * o.leading + row % 64 * 2 : row / 8 * o.stride + row % 8 * 128);
    for (uint32_t half = 0; half < 2; half++) {
        const unsigned char *unit = place_of(o, at + 16 * half);
        uint32_t from = at + half * o.stride;
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 8; k++)
            x[8 * half + k] = element(o, transposed ? place_of(o, from + 128 * k) : unit + 2 * k);
    }
}

/* This lane's rows of c. */
void multiply(product &p)
{
    const emulate_group_product &o = p.of;
    uint32_t lane = emulate_thread() % 128, first = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
    operand b = described(o.b_at, o.floats);
    float x[16], y[16];
    if (!p.expected.empty() && memcmp(p.expected.data(), o.c, p.expected.size() * sizeof(float)))
        broken("sums of a product were written while it was under way");
    if (!o.a) {
        read(described(o.a_at, o.floats), 0, first, x);
        read(described(o.a_at, o.floats), 0, first + 8, y);
        for (int k = 0; k < 16; k++)
            p.a[k] = pair{x[k], y[k]};
    }
    for (int n = 0; n < o.n; n++)
        for (int column = 0; column < 2; column++) {
            float *c = &o.c[4 * n + column];
            pair sum = o.add ? pair{c[0], c[2]} : pair{};
            read(b, o.transposed, 8 * (uint32_t)n + 2 * t + (uint32_t)column, x);
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++)
                sum += p.a[k] * (double)x[k];
            c[0] = (float)sum[0];
            c[2] = (float)sum[1];
        }
}

} // namespace

void emulate_mma(const float *floats, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    registers given;
    widen_a(floats, a, given);
    for (int i = 0; i < 2; i++) {
        two elements = widen(floats, b[i]);
        memcpy(&given.b[2 * i], &elements, sizeof elements);
    }
    auto all = reinterpret_cast<const registers *>(emulate_exchange(0xffffffffu, &given, sizeof given));
    int lane = (int)emulate_lane();
    pair rows[16];
    rows_of(all, lane, rows);
    for (int column = 0; column < 2; column++) {
        const registers *its = all + (lane % 4 * 2 + column) * 4;
        pair sum = {c[column], c[2 + column]};
#pragma GCC unroll 16
        for (int k = 0; k < 16; k++)
            sum += rows[k] * (double)its[k % 8 / 2].b[k / 8 * 2 + k % 2];
        c[column] = (float)sum[0];
        c[2 + column] = (float)sum[1];
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
        mark(q, true);
    }
    q.copies.resize(left);
}

void emulate_fence_async(void)
{
    mark(mine(), false);
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
    if (unfenced) /* of any thread: a product reads what all have copied */
        broken("a product of a warpgroup behind copies that no fence followed");
    registers given = {};
    if (o.a)
        widen_a(o.floats, o.a, given);
    auto all = reinterpret_cast<const registers *>(emulate_exchange(0xffffffffu, &given, sizeof given));
    if (o.a)
        rows_of(all, (int)emulate_lane(), p.a);
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
        q.product_group = q.begun = 0;
        mark(q, false);
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
