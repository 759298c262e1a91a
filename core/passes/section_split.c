/* Splits a section in two, one for the first steps of a run or the first round of a step, and one for the others.
 * Instructions of both are duplicated, since a temporary belongs to one section. */
#include "core/passes/strategy_api.h"

struct section_copy {
    struct hd_program *p;
    hd_tensor *tensor;        /* by tensor: its copy */
    uint32_t *buffer, *instr; /* by buffer; by id of an instruction */
};

static uint32_t copy_buffer(struct section_copy *w, uint32_t b)
{
    if (!w->buffer[b])
        w->buffer[b] = hd__buffer_new(w->p, w->p->buffers.at[b].name, w->p->buffers.at[b].bytes, HD__LIFE_TEMP);
    w->p->buffers.at[w->buffer[b]].block = w->p->buffers.at[b].block;
    return w->buffer[b];
}

/* A tensor without a buffer gets a persistent one later if its role says so: parameters, states. */
static int is_persistent(const struct hd_program *p, const struct hd__tensor *t)
{
    if (t->buffer)
        return p->buffers.at[t->buffer].life != HD__LIFE_TEMP;
    return t->role == HD__ROLE_PARAM || t->role == HD__ROLE_STATE || t->role == HD__ROLE_FLAT;
}

static hd_tensor copy_tensor(struct section_copy *w, hd_tensor t)
{
    struct hd__tensor copy = *hd__tensor_const(w->p, t);
    if (is_persistent(w->p, &copy))
        return t;
    if (copy.buffer && !w->tensor[t])
        copy.buffer = copy_buffer(w, copy.buffer);
    if (!w->tensor[t])
        w->tensor[t] = hd__tensor_new(w->p, &copy);
    return w->tensor[t];
}

static struct hd__instr copy_instr(struct section_copy *w, const struct hd__instr *of)
{
    struct hd__instr i = *of;
    i.id = w->instr[of->id] = ++w->p->next_id;
    i.wait = of->wait ? w->instr[of->wait] : 0;
    for (uint32_t k = 0; k < i.n_in; k++)
        i.in[k] = copy_tensor(w, i.in[k]);
    for (uint32_t k = 0; k < i.n_out; k++)
        i.out[k] = copy_tensor(w, i.out[k]);
    return i;
}

/* A copy of the section, with its own temporaries. */
static struct hd__code_section copy_section(struct hd_program *p, uint32_t section, const char *ending)
{
    struct hd__code_section twin = p->sections.at[section];
    struct hd__arena scratch = {0};
    struct section_copy w = {.p = p,
                             .tensor = hd__arena_alloc(&scratch, p->tensors.count * sizeof *w.tensor),
                             .buffer = hd__arena_alloc(&scratch, p->buffers.count * sizeof *w.buffer),
                             .instr = hd__arena_alloc(&scratch, ((size_t)p->next_id + 1) * sizeof *w.instr)};
    twin.name = hd__arena_format(&p->arena, "%s_%s", twin.name, ending);
    twin.kind = HD__SECTION_OTHER;
    twin.code = (hd__code){0};
    for (uint32_t k = 0; k < p->sections.at[section].code.count; k++) {
        struct hd__instr i = copy_instr(&w, &p->sections.at[section].code.at[k]);
        hd__push(&twin.code, i);
    }
    hd__arena_free(&scratch);
    return twin;
}

static void insert_section(struct hd_program *p, uint32_t section, struct hd__code_section first)
{
    hd__push(&p->sections, first);
    memmove(&p->sections.at[section + 1], &p->sections.at[section], (p->sections.count - 1 - section) * sizeof first);
    p->sections.at[section] = first;
}

void hd__pass_split_section(struct hd_program *p, uint32_t section, int64_t last)
{
    if (!hd__pass_args(p, __func__, "3s", section) || !hd__pass_unedited(p))
        return;
    if (last < 1) {
        hd__pass_refuse(p, "hd_pass_api.split_section: the first part ends with step %lld; steps count from 1",
                        (long long)last);
        return;
    }
    struct hd__code_section first = copy_section(p, section, "warmup");
    first.last = last;
    p->sections.at[section].after = last;
    insert_section(p, section, first);
}

/* Splits off the first round. verify walks a repeated section twice, and so one round more after the split. */
void hd__pass_first_round(struct hd_program *p, uint32_t section)
{
    if (!hd__pass_args(p, __func__, "3s", section) || !hd__pass_unedited(p) || p->sections.at[section].repeat < 2)
        return;
    struct hd__code_section first = copy_section(p, section, "first");
    first.repeat = 1;
    if (--p->sections.at[section].repeat > 1)
        p->micro_factors++;
    insert_section(p, section, first);
}
