/* Safetensors: files of the reference implementation, our own, hostile ones. */
#include "core/base/dtype.h"
#include "service/checkpoint/safetensors.h"
#include "tests/support/scratch.h"

#include <math.h>

static struct hd_error err = HD_ERROR_INIT;

/* ---- the library's files */

/* values.txt: a line a tensor, name and the bits of each element as float32 */
static void check_values(const struct hd__ckpt_st *st, char *line)
{
    char *rest, *name = strtok_r(line, " ", &rest), *word;
    const struct hd__ckpt_st_tensor *t = hd__ckpt_st_find(st, name);
    float *got;
    uint64_t i = 0;
    ck_assert_msg(t != NULL, "%s", name);
    got = hd__alloc((t->count + 1) * sizeof *got);
    ck_ok(hd__ckpt_st_read_f32(st, t, 0, t->count, got, &err));
    for (; (word = strtok_r(NULL, " ", &rest)); i++) {
        uint32_t wanted = (uint32_t)strtoul(word, NULL, 16), bits;
        memcpy(&bits, &got[i], 4);
        ck_assert_msg(bits == wanted, "%s[%lu]: %08x, wanted %08x", name, (unsigned long)i, bits, wanted);
    }
    ck_assert_uint_eq(i, t->count);
    free(got);
}

START_TEST(golden)
{
    struct hd__ckpt_st *st;
    size_t bytes;
    int64_t whole[5];
    ck_ok(hd__ckpt_st_open(GOLDEN "/model.safetensors", &st, &err));
    ck_assert_uint_eq(hd__ckpt_st_count(st), 7);
    char *values = scratch_read(GOLDEN "/values.txt", &bytes), *rest, *line = strtok_r(values, "\n", &rest);
    int lines = 0;
    for (; line; line = strtok_r(NULL, "\n", &rest), lines++)
        check_values(st, line);
    ck_assert_int_eq(lines, 6);
    const struct hd__ckpt_st_tensor *t = hd__ckpt_st_find(st, "e.i64");
    ck_assert_uint_eq(t->dtype, 0);
    ck_ok(hd__ckpt_st_read(st, t, 0, sizeof whole, whole, &err));
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(whole[i], i);
    float x;
    ck_refused(hd__ckpt_st_read_f32(st, t, 0, 1, &x, &err), HD_E_UNSUPPORTED, "e.i64: I64");
    t = hd__ckpt_st_find(st, "a.bf16");
    ck_assert_uint_eq(t->ndim, 3);
    ck_assert_int_eq(t->shape[2], 8);
    ck_assert_uint_eq(hd__ckpt_st_find(st, "g.scalar")->ndim, 0);
    ck_assert_uint_eq(hd__ckpt_st_find(st, "f.empty")->count, 0);
    ck_assert_ptr_null(hd__ckpt_st_find(st, "nothing"));
    ck_assert_int_eq(hd__ckpt_st_read(st, t, 60, 5, whole, &err), HD_E_INTERNAL);
    hd__ckpt_st_close(st);
    free(values);
}
END_TEST

/* Rounding to half and bfloat16 gives PyTorch's bits. */
START_TEST(rounding)
{
    struct hd__ckpt_st *st;
    float x[32];
    uint16_t mine[32], theirs[32];
    ck_ok(hd__ckpt_st_open(GOLDEN "/model.safetensors", &st, &err));
    ck_ok(hd__ckpt_st_read_f32(st, hd__ckpt_st_find(st, "b.f32"), 0, 32, x, &err));
    ck_assert_int_eq(hd__from_f32(HD_F16, x, mine, 32), 0);
    ck_ok(hd__ckpt_st_read(st, hd__ckpt_st_find(st, "c.f16"), 0, 64, theirs, &err));
    ck_assert_mem_eq(mine, theirs, sizeof mine);
    ck_assert_int_eq(hd__from_f32(HD_BF16, x, mine, 32), 0);
    ck_ok(hd__ckpt_st_read(st, hd__ckpt_st_find(st, "a.bf16"), 0, 64, theirs, &err));
    ck_assert_mem_eq(mine, theirs, sizeof mine);
    ck_assert_int_ne(hd__from_f32(HD_U8, x, mine, 1), 0);
    hd__ckpt_st_close(st);
}
END_TEST

/* All 65,536 halves and bfloat16s survive the way to float and back; compared with the definition of a half.
 */
START_TEST(all_halves)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, back;
        float x;
        hd__to_f32(HD_F16, &h, &x, 1);
        int exponent = h >> 10 & 31, fraction = h & 1023;
        double wanted = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        if (exponent == 31)
            wanted = fraction ? NAN : INFINITY;
        wanted = h & 0x8000 ? -wanted : wanted;
        ck_assert_msg(isnan(wanted) ? isnan(x) : (double)x == wanted, "half %04x", i);
        hd__from_f32(HD_F16, &x, &back, 1);
        ck_assert_msg(isnan(x) ? (back & 0x7fff) > 0x7c00 : back == h, "half %04x came back as %04x", i, back);
        hd__to_f32(HD_BF16, &h, &x, 1);
        hd__from_f32(HD_BF16, &x, &back, 1);
        ck_assert_msg(isnan(x) ? (back & 0x7fff) > 0x7f80 : back == h, "bf16 %04x came back as %04x", i, back);
    }
    for (uint32_t i = 0; i < 4; i++) { /* ties go to even */
        float x = 1 + (2 * (float)i + 1) * 0x1p-11f;
        uint16_t h;
        hd__from_f32(HD_F16, &x, &h, 1);
        ck_assert_uint_eq(h, 0x3c00 + (i + 1) / 2 * 2);
    }
}
END_TEST

START_TEST(sharded)
{
    struct hd__ckpt_st *st;
    float x[6];
    static const char *const paths[] = {GOLDEN "/sharded", GOLDEN "/sharded/model.safetensors.index.json"};
    for (size_t i = 0; i < HD__COUNT(paths); i++) {
        ck_ok(hd__ckpt_st_open(paths[i], &st, &err));
        ck_assert_uint_eq(hd__ckpt_st_count(st), 3);
        ck_ok(hd__ckpt_st_read_f32(st, hd__ckpt_st_find(st, "x"), 1, 5, x, &err));
        ck_assert_float_eq(x[4], 5);
        ck_ok(hd__ckpt_st_read_f32(st, hd__ckpt_st_find(st, "y"), 2, 2, x, &err));
        ck_assert_float_eq(x[1], 13);
        hd__ckpt_st_close(st);
    }
}
END_TEST

START_TEST(bad_index)
{
    struct scratch s;
    struct hd__ckpt_st *st;
    size_t bytes;
    scratch_init(&s);
    char *one = scratch_read(GOLDEN "/sharded/model-00001-of-00002.safetensors", &bytes);
    scratch_write(&s, "one.safetensors", one, bytes);
    static const struct {
        const char *json, *words;
        int32_t rc;
    } bad[] = {
        {"{", "m.json:1:", HD_E_CORRUPT},
        {"{\"weight_map\": 3}", "weight_map", HD_E_CORRUPT},
        {"{\"weight_map\": {\"x\": \"../one.safetensors\"}}", "tensor x", HD_E_CORRUPT},
        {"{\"weight_map\": {\"x\": 7}}", "tensor x", HD_E_CORRUPT},
        {"{\"weight_map\": {\"x\": \"two.safetensors\"}}", "two.safetensors", HD_E_NOTFOUND},
        {"{\"weight_map\": {\"w\": \"one.safetensors\"}}", "tensor w: is not in one.safetensors", HD_E_CORRUPT},
    };
    for (size_t i = 0; i < HD__COUNT(bad); i++) {
        const char *path = scratch_write(&s, "m.json", bad[i].json, strlen(bad[i].json));
        ck_refused(hd__ckpt_st_open(path, &st, &err), bad[i].rc, bad[i].words);
    }
    ck_refused(hd__ckpt_st_open(s.dir, &st, &err), HD_E_NOTFOUND, "neither");
    free(one);
    one = scratch_read(GOLDEN "/sharded/model-00002-of-00002.safetensors", &bytes); /* y and z */
    scratch_write(&s, "y.safetensors", one, bytes);
    scratch_write(&s, "z.safetensors", one, bytes);
    static const char twice[] = "{\"weight_map\": {\"y\": \"y.safetensors\", \"z\": \"z.safetensors\"}}";
    ck_refused(hd__ckpt_st_open(scratch_write(&s, "m.json", twice, sizeof twice - 1), &st, &err), HD_E_CORRUPT,
               "m.json: tensor z: is in y.safetensors, too: files of two models? Fetch all of one");
    free(one);
    scratch_finish(&s);
}
END_TEST

/* transformers takes model.safetensors; what an index beside it says of other files is of another model. */
START_TEST(index_beside_a_file)
{
    struct scratch s;
    struct hd__ckpt_st *st;
    size_t bytes;
    static const char alone[] = "{\"weight_map\": {\"x\": \"model.safetensors\"}}",
                      both[] = "{\"weight_map\": {\"x\": \"model.safetensors\", \"y\": \"two.safetensors\"}}";
    scratch_init(&s);
    char *one = scratch_read(GOLDEN "/sharded/model-00001-of-00002.safetensors", &bytes);
    scratch_write(&s, "model.safetensors", one, bytes);
    scratch_write(&s, "two.safetensors", one, bytes);
    scratch_write(&s, "model.safetensors.index.json", alone, sizeof alone - 1);
    ck_ok(hd__ckpt_st_open(s.dir, &st, &err));
    ck_assert_str_eq(hd__ckpt_st_file_name(st, 0) + strlen(s.dir), "/model.safetensors");
    hd__ckpt_st_close(st);
    scratch_write(&s, "model.safetensors.index.json", both, sizeof both - 1);
    ck_refused(hd__ckpt_st_open(s.dir, &st, &err), HD_E_INVALID,
               "holds model.safetensors, and model.safetensors.index.json, by which tensor y is in two.safetensors");
    scratch_write(&s, "model.safetensors.index.json", "[", 1);
    ck_refused(hd__ckpt_st_open(s.dir, &st, &err), HD_E_CORRUPT, "model.safetensors.index.json:1:");
    free(one);
    scratch_finish(&s);
}
END_TEST

/* ---- headers that lie */

START_TEST(bad_headers)
{
    static const struct {
        const char *json, *words;
        uint64_t data;
    } bad[] = {
        {"[]", "object", 0},
        {"{\"a\":1}", "tensor a", 0},
        {"{\"a\":{}}", "tensor a: unknown dtype", 0},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", "F31", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "shape", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", "shape", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", "shape", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", "shape", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "shape", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", "data_offsets", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "truncated", 3},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "takes 8 bytes", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "after the last", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "no tensor", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         "a and b overlap", 7},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "duplicate", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", "big integer", 1},
    };
    for (size_t i = 0; i < HD__COUNT(bad); i++) {
        int32_t rc =
            hd__ckpt_st_parse("x.safetensors", bad[i].json, strlen(bad[i].json), bad[i].data, NULL, NULL, &err);
        ck_assert_msg(rc != HD_OK && strstr(err.message, bad[i].words), "%s: %d %s", bad[i].json, rc, err.message);
        ck_assert_ptr_nonnull(strstr(err.message, "x.safetensors"));
    }
}
END_TEST

START_TEST(hostile)
{
    struct scratch s;
    struct hd__ckpt_st *st;
    uint64_t state = 7;
    size_t bytes;
    scratch_init(&s);
    uint8_t *good = scratch_read(GOLDEN "/model.safetensors", &bytes), *copy = hd__alloc(bytes);
    for (int k = 0, opened = 0; k < 2000 || !opened; k++) {
        memcpy(copy, good, bytes);
        size_t n = scratch_damage(&state, copy, bytes);
        const char *path = scratch_write(&s, "h.safetensors", copy, n);
        if (hd__ckpt_st_open(path, &st, &err)) {
            ck_assert_ptr_nonnull(strstr(err.message, "h.safetensors"));
            continue;
        }
        opened++;
        for (uint32_t i = 0; i < hd__ckpt_st_count(st); i++) {
            const struct hd__ckpt_st_tensor *t = hd__ckpt_st_tensor_at(st, i);
            uint8_t *out = hd__alloc(t->bytes);
            ck_ok(hd__ckpt_st_read(st, t, 0, t->bytes, out, &err));
            free(out);
        }
        hd__ckpt_st_close(st);
    }
    free(good);
    free(copy);
    scratch_finish(&s);
}
END_TEST

/* ---- writing */

START_TEST(layout)
{
    struct scratch s;
    struct hd__ckpt_st *st;
    struct hd__text head = {0};
    uint64_t bytes;
    float data[6] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[] = {2, 3}, four[] = {2};
    struct hd__ckpt_st_item items[] = {{.name = "w \"q\" \u00e9", .dtype = HD_F32, .ndim = 2, .shape = shape},
                                       {.name = "b", .dtype = HD_BF16, .ndim = 1, .shape = four}};
    scratch_init(&s);
    ck_ok(hd__ckpt_st_layout(items, 2, &head, &bytes, &err));
    ck_assert_uint_eq(head.length % 4096, 0);
    ck_assert_uint_eq(items[0].offset, head.length);
    ck_assert_uint_eq(items[1].offset, head.length + 24);
    ck_assert_uint_eq(bytes, head.length + 28);
    uint8_t *file = hd__alloc(bytes);
    memcpy(file, head.at, head.length);
    memcpy(file + items[0].offset, data, sizeof data);
    hd__from_f32(HD_BF16, data, file + items[1].offset, 2);
    ck_ok(hd__ckpt_st_open(scratch_write(&s, "w.safetensors", file, bytes), &st, &err));
    const struct hd__ckpt_st_tensor *t = hd__ckpt_st_find(st, items[0].name);
    float back[6];
    ck_ok(hd__ckpt_st_read_f32(st, t, 0, 6, back, &err));
    ck_assert_mem_eq(back, data, sizeof data);
    ck_ok(hd__ckpt_st_read_f32(st, hd__ckpt_st_find(st, "b"), 0, 2, back, &err));
    ck_assert_mem_eq(back, data, 8);
    hd__ckpt_st_close(st);
    items[1].name = items[0].name;
    ck_refused(hd__ckpt_st_layout(items, 2, &head, &bytes, &err), HD_E_INVALID, "a duplicate");
    free(file);
    hd__text_free(&head);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"golden", golden},           {"rounding", rounding},
        {"all halves", all_halves},   {"sharded", sharded},
        {"bad index", bad_index},     {"index beside a file", index_beside_a_file},
        {"bad headers", bad_headers}, {"hostile", hostile},
        {"layout", layout},           {NULL, NULL},
    };
    return scratch_run("safetensors", tests);
}
