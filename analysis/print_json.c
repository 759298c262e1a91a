/* JSON of a step program. Fields are only ever added: docs/explain-json.md defines them. */
#include <stdlib.h>

#include "analysis/print.h"
#include "core/program/access.h"
#include "core/program/ops.h"

struct printer {
    const struct hd_program *p;
    const uint32_t *position;
    int32_t coord[HD_AXIS_COUNT];
};

static json_t *axes_list(uint32_t axes)
{
    json_t *list = json_array();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a))
            json_array_append_new(list, json_string(hd__axis_name(a)));
    return list;
}

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static json_t *tensor(const struct printer *w, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, id);
    json_t *object = json_object(), *dims = json_array(), *shape = json_array(), *start = json_array(),
           *shard = json_object();
    const char *base = (const char *)w, *at = hd__tensor_address(w->p, id, w->coord, (void *)(uintptr_t)base);
    for (int32_t i = 0; i < t->ndim; i++) {
        const char *name = w->p->dims.at[t->dim[i]].name;
        json_array_append_new(dims, json_string(name));
        json_array_append_new(shape, json_integer(hd__local_extent(w->p, t, i)));
        json_array_append_new(start, json_integer(hd__global_start(w->p, t, i, w->coord)));
        if (t->placement.shard[i]) {
            json_t *axes = json_array();
            for (uint32_t s = t->placement.shard[i]; s; s >>= 4)
                json_array_append_new(axes, json_string(hd__axis_name((int32_t)(s & 15) - 1)));
            set(shard, name, axes);
        }
    }
    set(object, "name", json_string(t->name));
    set(object, "dtype", json_string(hd_dtype_name(t->dtype)));
    set(object, "dims", dims);
    set(object, "shape", shape);
    set(object, "start", start);
    set(object, "shard", shard);
    set(object, "partial", axes_list(t->placement.partial));
    if (t->placement.partial)
        set(object, "redop", json_string(t->placement.redop == HD_MAX ? "max" : "sum"));
    set(object, "offset", at ? json_integer(at - base - w->p->arena_base[hd__memory_of(w->p, id)]) : json_null());
    set(object, "memory", json_string(hd__memory_name(hd__memory_of(w->p, id))));
    set(object, "bytes", json_integer(hd__tensor_bytes(w->p, t)));
    set(object, "persistent", json_boolean(w->p->buffers.at[t->buffer].life == HD__LIFE_PERSISTENT));
    return object;
}

static json_t *tensors(const struct printer *w, const hd_tensor *t, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t k = 0; k < n; k++)
        json_array_append_new(list, tensor(w, t[k]));
    return list;
}

static json_t *instruction(const struct printer *w, const hd__code *code, uint32_t n)
{
    const struct hd__instr *i = &code->at[n];
    json_t *object = json_object();
    char stream[32];
    set(object, "n", json_integer(n));
    set(object, "op", json_string(hd__instr_name(i)));
    set(object, "stream", json_string(hd__stream_text(i, stream)));
    set(object, "block", json_string(w->p->blocks.at[i->block]));
    set(object, "micro", i->micro < 0 ? json_null() : json_integer(i->micro));
    set(object, "phase", json_string(hd__phase_name(i->phase)));
    if (i->op == HD_OP_WAIT) {
        uint32_t on = hd__wait_target(w->p, code, w->position, i);
        set(object, "waits_for", on == UINT32_MAX ? json_null() : json_integer(on));
        return object;
    }
    if (i->axes)
        set(object, "axes", axes_list(i->axes));
    if (i->op == HD_OP_SEND || i->op == HD_OP_RECV)
        set(object, "peer_stage", json_integer(i->peer));
    set(object, "accumulates", json_boolean(hd__reads_outputs(i)));
    set(object, "out", tensors(w, i->out, i->n_out));
    set(object, "in", tensors(w, i->in, i->n_in));
    set(object, "flops", json_real(hd__instr_flops(w->p, i)));
    set(object, "sent_bytes", json_real(hd__instr_traffic(w->p, i)));
    return object;
}

static json_t *section(const struct printer *w, const struct hd__code_section *s)
{
    json_t *object = json_object(), *list = json_array();
    char axes[64];
    for (uint32_t n = 0; n < s->code.count; n++)
        json_array_append_new(list, instruction(w, &s->code, n));
    set(object, "name", json_string(s->name));
    set(object, "repeat", json_integer(s->repeat));
    set(object, "every", json_integer(s->every ? s->every : 1));
    if (s->after)
        set(object, "after_step", json_integer(s->after));
    if (s->last)
        set(object, "last_step", json_integer(s->last));
    if (s->equal_axes) {
        hd__axes_text(s->equal_axes, axes);
        set(object, "makes_equal", json_string(axes));
    }
    if (s->mixed_axes) {
        hd__axes_text(s->mixed_axes, axes);
        set(object, "mixes", json_string(axes));
    }
    set(object, "instructions", list);
    return object;
}

static json_t *memory(const struct hd_program *p)
{
    json_t *object = json_object();
    set(object, "arena_bytes", json_integer(p->arena_bytes));
    set(object, "persistent_bytes", json_integer(p->persistent_bytes));
    set(object, "temporary_bytes", json_integer(p->temp_bytes));
    set(object, "temporary_bound_bytes", json_integer(p->temp_bound));
    set(object, "host_bytes", json_integer(p->bytes[HD__MEM_HOST]));
    set(object, "file_bytes", json_integer(p->bytes[HD__MEM_FILE]));
    return object;
}

static json_t *totals_json(const struct hd_program *p, const char *only)
{
    json_t *object = json_object(), *sent = json_object();
    struct hd__cost_totals totals;
    char axes[64];
    hd__cost_totals(p, only, &totals);
    for (uint32_t mask = 1; mask < HD__COUNT(totals.sent); mask++) {
        if (totals.sent[mask] <= 0)
            continue;
        hd__axes_text(mask, axes);
        set(sent, axes, json_real(totals.sent[mask]));
    }
    set(object, "instructions", json_integer(totals.instructions));
    set(object, "flops", json_real(totals.flops));
    set(object, "sent_bytes", sent);
    set(object, "copied_bytes",
        json_pack("{s:f, s:f}", "host", totals.copied[HD__MEM_HOST], "file", totals.copied[HD__MEM_FILE]));
    set(object, "memory", memory(p));
    return object;
}

static json_t *mesh_json(const struct printer *w)
{
    json_t *mesh = json_object();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        json_t *axis = json_object();
        set(axis, "size", json_integer(w->p->mesh.size[a]));
        set(axis, "coordinate", json_integer(w->coord[a]));
        set(mesh, hd__axis_name(a), axis);
    }
    return mesh;
}

json_t *hd__program_print_json(const struct hd_program *p, const struct hd__program_print_options *options)
{
    uint32_t *position = hd__instr_positions(p);
    struct printer w = {.p = p, .position = position};
    const char *only = options ? options->section : NULL;
    json_t *object = json_object(), *list = json_array();
    hd__mesh_coord(&p->mesh, options ? options->rank : 0, w.coord);
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (!only || !strcmp(p->sections.at[s].name, only))
            json_array_append_new(list, section(&w, &p->sections.at[s]));
    set(object, "version", json_integer(1));
    set(object, "rank", json_integer(options ? options->rank : 0));
    set(object, "ranks", json_integer(p->mesh.ranks));
    set(object, "mesh", mesh_json(&w));
    set(object, "sections", list);
    set(object, "totals", totals_json(p, only));
    free(position);
    return object;
}
