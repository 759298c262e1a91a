/* Kernels against numbers of torch and transformers: tests/golden/ops.py made them and says how the file reads.
 * References in fp64 to the last digits, fast kernels in fp32 to 1e-5 of the norm. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { MOST = 64 };

struct golden {
    struct h_case c;
    char name[96], in[96], out[96], dims[96];
    double table[MOST];
    struct hd_range ranges[4];
    char *values[3][HD_MAX_IN]; /* the lines x<i>, z<i>, y<i>, after their names */
};

static const struct {
    uint32_t op;
    const char *name;
} ops[] = {
#define ROW(constant, value, name) {value, name},
    HD_OPS(ROW)
#undef ROW
};

static uint32_t op_of(const char *name)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (!strcmp(ops[i].name, name))
            return ops[i].op;
    ck_abort_msg("no op is called %s", name);
}

static void read_attr(struct hd_attrs *a, const char *key, double v)
{
    if (!strcmp(key, "scale"))
        a->scale = v;
    else if (!strcmp(key, "eps"))
        a->eps = v;
    else if (!strcmp(key, "sign"))
        a->sign = (int32_t)v;
    else if (!strcmp(key, "window"))
        a->window = (int64_t)v;
    else if (!strcmp(key, "beta1"))
        a->beta1 = v;
    else if (!strcmp(key, "beta2"))
        a->beta2 = v;
    else if (!strcmp(key, "clip"))
        a->clip = v;
    else
        ck_abort_msg("no attribute is called %s", key);
}

static void read_attrs(struct hd_attrs *a, char *text)
{
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        ck_assert_ptr_nonnull(equals);
        *equals = 0;
        read_attr(a, word, strtod(equals + 1, NULL));
    }
}

static int64_t read_numbers(double *to, int64_t most, const char *text)
{
    int64_t n = 0;
    char *end;
    for (;; n++, text = end) {
        double v = strtod(text, &end);
        if (end == text)
            return n;
        ck_assert_int_lt(n, most);
        to[n] = v;
    }
}

static void read_line(struct golden *g, char *line)
{
    char *rest = strchr(line, ' ');
    ck_assert_msg(rest != NULL, "a line without a space: %s", line);
    *rest++ = 0;
    if (!strcmp(line, "case")) {
        snprintf(g->name, sizeof g->name, "%s", rest);
    } else if (!strcmp(line, "op")) {
        g->c.op = op_of(rest);
    } else if (!strcmp(line, "in")) {
        snprintf(g->in, sizeof g->in, "%s", rest);
    } else if (!strcmp(line, "out")) {
        snprintf(g->out, sizeof g->out, "%s", rest);
    } else if (!strcmp(line, "dims")) {
        snprintf(g->dims, sizeof g->dims, "%s", rest);
    } else if (!strcmp(line, "attrs")) {
        read_attrs(&g->c.attrs, rest);
    } else if (!strcmp(line, "table")) {
        g->c.attrs.n_table = (uint64_t)read_numbers(g->table, MOST, rest);
    } else if (!strcmp(line, "range")) {
        double v[3];
        ck_assert_int_eq(read_numbers(v, 3, rest), 3);
        g->ranges[g->c.attrs.n_ranges++] = (struct hd_range){(int64_t)v[0], (int64_t)v[1], v[2]};
    } else {
        const char *kind = strchr("xzy", line[0]);
        ck_assert_msg(kind && line[1] >= '0' && line[1] < '0' + HD_MAX_IN, "unknown line %s", line);
        g->values[kind - "xzy"][line[1] - '0'] = rest;
    }
}

static void set_values(const struct golden *g, int kind, const struct hd_operand *o, uint32_t n)
{
    static double v[4096];
    for (uint32_t i = 0; i < n; i++) {
        const char *text = g->values[kind][i];
        if (!text)
            continue;
        ck_assert_int_eq(read_numbers(v, 4096, text), hd_operand_count(&o[i]));
        for (int64_t e = 0; e < hd_operand_count(&o[i]); e++)
            h_set(&o[i], e, v[e]);
    }
}

static void run_golden(struct golden *g, int kernels, uint32_t dtype, double tolerance)
{
    struct h_device *d = h_open(1, kernels);
    struct h_instr *i = h_make(&g->c, dtype, 1), *want = h_make(&g->c, HD_F64, 1);
    set_values(g, 0, i->in, i->d.n_in);
    set_values(g, 1, i->out, i->d.n_out);
    set_values(g, 2, want->out, want->d.n_out);
    for (uint32_t o = 0; o < want->d.n_out; o++)
        ck_assert_ptr_nonnull(g->values[2][o]);
    h_run(d, i);
    h_near(g->name, i, want, tolerance);
    h_free(i);
    h_free(want);
    h_close(d);
}

static void finish(struct golden *g, int *count)
{
    if (!g->name[0])
        return;
    g->c.name = g->name;
    g->c.in = g->in;
    g->c.out = g->out;
    g->c.dims = g->dims;
    g->c.attrs.table = g->c.attrs.n_table ? g->table : NULL;
    g->c.attrs.ranges = g->c.attrs.n_ranges ? g->ranges : NULL;
    run_golden(g, H_REFERENCE, HD_F64, 1e-12);
    run_golden(g, H_REFERENCE, HD_F32, 1e-5);
    run_golden(g, H_FAST, HD_F32, 1e-5);
    ++*count;
}

START_TEST(kernels_agree_with_torch)
{
    FILE *f = fopen(GOLDEN, "r");
    struct golden g = {0};
    char *lines[32], *line = NULL;
    size_t room = 0;
    int n = 0, count = 0;
    ck_assert_msg(f != NULL, "cannot open %s", GOLDEN);
    for (;;) {
        int64_t bytes = getline(&line, &room, f);
        if (bytes > 0 && line[0] == '#')
            continue;
        if (bytes > 1) { /* values point into lines: they live until the paragraph ends */
            line[bytes - 1] = 0;
            ck_assert_int_lt(n, 32);
            lines[n] = strdup(line);
            read_line(&g, lines[n++]);
            continue;
        }
        finish(&g, &count);
        g = (struct golden){0};
        while (n)
            free(lines[--n]);
        if (bytes < 0)
            break;
    }
    free(line);
    fclose(f);
    ck_assert_int_eq(count, 67);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("golden");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, kernels_agree_with_torch);
    return suite_run_case("golden", t);
}
