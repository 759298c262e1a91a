/* Offloaded tensors, which live in another memory than the one that compute uses, and their staging.
 *
 * A section that computes with such a tensor stages it: a twin in the main memory, filled by a copy on the stream IN
 * and written back by one on the stream OUT. All twins of a slot share its memory, so a slot is as large as its largest
 * user, and the schedule's waits ensure that a slot is written back before it is filled again. */
#include "core/passes/strategy_api.h"

static struct hd__offloaded *find_offloaded(struct hd_program *p, const char *section, hd_tensor home)
{
    for (uint32_t n = p->offloaded.count; n-- > 0;)
        if (p->offloaded.at[n].home == home && !strcmp(p->offloaded.at[n].section, section))
            return &p->offloaded.at[n];
    return NULL;
}

static uint32_t slot_buffer(struct hd_program *p, const char *section, uint32_t slot, uint32_t role)
{
    for (uint32_t n = 0; n < p->offloaded.count; n++) {
        const struct hd__offloaded *s = &p->offloaded.at[n];
        if (s->slot == slot && s->role == role && !strcmp(s->section, section))
            return hd__tensor_const(p, s->main_copy)->buffer;
    }
    return hd__buffer_new(p, hd__arena_format(&p->arena, "staged.%u.%u", slot, role), 64, HD__LIFE_TEMP);
}

static hd_tensor make_main_copy(struct hd_program *p, const char *section, hd_tensor home, uint32_t slot, uint32_t role)
{
    struct hd__tensor t = *hd__tensor_const(p, home);
    const struct hd__buffer *from = &p->buffers.at[t.buffer];
    int64_t bytes = from->bytes;
    uint32_t paged = from->paged;
    t.name = hd__arena_format(&p->arena, "%s@%u", t.name, slot);
    t.buffer = slot_buffer(p, section, slot, role);
    t.origin = 0;
    p->buffers.at[t.buffer].bytes = HD__MAX(p->buffers.at[t.buffer].bytes, bytes);
    p->buffers.at[t.buffer].paged |= paged;
    struct hd__offloaded s = {
        .home = home, .main_copy = hd__tensor_new(p, &t), .section = section, .slot = slot, .role = role};
    hd__push(&p->offloaded, s);
    return s.main_copy;
}

hd_tensor hd__offload_staged(struct hd_program *p, const char *section, hd_tensor home)
{
    if (!home || hd__memory_of(p, home) == HD__MEM_MAIN)
        return home;
    const struct hd__offloaded *s = find_offloaded(p, section, home);
    if (s)
        return s->main_copy;
    hd__program_fail(p, HD_E_INVALID,
                     "section %s computes with %s, which lies in %s memory, and does not fetch it first", section,
                     hd__tensor_const(p, home)->name, hd__memory_of(p, home) == HD__MEM_HOST ? "host" : "file");
    return home;
}

static void add_copy(struct hd_program *p, const char *section, uint16_t block, hd_tensor from, hd_tensor to)
{
    struct hd__code_section *s = hd__program_section(p, section);
    struct hd__instr i = hd__instr_new(p, HD_OP_COPY);
    if (!s) {
        hd__program_fail(p, HD_E_INVALID, "there is no section '%s' to append to", section);
        return;
    }
    i.phase = HD__PHASE_O;
    i.block = block;
    i.in[i.n_in++] = from;
    i.out[i.n_out++] = to;
    i.stream = hd__offload_stream(p, from, to);
    hd__push(&s->code, i);
}

uint16_t hd__offload_stream(const struct hd_program *p, hd_tensor from, hd_tensor to)
{
    if (hd__memory_of(p, from) != HD__MEM_MAIN)
        return HD__STREAM_IN;
    return hd__memory_of(p, to) != HD__MEM_MAIN ? HD__STREAM_OUT : HD__STREAM_COMPUTE;
}

/* The roles that can be offloaded, as `what` names them. */
static const uint8_t parts[] = {[HD__FLAT_MASTER] = HD_PART_MASTER,
                                [HD__FLAT_COMPUTE_COPY] = HD_PART_LOW,
                                [HD__FLAT_OPTIM... HD__FLAT_OPTIM + 3] = HD_PART_STATES};

void hd__offload_fetch(struct hd_program *p, const char *section, uint32_t flat, uint32_t what, uint32_t load,
                       uint32_t slot)
{
    for (uint32_t role = 0; role < HD__COUNT(parts) && !p->failed; role++) {
        const struct hd__flat *f = &p->flats.at[flat - 1];
        hd_tensor home = parts[role] & what ? f->tensor[role] : 0;
        if (!home || hd__memory_of(p, home) == HD__MEM_MAIN)
            continue;
        hd_tensor main_copy = make_main_copy(p, section, home, slot, role);
        if (parts[role] & load)
            add_copy(p, section, f->block, home, main_copy);
    }
}

void hd__offload_store(struct hd_program *p, const char *section, uint32_t flat, uint32_t what)
{
    for (uint32_t role = 0; role < HD__COUNT(parts) && !p->failed; role++) {
        const struct hd__flat *f = &p->flats.at[flat - 1];
        hd_tensor home = parts[role] & what ? f->tensor[role] : 0;
        if (home && hd__memory_of(p, home) != HD__MEM_MAIN)
            add_copy(p, section, f->block, hd__offload_staged(p, section, home), home);
    }
}
