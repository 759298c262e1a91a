/* Is it a schedule? What a file may get wrong, each with its place; the named ones are held to the same. */
#include <stdio.h>
#include <stdlib.h>

#include "schedule.h"

struct checker {
    const struct pp_schedule *s;
    struct hd_error *err;
    uint8_t *seen;    /* bits 1 << kind, by chunk and micro */
    int32_t *entered; /* by chunk: the last micro-batch whose forward ran, + 1 */
};

/* "FILE:3:17: " where an action has a place in a file. */
static int32_t fault(const struct checker *k, const struct pp_action *a, const char *what)
{
    if (a && a->line)
        return hd_fail(k->err, HD_E_INVALID, "%s:%d:%d: %d%c%d %s", k->s->name, a->line, a->column, a->chunk,
                       pp_letter(a->kind), a->micro, what);
    return hd_fail(k->err, HD_E_INVALID, "strategies.3d.schedule %s: %d%c%d %s", k->s->name, a->chunk,
                   pp_letter(a->kind), a->micro, what);
}

static uint8_t *seen(const struct checker *k, int32_t chunk, int32_t micro)
{
    return &k->seen[(int64_t)chunk * k->s->micros + micro];
}

#define BIT(kind) (1 << (kind))
#define BACKWARD (BIT(PP_B) | BIT(PP_I))

static int32_t check_action(const struct checker *k, const struct pp_action *a)
{
    uint8_t *done = seen(k, a->chunk, a->micro);
    if (*done & BIT(a->kind))
        return fault(k, a, "is there twice");
    if (a->kind != PP_F && !(*done & BIT(PP_F)))
        return fault(k, a, "comes before the forward of the same micro-batch");
    if (a->kind == PP_W && *done & BIT(PP_B))
        return fault(k, a, "is too much: B makes the gradients of weights too; write I and W, or B alone");
    if (a->kind == PP_W && !(*done & BIT(PP_I)))
        return fault(k, a, "comes before the gradient of activations (I) that it needs");
    if (BIT(a->kind) & BACKWARD && *done & BACKWARD)
        return fault(k, a, "is the second backward of that micro-batch: B is I and W as one");
    if (a->kind == PP_F && a->micro < k->entered[a->chunk])
        return fault(k, a, "comes after that of a later micro-batch: they enter a chunk in their order");
    if (a->kind == PP_F)
        k->entered[a->chunk] = a->micro + 1;
    *done |= (uint8_t)BIT(a->kind);
    return HD_OK;
}

static int32_t check_orders(const struct checker *k)
{
    for (int32_t p = 0; p < k->s->stages; p++)
        for (int32_t n = 0; n < k->s->stage[p].count; n++)
            if (check_action(k, &k->s->stage[p].at[n]))
                return k->err->code;
    return HD_OK;
}

static int32_t check_complete(const struct checker *k)
{
    for (int32_t c = 0; c < k->s->chunks; c++)
        for (int32_t m = 0; m < k->s->micros; m++) {
            uint8_t done = *seen(k, c, m);
            const char *lacks = !(done & BIT(PP_F)) ? "F" : !(done & BACKWARD) ? "B (or I and W)" : NULL;
            if (!lacks && done & BIT(PP_I) && !(done & BIT(PP_W)))
                lacks = "W";
            if (lacks)
                return hd_fail(k->err, HD_E_INVALID,
                               "%s: the row of chunk %d (stage %d) has no %s of micro-batch %d: each of the %d "
                               "micro-batches goes through each of the %d chunks",
                               k->s->name, c, k->s->stage_of[c], lacks, m, k->s->micros, k->s->chunks);
        }
    return HD_OK;
}

/* ---- messages: what stage `from` sends to stage `to` in one direction keeps its order on the way */

/* The next action of a stage, from *at on, that sends to (or receives from) `other`. */
static const struct pp_action *next_message(const struct pp_schedule *s, int32_t stage, int32_t other, int32_t back,
                                            int32_t receives, int32_t *at)
{
    int32_t step = (back ? -1 : 1) * (receives ? -1 : 1);
    for (; *at < s->stage[stage].count; ++*at) {
        const struct pp_action *a = &s->stage[stage].at[*at];
        int32_t there = a->chunk + step;
        if (a->kind != PP_W && (a->kind != PP_F) == back && there >= 0 && there < s->chunks &&
            s->stage_of[there] == other)
            return &s->stage[stage].at[(*at)++];
    }
    return NULL;
}

static int32_t check_messages(const struct checker *k, int32_t from, int32_t to, int32_t back)
{
    const struct pp_action *a, *b;
    int32_t n = 0, m = 0, step = back ? -1 : 1;
    char what[200];
    while ((a = next_message(k->s, from, to, back, 0, &n)) && (b = next_message(k->s, to, from, back, 1, &m)))
        if (a->chunk + step != b->chunk || a->micro != b->micro) {
            snprintf(what, sizeof what,
                     "overtakes: stage %d sends what %d%c%d needs first, and messages from stage to stage keep their "
                     "order; run the two stages' actions in the same order",
                     from, a->chunk + step, pp_letter(a->kind), a->micro);
            return fault(k, b, what);
        }
    return HD_OK;
}

static int32_t check_channels(const struct checker *k)
{
    const struct pp_schedule *s = k->s;
    for (int32_t back = 0; back < 2; back++)
        for (int32_t c = 0; c + 1 < s->chunks; c++) {
            int32_t from = s->stage_of[c + back], to = s->stage_of[c + !back], known = 0;
            for (int32_t e = 0; e < c && !known; e++) /* the same pair again */
                known = s->stage_of[e + back] == from && s->stage_of[e + !back] == to;
            if (from != to && !known && check_messages(k, from, to, back))
                return k->err->code;
        }
    return HD_OK;
}

/* ---- cycles: it must run */

static int32_t report_cycle(const struct checker *k, const int32_t *stuck)
{
    const struct pp_action *first = NULL;
    char what[160];
    for (int32_t p = 0; p < k->s->stages && !first; p++)
        if (stuck[p] < k->s->stage[p].count)
            first = &k->s->stage[p].at[stuck[p]];
    snprintf(what, sizeof what,
             "can never start: it waits for an action of another stage that comes after one that waits for it");
    return fault(k, first, what);
}

static int32_t check_runs(const struct checker *k)
{
    const struct pp_schedule *s = k->s;
    double *unit = malloc((size_t)s->chunks * sizeof *unit);
    int32_t *stuck = calloc((size_t)s->stages, sizeof *stuck), rc = HD_E_NOMEM;
    struct pp_bubble bubble;
    for (int32_t c = 0; unit && c < s->chunks; c++)
        unit[c] = 1;
    if (unit && stuck)
        rc = pp_time(s, &(struct pp_times){unit, unit, unit, 0}, &bubble, stuck);
    if (rc < 0)
        hd_fail(k->err, rc, "no memory to check a schedule of %d chunks", s->chunks);
    else
        rc = rc ? HD_OK : report_cycle(k, stuck);
    free(unit);
    free(stuck);
    return rc;
}

int32_t pp_check(const struct pp_schedule *s, struct hd_error *err)
{
    struct checker k = {.s = s,
                        .err = err,
                        .seen = calloc((size_t)s->chunks * (size_t)s->micros, 1),
                        .entered = calloc((size_t)s->chunks, sizeof *k.entered)};
    int32_t rc = k.seen && k.entered ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory to check a schedule");
    if (!rc && !(rc = check_orders(&k)) && !(rc = check_complete(&k)) && !(rc = check_channels(&k)))
        rc = check_runs(&k);
    free(k.seen);
    free(k.entered);
    return rc;
}
