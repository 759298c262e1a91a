/* Planned products beside 34 that a GPU measured (bench/plan/products-h200.csv), those of few tiles among them, which
 * libraries cut along k. The peak is the one by which the mean error is 0. */
#include <math.h>
#include <stdio.h>

#include "analysis/plan/seconds.h"
#include "tests/suite.h"

enum { MOST = 64 };

static struct hd__product product[MOST];
static double measured[MOST];
static char name[MOST][32];

static int read_products(void)
{
    FILE *f = fopen(PRODUCTS, "r");
    char line[256];
    int n = 0;
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f) && n < MOST) {
        struct hd__product x = {.batch = 1};
        double size;
        if (sscanf(line, "%31[^,],%lf,%lf,%lf,%lf,%lf", name[n], &x.m, &x.n, &x.k, &size, &measured[n]) != 6)
            continue;
        x.written = x.m * x.n * size;
        x.bytes = 2 * (x.m + x.n) * x.k + x.written;
        measured[n] *= 1e-3;
        product[n++] = x;
    }
    fclose(f);
    return n;
}

START_TEST(products_are_planned_as_a_gpu_takes_them)
{
    struct hd__machine m = {
        .bandwidth = 4.19e12, .memory_share = 1, .product = 1, .units = 132, .tile_m = 128, .tile_n = 256};
    double peak = 9e14, off[MOST], squares, largest;
    int n = read_products();
    ck_assert_int_eq(n, 34);
    for (int round = 0; round < 20; round++) {
        double sum = squares = largest = 0;
        for (int i = 0; i < n; i++) {
            product[i].peak = peak;
            off[i] = log(hd__product_seconds(&m, &product[i]) / measured[i]);
            sum += off[i];
            squares += off[i] * off[i];
            largest = fmax(largest, fabs(off[i]));
        }
        peak *= exp(sum / n);
    }
    printf("peak %.3g, root of mean squares %.1f %%, largest %.1f %%\n", peak, 100 * sqrt(squares / n), 100 * largest);
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs(off[i]) < 0.14, "%s: planned %+.0f %% off", name[i], 100 * off[i]);
    ck_assert_double_lt(sqrt(squares / n), 0.045);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("products");
    tcase_add_test(tests, products_are_planned_as_a_gpu_takes_them);
    return suite_run_case("products", tests);
}
