/* The schedules that have a name. */
#include "schedule.h"

#include <stdlib.h>

/* ---- memory */

int32_t pp_alloc(struct pp_schedule *s, const char *name, int32_t stages, int32_t micros, int32_t chunks,
                 struct hd_error *err)
{
    *s = (struct pp_schedule){.name = name, .stages = stages, .micros = micros, .chunks = chunks};
    s->stage_of = malloc((size_t)chunks * sizeof *s->stage_of);
    s->stage = calloc((size_t)stages, sizeof *s->stage);
    if (s->stage_of && s->stage)
        return HD_OK;
    return hd_fail(err, HD_E_NOMEM, "no memory for a schedule of %d stages", stages);
}

int32_t pp_room(struct pp_schedule *s, int32_t stage, int32_t actions, struct hd_error *err)
{
    s->stage[stage].at = malloc((size_t)(actions ? actions : 1) * sizeof *s->stage[stage].at);
    return s->stage[stage].at ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory for a schedule of %d actions", actions);
}

void pp_free(struct pp_schedule *s)
{
    for (int32_t p = 0; s->stage && p < s->stages; p++)
        free(s->stage[p].at);
    free(s->stage);
    free(s->stage_of);
    *s = (struct pp_schedule){0};
}

/* ---- one chunk a stage */

static void gpipe(const struct pp_schedule *s, int32_t p, struct pp_list *out)
{
    for (int32_t m = 0; m < s->micros; m++)
        pp_add(out, PP_F, p, m);
    for (int32_t m = 0; m < s->micros; m++)
        pp_add(out, PP_B, p, m);
}

static void one_f_one_b(const struct pp_schedule *s, int32_t p, struct pp_list *out)
{
    int32_t warm = s->stages - p - 1 < s->micros ? s->stages - p - 1 : s->micros;
    for (int32_t m = 0; m < warm; m++)
        pp_add(out, PP_F, p, m);
    for (int32_t m = 0; m < s->micros; m++) {
        if (m + warm < s->micros)
            pp_add(out, PP_F, p, m + warm);
        pp_add(out, PP_B, p, m);
    }
}

/* 1f1b with at most p gradients of weights outstanding on stage p: the later stages, which start late, have done theirs
 * when the pipeline drains; the earlier ones do theirs while they wait. */
static void zb_h1(const struct pp_schedule *s, int32_t p, struct pp_list *out)
{
    int32_t warm = s->stages - p - 1 < s->micros ? s->stages - p - 1 : s->micros, done = 0;
    for (int32_t m = 0; m < warm; m++)
        pp_add(out, PP_F, p, m);
    for (int32_t m = 0; m < s->micros; m++) {
        if (m + warm < s->micros)
            pp_add(out, PP_F, p, m + warm);
        pp_add(out, PP_I, p, m);
        if (m + 1 - done > p)
            pp_add(out, PP_W, p, done++);
    }
    while (done < s->micros)
        pp_add(out, PP_W, p, done++);
}

/* ---- several */

/* Step k of a stage's forwards: P micro-batches through its first chunk, the same through the second, ...; then the
 * next P. The backwards go through the chunks the other way round. */
static void interleaved_step(const struct pp_schedule *s, int32_t p, int32_t kind, int32_t k, struct pp_list *out)
{
    int32_t P = s->stages, V = s->chunks / P, turn = k / P % V;
    int32_t chunk = (kind == PP_F ? turn : V - 1 - turn) * P + p;
    pp_add(out, kind, chunk, k / (P * V) * P + k % P);
}

static void interleaved(const struct pp_schedule *s, int32_t p, struct pp_list *out)
{
    int32_t P = s->stages, V = s->chunks / P, all = s->micros * V, warm = 2 * (P - p - 1) + (V - 1) * P;
    if (warm > all)
        warm = all;
    for (int32_t k = 0; k < warm; k++)
        interleaved_step(s, p, PP_F, k, out);
    for (int32_t k = 0; k < all; k++) {
        if (k + warm < all)
            interleaved_step(s, p, PP_F, k + warm, out);
        interleaved_step(s, p, PP_B, k, out);
    }
}

/* Counts of what is done: [kind: F, I, W][first or second chunk of the stage]. */
struct v_state {
    struct pp_list *out;
    int32_t micros; /* later ones only keep the pattern and are left out */
    int32_t chunk[2];
    int32_t done[4][2];
    int32_t reserved;
};

static void v_do(struct v_state *v, int32_t kind, int32_t half)
{
    int32_t micro = v->done[kind][half]++;
    if (micro < v->micros)
        pp_add(v->out, kind, v->chunk[half], micro);
}

static void v_backward(struct v_state *v, int32_t half)
{
    v_do(v, PP_I, half);
    v_do(v, PP_W, half);
}

/* Figure 6 of the paper. Chunk p of the way down and chunk 2P - 1 - p of the way up are on stage p. The pattern is
 * complete from 2P - 1 micro-batches on; fewer run the same pattern with the missing ones left out. */
static void zb_v(const struct pp_schedule *s, int32_t p, struct pp_list *out)
{
    int32_t P = s->stages, n = s->micros > 2 * P - 1 ? s->micros : 2 * P - 1;
    struct v_state v = {.out = out, .micros = s->micros, .chunk = {p, 2 * P - 1 - p}};
    for (int32_t k = 0; k < 2 * (P - p) - 1; k++)
        v_do(&v, PP_F, 0);
    for (int32_t k = 0; k < p; k++) {
        v_do(&v, PP_F, 1);
        v_do(&v, PP_F, 0);
    }
    for (int32_t k = 0; k < P - p; k++) {
        v_do(&v, PP_F, 1);
        v_backward(&v, 1);
    }
    while (v.done[PP_F][1] < n) { /* steady: both halves, forward and backward */
        if (v.done[PP_F][0] < n)
            v_do(&v, PP_F, 0);
        v_backward(&v, 0);
        v_do(&v, PP_F, 1);
        v_backward(&v, 1);
    }
    for (int32_t k = 0; k < p; k++) { /* drain: gradients of activations first, others wait for them */
        v_do(&v, PP_I, 0);
        v_do(&v, PP_I, 1);
    }
    for (int32_t k = 0; k < P - p; k++)
        v_backward(&v, 0);
    while (v.done[PP_W][1] < n)
        v_do(&v, PP_W, 1);
    while (v.done[PP_W][0] < n)
        v_do(&v, PP_W, 0);
}

/* ---- by name */

static const struct named {
    const char *name;
    void (*actions)(const struct pp_schedule *s, int32_t stage, struct pp_list *out);
    int32_t least, most; /* chunks a stage */
    int32_t split, in_groups, v_shaped, usual;
} table[] = {
    {"gpipe", gpipe, 1, 1, 0, 0, 0, 1},
    {"1f1b", one_f_one_b, 1, 1, 0, 0, 0, 1},
    {"interleaved", interleaved, 2, 1 << 16, 0, 1, 0, 2},
    {"zb-h1", zb_h1, 1, 1, 1, 0, 0, 1},
    {"zb-v", zb_v, 2, 2, 1, 0, 1, 2},
};

static const struct named *find(const char *name)
{
    for (size_t n = 0; n < sizeof table / sizeof *table; n++)
        if (!strcasecmp(table[n].name, name))
            return &table[n];
    return NULL;
}

/* Do the numbers suit the schedule? If not: the rule, and what is nearest. */
static int32_t suits(const struct named *row, int32_t stages, int32_t micros, int32_t virtual, struct hd_error *err)
{
    int32_t low = micros / stages * stages;
    if (virtual < row->least && row->least != row->most)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.3d.schedule %s needs at least %d chunks a stage: say virtual: %d, or schedule: 1f1b, which is "
            "what one chunk gives",
            row->name, row->least, row->least);
    if (virtual < row->least || virtual > row->most)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.3d.schedule %s has %d chunk%s a stage: virtual: %d does not suit it; leave it out, or use "
            "schedule: interleaved, which takes any number",
            row->name, row->most, row->most > 1 ? "s" : "", virtual);
    if (row->in_groups && micros % stages && low)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.3d.schedule %s takes micro-batches in groups of mesh.pp = %d: %d of them is no multiple; the "
            "nearest that work are %d and %d",
            row->name, stages, micros, low, low + stages);
    if (row->in_groups && micros % stages)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.3d.schedule %s takes micro-batches in groups of mesh.pp = %d: %d of them is no multiple; the "
            "nearest that works is %d",
            row->name, stages, micros, stages);
    return HD_OK;
}

static int32_t named(const struct named *row, int32_t stages, int32_t micros, int32_t virtual, struct pp_schedule *s,
                     struct hd_error *err)
{
    int32_t rc;
    if ((rc = suits(row, stages, micros, virtual, err)) ||
        (rc = pp_alloc(s, row->name, stages, micros, stages * virtual, err)))
        return rc;
    s->split = row->split;
    for (int32_t c = 0; c < s->chunks; c++)
        s->stage_of[c] = row->v_shaped && c >= stages ? s->chunks - 1 - c : c % stages;
    for (int32_t p = 0; p < stages && !rc; p++) {
        rc = pp_room(s, p, 3 * virtual * micros, err);
        if (!rc)
            row->actions(s, p, &s->stage[p]);
    }
    return rc ? rc : pp_check(s, err);
}

int32_t pp_make(const char *name, int32_t stages, int32_t micros, int32_t virtual, struct pp_schedule *s,
                struct hd_error *err)
{
    const struct named *row = find(name);
    size_t length = strlen(name);
    int32_t rc;
    *s = (struct pp_schedule){0};
    if (row)
        rc = named(row, stages, micros, virtual ? virtual : row->usual, s, err);
    else if (length > 4 && !strcmp(name + length - 4, ".csv"))
        rc = pp_read(name, stages, micros, virtual, s, err);
    else
        rc = hd_fail(err, HD_E_INVALID,
                     "strategies.3d.schedule: there is no schedule '%s': gpipe, 1f1b, interleaved, zb-h1, zb-v, or a "
                     "file whose name ends "
                     "in .csv",
                     name);
    if (rc)
        pp_free(s);
    return rc;
}
