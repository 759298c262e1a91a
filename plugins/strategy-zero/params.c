/* Parameters: every use becomes a view of a flat buffer. Stages 0-2: of the persistent whole. Stage 3: of a whole that is
 * gathered for one *residence* (block, micro-batch, forward or backward) and released after it. */
#include "zero.h"

struct run {
    uint32_t first, last, flat;
    uint32_t block, backward, reserved;
    int32_t micro;
    uint32_t reserved2;
    hd_tensor whole;
    uint32_t reserved3;
};

static int same_residence(const struct zero *z, const struct run *r, const struct hd_pass_instr *i, uint32_t flat)
{
    uint32_t backward = i->phase != HD_PHASE_F && z->settings.reshard_after_forward;
    return r->flat == flat && r->micro == i->micro && r->backward == backward &&
           (r->block == i->block || !z->settings.reshard_after_forward);
}

static struct run *run_of(struct zero *z, struct run *runs, uint32_t *n, const struct hd_pass_instr *i, uint32_t flat, uint32_t at)
{
    for (uint32_t r = *n; r-- > 0;)
        if (same_residence(z, &runs[r], i, flat)) {
            runs[r].last = at;
            return &runs[r];
        }
    /* forward then backward of the last block: nobody else lies between, so it stays */
    if (*n && runs[*n - 1].flat == flat) {
        runs[*n - 1].last = at;
        runs[*n - 1].backward = i->phase != HD_PHASE_F;
        return &runs[*n - 1];
    }
    runs[*n] = (struct run){.first = at, .last = at, .flat = flat, .block = i->block, .micro = i->micro,
                            .backward = i->phase != HD_PHASE_F && z->settings.reshard_after_forward};
    return &runs[(*n)++];
}

static void views(struct zero *z, uint32_t section, uint32_t index, const struct hd_pass_instr *i, uint32_t flat, hd_tensor whole)
{
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t param = z->api->param_of(z->p, i->in[k]);
        if (param && z->owner[param - 1] == flat + 1)
            z->api->replace_in(z->p, section, index, k, z->api->flat_view(z->p, z->flats[flat].id, whole, param - 1));
    }
}

static void gather(struct zero *z, struct run *runs, uint32_t n, uint32_t section)
{
    for (uint32_t r = 0; r < n; r++) {
        struct zero_flat *f = &z->flats[runs[r].flat];
        uint32_t early = r < (uint32_t)z->settings.prefetch ? 0 : r - (uint32_t)z->settings.prefetch;
        struct hd_pass_instr in = zero_instr(z, f, f->axes ? HD_OP_ALL_GATHER : HD_OP_COPY, f->home, runs[r].whole, f->axes);
        struct hd_pass_instr out = zero_instr(z, f, HD_OP_RELEASE, runs[r].whole, 0, 0);
        z->api->insert(z->p, section, runs[early].first, 0, &in);
        z->api->insert(z->p, section, runs[r].last, 1, &out);
    }
}

int zero_params(struct zero *z, uint32_t section)
{
    const struct hd_pass_api *api = z->api;
    uint32_t n = api->n_instr(z->p, section), n_runs = 0;
    struct run *runs = z->stage == 3 ? z->host->alloc((n + 1) * sizeof *runs) : NULL;
    if (z->stage == 3 && !runs)
        return 0;
    for (uint32_t k = 0; k < n; k++) {
        struct hd_pass_instr i;
        api->instr(z->p, section, k, &i);
        for (uint32_t a = 0; a < i.n_in; a++) {
            uint32_t param = api->param_of(z->p, i.in[a]), flat;
            if (!param || !z->owner[param - 1])
                continue;
            flat = z->owner[param - 1] - 1;
            if (z->stage == 3) {
                struct run *r = run_of(z, runs, &n_runs, &i, flat, k);
                if (!r->whole)
                    r->whole = api->flat_whole(z->p, z->flats[flat].id, "p", api->dtype(z->p, "compute"), HD_LIFE_TEMP);
                views(z, section, k, &i, flat, r->whole);
            } else {
                views(z, section, k, &i, flat, z->flats[flat].whole);
            }
        }
    }
    if (z->stage == 3)
        gather(z, runs, n_runs, section);
    z->host->free(runs);
    return 1;
}
