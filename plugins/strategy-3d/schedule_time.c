/* When everything happens: each stage runs its list in order, an action as soon as what it needs has arrived. */
#include <stdlib.h>

#include "schedule.h"

struct clock {
    const struct pp_schedule *s;
    const struct pp_times *t;
    double *end;   /* [F or I][chunk][micro]; < 0: not yet */
    int32_t *next; /* by stage: index of its next action */
    double *now, *first, *busy;
};

static double *end_of(const struct clock *k, int32_t back, int32_t chunk, int32_t micro)
{
    return &k->end[((int64_t)back * k->s->chunks + chunk) * k->s->micros + micro];
}

static double took(const struct pp_times *t, const struct pp_action *a)
{
    switch (a->kind) {
    case PP_F:
        return t->f[a->chunk];
    case PP_I:
        return t->i[a->chunk];
    case PP_W:
        return t->w[a->chunk];
    default:
        return t->i[a->chunk] + t->w[a->chunk];
    }
}

/* When what chunk `from` made for micro-batch m is on the stage of chunk `to`; < 0: it is not made yet. */
static double arrival(const struct clock *k, int32_t back, int32_t from, int32_t to, int32_t micro)
{
    double end = *end_of(k, back, from, micro);
    return end < 0 || k->s->stage_of[from] == k->s->stage_of[to] ? end : end + k->t->message;
}

/* When the action could start; < 0: not known yet. F needs the chunk before; a backward its own F and the chunk after;
 * W its own I. */
static double ready(const struct clock *k, const struct pp_action *a)
{
    double own, other = 0;
    if (a->kind == PP_W)
        return *end_of(k, 1, a->chunk, a->micro);
    if (a->kind == PP_F)
        return a->chunk ? arrival(k, 0, a->chunk - 1, a->chunk, a->micro) : 0;
    own = *end_of(k, 0, a->chunk, a->micro);
    if (a->chunk + 1 < k->s->chunks)
        other = arrival(k, 1, a->chunk + 1, a->chunk, a->micro);
    return own < 0 || other < 0 ? -1 : own > other ? own : other;
}

static int run_stage(struct clock *k, int32_t p)
{
    const struct pp_list *l = &k->s->stage[p];
    int moved = 0;
    for (; k->next[p] < l->count; k->next[p]++, moved = 1) {
        const struct pp_action *a = &l->at[k->next[p]];
        double at = ready(k, a), needs = took(k->t, a);
        if (at < 0)
            break;
        if (at < k->now[p])
            at = k->now[p];
        if (!k->next[p])
            k->first[p] = at;
        k->now[p] = at + needs;
        k->busy[p] += needs;
        if (a->kind != PP_W)
            *end_of(k, a->kind != PP_F, a->chunk, a->micro) = k->now[p];
    }
    return moved;
}

static struct pp_bubble measure(const struct clock *k)
{
    struct pp_bubble b = {0};
    double work = 0;
    for (int32_t p = 0; p < k->s->stages; p++) {
        double span = k->now[p] - k->first[p];
        b.span = span > b.span ? span : b.span;
        b.ideal = k->busy[p] > b.ideal ? k->busy[p] : b.ideal;
        work += k->busy[p];
    }
    b.over_ideal = work > 0 ? (b.span * k->s->stages - work) / work : 0;
    b.over_whole = b.span > 0 ? 1 - work / (b.span * k->s->stages) : 0;
    return b;
}

static int finished(const struct clock *k)
{
    for (int32_t p = 0; p < k->s->stages; p++)
        if (k->next[p] < k->s->stage[p].count)
            return 0;
    return 1;
}

int32_t pp_time(const struct pp_schedule *s, const struct pp_times *times, struct pp_bubble *bubble, int32_t *stuck)
{
    size_t n = 2 * (size_t)s->chunks * (size_t)s->micros, p = (size_t)s->stages;
    struct clock k = {.s = s,
                      .t = times,
                      .end = malloc(n * sizeof *k.end),
                      .next = calloc(p, sizeof *k.next),
                      .now = calloc(3 * p, sizeof *k.now)};
    int32_t rc = HD_E_NOMEM;
    if (k.end && k.next && k.now) {
        k.first = k.now + p;
        k.busy = k.first + p;
        for (size_t i = 0; i < n; i++)
            k.end[i] = -1;
        for (int moved = 1; moved;) {
            moved = 0;
            for (int32_t i = 0; i < s->stages; i++)
                moved |= run_stage(&k, i);
        }
        rc = finished(&k);
        *bubble = measure(&k);
        if (stuck)
            memcpy(stuck, k.next, p * sizeof *stuck);
    }
    free(k.end);
    free(k.next);
    free(k.now);
    return rc;
}
