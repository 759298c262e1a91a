/* Creating the flight recorder, and reading it while it is written: a record is valid if its number is unchanged
 * after the read. */
#include "runtime/comm/flight_recorder.h"

#include <stdlib.h>

struct hd__flight *hd__comm_flight_create(uint64_t room)
{
    struct hd__flight *f = hd__alloc(sizeof *f);
    for (f->room = 1; f->room < room;)
        f->room *= 2;
    f->ring = hd__alloc(f->room * sizeof *f->ring);
    f->step = -1;
    f->tail = &f->channels;
    return f;
}

void hd__comm_flight_destroy(struct hd__flight *f)
{
    if (!f)
        return;
    hd__arena_free(&f->arena);
    free(f->ring);
    free(f);
}

struct hd__flight_channel *hd__comm_flight_channel(struct hd__flight *f, const char *group, const int32_t *ranks,
                                                   int32_t n, int32_t from, int32_t to, uint32_t stream)
{
    struct hd__flight_channel *c;
    for (c = f->channels; c; c = c->next)
        if (c->n == n && c->from == from && c->to == to && c->stream == stream && !strcmp(c->group, group) &&
            !memcmp(c->ranks, ranks, (size_t)n * sizeof *ranks))
            return c;
    c = hd__arena_alloc(&f->arena, sizeof *c);
    *c = (struct hd__flight_channel){.group = hd__arena_strdup(&f->arena, group),
                                     .ranks = hd__arena_copy(&f->arena, ranks, (size_t)n * sizeof *ranks),
                                     .n = n,
                                     .from = from,
                                     .to = to,
                                     .stream = stream,
                                     .index = f->n_channels++};
    __atomic_store_n(f->tail, c, __ATOMIC_RELEASE); /* rank dumps read the list */
    f->tail = &c->next;
    return c;
}

void hd__comm_flight_hash_op(struct hd__flight_op *op)
{
    char text[256];
    int n =
        snprintf(text, sizeof text, "%s %s %s %llu %llu %u %u %u %d", op->name, op->section, op->channel->group,
                 (unsigned long long)op->tag, (unsigned long long)op->count, op->dtype, op->redop, op->calls, op->root);
    op->hash = hd__hash(text, (size_t)HD__MIN(n, (int)sizeof text - 1), 7);
}

const struct hd__flight_op *hd__comm_flight_retract(struct hd__flight *f)
{
    struct hd__flight_record *r = &f->ring[f->number & (f->room - 1)];
    if (!f->number)
        return NULL;
    HD__FLIGHT_SET(r->number, 0);
    HD__FLIGHT_SET(r->op->channel->count, r->op->channel->count - 1);
    HD__FLIGHT_SET(f->number, f->number - 1);
    f->op_hash = f->op_hash_before;
    return r->op;
}

static double load_time(const double *at)
{
    double value;
    __atomic_load(at, &value, __ATOMIC_ACQUIRE);
    return value;
}

int hd__comm_flight_read(const struct hd__flight *f, uint64_t number, struct hd__flight_record *out)
{
    const struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    if (!number || __atomic_load_n(&r->number, __ATOMIC_ACQUIRE) != number)
        return 0;
    out->number = number;
    out->completed = load_time(&r->completed); /* before its code */
    out->code = __atomic_load_n(&r->code, __ATOMIC_ACQUIRE);
    out->seq = __atomic_load_n(&r->seq, __ATOMIC_ACQUIRE);
    out->op = __atomic_load_n(&r->op, __ATOMIC_ACQUIRE);
    out->enqueued = load_time(&r->enqueued);
    out->waited = load_time(&r->waited);
    if (out->waited > 0 && !out->completed)
        out->waited = HD__MAX(out->waited, load_time(&f->went_on));
    return __atomic_load_n(&r->number, __ATOMIC_RELAXED) == number;
}

void hd__comm_flight_went_on(struct hd__flight *f, double now)
{
    HD__FLIGHT_TIME(f->went_on, now);
}

double hd__comm_flight_took(const struct hd__flight *f, double began)
{
    return load_time(&f->went_on) > began ? 0 : hd__now() - began;
}

double hd__comm_flight_waited(const struct hd__flight *f)
{
    struct hd__flight_record r;
    uint64_t number = __atomic_load_n(&f->waiting, __ATOMIC_ACQUIRE);
    return hd__comm_flight_read(f, number, &r) && r.waited > 0 ? HD__MAX(0.0, hd__now() - r.waited) : 0;
}
