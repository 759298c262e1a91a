/* The reduction of one flat's gradient. It may travel in another dtype than it is accumulated in: precision.reduce, or
 * compress with a short float. Then a copy in that dtype is what is reduced.
 *
 * Instructions that need the result of a reduction are put after the NEXT reduction: right behind it, their wait would
 * stop the compute stream. */
#include "internal.h"

static void put(struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor in, hd_tensor out, uint32_t axes,
                uint32_t section, uint32_t index)
{
    struct hd_pass_instr i = zero_instr(z, f, op, in, out, axes);
    z->api->insert(z->p, section, index, 1, &i);
}

/* Obligations that zero does not own (norms under sequence parallel: P on tp). */
static uint32_t minor_of(const struct zero *z, const struct zero_flat *f, uint32_t param)
{
    return z->params[f->params[param]].obligation & ~(f->axes | f->outer);
}

/* They are met first: one all_reduce a run of neighbours. */
static void settle(struct zero *z, struct zero_flat *f, hd_tensor grad, uint32_t section, uint32_t index)
{
    struct hd_pass_flat flat;
    z->api->flat_get(z->p, f->id, &flat);
    for (uint32_t i = 0; i < f->n_params;) {
        uint32_t minor = minor_of(z, f, i), j = i + 1;
        int64_t first = flat.offset[i], end;
        while (j < f->n_params && minor_of(z, f, j) == minor)
            j++;
        end = flat.offset[j - 1] + z->params[f->params[j - 1]].count;
        if (minor) {
            hd_tensor range = z->api->flat_range(z->p, f->id, grad, first, end - first);
            put(z, f, HD_OP_ALL_REDUCE, range, range, minor, section, index);
        }
        i = j;
    }
}

static int travels(const struct zero *z, const struct zero_flat *f)
{
    uint32_t axes = f->axes | (f->stage ? 0 : f->outer);
    for (uint32_t i = 0; i < f->n_params; i++)
        axes |= minor_of(z, f, i);
    return axes != 0;
}

void zero_flush(struct zero *z, struct zero_tail *t, uint32_t section, uint32_t index)
{
    if (!t->flat)
        return;
    if (t->op == HD_OP_DECODE) {
        zero_decode(z, t->flat, section, index);
        t->flat = NULL;
        return;
    }
    if (t->op)
        put(z, t->flat, t->op, t->from, t->to, 0, section, index);
    put(z, t->flat, HD_OP_RELEASE, t->dead, 0, 0, section, index);
    t->flat = NULL;
}

/* The gradient as it travels. A temporary one is not needed any more once it is copied. */
static hd_tensor as_it_travels(struct zero *z, struct zero_flat *f, hd_tensor grad, uint32_t section, uint32_t index)
{
    hd_tensor wire;
    if (z->wire == z->api->dtype(z->p, "grad") || !travels(z, f))
        return grad;
    wire = z->api->flat_whole(z->p, f->id, "w", z->wire, HD_LIFE_TEMP);
    put(z, f, HD_OP_COPY, grad, wire, 0, section, index);
    if (f->stage >= 2)
        put(z, f, HD_OP_RELEASE, grad, 0, 0, section, index);
    return wire;
}

/* Another strategy of the job sums the bucket: into the shard, or into a part that is then added to it. */
static int hand_over(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                     uint32_t index)
{
    struct hd_pass_bucket bucket = {.struct_size = sizeof bucket,
                                    .flat = f->id,
                                    .axes = f->axes | (f->stage ? 0 : f->outer),
                                    .section = section,
                                    .index = index,
                                    .last = f->stage >= 2 ? index : z->api->n_instr(z->p, section) - 1,
                                    .grad = grad,
                                    .out = grad,
                                    .rounds = f->stage >= 2 ? z->api->micro_batches(z->p) : 1};
    if (!bucket.axes || !z->api->reduce(z->p, NULL))
        return 0;
    if (f->stage)
        bucket.out = zero_sums_once(z, f)
                         ? f->shard
                         : z->api->flat_shard(z->p, f->id, "gs", z->api->dtype(z->p, "grad"), HD_LIFE_TEMP, 0);
    settle(z, f, grad, section, index);
    z->api->reduce(z->p, &bucket);
    zero_flush(z, tail, section, index);
    if (f->stage >= 2)
        *tail = (struct zero_tail){f, bucket.out == f->shard ? 0 : HD_OP_ACCUM, grad, bucket.out, f->shard};
    return 1;
}

void zero_reduce(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                 uint32_t index)
{
    if (!z->warm && hand_over(z, f, grad, tail, section, index))
        return;
    hd_tensor wire = as_it_travels(z, f, grad, section, index), part;
    uint32_t dtype = wire == grad ? z->api->dtype(z->p, "grad") : z->wire;
    settle(z, f, wire, section, index);
    if (zero_codes(z, f) && !z->warm) {
        zero_compress(z, f, grad, tail, section, index);
        return;
    }
    if (f->stage == 0) {
        if (f->axes | f->outer)
            put(z, f, HD_OP_ALL_REDUCE, wire, wire, f->axes | f->outer, section, index);
        if (wire == grad)
            return;
        zero_flush(z, tail, section, index);
        *tail = (struct zero_tail){f, HD_OP_COPY, wire, wire, grad};
        return;
    }
    part =
        zero_sums_once(z, f) && wire == grad ? f->shard : z->api->flat_shard(z->p, f->id, "gs", dtype, HD_LIFE_TEMP, 0);
    put(z, f, f->axes ? HD_OP_REDUCE_SCATTER : HD_OP_COPY, wire, part, f->axes, section, index);
    if (zero_codes(z, f) &&
        zero_code_axes(z, f) & ~f->axes) /* in the steps after, products are reduced over all axes here */
        put(z, f, HD_OP_ALL_REDUCE, part, part, f->outer, section, index);
    if (part == f->shard && f->stage == 1)
        return;
    zero_flush(z, tail, section, index);
    *tail = (struct zero_tail){f,
                               part == f->shard       ? 0
                               : zero_sums_once(z, f) ? HD_OP_COPY
                                                      : HD_OP_ACCUM,
                               wire, part, f->shard};
}

/* Two parts of one gradient, each summed over all ranks before they are added: whatever the mesh, a sum of two sums. */
void zero_reduce_part(struct zero *z, struct zero_flat *f, hd_tensor grad, int more, struct zero_tail *tail,
                      uint32_t section, uint32_t index)
{
    hd_tensor part = !f->stage ? grad
                     : more    ? z->api->flat_shard(z->p, f->id, "gs", z->api->dtype(z->p, "grad"), HD_LIFE_TEMP, 0)
                               : f->shard;
    uint32_t rest = f->stage ? f->outer : f->axes | f->outer;
    settle(z, f, grad, section, index);
    if (f->stage)
        put(z, f, f->axes ? HD_OP_REDUCE_SCATTER : HD_OP_COPY, grad, part, f->axes, section, index);
    if (rest)
        put(z, f, HD_OP_ALL_REDUCE, part, part, rest, section, index);
    if (more) {
        f->first = part;
        return;
    }
    zero_flush(z, tail, section, index);
    *tail = (struct zero_tail){f, HD_OP_ACCUM, f->first, f->first, f->shard};
}

/* ---- across the axes that shards do not lie along: on the shard, once a step */

static void add(struct zero *z, struct zero_flat *f, uint32_t op, hd_tensor in, hd_tensor out, uint32_t axes)
{
    struct hd_pass_instr i = zero_instr(z, f, op, in, out, axes);
    z->api->append(z->p, "update", &i);
}

void zero_reduce_outer(struct zero *z)
{
    int cast = z->wire != z->api->dtype(z->p, "grad");
    for (uint32_t n = 0; n < z->n_flats; n++) {
        struct zero_flat *f = &z->flats[n];
        f->travelling = f->shard;
        if (!f->stage || !f->outer || f->first || zero_codes(z, f))
            continue;
        if (cast) {
            f->travelling = z->api->flat_shard(z->p, f->id, "ws", z->wire, HD_LIFE_TEMP, 0);
            add(z, f, HD_OP_COPY, f->shard, f->travelling, 0);
        }
        add(z, f, HD_OP_ALL_REDUCE, f->travelling, f->travelling, f->outer);
    }
    for (uint32_t n = 0; n < z->n_flats; n++)
        if (z->flats[n].travelling != z->flats[n].shard)
            add(z, &z->flats[n], HD_OP_COPY, z->flats[n].travelling, z->flats[n].shard, 0);
}
