/* Parameters: every use becomes a view of a flat buffer. Stages 0-2: of the persistent whole, at stages 1 and 2
 * gathered where a step begins (gather_in_forward). Stage 3: of a whole that is gathered for one *residence* (block,
 * micro-batch, forward or backward) and released after it. A flat of several blocks has one residence for them all. */
#include "internal.h"

struct run {
    uint32_t first, last, flat;
    uint32_t block, backward;
    int32_t micro;
    hd_tensor whole;
    uint32_t early;        /* the run at whose start it is gathered */
    int32_t stays, stayed; /* for a later run; from a former one */
};

static int is_home(const struct zero *z, const struct zero_flat *f, uint32_t block)
{
    for (uint32_t k = 0; k < f->n_params; k++)
        if (z->params[f->params[k]].block == block)
            return 1;
    return 0;
}

static int same_residence(const struct zero *z, const struct run *r, const struct hd_pass_instr *i, uint32_t flat)
{
    const struct zero_flat *f = &z->flats[flat];
    uint32_t backward = i->phase != HD_PHASE_F && !f->keep;
    if (r->flat != flat || r->micro != i->micro || r->backward != backward)
        return 0;
    return f->keep || r->block == i->block || (is_home(z, f, r->block) && is_home(z, f, i->block));
}

/* ---- when to gather */

/* Parameters that are whole when run r is gathered at the start of run e. */
static int64_t live_at(const struct zero *z, const struct run *runs, uint32_t r, uint32_t e)
{
    int64_t live = z->flats[runs[r].flat].count;
    for (uint32_t q = 0; q < r; q++)
        if (runs[q].last >= runs[e].first && !runs[q].stays)
            live += z->flats[runs[q].flat].count;
    return live;
}

/* At the start of which run the gather of run r begins: as early as the limits allow, never before the former one's. */
static uint32_t early_run(const struct zero *z, const struct run *runs, uint32_t r)
{
    const struct zero_settings *s = &z->settings;
    int64_t blocks = 0, ahead = z->flats[runs[r].flat].count,
            distance = runs[r].backward ? s->prefetch_backward : s->prefetch;
    uint32_t e = r;
    while (s->overlap && e > 0 && e > runs[r - 1].early) {
        const struct run *next = &runs[e - 1];
        blocks += next->block != runs[e].block || next->micro != runs[e].micro || next->backward != runs[e].backward;
        if (blocks > distance && ahead > s->prefetch_size)
            break;
        if ((s->max_inflight && r - e >= s->max_inflight) || (s->max_live && live_at(z, runs, r, e - 1) > s->max_live))
            break;
        ahead += z->flats[next->flat].count;
        e--;
    }
    return e;
}

/* ---- residences */

/* The whole that was used last of the same flat stays, where its gather would begin before others are used: forward
 * then backward of the last block, with the head between. */
static void reuse_gathered(const struct zero *z, struct run *runs, uint32_t n)
{
    const struct zero_settings *s = &z->settings;
    uint32_t q = n;
    int64_t between; /* blocks */
    while (q > 0 && runs[q - 1].flat != runs[n].flat)
        q--;
    between = q < n;
    for (uint32_t k = q + 1; k < n; k++)
        between += runs[k].block != runs[k - 1].block;
    if (!q || (between && (between > s->prefetch_backward || (s->max_live && live_at(z, runs, n, q) > s->max_live))))
        return;
    runs[q - 1].stays = runs[n].stayed = 1;
    runs[n].whole = runs[q - 1].whole;
}

static struct run *run_of(struct zero *z, struct run *runs, uint32_t *n, const struct hd_pass_instr *i, uint32_t flat,
                          uint32_t at)
{
    uint32_t backward = i->phase != HD_PHASE_F && !z->flats[flat].keep;
    for (uint32_t r = *n; r-- > 0;)
        if (same_residence(z, &runs[r], i, flat)) {
            runs[r].last = at;
            return &runs[r];
        }
    runs[*n] =
        (struct run){.first = at, .last = at, .flat = flat, .block = i->block, .micro = i->micro, .backward = backward};
    reuse_gathered(z, runs, *n);
    return &runs[(*n)++];
}

static void views(struct zero *z, uint32_t section, uint32_t index, const struct hd_pass_instr *i, uint32_t flat,
                  hd_tensor whole)
{
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t param = z->api->param_of(z->p, i->in[k]);
        if (param && z->owner[param - 1] == flat + 1)
            z->api->replace_in(z->p, section, index, k, z->api->flat_view(z->p, z->flats[flat].id, whole, param - 1));
    }
}

/* ---- gathering */

/* A shard that lies in host memory is fetched one residence before it is gathered. Returns what to gather from. */
static hd_tensor fetch(struct zero *z, const struct run *runs, uint32_t r, uint32_t section)
{
    struct zero_flat *f = &z->flats[runs[r].flat];
    uint32_t dtype = z->api->dtype(z->p, "compute"), e = runs[r].early;
    struct hd_pass_instr copy;
    if (!z->settings.offload_params)
        return f->home;
    copy = zero_instr(z, f, HD_OP_COPY, f->home, z->api->flat_shard(z->p, f->id, "ps", dtype, HD_LIFE_TEMP, 0), 0);
    z->api->insert(z->p, section, runs[e && z->settings.overlap ? e - 1 : e].first, 0, &copy);
    return copy.out[0];
}

static void gather(struct zero *z, struct run *runs, uint32_t n, uint32_t section)
{
    for (uint32_t r = 0; r < n; r++) {
        struct zero_flat *f = &z->flats[runs[r].flat];
        struct hd_pass_instr in, out = zero_instr(z, f, HD_OP_RELEASE, runs[r].whole, 0, 0);
        runs[r].early = r ? early_run(z, runs, r) : 0;
        if (!runs[r].stays)
            z->api->insert(z->p, section, runs[r].last, 1, &out);
        if (runs[r].stayed)
            continue;
        in = zero_instr(z, f, f->axes ? HD_OP_ALL_GATHER : HD_OP_COPY, fetch(z, runs, r, section), runs[r].whole,
                        f->axes);
        z->gathered += f->count * (f->ways - 1) / f->ways;
        z->api->insert(z->p, section, runs[runs[r].early].first, 0, &in);
    }
}

/* The whole that instruction k of the section reads flat `flat` from. */
static hd_tensor whole_for(struct zero *z, struct run *runs, uint32_t *n, const struct hd_pass_instr *i, uint32_t flat,
                           uint32_t k)
{
    struct zero_flat *f = &z->flats[flat];
    struct run *r;
    if (f->stage < 3)
        return f->whole;
    r = run_of(z, runs, n, i, flat, k);
    if (!r->whole)
        r->whole = z->api->flat_whole(z->p, f->id, "p", z->api->dtype(z->p, "compute"), HD_LIFE_TEMP);
    return r->whole;
}

/* All at once, in the order in which the section uses them. What it uses first would be waited for: that is gathered
 * behind the update of the others. */
static void gather_late(struct zero *z, const uint32_t *order, uint32_t n, uint32_t section)
{
    z->early = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct zero_flat *f = &z->flats[order[k]];
        struct hd_pass_instr in = zero_instr(z, f, HD_OP_ALL_GATHER, f->home, f->whole, f->axes);
        if (!zero_gathers(f))
            continue;
        f->late = z->early > 0;
        if (f->late)
            z->api->insert(z->p, section, 0, 0, &in);
        else
            z->early = order[k] + 1;
    }
}

int zero_params(struct zero *z, uint32_t section)
{
    const struct hd_pass_api *api = z->api;
    uint32_t n = api->n_instr(z->p, section), n_runs = 0, n_used = 0;
    struct run *runs = z->host->alloc((n + 1) * sizeof *runs);
    uint32_t *used = z->host->alloc((z->n_flats + 1) * sizeof *used);
    if (!runs || !used) {
        z->host->free(runs);
        z->host->free(used);
        return 0;
    }
    for (uint32_t k = 0; k < n; k++) {
        struct hd_pass_instr i;
        api->instr(z->p, section, k, &i);
        for (uint32_t a = 0; a < i.n_in; a++) {
            uint32_t param = api->param_of(z->p, i.in[a]), flat;
            if (!param || !z->owner[param - 1])
                continue;
            flat = z->owner[param - 1] - 1;
            if (z->flats[flat].used != section + 1) {
                z->flats[flat].used = section + 1;
                used[n_used++] = flat;
            }
            views(z, section, k, &i, flat, whole_for(z, runs, &n_runs, &i, flat, k));
        }
    }
    gather(z, runs, n_runs, section);
    if (z->begins)
        gather_late(z, used, n_used, section);
    z->host->free(runs);
    z->host->free(used);
    return 1;
}
