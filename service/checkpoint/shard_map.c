/* Runs of global parameters inside flat tensors. */
#include "service/checkpoint/shard_map.h"

struct param_shape {
    int32_t n;
    int64_t local[HD_MAX_DIMS], global[HD_MAX_DIMS], start[HD_MAX_DIMS];
    int32_t run_dim; /* dims from here on are whole: a run covers them, and a part of dim run_dim - 1 */
};

static struct param_shape param_shape_of(const struct hd_program *p, const struct hd__tensor *t, const int32_t *coord)
{
    struct param_shape s = {.n = t->ndim};
    for (int32_t d = 0; d < t->ndim; d++) {
        s.local[d] = hd__local_extent(p, t, d);
        s.global[d] = p->dims.at[t->dim[d]].extent;
        s.start[d] = hd__global_start(p, t, d, coord);
    }
    s.run_dim = s.n;
    while (s.run_dim > 0 && s.local[s.run_dim - 1] == s.global[s.run_dim - 1])
        s.run_dim--;
    return s;
}

/* Global element of local element `i`, and how many local elements from it on are contiguous in the global tensor. */
static int64_t to_global(const struct param_shape *s, int64_t i, int64_t *contiguous)
{
    int64_t inner = 1, global = 0, stride = 1, rest = i;
    for (int32_t d = s->n - 1; d >= s->run_dim - 1 && d >= 0; d--)
        inner *= s->local[d];
    *contiguous = inner - i % inner;
    for (int32_t d = s->n - 1; d >= 0; d--) {
        global += (s->start[d] + rest % s->local[d]) * stride;
        rest /= s->local[d];
        stride *= s->global[d];
    }
    return global;
}

int32_t hd__ckpt_visit_shard_runs(const struct hd_program *p, const struct hd__flat *flat, hd_tensor tensor,
                                  const int32_t coord[HD_AXIS_COUNT],
                                  int32_t (*visit)(void *user, const struct hd__ckpt_shard_run *run), void *user)
{
    const struct hd__tensor *t = hd__tensor_const(p, tensor);
    int64_t first = hd__global_start(p, t, 0, coord), end = first + hd__local_extent(p, t, 0);
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__tensor *param = hd__tensor_const(p, p->params.at[flat->params[k]].tensor);
        struct param_shape s = param_shape_of(p, param, coord);
        int64_t low = HD__MAX(first, flat->offset[k]), high = HD__MIN(end, flat->offset[k] + hd__numel(p, param));
        for (int64_t at = low; at < high;) {
            struct hd__ckpt_shard_run run = {.param = flat->params[k], .offset = at - first};
            int32_t rc;
            run.first = to_global(&s, at - flat->offset[k], &run.count);
            run.count = HD__MIN(run.count, high - at);
            if ((rc = visit(user, &run)))
                return rc;
            at += run.count;
        }
    }
    return HD_OK;
}

int hd__ckpt_owns_shard(const struct hd_program *p, const struct hd__flat *flat, uint32_t param, hd_tensor tensor,
                        const int32_t coord[HD_AXIS_COUNT])
{
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[param].tensor);
    uint32_t held = hd__shard_mask(hd__tensor_const(p, tensor)->placement.shard[0]) | hd__local_axes_of(p, tensor),
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
