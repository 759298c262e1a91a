/* Runs of global parameters inside flat tensors. */
#include "service/checkpoint/shard_map.h"

/* Global element of local element `at` of a parameter, and how many local elements from it on are contiguous in the
 * global tensor: those of the unsharded trailing dims, and of the innermost sharded one. */
static int64_t to_global(const struct hd_program *p, const struct hd__tensor *t, const int32_t *coord, int64_t at,
                         int64_t *contiguous)
{
    int64_t global = 0, stride = 1, rest = at, inner = 1;
    int whole = 1;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        int64_t local = hd__local_extent(p, t, d), extent = p->dims.at[t->dim[d]].extent;
        if (whole)
            inner *= local;
        whole &= local == extent;
        global += (hd__global_start(p, t, d, coord) + rest % local) * stride;
        rest /= local;
        stride *= extent;
    }
    *contiguous = inner - at % inner;
    return global;
}

int hd__ckpt_shard_next(struct hd__ckpt_shard_walk *w, struct hd__ckpt_shard_run *run)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, w->tensor);
    int64_t first = hd__global_start(w->p, t, 0, w->coord), end = first + hd__local_extent(w->p, t, 0);
    for (; w->param < w->flat->n_params; w->param++) {
        uint32_t index = w->flat->params[w->param];
        const struct hd__tensor *param = hd__tensor_const(w->p, w->p->params.at[index].tensor);
        int64_t begin = w->flat->offset[w->param], high = HD__MIN(end, begin + hd__numel(w->p, param)),
                at = HD__MAX(HD__MAX(first, begin), w->at);
        if (at >= high)
            continue;
        *run = (struct hd__ckpt_shard_run){.param = index, .offset = at - first};
        run->first = to_global(w->p, param, w->coord, at - begin, &run->count);
        run->count = HD__MIN(run->count, high - at);
        w->at = at + run->count;
        run->count = HD__MIN(run->count, hd__global_numel(w->p, param) - run->first);
        if (run->count > 0)
            return 1;
        w->at = high; /* all that follows is padding, at the end of the first dim */
    }
    return 0;
}

int hd__ckpt_owns_shard(const struct hd_program *p, const struct hd__flat *flat, uint32_t param, hd_tensor tensor,
                        const int32_t coord[HD_AXIS_COUNT])
{
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[param].tensor);
    uint32_t held =
                 hd__shard_mask(hd__tensor_const(p, tensor)->placement.shard[0]) | hd__independent_axes_of(p, tensor),
             replicated;
    for (int32_t d = 0; d < t->ndim; d++)
        held |= hd__shard_mask(t->placement.shard[d]);
    replicated = hd__mesh_live(&p->mesh) & ~held;
    if (flat->members && p->stage != __builtin_ctz(flat->members))
        return 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if ((replicated & HD_AXIS_BIT(a)) && coord[a])
            return 0;
    return 1;
}
