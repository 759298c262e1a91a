/* Every dtype of HD_DTYPES has columns that agree with one another and with the public row. */
#include <check.h>
#include <float.h>
#include <math.h>

#include "core/base/dtype.h"
#include "tests/suite.h"

START_TEST(columns)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++) {
        const struct hd__dtype *t = hd__dtype(d), *sum = hd__dtype(t->sum);
        ck_assert_msg(hd_dtype_size(d) && t->class && t->safetensors && t->mnemonic && t->nccl_tests, "dtype %u", d);
        ck_assert_uint_eq(sum->sum, t->sum); /* which is not summed in a wider one again */
        ck_assert_uint_eq(sum->class, t->class);
        ck_assert_int_ge(sum->digits, t->digits);
        ck_assert_int_eq(hd__is_narrow(d), sum->digits > t->digits);
        for (uint32_t other = 1; other < d; other++) {
            ck_assert_str_ne(t->safetensors, hd__dtype(other)->safetensors);
            ck_assert_str_ne(t->mnemonic, hd__dtype(other)->mnemonic);
        }
    }
    ck_assert_uint_eq(hd__dtype(0)->class, 0);
    ck_assert_ptr_eq(hd__dtype(HD__DTYPE_COUNT), hd__dtype(0));
    ck_assert(!hd__is_float(HD__DTYPE_COUNT) && !hd__is_narrow(HD__DTYPE_COUNT));
}
END_TEST

static void same(uint32_t dtype, double value)
{
    double at;
    hd__dtype_store(dtype, &at, value);
    ck_assert_msg(hd__dtype_load(dtype, &at) == value, "%s: %g is stored as %g", hd_dtype_name(dtype), value,
                  hd__dtype_load(dtype, &at));
}

/* The digits and the exponent are those of the conversion, one more of each is too much. */
START_TEST(numbers)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++) {
        const struct hd__dtype *t = hd__dtype(d);
        double most = ldexp(1, t->digits) - 1, at;
        float f = 3, back = 0;
        same(d, most);
        same(d, 0);
        if (t->class == HD__CLASS_INT)
            same(d, -most);
        ck_assert_int_eq(hd__from_f32(d, &f, &at, 1) == 0, hd__is_float(d));
        ck_assert_int_eq(hd__to_f32(d, &at, &back, 1) == 0, hd__is_float(d));
        if (!hd__is_float(d))
            continue;
        ck_assert(back == f);
        same(d, -most);
        same(d, ldexp(1, t->max_exp - 1));
        if (t->digits < DBL_MANT_DIG) {
            hd__dtype_store(d, &at, 2 * most + 1);
            ck_assert(hd__dtype_load(d, &at) != 2 * most + 1);
            hd__dtype_store(d, &at, ldexp(1, t->max_exp));
            ck_assert(!isfinite(hd__dtype_load(d, &at)));
        }
        hd__dtype_store(d, &at, NAN);
        ck_assert(isnan(hd__dtype_load(d, &at)));
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("dtype");
    tcase_add_test(tc, columns);
    tcase_add_test(tc, numbers);
    return suite_run_case("dtype", tc);
}
