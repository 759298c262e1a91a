/* Rules of models: operands in another order of dims, attributes that are missing or exclude each other, and places in
 * files that cannot be are refused by name, as the sticky error of the program; what stands next to them is not. */
#include <check.h>

#include "core/program/ops.h"
#include "tests/suite.h"

static const double table[] = {1, 0.1, 0.01};

enum { MOST = 3 };

static const struct {
    const char *in[MOST], *out;
    struct hd_attrs attrs;
    uint32_t op;
    const char *says; /* NULL: it is right */
} rows[] = {
    {{"bskgd", "bskd", "bskd"}, "bskgd,bskg", {.scale = 1}, HD_OP_ATTENTION, NULL},
    {{"bskdg", "bskd", "bskd"}, "bskdg,bskg", {.scale = 1}, HD_OP_ATTENTION, "input 0 of attention has dims bskdg"},
    {{"bskgd", "bsdk", "bskd"}, "bskgd,bskg", {.scale = 1}, HD_OP_ATTENTION, "input 1 of attention has dims bsdk"},
    {{"bskgd", "bskd", "bskd"}, "bsgkd,bskg", {.scale = 1}, HD_OP_ATTENTION, "output 0 of attention has dims bsgkd"},
    {{"bskgd", "bskd", "bskd"}, "bskgd,bsgk", {.scale = 1}, HD_OP_ATTENTION, "output 1 of attention has dims bsgk"},
    {{"bskgd", "bskd", "bskd"}, "bskgd,bskg", {0}, HD_OP_ATTENTION, "no attrs.scale"},
    {{"bskgd", "bskd", "bskd"}, "bskgd,bskg", {.scale = 1, .top_k = 1}, HD_OP_ATTENTION, NULL},
    {{"bskgd", "bskd", "bskd"}, "bskgd,bskg", {.scale = 1, .top_k = 1, .window = 1}, HD_OP_ATTENTION, "a prefix"},
    {{"bskgd", "bskd", "bskd"},
     "bskgd,bskg",
     {.scale = 1, .top_k = 1, .flags = HD_ATTR_NOT_CAUSAL},
     HD_OP_ATTENTION,
     "a prefix"},
    {{"bskgd", "bskd", "bskd"}, "bskgd,bskg", {.scale = 1, .clip = -1}, HD_OP_ATTENTION, "attrs.clip (the soft cap)"},
    {{"bskd"}, "bskd", {.sign = 1, .table = table, .n_table = 2}, HD_OP_ROPE, NULL},
    {{"bskd"}, "bskd", {.sign = 1, .table = table, .n_table = 1}, HD_OP_ROPE, NULL},
    {{"bskd"}, "bskd", {.sign = 1}, HD_OP_ROPE, "rope has no attrs.table"},
    {{"bskd"}, "bskd", {.sign = 1, .n_table = 2}, HD_OP_ROPE, "rope has no attrs.table"},
    {{"bskd"}, "bskd", {.sign = 1, .table = table, .n_table = 3}, HD_OP_ROPE, "more inverse frequencies"},
    {{"bksd"}, "bksd", {.sign = 1, .table = table, .n_table = 2}, HD_OP_ROPE, "input 0 of rope has dims bksd"},
    {{"bsdk"}, "bsdk", {.sign = 1, .table = table, .n_table = 2}, HD_OP_ROPE, "input 0 of rope has dims bsdk"},
    {{"bsh"}, "bsh", {0}, HD_OP_GELU, NULL},
    {{"bsh"}, "bhs", {0}, HD_OP_GELU, "output 0 of gelu has dims bhs; it must have = (those of input 0)"},
    {{"bsh", "bsh"}, "bsh", {0}, HD_OP_ADD, NULL},
    {{"bsh", "bhs"}, "bsh", {0}, HD_OP_ADD, "input 1 of add has dims bhs"},
    {{"bsh", "h"}, "bsh", {.eps = 1e-5}, HD_OP_RMSNORM, NULL},
    {{"bskd", "d"}, "bskd", {.eps = 1e-5}, HD_OP_RMSNORM, NULL},
    {{"bskd", "k"}, "bskd", {.eps = 1e-5}, HD_OP_RMSNORM, "input 1 of rmsnorm has dims k; it must have $"},
    {{"bsh"}, "bsh", {.scale = 30}, HD_OP_SOFTCAP, NULL},
    {{"bsh"}, "bsh", {0}, HD_OP_SOFTCAP, "softcap has no attrs.scale"},
    {{"bsh"}, "bsh", {0}, HD_OP_SCALE, "scale has no attrs.scale"},
    {{"bsh"}, "bs", {0}, HD_OP_ROWMAX, "input 0 of rowmax has dims bsh; it must have bsv"},
    {{"bs"}, "", {.scale = 1}, HD_OP_TOTAL, NULL},
    {{"bs"}, "bs", {.scale = 1}, HD_OP_TOTAL, "output 0 of total has dims bs"},
};

static struct hd_program *begin(void)
{
    static const char letters[] = "bskgdhv";
    int32_t size[HD_AXIS_COUNT];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = 1;
    const struct hd__mesh mesh = hd__mesh_make(size);
    struct hd_program *p = hd__program_new(&mesh, 0);
    p->precision = (struct hd__precision){.compute = HD_F32, .fixed = HD_F32};
    for (const char *c = letters; *c; c++)
        hd__builder_api.dim(p, *c, "", 4);
    return p;
}

static hd_tensor param(struct hd_program *p, const char *dims)
{
    static int n;
    char name[16];
    snprintf(name, sizeof name, "p%d", n++);
    struct hd_param_desc d = {.struct_size = sizeof d, .name = name, .dims = dims, .init = HD_INIT_ONES};
    return hd__builder_api.param(p, &d);
}

static void expect(struct hd_program *p, int row, const char *says)
{
    if (says)
        ck_assert_msg(p->failed && strstr(p->error.message, says), "row %d: %s", row, p->error.message);
    else
        ck_assert_msg(!p->failed, "row %d: %s", row, p->error.message);
    hd__program_free(p);
}

START_TEST(instructions)
{
    struct hd_program *p = begin();
    struct hd_attrs attrs = rows[_i].attrs;
    hd_tensor in[MOST] = {0};
    uint32_t n = 0;
    attrs.struct_size = sizeof attrs;
    for (; n < MOST && rows[_i].in[n]; n++)
        in[n] = param(p, rows[_i].in[n]);
    hd__builder_api.emit(p, rows[_i].op, &attrs, in, n, rows[_i].out, NULL);
    expect(p, _i, rows[_i].says);
}
END_TEST

static const struct {
    const char *dims, *axes;
    uint32_t part, parts, axis, dim, span;
    const char *says;
} files[] = {
    {"kgdh", "0001", 0, 1, 0, 0, 0, NULL},
    {"kgdh", "0001", 2, 3, 0, 3, 0, NULL},
    {"kgdh", "0001", 0, 6, 0, 2, 4, NULL},
    {"hkgd", "0111", 1, 3, 1, 0, 0, NULL},
    {"h", "9", 0, 1, 0, 0, 0, "file_axes \"9\" must be digits that rise from 0 by 0 or 1"},
    {"vh", "9x", 0, 1, 0, 0, 0, "file_axes \"9x\" must be digits"},
    {"vh", "10", 0, 1, 0, 0, 0, "must be digits"},
    {"vh", "02", 0, 1, 0, 0, 0, "must be digits"},
    {"vh", "0", 0, 1, 0, 0, 0, "one digit for each dim"},
    {"vh", "*0", 0, 1, 0, 0, 0, "begins with *, but file_name has none"},
    {"vh", "01", 3, 3, 0, 0, 0, "parts 3 to 3 of 3"},
    {"vh", "01", 2, 3, 0, 0, 2, "parts 2 to 3 of 3"},
    {"vh", "01", 0, 3, 2, 0, 0, "part_axis 2: it has 2 dims in files"},
    {"vh", "01", 0, 3, 0, 3, 0, "part_dim 3: it has 2 dims in files"},
    {"kdh", "001", 0, 6, 0, 3, 3, "4 elements from part_dim on are no 3 equal parts"},
};

START_TEST(places_in_files)
{
    struct hd_program *p = begin();
    const struct hd_param_desc d = {.struct_size = sizeof d,
                                    .name = "w",
                                    .dims = files[_i].dims,
                                    .init = HD_INIT_ONES,
                                    .file_axes = files[_i].axes,
                                    .part = files[_i].part,
                                    .parts = files[_i].parts,
                                    .part_axis = files[_i].axis,
                                    .part_dim = files[_i].dim,
                                    .part_span = files[_i].span};
    hd__builder_api.param(p, &d);
    expect(p, _i, files[_i].says);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("model rules");
    tcase_add_loop_test(c, instructions, 0, (int)HD__COUNT(rows));
    tcase_add_loop_test(c, places_in_files, 0, (int)HD__COUNT(files));
    return suite_run_case("model-rules", c);
}
