/* Seconds of each instruction, summed by kind when printed. */
#include "runtime/exec/profile.h"

#include <stdlib.h>

#include "core/base/file.h"
#include "core/program/cost.h"
#include "core/program/ops.h"

struct hd__profile {
    const struct hd_program *p;
    double **seconds; /* by section and instruction */
    uint32_t **calls;
};

struct row {
    char name[96];
    double seconds, flops, bytes, planned, roofline;
    int64_t calls;
};

struct table {
    HD__ARRAY(struct row) rows;
};

struct hd__profile *hd__exec_profile_create(const struct hd_program *p)
{
    struct hd__profile *profile = hd__alloc(sizeof *profile);
    profile->p = p;
    profile->seconds = hd__alloc(p->sections.count * sizeof *profile->seconds);
    profile->calls = hd__alloc(p->sections.count * sizeof *profile->calls);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        size_t n = p->sections.at[s].code.count + 1u;
        profile->seconds[s] = hd__alloc(n * sizeof **profile->seconds);
        profile->calls[s] = hd__alloc(n * sizeof **profile->calls);
    }
    return profile;
}

void hd__exec_profile_free(struct hd__profile *profile)
{
    if (!profile)
        return;
    for (uint32_t s = 0; s < profile->p->sections.count; s++) {
        free(profile->seconds[s]);
        free(profile->calls[s]);
    }
    free(profile->seconds);
    free(profile->calls);
    free(profile);
}

void hd__exec_profile_add(struct hd__profile *profile, uint32_t section, uint32_t instr, double seconds)
{
    profile->seconds[section][instr] += seconds;
    profile->calls[section][instr]++;
}

/* ---- rows */

/* Product of the local extents of the dims of `t` that `other` has (or lacks). */
static int64_t dim_product(const struct hd_program *p, const struct hd__tensor *t, const struct hd__tensor *other,
                           int has)
{
    int64_t n = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        if ((hd__dim_index(other, t->dim[d]) >= 0) == has)
            n *= hd__local_extent(p, t, d);
    return n;
}

void hd__exec_instr_kind(const struct hd_program *p, const struct hd__instr *i, char out[96])
{
    int n = snprintf(out, 96, "%s %s", hd__phase_name(i->phase), hd__instr_name(i));
    if (i->op != HD_OP_EINSUM && (i->op < HD_OP_EINSUM_BIAS || i->op > HD_OP_EINSUM_BIAS_DW))
        return;
    const struct hd__tensor *a = hd__tensor_const(p, i->in[0]), *b = hd__tensor_const(p, i->in[1]),
                            *c = hd__tensor_const(p, i->out[0]);
    snprintf(out + n, (size_t)(96 - n), " %lldx%lldx%lld", (long long)dim_product(p, c, b, 0),
             (long long)dim_product(p, c, a, 0), (long long)dim_product(p, a, c, 0));
}

static struct row *row_of(struct table *t, const char *name)
{
    struct row row = {0};
    for (uint32_t k = 0; k < t->rows.count; k++)
        if (!strcmp(t->rows.at[k].name, name))
            return &t->rows.at[k];
    snprintf(row.name, sizeof row.name, "%s", name);
    hd__push(&t->rows, row);
    return &t->rows.at[t->rows.count - 1];
}

static void add_section(const struct hd__profile *profile, uint32_t s, hd__exec_planned planned,
                        const struct hd__roofline_rates *rates, struct table *t)
{
    const hd__code *code = &profile->p->sections.at[s].code;
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        double calls = profile->calls[s][k];
        char name[96];
        if (!profile->calls[s][k])
            continue;
        hd__exec_instr_kind(profile->p, i, name);
        struct row *row = row_of(t, name);
        row->calls += profile->calls[s][k];
        row->seconds += profile->seconds[s][k];
        row->flops += calls * hd__instr_flops(profile->p, i);
        row->bytes += calls * hd__instr_bytes(profile->p, i);
        row->planned += planned ? calls * planned(profile->p, i) : 0;
        row->roofline += rates ? calls * hd__roofline_instr(profile->p, i, rates) : 0;
    }
}

static int slower_first(const void *a, const void *b)
{
    double x = ((const struct row *)a)->seconds, y = ((const struct row *)b)->seconds;
    return (x < y) - (x > y);
}

double hd__exec_profile_seconds(const struct hd__profile *profile, int kind)
{
    double seconds = 0;
    for (uint32_t s = 0; s < profile->p->sections.count; s++)
        for (uint32_t k = 0; k < profile->p->sections.at[s].code.count; k++)
            if (hd__roofline_kind(profile->p, &profile->p->sections.at[s].code.at[k]) == kind)
                seconds += profile->seconds[s][k];
    return seconds;
}

void hd__exec_profile_ops(const struct hd__profile *profile, hd__exec_planned planned, struct hd__op_seconds *out)
{
    const struct hd_program *p = profile->p;
    *out = (struct hd__op_seconds){0};
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            int narrow = hd__instr_is_narrow(p, i);
            out->measured[i->op][narrow] += profile->seconds[s][k];
            out->planned[i->op][narrow] += profile->calls[s][k] * planned(p, i);
        }
}

/* ---- printing */

static void print_row(const struct row *r, double steps, double seconds, double peak, int planned, int roofline,
                      struct hd__text *out)
{
    double rate = r->seconds > 0 ? r->flops / r->seconds : 0;
    hd__text_add(out, "%6.1f%% %9.3f ", 100 * r->seconds / seconds, 1e3 * r->seconds / steps);
    if (planned)
        hd__text_add(out, "%9.3f ", 1e3 * r->planned / steps);
    hd__text_add(out, "%7.1f %9.1f ", (double)r->calls / steps, r->seconds > 0 ? 1e-9 * r->bytes / r->seconds : 0);
    if (r->flops > 0)
        hd__text_add(out, "%9.1f ", 1e-9 * rate);
    else
        hd__text_add(out, "%9s ", "-");
    if (r->flops > 0 && peak > 0)
        hd__text_add(out, "%7.1f%%  ", 100 * rate / peak);
    else
        hd__text_add(out, "%8s  ", "-");
    if (roofline && r->roofline > 0)
        hd__text_add(out, "%8.3f  ", 1e3 * r->roofline / steps);
    else if (roofline)
        hd__text_add(out, "%8s  ", "-");
    hd__text_add(out, "%s\n", r->name);
}

void hd__exec_profile_print(const struct hd__profile *profile, int64_t steps, double seconds, double peak,
                            hd__exec_planned planned, const struct hd__roofline_rates *rates, struct hd__text *out)
{
    struct table t = {0};
    struct row rest = {.name = "between instructions", .seconds = seconds};
    for (uint32_t s = 0; s < profile->p->sections.count; s++)
        add_section(profile, s, planned, rates, &t);
    for (uint32_t k = 0; k < t.rows.count; k++)
        rest.seconds -= t.rows.at[k].seconds;
    hd__push(&t.rows, rest);
    hd__sort(&t.rows, slower_first);
    hd__text_add(out, "profile of rank 0: %lld steps of %.3f ms\n", (long long)steps, 1e3 * seconds / (double)steps);
    hd__text_add(out, "%7s %9s %s%7s %9s %9s %8s  %s%s\n", "share", "ms/step", planned ? "  planned " : "", "calls",
                 "GB/s", "GFLOP/s", "of peak", rates ? "roofline  " : "", "instruction");
    for (uint32_t k = 0; k < t.rows.count; k++)
        print_row(&t.rows.at[k], (double)steps, seconds, peak, planned != NULL, rates != NULL, out);
    free(t.rows.at);
}

/* ---- seconds by block */

static int is_work(const struct hd__instr *i)
{
    uint8_t class = hd__op(i->op)->class;
    return i->phase != HD__PHASE_O && !hd__is_async(i) && class != HD__CLASS_COLLECTIVE && class != HD__CLASS_P2P &&
           i->op != HD_OP_WAIT;
}

/* Skips sections without a repeat: an evaluation is no part of a micro-batch. */
int32_t hd__exec_profile_write_blocks(const struct hd__profile *profile, int64_t micros, const char *path,
                                      struct hd_error *err)
{
    const struct hd_program *p = profile->p;
    double *seconds = hd__alloc(p->blocks.count * sizeof *seconds);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count && p->sections.at[s].repeat > 0; k++)
            if (is_work(&p->sections.at[s].code.at[k]))
                seconds[p->sections.at[s].code.at[k].block] += profile->seconds[s][k];
    hd__make_folders(path);
    FILE *file = hd__output_create(path, HD__PROFILE_BEGINS, err);
    if (file) {
        fprintf(file, HD__PROFILE_BEGINS "%d of %d\n", p->stage, p->mesh.size[HD_AXIS_PP]);
        for (uint32_t b = 1; b < p->blocks.count; b++)
            if (seconds[b] > 0)
                fprintf(file, "%s,%.9f\n", p->blocks.at[b], seconds[b] / (double)micros);
    }
    free(seconds);
    return file ? hd__output_close(file, path, err) : err->code;
}
