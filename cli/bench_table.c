/* heddle bench: its tables. One transport is a line a size as it is measured, in the columns of nccl-tests; several
 * stand side by side once all are measured, the fastest of each size marked. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

struct column {
    const char *key, *head, *unit;
    int width, digits;
};

static const struct column places[] = {{"time_us", "time", "(us)", 10, 2},
                                       {"p99_us", "p99", "(us)", 10, 2},
                                       {"algbw_gbs", "algbw", "(GB/s)", 7, 2},
                                       {"busbw_gbs", "busbw", "(GB/s)", 7, 2},
                                       {"errors", "#", "wrong", 6, 0}};
/* The first decides which transport is the best, and stands before its mark. */
static const struct column beside[] = {
    {"time_us", "time", "(us)", 10, 2}, {"p99_us", "p99", "(us)", 10, 2}, {"busbw_gbs", "busbw", "(GB/s)", 7, 2}};

enum { WITH_P99 = 3 /* transports that fit beside each other with all columns */ };

static const char *place_name(int in_place)
{
    return in_place ? "in-place" : "out-of-place";
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
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

static int halves(const struct hd__bench *b, uint32_t op)
{
    return b->both && hd__bench_has_in_place(op) ? 2 : 1;
}

static void columns_head(int n, int unit)
{
    for (int half = 0; half < n; half++)
        for (size_t c = 0; c < HD__COUNT(places); c++)
            printf("%*s", places[c].width, unit ? places[c].unit : places[c].head);
    printf("\n");
}

static void table_head(const struct hd__bench *b, uint32_t op)
{
    int n = halves(b, op), width = 0;
    for (size_t c = 0; c < HD__COUNT(places); c++)
        width += places[c].width;
    heading(b, op);
    printf("#%21s", "");
    for (int half = 0; half < n; half++)
        centre(place_name(n == 1 ? b->in_place && !b->both : half), width);
    printf("\n#%10s%11s", "size", "count");
    columns_head(n, 0);
    printf("#%10s%11s", "(B)", "(elements)");
    columns_head(n, 1);
}

void hd__bench_table_row(struct hd__bench_table *t, uint32_t op, const json_t *row)
{
    int n = halves(t->bench, op), second = n == 2 && json_is_true(json_object_get(row, "in_place"));
    if (!t->started || t->op != op)
        table_head(t->bench, op);
    t->started = 1;
    t->op = op;
    if (!second)
        printf("%11.0f%11.0f", number(row, "bytes"), number(row, "count"));
    for (size_t c = 0; c < HD__COUNT(places); c++)
        printf("%*.*f", places[c].width, places[c].digits, number(row, places[c].key));
    if (second || n == 1)
        printf("\n");
    fflush(stdout);
}

/* ---- several */

const json_t *hd__bench_row_at(const json_t *rows, const char *comm, const char *op, int in_place, uint64_t bytes)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) if (!strcmp(json_string_value(json_object_get(row, "comm")), comm) &&
                                                   !strcmp(json_string_value(json_object_get(row, "op")), op) &&
                                                   json_is_true(json_object_get(row, "in_place")) == in_place &&
                                                   number(row, "bytes") == (double)bytes) return row;
    return NULL;
}

int hd__bench_best(const json_t *rows, const char *const *comm, int n, const char *op, int in_place, uint64_t bytes)
{
    int best = -1;
    double least = 0;
    for (int i = 0; i < n; i++) {
        const json_t *row = hd__bench_row_at(rows, comm[i], op, in_place, bytes);
        double time = row ? number(row, "time_us") : 0;
        if (row && !number(row, "errors") && (best < 0 || time < least)) {
            best = i;
            least = time;
        }
    }
    return best;
}

static int shown(size_t column, int n)
{
    return n <= WITH_P99 || strcmp(beside[column].key, "p99_us");
}

static void side_head(const char *const *comm, int n)
{
    int width = 1;
    for (size_t c = 0; c < HD__COUNT(beside); c++)
        width += shown(c, n) ? beside[c].width : 0;
    printf("#%10s", "");
    for (int i = 0; i < n; i++)
        centre(comm[i], width);
    for (int unit = 0; unit < 2; unit++) {
        printf("\n#%10s", unit ? "(B)" : "size");
        for (int i = 0; i < n; i++)
            for (size_t c = 0; c < HD__COUNT(beside); c++)
                if (shown(c, n))
                    printf("%*s%s", beside[c].width, unit ? beside[c].unit : beside[c].head, c ? "" : " ");
    }
    printf("\n");
}

static void side_row(const json_t *rows, const char *const *comm, int n, const char *op, int in_place, uint64_t bytes)
{
    int best = hd__bench_best(rows, comm, n, op, in_place, bytes);
    printf("%11llu", (unsigned long long)bytes);
    for (int i = 0; i < n; i++) {
        const json_t *row = hd__bench_row_at(rows, comm[i], op, in_place, bytes);
        for (size_t c = 0; c < HD__COUNT(beside); c++) {
            const char *mark = number(row, "errors") ? "!" : i == best ? "*" : " ";
            if (shown(c, n))
                printf("%*.*f%s", beside[c].width, beside[c].digits, number(row, beside[c].key), c ? "" : mark);
        }
    }
    printf("\n");
}

void hd__bench_side_by_side(const struct hd__bench *b, const char *const *comm, int n, const json_t *rows)
{
    for (uint32_t k = 0; k < b->n_ops; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const char *op = hd__bench_op_name(b->ops[k]);
            size_t i, seen = 0;
            json_t *row;
            json_array_foreach((json_t *)rows, i, row)
            {
                uint64_t bytes = (uint64_t)number(row, "bytes");
                if (hd__bench_row_at(rows, comm[0], op, in_place, bytes) != row)
                    continue;
                if (!seen++) {
                    heading(b, b->ops[k]);
                    printf("# %s; *: the fastest; !: wrong results\n", place_name(in_place));
                    side_head(comm, n);
                }
                side_row(rows, comm, n, op, in_place, bytes);
            }
        }
}
