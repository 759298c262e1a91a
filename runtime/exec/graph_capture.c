/* Captured pieces: what a section launches without the host having a part in it is launched as one.
 *
 * A piece is a run of steps between two that are the host's: a feed, or an exchange over a transport that the host drives. What
 * begins in a piece ends there. Its first run is as any other, so that the device has seen all of it once; the second is
 * captured, and from then on it is replayed. Where the device says that it cannot capture a piece, it stays as it is: nothing of
 * it has run, so it can be launched again. */
#include <stdlib.h>

#include "runtime/exec/internal.h"

/* ---- finding them */

static int is_quiet(const struct hd__step *s)
{
    switch (s->kind) {
    case STEP_FEED:
        return 0;
    case STEP_EXCHANGE:
    case STEP_EXCHANGE_WAIT:
        return hd__exchange_quiet(s->exchange);
    case STEP_COPY:
    case STEP_COPY_WAIT:
        return s->copy->other != NULL;
    default:
        return 1;
    }
}

static int is_start(const struct hd__step *s)
{
    return s->kind == STEP_EXCHANGE || s->kind == STEP_COPY;
}

/* The wait of a start: both point at the same thing. -1: there is none. */
static int64_t end_of(const struct hd__exec_section *section, uint32_t start)
{
    const struct hd__step *s = &section->steps[start];
    for (uint32_t k = start + 1; k < section->n; k++) {
        const struct hd__step *w = &section->steps[k];
        if ((s->kind == STEP_EXCHANGE && w->kind == STEP_EXCHANGE_WAIT && w->exchange == s->exchange) ||
            (s->kind == STEP_COPY && w->kind == STEP_COPY_WAIT && w->copy == s->copy))
            return k;
    }
    return -1;
}

/* Starts that are apart from their waits are taken out, which may take others apart. */
static void balance(const struct hd__exec_section *section, char *quiet)
{
    uint32_t *run = hd__alloc((section->n + 1) * sizeof *run);
    for (int moved = 1; moved;) {
        uint32_t number = 0;
        moved = 0;
        for (uint32_t k = 0; k < section->n; k++)
            run[k] = quiet[k] ? number : ++number;
        for (uint32_t k = 0; k < section->n; k++) {
            int64_t end = is_start(&section->steps[k]) ? end_of(section, k) : k;
            if (end == k || (end >= 0 && quiet[k] == quiet[end] && (!quiet[k] || run[k] == run[end])))
                continue;
            quiet[k] = 0;
            if (end >= 0)
                quiet[end] = 0;
            moved = 1;
        }
    }
    free(run);
}

static struct hd__piece piece_of(const struct hd__exec_section *section, uint32_t first, uint32_t end)
{
    struct hd__piece piece = {.first = first, .end = end};
    for (uint32_t k = first; k < end; k++) {
        const struct hd__step *s = &section->steps[k];
        piece.launches += s->kind == STEP_KERNEL || is_start(s);
        if (s->kind == STEP_EXCHANGE && hd__exchange_watched(s->exchange))
            hd__push(&piece.exchanges, s->exchange);
    }
    return piece;
}

void hd__exec_find_pieces(struct hd__exec *e, struct hd__exec_section *section)
{
    char *quiet = hd__alloc(section->n + 1);
    if (e->device.streams && e->device.ops->capture_begin && e->config.compiled->job->device_capture) {
        for (uint32_t k = 0; k < section->n; k++)
            quiet[k] = (char)is_quiet(&section->steps[k]);
        balance(section, quiet);
    }
    for (uint32_t k = 0, first; k < section->n; k++) {
        struct hd__piece piece;
        for (first = k; k < section->n && quiet[k]; k++)
            ;
        piece = piece_of(section, first, k);
        if (piece.launches > 1)
            hd__push(&section->pieces, piece);
        else
            hd__free_array(&piece.exchanges);
    }
    free(quiet);
}

static void drop(struct hd__exec *e, struct hd__piece *piece)
{
    if (piece->captured)
        e->device.ops->captured_free(e->device.at, piece->captured);
    piece->captured = NULL;
}

void hd__exec_free_pieces(struct hd__exec *e, struct hd__exec_section *section)
{
    for (uint32_t n = 0; n < section->pieces.count; n++) {
        drop(e, &section->pieces.at[n]);
        hd__free_array(&section->pieces.at[n].exchanges);
    }
    hd__free_array(&section->pieces);
}

/* ---- running them */

static int32_t run_all(struct hd__exec *e, struct hd__exec_section *section, const struct hd__piece *piece, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t k = piece->first; k < piece->end && !rc; k++) {
        __atomic_store_n(&e->at_step, k, __ATOMIC_RELAXED);
        rc = hd__exec_run(e, &section->steps[k], err);
    }
    return rc;
}

/* What was started and will not be waited for. Before the end of the capture, so that what the transport gave to streams of its
 * own is joined. */
static void forget(struct hd__exec *e, const struct hd__piece *piece)
{
    double deadline = hd__now() + e->config.compiled->job->comm_timeout;
    for (uint32_t n = 0; n < piece->exchanges.count; n++)
        hd__exchange_forget(piece->exchanges.at[n], deadline);
}

/* HD_E_UNSUPPORTED: there is something in the piece that cannot be captured. A library that the device calls may have another
 * word for it; then the end says so. */
static int32_t capture(struct hd__exec *e, struct hd__exec_section *section, struct hd__piece *piece, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    int32_t ended, in_flight = e->in_flight, rc = d->ops->capture_begin(d->at, err);
    if (rc)
        return rc;
    hd__ordered_capture(e->transports.in_order, e->capturing = 1);
    rc = run_all(e, section, piece, err);
    if (rc)
        forget(e, piece);
    hd__ordered_capture(e->transports.in_order, e->capturing = 0);
    ended = d->ops->capture_end(d->at, &piece->captured, rc ? &(struct hd_error)HD_ERROR_INIT : err);
    e->in_flight = in_flight;
    if (!rc)
        return ended;
    drop(e, piece); /* it lacks what came after the failure */
    return ended == HD_E_UNSUPPORTED ? ended : rc;
}

static int32_t replay(struct hd__exec *e, struct hd__piece *piece, struct hd_error *err)
{
    struct hd__ordered *o = e->transports.in_order;
    struct hd__watched *watched = NULL;
    int32_t rc = HD_OK;
    if (piece->exchanges.count)
        rc = hd__ordered_begin(o, piece->exchanges.at, piece->exchanges.count, &watched, err);
    if (!rc)
        rc = e->device.ops->replay(e->device.at, piece->captured, err);
    if (!rc && watched)
        rc = hd__ordered_end(o, watched, err);
    e->replays++;
    return rc ? rc : hd__exec_progress(e, err);
}

int32_t hd__exec_run_piece(struct hd__exec *e, struct hd__exec_section *section, struct hd__piece *piece, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!piece->captured && piece->runs++ == 1) {
        rc = capture(e, section, piece, err);
        if (rc == HD_E_UNSUPPORTED) {
            hd__log(HD_LOG_WARN, "run", "section %s, instructions %u to %u are launched one by one: %s", section->of->name,
                    piece->first, piece->end - 1, err->message);
            *err = (struct hd_error)HD_ERROR_INIT;
            rc = HD_OK;
        }
    }
    if (rc)
        return rc;
    __atomic_store_n(&e->at_step, piece->first, __ATOMIC_RELAXED);
    return piece->captured ? replay(e, piece, err) : run_all(e, section, piece, err);
}

uint32_t hd__exec_pieces(const struct hd__exec *e, uint64_t *replays)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < e->p->sections.count; s++)
        for (uint32_t k = 0; k < e->sections[s].pieces.count; k++)
            n += e->sections[s].pieces.at[k].captured != NULL;
    *replays = e->replays;
    return n;
}
