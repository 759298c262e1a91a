/* Mixtures of experts (Shazeer et al., arXiv 1701.06538; Fedus et al., arXiv 2101.03961; Jiang et al., arXiv
 * 2401.04088).
 *
 * Slots are [b e #]: slot j of expert e in sequence b holds token rows[b e j] - 1 of the sequence, an index on the
 * whole dim s, or none. Each kernel walks slots in order: the sums over experts are in the order of experts. */
#include "kernels/moe.h"

/* ---- the router */

void cpu_ref_gate(struct hd_kernel *k)
{
    int64_t e = k->in[0].extent[k->in[0].ndim - 1], n = hd_operand_count(&k->in[0]) / e;
    for (int64_t row = 0; row < n; row++) {
        double sum = 0, most = 0;
        for (int64_t j = 0; j < e; j++)
            if (cpu_chosen(&k->in[0], row * e, e, j, k->d.attrs.top_k)) {
                double z = cpu_load(&k->in[0], row * e + j);
                most = sum == 0 || z > most ? z : most;
                sum = 1;
            }
        sum = 0;
        for (int64_t j = 0; j < e; j++)
            if (cpu_chosen(&k->in[0], row * e, e, j, k->d.attrs.top_k))
                sum += exp(cpu_load(&k->in[0], row * e + j) - most);
        for (int64_t j = 0; j < e; j++) {
            int on = cpu_chosen(&k->in[0], row * e, e, j, k->d.attrs.top_k);
            cpu_put(k, 0, row * e + j, on ? exp(cpu_load(&k->in[0], row * e + j) - most) / sum : 0);
        }
    }
}

void cpu_ref_gate_grad(struct hd_kernel *k)
{
    int64_t e = k->in[0].extent[k->in[0].ndim - 1], n = hd_operand_count(&k->in[0]) / e;
    for (int64_t row = 0; row < n; row++) {
        double dot = 0;
        for (int64_t j = row * e; j < (row + 1) * e; j++)
            dot += cpu_load(&k->in[0], j) * cpu_load(&k->in[1], j);
        for (int64_t j = row * e; j < (row + 1) * e; j++)
            cpu_put(k, 0, j, cpu_load(&k->in[0], j) * (cpu_load(&k->in[1], j) - dot));
    }
}

void cpu_ref_route(struct hd_kernel *k)
{
    const struct hd_operand *g = &k->in[0], *rows = &k->out[0];
    int64_t s = g->extent[1], e = g->extent[2], slots = rows->extent[2];
    int each = rows->dim[2] == g->dim[1]; /* a slot for every token */
    for (int64_t b = 0; b < g->extent[0]; b++)
        for (int64_t j = 0; j < e; j++) {
            int64_t at = (b * e + j) * slots, used = 0;
            for (int64_t i = 0; i < slots; i++)
                cpu_store(rows, at + i, 0);
            for (int64_t at_s = 0; at_s < s && used < slots; at_s++) {
                int64_t i = each ? at_s : cpu_index_of(k, at_s);
                int on = cpu_load(g, (b * s + i) * e + j) > 0;
                if (on)
                    cpu_store(rows, at + (each ? i : used), (double)(g->start[1] + i + 1));
                used += on;
            }
        }
}

void cpu_ref_expert_count(struct hd_kernel *k)
{
    const struct hd_operand *g = &k->in[0];
    int64_t s = g->extent[1], e = g->extent[2];
    for (int64_t b = 0; b < g->extent[0]; b++)
        for (int64_t j = 0; j < e; j++) {
            double n = 0;
            for (int64_t i = 0; i < s; i++)
                n += cpu_load(g, (b * s + i) * e + j) > 0;
            cpu_put(k, 0, b * e + j, n);
        }
}

struct softmax {
    double most, sum;
};

static struct softmax softmax_of(const struct hd_operand *z, int64_t at, int64_t e)
{
    struct softmax x = {cpu_load(z, at), 0};
    for (int64_t j = 1; j < e; j++)
        x.most = cpu_load(z, at + j) > x.most ? cpu_load(z, at + j) : x.most;
    for (int64_t j = 0; j < e; j++)
        x.sum += exp(cpu_load(z, at + j) - x.most);
    return x;
}

void cpu_ref_router_loss(struct hd_kernel *k)
{
    const struct hd_operand *z = &k->in[0];
    int64_t s = z->extent[1], e = z->extent[2];
    for (int64_t row = 0; row < z->extent[0] * s; row++) {
        struct softmax x = softmax_of(z, row * e, e);
        double lse = x.most + log(x.sum), balance = 0;
        for (int64_t j = 0; j < e; j++)
            balance += cpu_load(&k->in[1], row / s * e + j) * exp(cpu_load(z, row * e + j) - x.most) / x.sum;
        cpu_put(k, 0, row, k->d.attrs.scale * balance + k->d.attrs.z_scale * lse * lse);
    }
}

/* With p = softmax(z): d/dz_j of sum n p is p_j (n_j - sum n p); of lse^2 it is 2 lse p_j. */
void cpu_ref_router_loss_dz(struct hd_kernel *k)
{
    const struct hd_operand *z = &k->in[0];
    int64_t s = z->extent[1], e = z->extent[2];
    for (int64_t row = 0; row < z->extent[0] * s; row++) {
        struct softmax x = softmax_of(z, row * e, e);
        double lse = x.most + log(x.sum), mean = 0, dl = cpu_load(&k->in[2], row);
        for (int64_t j = 0; j < e; j++)
            mean += cpu_load(&k->in[1], row / s * e + j) * exp(cpu_load(z, row * e + j) - x.most) / x.sum;
        for (int64_t j = 0; j < e; j++) {
            double p = exp(cpu_load(z, row * e + j) - x.most) / x.sum, n = cpu_load(&k->in[1], row / s * e + j);
            cpu_put(k, 0, row * e + j, dl * p * (k->d.attrs.scale * (n - mean) + k->d.attrs.z_scale * 2 * lse));
        }
    }
}

/* ---- tokens into slots and back */

void cpu_ref_dispatch(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[1], &k->in[0]);
    for (int64_t slot = 0; slot < s.count; slot++) {
        int64_t token = cpu_token(&s, slot);
        for (int64_t h = 0; h < s.width; h++)
            cpu_put(k, 0, slot * s.width + h, token < 0 ? 0 : cpu_load(&k->in[0], token * s.width + h));
    }
}

/* A sum for each token over its slots: elements of `in` at the slot, times weights. */
static void gather(struct hd_kernel *k, const struct hd_operand *rows, const struct hd_operand *gates)
{
    const struct hd_operand *out = &k->out[0];
    struct cpu_slots s = cpu_slots(rows, out);
    double *sum = k->state;
    for (int64_t token = 0; token < s.b * s.s; token++) {
        memset(sum, 0, (size_t)s.width * sizeof *sum);
        for (int64_t e = 0; e < s.e; e++) {
            int64_t slot = cpu_slot_of(&s, token, e);
            for (int64_t h = 0; slot >= 0 && h < s.width; h++)
                sum[h] += cpu_load(&k->in[0], slot * s.width + h) * (gates ? cpu_load(gates, token * s.e + e) : 1);
        }
        for (int64_t h = 0; h < s.width; h++)
            cpu_put(k, 0, token * s.width + h, sum[h]);
    }
}

void cpu_ref_dispatch_dx(struct hd_kernel *k)
{
    gather(k, &k->in[1], NULL);
}

void cpu_ref_combine(struct hd_kernel *k)
{
    gather(k, &k->in[2], &k->in[1]);
}

void cpu_ref_combine_dz(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[2], &k->in[0]);
    for (int64_t slot = 0; slot < s.count; slot++) {
        int64_t token = cpu_token(&s, slot);
        double gate = token < 0 ? 0 : cpu_load(&k->in[1], token * s.e + slot / s.slots % s.e);
        for (int64_t h = 0; h < s.width; h++)
            cpu_put(k, 0, slot * s.width + h, token < 0 ? 0 : gate * cpu_load(&k->in[0], token * s.width + h));
    }
}

void cpu_ref_combine_dg(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[2], &k->in[1]);
    for (int64_t token = 0; token < s.b * s.s; token++)
        for (int64_t e = 0; e < s.e; e++) {
            int64_t slot = cpu_slot_of(&s, token, e);
            double sum = 0;
            for (int64_t h = 0; slot >= 0 && h < s.width; h++)
                sum += cpu_load(&k->in[0], slot * s.width + h) * cpu_load(&k->in[1], token * s.width + h);
            cpu_put(k, 0, token * s.e + e, sum);
        }
}

/* ---- products of what is in the slots */

static int64_t sums_from(int64_t n, int64_t all)
{
    return all - n < CPU_SUMS ? all - n : CPU_SUMS;
}

void cpu_ref_grouped(struct hd_kernel *k)
{
    struct cpu_experts x = cpu_experts(&k->in[0], &k->in[1], &k->out[0]);
    int64_t count = hd_operand_count(&k->in[2]);
    for (int64_t slot = 0; slot < count; slot++) {
        int64_t w = slot / x.slots % x.e * x.m * x.n;
        int64_t filled = cpu_load(&k->in[2], slot) > 0 ? x.m : 0;
        for (int64_t n = 0; n < x.n; n += CPU_SUMS) {
            double sum[CPU_SUMS] = {0};
            const struct cpu_walk row = {&k->in[0], slot * x.m, 1, 0};
            const struct cpu_walk weights = {&k->in[1], w + n * x.stride_n, x.stride_m, x.stride_n};
            cpu_add_products(sum, sums_from(n, x.n), filled, &row, &weights);
            for (int64_t s = 0; s < sums_from(n, x.n); s++)
                cpu_put(k, 0, slot * x.n + n + s, sum[s]);
        }
    }
}

/* Slots from this one on that hold tokens, without a gap. */
static int64_t filled_slots(const struct hd_kernel *k, int64_t slot, int64_t end)
{
    int64_t n = 0;
    while (slot + n < end && cpu_load(&k->in[2], slot + n) > 0)
        n++;
    return n;
}

void cpu_ref_grouped_dw(struct hd_kernel *k)
{
    struct cpu_experts x = cpu_experts(&k->in[1], &k->out[0], &k->in[0]);
    int64_t groups = hd_operand_count(&k->in[2]) / x.slots;
    for (int64_t i = 0; i < x.e * x.m; i++)
        for (int64_t n = 0; n < x.n; n += CPU_SUMS) {
            int64_t e = i / x.m, m = i % x.m;
            double sum[CPU_SUMS] = {0};
            for (int64_t group = e; group < groups; group += x.e)
                for (int64_t slot = group * x.slots, end = slot + x.slots, filled; slot < end; slot += filled + 1) {
                    filled = filled_slots(k, slot, end);
                    const struct cpu_walk dy = {&k->in[0], slot * x.n + n, x.n, 1};
                    const struct cpu_walk row = {&k->in[1], slot * x.m + m, x.m, 0};
                    cpu_add_products(sum, sums_from(n, x.n), filled, &dy, &row);
                }
            for (int64_t s = 0; s < sums_from(n, x.n); s++)
                cpu_put(k, 0, e * x.m * x.n + m * x.stride_m + (n + s) * x.stride_n, sum[s]);
        }
}
