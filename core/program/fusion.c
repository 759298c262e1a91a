/* The rows. See fusion.h for the columns. */
#include "core/program/fusion.h"

#define SUMS (1u << HD_F32 | 1u << HD_F64)

const struct hd__fusion hd__fusions[] = {
    {HD_OP_XENT_HEAD, HD__FUSE_LOSS_HEAD, 0},        {HD_OP_EINSUM_BIAS, HD__FUSE_EPILOGUES, 0},
    {HD_OP_EINSUM_GELU, HD__FUSE_EPILOGUES, 0},      {HD_OP_EINSUM_GELU_GRAD, HD__FUSE_EPILOGUES, 0},
    {HD_OP_EINSUM_BIAS_DW, HD__FUSE_EPILOGUES, 0},   {HD_OP_ADD_RMSNORM, HD__FUSE_NORM_SUMS, 0},
    {HD_OP_ADD_LAYERNORM, HD__FUSE_NORM_SUMS, 0},    {HD_OP_RMSNORM_DX_ADD, HD__FUSE_NORM_SUMS, 0},
    {HD_OP_LAYERNORM_DX_ADD, HD__FUSE_NORM_SUMS, 0}, {HD_OP_EINSUM, HD__FUSE_ADDS_ONCE, SUMS},
};

const uint32_t hd__n_fusions = HD__COUNT(hd__fusions);
_Static_assert(HD__COUNT(hd__fusions) <= 32, "hd_program.fusions has a bit a row");

int hd__may_fuse(const struct hd_program *p, uint16_t op)
{
    for (uint32_t k = 0; k < hd__n_fusions; k++)
        if (hd__fusions[k].op == op && p->fusions >> k & 1)
            return 1;
    return 0;
}

uint32_t hd__fusion_rows(uint32_t sets)
{
    uint32_t rows = 0;
    for (uint32_t k = 0; k < hd__n_fusions; k++)
        if (hd__fusions[k].set & sets)
            rows |= UINT32_C(1) << k;
    return rows;
}
