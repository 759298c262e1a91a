/* The text of a step program, one instruction a line:
 *
 *     micro_last, once
 *        12 tp  L0  F all_gather(tp)  1200384+65536  norm.3~ag f32[4,8,8 b:dp] <- norm.3 f32[4,4,8 b:dp s:tp]
 *
 * number, stream, block, micro-batch, phase, operation, first output's offset + bytes, outputs <- inputs: name, dtype,
 * local shape and placement: dim:axes, P(axes) for a partial sum, nothing if replicated. */
#include <stdlib.h>

#include "analysis/print.h"
#include "core/base/dtype.h"
#include "core/program/access.h"
#include "core/program/ops.h"

#define LONGEST 40 /* upper limit of a column's width */

struct printer {
    const struct hd_program *p;
    struct hd__text *out;
    const uint32_t *position;
    int32_t coord[HD_AXIS_COUNT];
    int number, stream, block, op, place; /* widths of columns */
};

/* ---- pieces of a line */

static const char *const short_axis[HD_AXIS_COUNT] = {"pp", "dpr", "dp", "cp", "ep", "tp", "tq"};

static void add_axes(struct hd__text *out, uint32_t axes)
{
    const char *between = "";
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a)) {
            hd__text_add(out, "%s%s", between, short_axis[a]);
            between = ".";
        }
}

/* Short forms of the suffixes that conversions append, such as "~all_gather". */
static void add_name(struct hd__text *out, const char *name)
{
    static const struct {
        const char *is, *becomes;
    } known[] = {{"all_gather", "ag"}, {"reduce_scatter", "rs"}, {"all_reduce", "ar"}, {"all_to_all", "aa"}};
    for (const char *tilde; (tilde = strchr(name, '~')) != NULL;) {
        hd__text_add(out, "%.*s~", (int)(tilde - name), name);
        name = tilde + 1;
        for (size_t k = 0; k < HD__COUNT(known); k++)
            if (!strncmp(name, known[k].is, strlen(known[k].is))) {
                hd__text_add(out, "%s", known[k].becomes);
                name += strlen(known[k].is);
                break;
            }
    }
    hd__text_add(out, "%s", name);
}

static void add_tensor(struct printer *w, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, id);
    add_name(w->out, t->name);
    hd__text_add(w->out, " %s[", hd__dtype(t->dtype)->mnemonic);
    for (int32_t i = 0; i < t->ndim; i++)
        hd__text_add(w->out, "%s%lld", i ? "," : "", (long long)hd__local_extent(w->p, t, i));
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->placement.shard[i]) { /* axes that shard the dim, outermost first */
            hd__text_add(w->out, " %s:", w->p->dims.at[t->dim[i]].name);
            for (uint32_t s = t->placement.shard[i]; s; s >>= 4)
                hd__text_add(w->out, "%s%s", s == t->placement.shard[i] ? "" : ".", short_axis[(s & 15) - 1]);
        }
    if (t->placement.partial) {
        hd__text_add(w->out, " P%s(", t->placement.redop == HD_MAX ? "max" : "");
        add_axes(w->out, t->placement.partial);
        hd__text_add(w->out, ")");
    }
    hd__text_add(w->out, "]");
}

static void add_operands(struct printer *w, const struct hd__code_section *s, const struct hd__instr *i)
{
    if (i->op == HD_OP_WAIT) {
        uint32_t on = hd__wait_target(w->p, &s->code, w->position, i);
        if (on == UINT32_MAX)
            hd__text_add(w->out, "for what is not here");
        else
            hd__text_add(w->out, "for #%u %s ", on, hd__op(s->code.at[on].op)->name);
        if (on != UINT32_MAX && hd__instr_tensor(&s->code.at[on]))
            add_name(w->out, hd__tensor_const(w->p, hd__instr_tensor(&s->code.at[on]))->name);
        return;
    }
    /* accumulation into some outputs only: the sign precedes those */
    int adds = hd__reads_outputs(i), some = adds && (i->custom || hd__op(i->op)->adds);
    for (uint32_t k = 0; k < i->n_out; k++) {
        hd__text_add(w->out, "%s%s", k ? ", " : "", some && hd__reads_output(i, k) ? "+" : "");
        add_tensor(w, i->out[k]);
    }
    if (i->n_out && (i->n_in || adds))
        hd__text_add(w->out, adds && !some ? " +<- " : " <- ");
    else if (i->n_in)
        hd__text_add(w->out, "<- ");
    for (uint32_t k = 0; k < i->n_in; k++) {
        hd__text_add(w->out, "%s", k ? ", " : "");
        add_tensor(w, i->in[k]);
    }
}

/* ---- columns */

static void op_text(const struct hd__instr *i, char out[96])
{
    struct hd__text text = {0};
    hd__text_add(&text, "%s", hd__instr_name(i) ? hd__instr_name(i) : "?");
    if (i->axes) {
        hd__text_add(&text, "(");
        add_axes(&text, i->axes);
        hd__text_add(&text, ")");
    }
    snprintf(out, 96, "%s", text.at);
    hd__text_free(&text);
}

static void stream_text(const struct hd__instr *i, char out[32])
{
    if (i->stream >= HD__STREAM_AXIS && i->stream < HD__STREAM_AXIS + HD_AXIS_COUNT)
        snprintf(out, 32, "%s", short_axis[i->stream - HD__STREAM_AXIS]);
    else
        hd__stream_text(i, out);
}

/* Offset and bytes of the first output: "1200384+65536". */
static void address_text(const struct printer *w, const struct hd__instr *i, char out[48])
{
    const char *base = (const char *)w; /* any base address: only the difference counts */
    const char *at = i->n_out ? hd__tensor_address(w->p, i->out[0], w->coord, (void *)(uintptr_t)base) : NULL;
    uint8_t memory = at ? hd__memory_of(w->p, i->out[0]) : 0;
    out[0] = 0;
    if (at)
        snprintf(out, 48, "%s%s%lld+%lld", memory ? hd__memory_name(memory) : "", memory ? " " : "",
                 (long long)(at - base - w->p->arena_base[memory]),
                 (long long)hd__tensor_bytes(w->p, hd__tensor_const(w->p, i->out[0])));
}

static void widen(int *width, const char *text)
{
    int n = (int)strlen(text);
    *width = HD__MAX(*width, HD__MIN(n, LONGEST));
}

static void measure(struct printer *w, const struct hd__code_section *s)
{
    char text[96];
    w->number = 4;
    for (uint32_t n = 0; n < s->code.count; n++) {
        const struct hd__instr *i = &s->code.at[n];
        op_text(i, text);
        widen(&w->op, text);
        stream_text(i, text);
        widen(&w->stream, text);
        address_text(w, i, text);
        widen(&w->place, text);
        widen(&w->block, w->p->blocks.at[i->block]);
    }
    for (uint32_t n = s->code.count; n >= 10000; n /= 10)
        w->number++;
}

static void add_line(struct printer *w, const struct hd__code_section *s, uint32_t n)
{
    const struct hd__instr *i = &s->code.at[n];
    char op[96], stream[32], place[48], micro[16] = "";
    op_text(i, op);
    stream_text(i, stream);
    address_text(w, i, place);
    if (i->micro >= 0)
        snprintf(micro, sizeof micro, "%d", i->micro);
    hd__text_add(w->out, "%*u %-*s %-*s %2s %s %-*s %*s  ", w->number, n, w->stream, stream, w->block,
                 w->p->blocks.at[i->block], micro, hd__phase_name(i->phase), w->op, op, w->place, place);
    add_operands(w, s, i);
    hd__text_add(w->out, "\n");
}

static void add_section(struct printer *w, const struct hd__code_section *s)
{
    hd__text_add(w->out, "-- %s", s->name);
    if (s->repeat < 2)
        hd__text_add(w->out, s->repeat ? ", once" : ", on demand");
    else
        hd__text_add(w->out, ", %d times", s->repeat);
    if (s->every)
        hd__text_add(w->out, ", every %u steps", s->every);
    if (s->last)
        hd__text_add(w->out, ", up to step %lld", (long long)s->last);
    if (s->after)
        hd__text_add(w->out, ", after step %lld", (long long)s->after);
    if (s->equal_axes) {
        hd__text_add(w->out, ", synchronizes the ranks along ");
        add_axes(w->out, s->equal_axes);
    }
    if (s->mixed_axes) {
        hd__text_add(w->out, ", mixes what the ranks trained along ");
        add_axes(w->out, s->mixed_axes);
    }
    hd__text_add(w->out, ": %u instructions\n", s->code.count);
    for (uint32_t n = 0; n < s->code.count; n++)
        add_line(w, s, n);
}

/* ---- totals */

static void add_totals(struct printer *w, const char *section)
{
    const struct hd_program *p = w->p;
    struct hd__cost_totals totals;
    char text[4][32];
    hd__cost_totals(p, section, &totals);
    hd__text_add(w->out, "-- totals of %s%s, this rank\n", section ? "section " : "one step", section ? section : "");
    hd__text_add(w->out, "   instructions  %lld\n   FLOPs         %.4g\n", (long long)totals.instructions,
                 totals.flops);
    for (uint32_t axes = 1; axes < HD__COUNT(totals.sent); axes++) {
        if (totals.sent[axes] <= 0)
            continue;
        hd__text_add(w->out, "   sent over     %s (", hd__bytes_text((uint64_t)totals.sent[axes], text[0]));
        add_axes(w->out, axes);
        hd__text_add(w->out, ")\n");
    }
    for (uint32_t memory = 1; memory < HD__MEM_COUNT; memory++)
        if (p->bytes[memory])
            hd__text_add(w->out, "   %-13s %s beside the arena, %s copied in and out\n", hd__memory_name(memory),
                         hd__bytes_text((uint64_t)p->bytes[memory], text[0]),
                         hd__bytes_text((uint64_t)totals.copied[memory], text[1]));
    hd__text_add(w->out, "   arena         %s = persistent %s + temporary %s (peak live: %s, ratio %.3f)\n",
                 hd__bytes_text((uint64_t)p->arena_bytes, text[0]),
                 hd__bytes_text((uint64_t)p->persistent_bytes, text[1]),
                 hd__bytes_text((uint64_t)p->temp_bytes, text[2]), hd__bytes_text((uint64_t)p->temp_bound, text[3]),
                 p->temp_bound ? (double)p->temp_bytes / (double)p->temp_bound : 1);
    hd__text_add(w->out, "   peak          %lld bytes\n", (long long)p->arena_bytes);
}

static void add_mesh(struct printer *w, int32_t rank)
{
    const char *between = "";
    hd__text_add(w->out, "-- rank %d of %d: ", rank, w->p->mesh.ranks);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (w->p->mesh.size[a] > 1) {
            hd__text_add(w->out, "%s%s %d/%d", between, short_axis[a], w->coord[a], w->p->mesh.size[a]);
            between = ", ";
        }
    hd__text_add(w->out, "%s\n", w->p->mesh.ranks == 1 ? "alone" : "");
}

void hd__program_print(const struct hd_program *p, const struct hd__program_print_options *options,
                       struct hd__text *out)
{
    uint32_t *position = hd__instr_positions(p);
    struct printer w = {.p = p, .out = out, .position = position};
    const char *only = options ? options->section : NULL;
    int32_t rank = options ? options->rank : 0;
    hd__mesh_coord(&p->mesh, rank, w.coord);
    add_mesh(&w, rank);
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (!only || !strcmp(p->sections.at[s].name, only))
            measure(&w, &p->sections.at[s]);
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (!only || !strcmp(p->sections.at[s].name, only))
            add_section(&w, &p->sections.at[s]);
    add_totals(&w, only);
    free(position);
}
