#include "einsum_labels.h"

const struct label label_none = {.extent = 1};

static struct label *find(struct labels *l, uint32_t id)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].id == id)
            return &l->at[i];
    l->at[l->count] = (struct label){.id = id};
    return &l->at[l->count++];
}

int labels_enter(struct labels *l, const struct hd_operand *o, int which)
{
    int64_t stride = 1;
    for (int i = (int)o->ndim - 1; i >= 0; i--) {
        struct label *x;
        if (o->extent[i] == 1)
            continue;
        x = find(l, o->dim[i]);
        if (x->where & (UINT32_C(1) << which) || (x->where && x->extent != o->extent[i]))
            return 0;
        x->where |= UINT32_C(1) << which;
        x->extent = o->extent[i];
        x->stride[which] = stride;
        stride *= o->extent[i];
    }
    return 1;
}

/* outer is followed by inner in every operand that has them. */
static int fusible(const struct label *outer, const struct label *inner)
{
    if (outer->where != inner->where)
        return 0;
    for (int i = 0; i < LABELS_OPERANDS; i++)
        if (outer->stride[i] != inner->stride[i] * inner->extent)
            return 0;
    return 1;
}

static void take_out(struct labels *l, int64_t i)
{
    l->count--;
    memmove(&l->at[i], &l->at[i + 1], (size_t)(l->count - i) * sizeof l->at[0]);
}

static int fuse_once(struct labels *l)
{
    for (int64_t i = 0; i < l->count; i++)
        for (int64_t j = 0; j < l->count; j++)
            if (i != j && fusible(&l->at[i], &l->at[j])) {
                l->at[j].extent *= l->at[i].extent;
                take_out(l, i);
                return 1;
            }
    return 0;
}

void labels_fuse(struct labels *l)
{
    while (fuse_once(l))
        ;
}

int labels_valid(const struct labels *l)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].where != LABEL_BATCH && l->at[i].where != LABEL_M && l->at[i].where != LABEL_N &&
            l->at[i].where != LABEL_K)
            return 0;
    return 1;
}

int64_t labels_count(const struct labels *l, uint32_t where)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l->count; i++)
        n += l->at[i].where == where;
    return n;
}

const struct label *labels_member(const struct labels *l, uint32_t where, int64_t index)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].where == where && index-- == 0)
            return &l->at[i];
    return &label_none;
}

void label_strides(const struct label *row, const struct label *col, int which, int64_t *rs, int64_t *cs)
{
    *rs = row->stride[which];
    *cs = col->stride[which];
    if (row == &label_none && col == &label_none)
        *rs = *cs = 1;
    else if (row == &label_none)
        *rs = *cs == 1 ? col->extent : 1;
    else if (col == &label_none)
        *cs = *rs == 1 ? row->extent : 1;
}
