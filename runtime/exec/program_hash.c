/* A program's hash: what is computed, moved and reduced, by which instructions in which order. Not where tensors lie in
 * memory. Two programs of one job that differ here come from different builds of heddle or of a plug-in. */
#include "runtime/exec/select.h"

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return text ? hd__hash(text, strlen(text), seed) : seed;
}

static uint64_t hash_attrs(const struct hd_attrs *a, uint64_t hash)
{
    if (!a)
        return hash;
    const double real[] = {a->scale, a->eps, a->beta1, a->beta2, a->clip, a->share, a->z_scale};
    const int64_t whole[] = {a->sign, a->flags,  a->redop,        a->from,          a->to,    a->index,   a->parts,
                             a->peer, a->window, a->zigzag_parts, a->zigzag_length, a->top_k, a->n_table, a->n_ranges};
    hash = hd__hash(whole, sizeof whole, hd__hash(real, sizeof real, hash));
    if (a->n_table)
        hash = hd__hash(a->table, a->n_table * sizeof *a->table, hash);
    return a->n_ranges ? hd__hash(a->ranges, a->n_ranges * sizeof *a->ranges, hash) : hash;
}

static uint64_t hash_instr(const struct hd__instr *i, uint64_t hash)
{
    const uint32_t fields[] = {i->id,
                               i->op,
                               i->n_in,
                               i->n_out,
                               i->axes,
                               (uint32_t)i->members,
                               (uint32_t)(i->members >> 32),
                               i->wait,
                               i->stream,
                               i->block,
                               i->from,
                               i->to,
                               (uint16_t)i->chunk,
                               (uint16_t)i->micro,
                               (uint16_t)i->peer,
                               i->tag,
                               i->phase,
                               i->flags,
                               i->redop};
    hash = hd__hash(fields, sizeof fields, hash);
    hash = hd__hash(i->in, i->n_in * sizeof *i->in, hash);
    hash = hd__hash(i->out, i->n_out * sizeof *i->out, hash);
    if (i->custom)
        hash = hd__hash(i->custom->settings, i->custom->settings_bytes, hash_text(i->custom->name, hash));
    return hash_attrs(i->attrs, hash);
}

static uint64_t hash_tensor(const struct hd_program *p, const struct hd__tensor *t, uint64_t hash)
{
    const struct hd__placement *place = &t->placement;
    const struct hd__fact *fact = hd__fact_of(p, (hd_tensor)(t - p->tensors.at));
    const uint32_t fields[] = {t->ndim,    t->dtype, t->role,        t->shard_view, fact->what,
                               fact->axes, t->param, place->partial, place->redop};
    hash = hash_text(fact->section, hd__hash(fields, sizeof fields, hash));
    for (uint32_t d = 0; d < t->ndim; d++) {
        const int64_t dim[] = {t->dim[d], p->dims.at[t->dim[d]].used, place->shard[d]};
        hash = hd__hash(dim, sizeof dim, hash);
    }
    return hash;
}

/* Initial values are drawn by a parameter's name. */
static uint64_t hash_param(const struct hd__param *param, uint64_t hash)
{
    const uint32_t fields[] = {param->tensor, param->unreduced_axes, param->stages, param->parts, param->desc.init};
    hash = hd__hash(&param->desc.std, sizeof param->desc.std, hd__hash(fields, sizeof fields, hash));
    return hash_text(param->desc.name, hash);
}

static uint64_t hash_section(const struct hd__code_section *s, uint64_t hash)
{
    const int64_t fields[] = {s->repeat,   s->every, s->equal_axes, s->mixed_axes,
                              s->declares, s->after, s->last,       s->code.count};
    hash = hd__hash(fields, sizeof fields, hash_text(s->name, hash));
    for (uint32_t i = 0; i < s->code.count; i++)
        hash = hash_instr(&s->code.at[i], hash);
    return hash;
}

uint64_t hd__program_hash(const struct hd_program *p)
{
    const int64_t fields[] = {p->stage, p->accumulation, p->tensors.count, p->params.count, p->sections.count};
    uint64_t hash = hd__hash(p->mesh.size, sizeof p->mesh.size, hd__hash(fields, sizeof fields, 0));
    for (uint32_t t = 1; t < p->tensors.count; t++)
        hash = hash_tensor(p, &p->tensors.at[t], hash);
    for (uint32_t k = 0; k < p->params.count; k++)
        hash = hash_param(&p->params.at[k], hash);
    for (uint32_t s = 0; s < p->sections.count; s++)
        hash = hash_section(&p->sections.at[s], hash);
    return hash;
}
