/* Collectives go in steps: all put a piece into their slots, meet, take what is theirs, meet. Messages of one call go
 * on side by side, through a mailbox for each pair. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

size_t type_size(int type)
{
    static const size_t sizes[] = {[NC_U8] = 1, [NC_I32] = 4, [NC_F16] = 2, [NC_F32] = 4, [NC_F64] = 8, [NC_BF16] = 2};
    return type >= 0 && (size_t)type < sizeof sizes / sizeof *sizes ? sizes[type] : 0;
}

void relax(unsigned idle)
{
    struct timespec nap = {.tv_nsec = 50000};
    if (idle > 200)
        nanosleep(&nap, NULL);
    else
        sched_yield();
}

int steps_meet(nc_comm c, _Atomic uint64_t *steps)
{
    uint64_t mine = atomic_fetch_add(&steps[c->rank], 1) + 1;
    for (int r = 0; r < c->n; r++)
        for (unsigned idle = 0; atomic_load(&steps[r]) < mine; idle++) {
            if (c->aborted)
                return 0;
            relax(idle);
        }
    return 1;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- collectives */

static int reduces(const struct operation *o)
{
    return o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER || o->kind == REDUCE;
}

/* One member's sum of a piece, out of the slots. */
static void add_up(const struct operation *o, uint8_t *out, size_t count)
{
    nc_comm c = o->comm;
    memcpy(out, c->shared->slot[0], count * type_size(o->type));
    for (int r = 1; r < c->n; r++)
        sum_into(out, c->shared->slot[r], count, o->type, o->op);
    sum_after(out, count, o->type, o->op, c->n);
}

static void take(const struct operation *o, size_t at, size_t count)
{
    nc_comm c = o->comm;
    size_t size = type_size(o->type);
    if (o->kind == ALL_GATHER)
        for (int r = 0; r < c->n; r++)
            memcpy(o->recv + ((size_t)r * o->count + at) * size, c->shared->slot[r], count * size);
    else if (o->kind == BROADCAST)
        memmove(o->recv + at * size, c->shared->slot[o->root], count * size);
    else
        add_up(o, o->recv + at * size, count);
}

/* A piece that all put in: of `send` from element `from` on; `owner` alone takes it, or all (-1), to element `at`. */
static int step(const struct operation *o, size_t from, size_t at, size_t count, int owner)
{
    nc_comm c = o->comm;
    size_t size = type_size(o->type);
    if (o->kind != BROADCAST || c->rank == o->root) {
        memcpy(c->shared->slot[c->rank], o->send + from * size, count * size);
        if (reduces(o))
            sum_before(c->shared->slot[c->rank], count, o->type, o->op, c->n);
    }
    if (!steps_meet(c, c->shared->steps))
        return 0;
    if (owner < 0 || owner == c->rank)
        take(o, at, count);
    return steps_meet(c, c->shared->steps);
}

static void collective(const struct operation *o)
{
    size_t most = SLOT / type_size(o->type);
    int parts = o->kind == REDUCE_SCATTER ? o->comm->n : 1;
    for (int p = 0; p < parts; p++)
        for (size_t at = 0; at < o->count; at += most)
            if (!step(o, (size_t)p * o->count + at, at, least(most, o->count - at),
                      o->kind == REDUCE_SCATTER ? p
                      : o->kind == REDUCE       ? o->root
                                                : -1))
                return;
}

/* ---- messages */

/* 1 if it moved. */
static int message(struct operation *o)
{
    nc_comm c = o->comm;
    struct mailbox *box = o->kind == SEND ? &c->shared->mail[c->rank][o->root] : &c->shared->mail[o->root][c->rank];
    size_t all = o->count * type_size(o->type);
    if (o->done == all || (atomic_load(&box->full) != 0) == (o->kind == SEND))
        return 0;
    if (o->kind == RECV && box->bytes > all - o->done) /* another size: it never ends */
        return 0;
    if (o->kind == SEND) {
        box->bytes = (uint32_t)least(MAIL, all - o->done);
        memcpy(box->data, o->send + o->done, box->bytes);
    } else {
        memcpy(o->recv + o->done, box->data, box->bytes);
    }
    o->done += box->bytes;
    atomic_store(&box->full, o->kind == SEND);
    return 1;
}

static void messages(struct operation *list)
{
    for (unsigned idle = 0;; idle++) {
        int moved = 0, left = 0;
        for (struct operation *o = list; o; o = o->next) {
            moved |= message(o);
            left |= o->done < o->count * type_size(o->type);
        }
        if (!left || list->comm->aborted)
            return;
        if (!moved)
            relax(idle);
        else
            idle = 0;
    }
}

/* ---- a call */

static void hang(struct operation *o)
{
    if (o->fault == ASYNC)
        o->comm->result = o->result;
    for (unsigned idle = 0; !o->comm->aborted; idle++)
        relax(idle);
}

void operations_free(struct operation *list)
{
    while (list) {
        struct operation *o = list;
        list = o->next;
        free(o);
    }
}

void operations_run_again(void *arg)
{
    const struct operation *list = arg;
    struct operation *copy = NULL, **tail = &copy;
    list->comm->pending++;
    list->comm->users++;
    for (; list; list = list->next, tail = &(*tail)->next) {
        *tail = malloc(sizeof **tail);
        **tail = *list;
    }
    operations_run(copy);
}

void operations_run(void *arg)
{
    struct operation *list = arg;
    nc_comm comm = list->comm;
    if (list->fault)
        hang(list);
    else if (comm->aborted)
        ;
    else if (list->kind == SEND || list->kind == RECV)
        messages(list);
    else
        collective(list);
    operations_free(list);
    comm->pending--;
    comm_drop(comm);
}
