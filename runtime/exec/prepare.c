/* Instructions become steps: kernels with final addresses, exchanges, copies, feeds. */
#include <stdlib.h>

#include "runtime/exec/internal.h"

static int32_t prepare_kernel(struct hd__exec *e, const struct hd__instr *i, struct hd__step *s, struct hd_error *err)
{
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_instr_desc desc;
    hd__bind(e->p, i, e->coord, e->arena, &desc, in, out);
    s->kind = STEP_KERNEL;
    return e->device.ops->prepare(e->device.at, &desc, &s->kernel, err);
}

/* To and from a file whole pages go: both ends were planned so. The other memories lie where the view says. */
static int32_t prepare_copy(struct hd__exec *e, const struct hd__instr *i, struct hd__step *s, struct hd_error *err)
{
    int32_t out = i->stream == HD__STREAM_OUT;
    hd_tensor there = out ? i->out[0] : i->in[0], here = out ? i->in[0] : i->out[0];
    struct hd__copy *c = hd__arena_alloc(&e->p->arena, sizeof *c);
    *c = (struct hd__copy){.main = hd__address(e->p, here, e->coord, e->arena), .out = out,
                           .bytes = hd__tensor_bytes(e->p, hd__tc(e->p, here))};
    if (hd__memory_of(e->p, there) == HD__MEM_FILE) {
        c->at = e->p->buffers.at[hd__tc(e->p, there)->buffer].offset;
        c->bytes = (c->bytes + 4095) & ~INT64_C(4095);
    } else {
        c->other = hd__address(e->p, there, e->coord, e->view);
    }
    s->kind = STEP_COPY;
    s->copy = c;
    return e->device.streams ? hd__device_event(&e->device, &c->done, err) : HD_OK;
}

static void prepare_wait(const struct hd__exec_section *done, uint32_t at, const struct hd__instr *i, struct hd__step *s)
{
    s->kind = STEP_NOTHING;
    for (uint32_t k = at; k-- > 0;) {
        if (done->of->code.at[k].id != i->wait)
            continue;
        if (done->steps[k].kind == STEP_EXCHANGE) {
            s->kind = STEP_EXCHANGE_WAIT;
            s->exchange = done->steps[k].exchange;
        } else if (done->steps[k].kind == STEP_COPY) {
            s->kind = STEP_COPY_WAIT;
            s->copy = done->steps[k].copy;
        }
        return;
    }
}

static int32_t prepare_feed(struct hd__exec *e, const struct hd__instr *i, struct hd__step *s, struct hd_error *err)
{
    struct hd__feeding *by;
    void *pinned;
    int32_t rc;
    s->kind = STEP_FEED;
    s->feed.out = hd__address(e->p, i->out[0], e->coord, e->arena);
    s->feed.count = hd__numel(e->p, hd__tc(e->p, i->out[0]));
    s->feed.labels = hd__tc(e->p, i->out[0])->origin == e->p->labels;
    s->feed.by = NULL;
    if (!e->device.streams)
        return HD_OK;
    by = s->feed.by = hd__arena_alloc(&e->p->arena, sizeof *by);
    rc = hd__device_event(&e->device, &by->copied, err);
    if (!rc)
        rc = hd__device_pinned(&e->device, (size_t)s->feed.count * sizeof *by->pinned, &pinned, err);
    by->pinned = rc ? NULL : pinned;
    return rc;
}

static int32_t prepare_step(struct hd__exec *e, struct hd__exec_section *section, uint32_t k, struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    struct hd__step *s = &section->steps[k];
    s->instr = k;
    s->kind = STEP_NOTHING;
    if (hd__op(i->op)->class == HD__CLASS_COLLECTIVE || hd__op(i->op)->class == HD__CLASS_P2P) {
        struct hd__exchange_place place = {.section = section->of->name, .index = k};
        s->kind = STEP_EXCHANGE;
        return hd__exchange_new(&e->transports, e->p, i, &place, e->coord, e->arena, &s->exchange, err);
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

static int32_t prepare_section(struct hd__exec *e, struct hd__exec_section *section, const struct hd__code_section *of,
                               struct hd_error *err)
{
    int32_t rc = HD_OK;
    section->of = of;
    section->n = of->code.count;
    section->steps = hd__alloc((section->n + 1) * sizeof *section->steps);
    for (uint32_t k = 0; k < section->n && !rc; k++) {
        rc = prepare_step(e, section, k, err);
        if (rc && !err->where[0])
            snprintf(err->where, sizeof err->where, "section %s, instruction %u", of->name, k);
    }
    if (!rc)
        hd__exec_find_pieces(e, section);
    return rc;
}

int32_t hd__exec_prepare(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = HD_OK;
    e->sections = hd__alloc(e->p->sections.count * sizeof *e->sections);
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++)
        rc = prepare_section(e, &e->sections[s], &e->p->sections.at[s], err);
    return rc || !e->transports.stage ? rc : hd__stage_ready(e->transports.stage, err);
}

static void release_step(struct hd__exec *e, struct hd__step *s)
{
    switch (s->kind) {
    case STEP_KERNEL:
        if (s->kernel)
            e->device.ops->release(e->device.at, s->kernel);
        return;
    case STEP_EXCHANGE:
        hd__exchange_free(s->exchange);
        return;
    case STEP_COPY:
        if (s->copy)
            hd__device_event_free(&e->device, s->copy->done);
        return;
    case STEP_FEED:
        if (s->feed.by) {
            hd__device_event_free(&e->device, s->feed.by->copied);
            hd__device_pinned_free(&e->device, s->feed.by->pinned);
        }
        return;
    default:
        return;
    }
}

void hd__exec_release(struct hd__exec *e)
{
    for (uint32_t s = 0; e->sections && s < e->p->sections.count; s++) {
        struct hd__exec_section *section = &e->sections[s];
        hd__exec_free_pieces(e, section);
        for (uint32_t k = 0; section->steps && k < section->n; k++)
            release_step(e, &section->steps[k]);
        free(section->steps);
    }
    free(e->sections);
    e->sections = NULL;
    hd__stage_free(e->transports.stage);
    hd__ordered_free(e->transports.in_order);
    e->transports.stage = NULL;
    e->transports.in_order = NULL;
}
