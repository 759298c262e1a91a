/* Fusions that the compiler may make: rows of the table that the job's device wants. */
#include "core/compile/internal.h"

#include "core/program/fusion.h"

/* Capability bits by which a plugin of abi_minor 0 declares its fused ops. HD_DEVICE_ADDS_ONCE stays: it belongs to no
 * op. */
static const struct {
    uint32_t set;
    uint64_t cap;
} said_by_caps[] = {
    {HD__FUSE_LOSS_HEAD, HD_DEVICE_XENT_HEAD},
    {HD__FUSE_EPILOGUES, HD_DEVICE_EPILOGUES},
    {HD__FUSE_NORM_SUMS, HD_DEVICE_NORM_SUMS},
    {HD__FUSE_ADDS_ONCE, HD_DEVICE_ADDS_ONCE},
};

static int has_cap(const struct hd__component *device, uint32_t set)
{
    for (size_t i = 0; i < HD__COUNT(said_by_caps); i++)
        if (said_by_caps[i].set == set)
            return (device->ops.device.caps & said_by_caps[i].cap) != 0;
    return 0;
}

static int is_wanted(const struct hd__component *device, const struct hd__fusion *row,
                     const struct hd__precision *precision)
{
    if (row->grads && !(row->grads >> precision->grad & 1))
        return 0;
    if (row->set == HD__FUSE_ADDS_ONCE || device->abi_minor < 1)
        return has_cap(device, row->set);
    return device->ops.device.supports(NULL, row->op, precision->compute) == 1;
}

uint32_t hd__compile_fusions(const struct hd__compiled *c, const struct hd__precision *precision, uint32_t flags)
{
    uint32_t rows = 0;
    for (uint32_t k = 0; k < hd__n_fusions; k++)
        if (is_wanted(c->device_choice.component, &hd__fusions[k], precision))
            rows |= UINT32_C(1) << k;
    return (rows | hd__fusion_rows(flags >> 8 & 0xff)) & ~hd__fusion_rows(flags >> 16 & 0xff);
}
