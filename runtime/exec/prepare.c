/* Prepared instructions: kernels with final addresses, comm ops, copies, feeds. */
#include <stdlib.h>

#include "runtime/exec/internal.h"

static int32_t prepare_kernel(struct hd__exec *e, const struct hd__instr *i, struct hd__prepared *s,
                              struct hd_error *err)
{
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_instr_desc desc;
    hd__instr_lower(e->p, i, e->coord, e->arena, &desc, in, out);
    s->kind = HD__PREPARED_KERNEL;
    return e->device.ops->prepare(e->device.handle, &desc, &s->kernel, err);
}

/* File copies are whole pages: memory planning padded both ends. Other memories are addressed from the host mirror. */
static int32_t prepare_copy(struct hd__exec *e, const struct hd__instr *i, struct hd__prepared *s, struct hd_error *err)
{
    int32_t out = i->stream == HD__STREAM_OUT, memory;
    hd_tensor there = out ? i->out[0] : i->in[0], here = out ? i->in[0] : i->out[0];
    struct hd__copy_op *c = hd__arena_alloc(&e->p->arena, sizeof *c);
    memory = hd__memory_of(e->p, there);
    *c = (struct hd__copy_op){.engine = e->copy_engines[memory],
                              .main = hd__tensor_address(e->p, here, e->coord, e->arena),
                              .out = out,
                              .bytes = hd__tensor_bytes(e->p, hd__tensor_const(e->p, here))};
    if (memory == HD__MEM_FILE) {
        c->offset = e->p->buffers.at[hd__tensor_const(e->p, there)->buffer].offset;
        c->bytes = (c->bytes + 4095) & ~INT64_C(4095);
    } else {
        c->other = hd__tensor_address(e->p, there, e->coord, e->host_mirror);
    }
    s->kind = HD__PREPARED_COPY;
    s->copy = c;
    return e->device.streams ? hd__exec_device_create_event(&e->device, &c->done, err) : HD_OK;
}

static void prepare_wait(const struct hd__prepared_section *done, uint32_t at, const struct hd__instr *i,
                         struct hd__prepared *s)
{
    s->kind = HD__PREPARED_NOTHING;
    for (uint32_t k = at; k-- > 0;) {
        struct hd__prepared *start = &done->prepared[k];
        if (done->of->code.at[k].id != i->wait)
            continue;
        if (start->kind == HD__PREPARED_COMM) {
            s->kind = HD__PREPARED_COMM_WAIT;
            s->comm_op = start->comm_op;
        } else if (start->kind == HD__PREPARED_COPY) {
            s->kind = HD__PREPARED_COPY_WAIT;
            s->copy = start->copy;
        }
        start->wait = at;
        return;
    }
}

static int32_t prepare_feed(struct hd__exec *e, const struct hd__instr *i, struct hd__prepared *s, struct hd_error *err)
{
    struct hd__feed_staging *by;
    void *pinned;
    s->kind = HD__PREPARED_FEED;
    s->feed.out = hd__tensor_address(e->p, i->out[0], e->coord, e->arena);
    s->feed.count = hd__numel(e->p, hd__tensor_const(e->p, i->out[0]));
    s->feed.input = hd__program_input(e->p, i->out[0]);
    s->feed.by = NULL;
    if (!e->device.streams)
        return HD_OK;
    by = s->feed.by = hd__arena_alloc(&e->p->arena, sizeof *by);
    int32_t rc = hd__exec_device_create_event(&e->device, &by->copied, err);
    if (!rc)
        rc = hd__exec_device_alloc_pinned(&e->device, (size_t)s->feed.count * sizeof *by->pinned, &pinned, err);
    by->pinned = rc ? NULL : pinned;
    return rc;
}

static int32_t prepare_instr(struct hd__exec *e, struct hd__prepared_section *section, uint32_t k, struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    struct hd__prepared *s = &section->prepared[k];
    s->kind = HD__PREPARED_NOTHING;
    if (hd__op(i->op)->class == HD__CLASS_COLLECTIVE || hd__op(i->op)->class == HD__CLASS_P2P) {
        struct hd__instr_location place = {.section = section->of->name, .index = k};
        s->kind = HD__PREPARED_COMM;
        return hd__exec_comm_op_create(e->comm, e->p, i, &place, e->coord, e->arena, &s->comm_op, err);
    }
    if (hd__is_copy(i))
        return prepare_copy(e, i, s, err);
    switch (i->op) {
    case HD_OP_WAIT:
        prepare_wait(section, k, i, s);
        return HD_OK;
    case HD_OP_RELEASE:
        return HD_OK;
    case HD_OP_FEED:
        return prepare_feed(e, i, s, err);
    default:
        return prepare_kernel(e, i, s, err);
    }
}

static int32_t prepare_section(struct hd__exec *e, struct hd__prepared_section *section,
                               const struct hd__code_section *of, struct hd_error *err)
{
    int32_t rc = HD_OK;
    section->of = of;
    section->n = of->code.count;
    section->prepared = hd__alloc((section->n + 1) * sizeof *section->prepared);
    for (uint32_t k = 0; k < section->n && !rc; k++) {
        rc = prepare_instr(e, section, k, err);
        if (rc && !err->where[0])
            snprintf(err->where, sizeof err->where, "section %s, instruction %u", of->name, k);
    }
    if (!rc) {
        hd__exec_find_segments(e, section);
        hd__exec_find_state_writes(e, section);
    }
    return rc;
}

int32_t hd__exec_prepare(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = HD_OK;
    e->sections = hd__alloc(e->p->sections.count * sizeof *e->sections);
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++)
        rc = prepare_section(e, &e->sections[s], &e->p->sections.at[s], err);
    return rc ? rc : hd__exec_comm_engine_alloc(e->comm, err);
}

static void release_prepared(struct hd__exec *e, struct hd__prepared *s)
{
    switch (s->kind) {
    case HD__PREPARED_KERNEL:
        if (s->kernel)
            e->device.ops->release(e->device.handle, s->kernel);
        return;
    case HD__PREPARED_COMM:
        hd__exec_comm_op_free(s->comm_op);
        return;
    case HD__PREPARED_COPY:
        if (s->copy)
            hd__exec_device_free_event(&e->device, s->copy->done);
        return;
    case HD__PREPARED_FEED:
        if (s->feed.by) {
            hd__exec_device_free_event(&e->device, s->feed.by->copied);
            hd__exec_device_free_pinned(&e->device, s->feed.by->pinned);
        }
        return;
    default:
        return;
    }
}

void hd__exec_release(struct hd__exec *e)
{
    for (uint32_t s = 0; e->sections && s < e->p->sections.count; s++) {
        struct hd__prepared_section *section = &e->sections[s];
        hd__exec_free_segments(e, section);
        for (uint32_t k = 0; section->prepared && k < section->n; k++)
            release_prepared(e, &section->prepared[k]);
        free(section->prepared);
    }
    free(e->sections);
    e->sections = NULL;
    hd__exec_comm_engine_free(e->comm);
    e->comm = NULL;
}
