/* Dims of parameters that the mesh does not divide: padded where every op keeps the padding out, else refused. */
#include <check.h>

#include "core/passes/passes.h"
#include "core/program/ops.h"
#include "tests/suite.h"

static const struct {
    const char *name, *head; /* dims of the head's weights */
    int64_t vocab;
    int32_t tp;
    int gelu;       /* an op of the logits that knows no padding */
    int64_t padded; /* 0: refused */
} rows[] = {
    {"divides", "vh", 8, 2, 0, 8},
    {"one more", "vh", 5, 2, 0, 6},
    {"two more", "vh", 10, 4, 0, 12},
    {"the last rank would have none", "vh", 9, 4, 0, 0},
    {"fewer than ranks", "vh", 3, 4, 0, 0},
    {"not the first dim", "hv", 5, 2, 0, 0},
    {"an op that knows no padding", "vh", 5, 2, 1, 0},
    {"any op, where it divides", "hv", 8, 2, 1, 8},
};

static hd_tensor emit(struct hd_program *p, uint32_t op, const char *dims, hd_tensor a, hd_tensor b)
{
    return hd__builder_api.emit(p, op, NULL, (hd_tensor[]){a, b}, b ? 2 : 1, dims, NULL);
}

START_TEST(dims_that_the_mesh_does_not_divide)
{
    const struct hd_builder_api *api = &hd__builder_api;
    int32_t size[HD_AXIS_COUNT];
    struct hd_error err = HD_ERROR_INIT;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = a == HD_AXIS_TP ? rows[_i].tp : 1;
    const struct hd__mesh mesh = hd__mesh_make(size);
    struct hd_program *p = hd__program_new(&mesh, 0);
    p->precision = (struct hd__precision){.compute = HD_F32, .fixed = HD_F32};
    api->dim(p, 'b', "batch", 2);
    api->dim(p, 's', "sequence", 2);
    api->dim(p, 'h', "hidden", 4);
    api->dim(p, 'v', "vocab", rows[_i].vocab);
    struct hd_param_desc embedding = {.struct_size = sizeof embedding, .name = "e", .dims = "vh", .init = HD_INIT_ONES},
                         head = {.struct_size = sizeof head, .name = "w", .init = HD_INIT_ONES};
    head.dims = rows[_i].head;
    hd_tensor x = emit(p, HD_OP_EMBED, "bsh", api->input(p, "ids"), api->param(p, &embedding));
    hd_tensor z = emit(p, HD_OP_EINSUM, "bsv", x, api->param(p, &head));
    emit(p, HD_OP_ROWMAX, "bs", rows[_i].gelu ? emit(p, HD_OP_GELU, "bsv", z, 0) : z, 0);
    p->param_shard['v'] = hd__shard_push(0, HD_AXIS_TP);
    int32_t rc = hd__place(p, &err);
    if (rows[_i].padded) {
        const struct hd__dim *v = &p->dims.at[p->letter['v']];
        ck_assert_msg(!rc, "%s: %s", rows[_i].name, err.message);
        ck_assert_int_eq(v->extent, rows[_i].padded);
        ck_assert_int_eq(v->used, rows[_i].vocab);
        ck_assert_int_eq(hd__is_padded(p), v->extent != v->used);
        ck_assert_int_eq(hd__global_numel(p, hd__tensor_const(p, p->params.at[0].tensor)), 4 * rows[_i].vocab);
    } else {
        ck_assert_msg(rc && strstr(err.message, "vocab = ") && strstr(err.message, "cannot be padded"), "%s: %s",
                      rows[_i].name, err.message);
        ck_assert(!hd__is_padded(p));
    }
    hd__program_free(p);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("padding");
    tcase_add_loop_test(c, dims_that_the_mesh_does_not_divide, 0, (int)HD__COUNT(rows));
    return suite_run_case("padding", c);
}
