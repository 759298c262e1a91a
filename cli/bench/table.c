/* heddle bench: its tables. One transport is printed a line per size as it is measured, in the columns of
 * nccl-tests; several are printed side by side once all are measured, the fastest of each size marked. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"

struct table_column {
    const char *key, *head, *unit;
    int width, digits;
};

static const struct table_column base_columns[] = {{"time_us", "time", "(us)", 10, 2},
                                                   {"p99_us", "p99", "(us)", 10, 2},
                                                   {"algbw_gbs", "algbw", "(GB/s)", 7, 2},
                                                   {"busbw_gbs", "busbw", "(GB/s)", 7, 2},
                                                   {"errors", "#", "wrong", 6, 0}};
static const struct table_column overlap_columns[] = {{"products", "products", "", 10, 0},
                                                      {"products_us", "products", "(us)", 12, 2},
                                                      {"alone_us", "alone", "(us)", 12, 2},
                                                      {"both_us", "both", "(us)", 12, 2},
                                                      {"exposed_us", "exposed", "(us)", 12, 2},
                                                      {"hidden_percent", "hidden", "(%)", 8, 0},
                                                      {"errors", "#", "wrong", 6, 0}};
/* The first column decides the best transport, and has its mark. */
static const struct table_column comparison_columns[] = {
    {"time_us", "time", "(us)", 10, 2}, {"p99_us", "p99", "(us)", 10, 2}, {"busbw_gbs", "busbw", "(GB/s)", 7, 2}};
static const struct table_column overlap_comparison_columns[] = {{"exposed_us", "exposed", "(us)", 10, 2},
                                                                 {"alone_us", "alone", "(us)", 10, 2},
                                                                 {"hidden_percent", "hidden", "(%)", 7, 0}};

enum {
    N_COMPARISON = HD__COUNT(comparison_columns),
    ALL_COLUMNS = 3 /* maximum of transports that fit side by side with all columns */
};

static size_t columns_of(const struct hd__bench *b, const struct table_column **columns)
{
    *columns = b->device ? overlap_columns : base_columns;
    return b->device ? HD__COUNT(overlap_columns) : HD__COUNT(base_columns);
}

static const struct table_column *comparison_columns_of(const struct hd__bench *b)
{
    return b->device ? overlap_comparison_columns : comparison_columns;
}

/* "-": null */
static void print_cell(const struct table_column *at, const json_t *row)
{
    if (json_is_null(json_object_get(row, at->key)))
        printf("%*s", at->width, "-");
    else
        printf("%*.*f", at->width, at->digits, hd__json_number(row, at->key));
}

static const char *place_name(int in_place)
{
    return in_place ? "in-place" : "out-of-place";
}

static void centre(const char *text, int width)
{
    int left = HD__MAX((width - (int)strlen(text)) / 2, 0);
    printf("%*s%-*s", left, "", HD__MAX(width - left, 0), text);
}

static void heading(const struct hd__bench *b, uint32_t op)
{
    int reduces = op == HD__BENCH_ALL_REDUCE || op == HD__BENCH_REDUCE || op == HD__BENCH_REDUCE_SCATTER;
    printf("#\n# %s%s, %s%s\n", hd__bench_op_name(op), reduces ? " (sum)" : "", hd_dtype_name(b->dtype),
           op == HD__BENCH_BROADCAST || op == HD__BENCH_REDUCE ? ", root 0" : "");
}

/* ---- one transport */

static int placement_count(const struct hd__bench *b, uint32_t op)
{
    return b->both && hd__bench_has_in_place(op) ? 2 : 1;
}

static void columns_head(const struct hd__bench *b, int n, int unit)
{
    const struct table_column *at;
    size_t count = columns_of(b, &at);
    for (int half = 0; half < n; half++)
        for (size_t c = 0; c < count; c++)
            printf("%*s", at[c].width, unit ? at[c].unit : at[c].head);
    printf("\n");
}

static void table_head(const struct hd__bench *b, uint32_t op)
{
    const struct table_column *at;
    size_t count = columns_of(b, &at);
    int n = placement_count(b, op), width = 0;
    for (size_t c = 0; c < count; c++)
        width += at[c].width;
    heading(b, op);
    printf("#%21s", "");
    for (int half = 0; half < n; half++)
        centre(place_name(n == 1 ? b->in_place && !b->both : half), width);
    printf("\n#%10s%11s", "size", "count");
    columns_head(b, n, 0);
    printf("#%10s%11s", "(B)", "(elements)");
    columns_head(b, n, 1);
}

void hd__bench_print_row(struct hd__bench_table *t, uint32_t op, const json_t *row)
{
    const struct table_column *at;
    size_t count = columns_of(t->bench, &at);
    int n = placement_count(t->bench, op), second = n == 2 && json_is_true(json_object_get(row, "in_place"));
    if (!t->started || t->op != op)
        table_head(t->bench, op);
    t->started = 1;
    t->op = op;
    if (!second)
        printf("%11.0f%11.0f", hd__json_number(row, "bytes"), hd__json_number(row, "count"));
    for (size_t c = 0; c < count; c++)
        print_cell(&at[c], row);
    if (second || n == 1)
        printf("\n");
    fflush(stdout);
}

/* ---- several */

const json_t *hd__bench_find_row(const json_t *rows, const char *comm, const char *op, int in_place, uint64_t bytes)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) if (!strcmp(json_string_value(json_object_get(row, "comm")), comm) &&
                                                   !strcmp(json_string_value(json_object_get(row, "op")), op) &&
                                                   json_is_true(json_object_get(row, "in_place")) == in_place &&
                                                   hd__json_number(row, "bytes") == (double)bytes) return row;
    return NULL;
}

int hd__bench_fastest(const json_t *rows, const char *const *comm, int n, const char *op, int in_place, uint64_t bytes)
{
    int best = -1;
    double least = 0;
    for (int i = 0; i < n; i++) {
        const json_t *row = hd__bench_find_row(rows, comm[i], op, in_place, bytes);
        double time = hd__json_number(row, json_object_get(row, "exposed_us") ? "exposed_us" : "time_us");
        if (row && !hd__json_number(row, "errors") && (best < 0 || time < least)) {
            best = i;
            least = time;
        }
    }
    return best;
}

static int shown(size_t table_column, int n)
{
    return n <= ALL_COLUMNS || table_column != 1;
}

/* "libfabric:provider=tcp" without the names of options: "libfabric:tcp" */
static const char *short_name(const char *comm, char out[64])
{
    size_t n = 0;
    for (const char *at = comm; *at && n < 63; at++) {
        out[n++] = *at;
        if (*at == ':' && strchr(at, '='))
            at = strchr(at, '=');
    }
    out[n] = 0;
    return out;
}

static void comparison_head(const struct table_column *at, const char *const *comm, int n)
{
    char name[64];
    int width = 1;
    for (size_t c = 0; c < N_COMPARISON; c++)
        width += shown(c, n) ? at[c].width : 0;
    printf("#%10s", "");
    for (int i = 0; i < n; i++)
        centre((int)strlen(comm[i]) + 2 > width ? short_name(comm[i], name) : comm[i], width);
    for (int unit = 0; unit < 2; unit++) {
        printf("\n#%10s", unit ? "(B)" : "size");
        for (int i = 0; i < n; i++)
            for (size_t c = 0; c < N_COMPARISON; c++)
                if (shown(c, n))
                    printf("%*s%s", at[c].width, unit ? at[c].unit : at[c].head, c ? "" : " ");
    }
    printf("\n");
}

static void comparison_row(const struct table_column *at, const json_t *rows, const char *const *comm, int n,
                           const char *op, int in_place, uint64_t bytes)
{
    int best = hd__bench_fastest(rows, comm, n, op, in_place, bytes);
    printf("%11llu", (unsigned long long)bytes);
    for (int i = 0; i < n; i++) {
        const json_t *row = hd__bench_find_row(rows, comm[i], op, in_place, bytes);
        for (size_t c = 0; c < N_COMPARISON; c++) {
            const char *mark = hd__json_number(row, "errors") > 0 ? "!" : i == best ? "*" : " ";
            if (shown(c, n)) {
                print_cell(&at[c], row);
                fputs(c ? "" : mark, stdout);
            }
        }
    }
    printf("\n");
}

void hd__bench_print_comparison(const struct hd__bench *b, const char *const *comm, int n, const json_t *rows)
{
    for (uint32_t k = 0; k < b->n_ops; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const char *op = hd__bench_op_name(b->ops[k]);
            size_t i, seen = 0;
            json_t *row;
            json_array_foreach((json_t *)rows, i, row)
            {
                uint64_t bytes = (uint64_t)hd__json_number(row, "bytes");
                if (hd__bench_find_row(rows, comm[0], op, in_place, bytes) != row)
                    continue;
                if (!seen++) {
                    heading(b, b->ops[k]);
                    printf("# %s; *: the %s; !: wrong results\n", place_name(in_place),
                           b->device ? "least exposed" : "fastest");
                    comparison_head(comparison_columns_of(b), comm, n);
                }
                comparison_row(comparison_columns_of(b), rows, comm, n, op, in_place, bytes);
            }
        }
}
