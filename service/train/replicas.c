/* Comparing copies. */
#include "service/train/replicas.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/program/ops.h"

/* ---- pieces that have copies */

static uint32_t axes_of_param(const struct hd_program *p, uint32_t param)
{
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[param].tensor);
    uint32_t axes = 0;
    for (int32_t d = 0; d < t->ndim; d++)
        axes |= hd__shard_mask(t->placement.shard[d]);
    return axes;
}

/* A state lies as the weights do where each of its numbers is of one element. */
static int is_by_element(const struct hd_program *p, const struct hd__flat *flat, uint32_t role)
{
    int states = role >= HD__FLAT_OPTIM && role < HD__FLAT_OPTIM + 4, by_element = 1;
    for (uint32_t k = 0; k < flat->n_params && states; k++) {
        const struct hd__param *param = &p->params.at[flat->params[k]];
        by_element &=
            param->n_states > role - HD__FLAT_OPTIM && param->state[role - HD__FLAT_OPTIM].kind == HD_STATE_ELEMENT;
    }
    return by_element;
}

static void add_tensor(const struct hd_program *p, const struct hd__flat_tensor *t, struct hd__replicated_list *list)
{
    const struct hd__flat *flat = &p->flats.at[t->flat];
    hd_tensor master = flat->tensor[HD__FLAT_MASTER];
    /* what the weights are sharded along, other ranks gather into theirs later */
    uint32_t held = hd__shard_mask(hd__tensor_const(p, t->tensor)->placement.shard[0]) |
                    hd__shard_mask(hd__tensor_const(p, master)->placement.shard[0]) | flat->axes |
                    hd__independent_axes_of(p, t->tensor),
             all = held;
    struct hd__replicated piece = {.tensor = t->tensor, .flat = t->flat, .role = t->role, .param = UINT32_MAX};
    piece.fleeting = p->buffers.at[hd__tensor_const(p, t->tensor)->buffer].life != HD__LIFE_PERSISTENT;
    for (uint32_t k = 0; k < flat->n_params; k++)
        all |= axes_of_param(p, flat->params[k]);
    piece.axes = hd__mesh_live(&p->mesh) & ~all;
    if (!is_by_element(p, flat, t->role)) {
        if (piece.axes)
            hd__push(&list->at, piece);
        return;
    }
    for (uint32_t k = 0; k < flat->n_params; k++) {
        piece.param = k;
        piece.axes = hd__mesh_live(&p->mesh) & ~(held | axes_of_param(p, flat->params[k]));
        if (piece.axes)
            hd__push(&list->at, piece);
    }
}

static void add_kinds(const struct hd_program *p, uint32_t kinds, struct hd__replicated_list *list)
{
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, kinds, &t);) {
        hd_tensor master = p->flats.at[t.flat].tensor[HD__FLAT_MASTER];
        int is_view = t.tensor != master && /* the other way round: the weights are a part of it */
                      hd__tensor_const(p, t.tensor)->buffer == hd__tensor_const(p, master)->buffer;
        if (master && !is_view && hd__memory_of(p, t.tensor) != HD__MEM_FILE &&
            !(hd__fact_of(p, t.tensor)->what & HD_FACT_FEEDBACK))
            add_tensor(p, &t, list);
    }
}

void hd__replicated_find(const struct hd_program *p, struct hd__replicated_list *list)
{
    add_kinds(p, HD__FLAT_IS_GRAD, list); /* first, as what differs there makes all else differ */
    add_kinds(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_OPTIM_STATE | HD__FLAT_IS_STRATEGY_STATE | HD__FLAT_IS_PERSISTENT,
              list);
}

uint64_t hd__replicated_hash(const struct hd_program *p, const struct hd__replicated *piece, const int32_t *coord,
                             void *arena)
{
    const struct hd__tensor *t = hd__tensor_const(p, piece->tensor);
    const struct hd__flat *flat = &p->flats.at[piece->flat];
    const char *data = hd__tensor_address(p, piece->tensor, coord, arena);
    size_t item = hd_dtype_size(t->dtype);
    int64_t first = 0, end = hd__numel(p, t);
    if (piece->param != UINT32_MAX) { /* its elements within this rank's part of the flat */
        int64_t start = hd__global_start(p, t, 0, coord), at = flat->offset[piece->param] - start;
        first = HD__MAX(0, at);
        end = HD__MIN(end, at + hd__numel(p, hd__tensor_const(p, p->params.at[flat->params[piece->param]].tensor)));
    }
    return end > first ? hd__hash(data + (size_t)first * item, (size_t)(end - first) * item, 0) : 0;
}

/* ---- which of the copies is wrong */

/* The value of most of n ranks; 0: there is none. */
static int find_majority(const uint64_t *value, const int32_t *ranks, int32_t n, uint64_t *most)
{
    int32_t votes = 0, count = 0;
    for (int32_t k = 0; k < n; k++) { /* Boyer and Moore */
        if (!votes)
            *most = value[ranks[k]];
        votes += value[ranks[k]] == *most ? 1 : -1;
    }
    for (int32_t k = 0; k < n; k++)
        count += value[ranks[k]] == *most;
    return 2 * count > n;
}

static void add_group(const uint64_t *value, const int32_t *ranks, int32_t n, uint32_t axes,
                      struct hd__replicas_verdict *v)
{
    uint64_t most = 0;
    int known = find_majority(value, ranks, n, &most), said = 0;
    hd__text_add(&v->words, "%srank%s", v->n_wrong ? "; " : "", known ? "" : "s");
    for (int32_t k = 0; k < n; k++) {
        if (known && value[ranks[k]] == most)
            continue;
        hd__text_add(&v->words, said++ ? ", %d" : " %d", ranks[k]);
        v->wrong = v->n_wrong++ ? v->wrong : ranks[k];
    }
    if (known)
        hd__text_add(&v->words, " %s not what the other %d copies along %s are", said > 1 ? "are" : "is", n - said,
                     hd__axes(axes));
    else
        hd__text_add(&v->words, " differ along %s, and so many copies do not say which of them is right",
                     hd__axes(axes));
}

void hd__replicas_judge(const struct hd__mesh *mesh, int32_t stage, uint32_t axes, const uint64_t *value,
                        struct hd__replicas_verdict *v)
{
    int32_t *ranks = hd__alloc((size_t)mesh->ranks * sizeof *ranks), coord[HD_AXIS_COUNT];
    for (int32_t r = 0; r < mesh->ranks; r++) {
        int32_t n = hd__mesh_group(mesh, r, axes, 0, ranks), differ = 0;
        hd__mesh_coord(mesh, r, coord);
        if (coord[HD_AXIS_PP] != stage || ranks[0] != r) /* once for each group */
            continue;
        for (int32_t k = 1; k < n; k++)
            differ |= value[ranks[k]] != value[ranks[0]];
        if (differ)
            add_group(value, ranks, n, axes, v);
    }
    free(ranks);
}

/* ---- all ranks */

/* Values of a rank that travel at once: the first tells when it wants to compare again. */
enum { FIRST = 1, AT_ONCE = HD__GATHERED - FIRST };

/* As bits in place of the numbers, which nothing computes with. */
static void put_bits(double *number, uint64_t bits)
{
    memcpy(number, &bits, sizeof bits);
}

static uint64_t bits_of(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* Masks of axes of a stage's pieces; how many. More than fit are compared along the axes of all the rest. */
static uint32_t masks_of(const struct hd__replicated_list *list, uint32_t masks[AT_ONCE])
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < list->at.count; k++) {
        uint32_t at = 0;
        while (at < n && masks[at] != list->at.at[k].axes)
            at++;
        if (at < n)
            continue;
        if (n < AT_ONCE)
            masks[n++] = list->at.at[k].axes;
        else
            masks[n - 1] &= list->at.at[k].axes;
    }
    return n;
}

static uint32_t mask_index(const uint32_t *masks, uint32_t n, uint32_t axes)
{
    uint32_t at = 0;
    while (at < n - 1 && masks[at] != axes)
        at++;
    return at;
}

static const char *name_of(const struct hd__compiled *c, const struct hd_program *p, const struct hd__replicated *piece,
                           char out[192])
{
    const struct hd__flat *flat = &p->flats.at[piece->flat];
    const struct hd__param *param = piece->param == UINT32_MAX ? NULL : &p->params.at[flat->params[piece->param]];
    const char *name = param ? param->desc.name : flat->name,
               *block = p->blocks.at[param ? hd__tensor_const(p, param->tensor)->block : flat->block];
    if (piece->role >= HD__FLAT_OPTIM && piece->role < HD__FLAT_OPTIM + 4)
        snprintf(out, 192, "optimizer state %s of %s (block %s)",
                 c->optimizer.ops->state_names[piece->role - HD__FLAT_OPTIM], name, block);
    else if (piece->role == HD__FLAT_SHARD)
        snprintf(out, 192, "gradient of %s (block %s)", name, block);
    else if (piece->role >= HD__FLAT_STRATEGY)
        snprintf(out, 192, "%s of %s (block %s)", hd__tensor_const(p, piece->tensor)->name, name, block);
    else
        snprintf(out, 192, "parameter %s (block %s%s)", name, block,
                 piece->role == HD__FLAT_MASTER ? "" : ", the copy that compute reads");
    return out;
}

enum {
    NAMED = 2
}; /* tensors beside the first: what was flipped may be among them, as a state that reached its weights */

/* Hashes of pieces [from, from + AT_ONCE) of all ranks, and what they say. */
static int32_t judge_pieces(struct hd__train_replicas *r, uint32_t from, const uint64_t *mine, uint32_t n,
                            double *numbers, struct hd__text *words, struct hd__replicas_verdict *first, uint32_t *more,
                            struct hd_error *err)
{
    const struct hd__compiled *c = r->session->compiled;
    double own[HD__GATHERED] = {0};
    char name[192];
    for (uint32_t k = 0; k < AT_ONCE && from + k < n; k++)
        put_bits(&own[FIRST + k], mine[from + k]);
    int32_t rc = hd__exec_all_gather(r->session->exec, own, numbers, err);
    uint64_t *value = hd__alloc((size_t)c->mesh.ranks * sizeof *value);
    for (uint32_t k = 0; k < AT_ONCE && !rc; k++)
        for (int32_t s = 0; s < c->n_stages; s++) {
            struct hd__replicas_verdict v = {0};
            if (from + k >= r->stages[s].at.count)
                continue;
            const struct hd__replicated *piece = &r->stages[s].at.at[from + k];
            for (int32_t rank = 0; rank < c->mesh.ranks; rank++)
                value[rank] = bits_of(numbers[rank * HD__GATHERED + FIRST + (int32_t)k]);
            hd__replicas_judge(&c->mesh, s, piece->axes, value, &v);
            if (v.n_wrong && !first->n_wrong) {
                hd__text_add(words, "%s: %s", name_of(c, c->stage[s], piece, name), v.words.at);
                first->n_wrong = v.n_wrong;
                first->wrong = v.wrong;
            } else if (v.n_wrong && (*more)++ < NAMED) {
                hd__text_add(words, "; also %s", name_of(c, c->stage[s], piece, name));
            }
            hd__text_free(&v.words);
        }
    free(value);
    return rc;
}

static int32_t name_difference(struct hd__train_replicas *r, int64_t step, const uint64_t *mine, uint32_t n,
                               double *numbers, int32_t *wrong, struct hd_error *err)
{
    const struct hd__compiled *c = r->session->compiled;
    struct hd__replicas_verdict first = {0};
    struct hd__text words = {0};
    uint32_t most = 0, more = 0;
    int32_t rc = HD_OK;
    for (int32_t s = 0; s < c->n_stages; s++)
        most = HD__MAX(most, r->stages[s].at.count);
    for (uint32_t from = 0; from < most && !rc; from += AT_ONCE)
        rc = judge_pieces(r, from, mine, n, numbers, &words, &first, &more, err);
    if (!rc && more > NAMED)
        hd__text_add(&words, "; %u more tensor%s", more - NAMED, more - NAMED > 1 ? "s differ" : " differs");
    *wrong = first.wrong;
    if (!rc)
        rc = hd_fail(err, HD_E_CORRUPT, "silent corruption, found after step %" PRId64 ": %s. " HD__NOTHING_IS_SAVED,
                     step, words.at ? words.at : "copies differ");
    hd__text_free(&words);
    return rc;
}

/* Compares the hashes of all pieces at once. Returns 1 where some differ, 0, or an error. */
static int32_t differ(struct hd__train_replicas *r, const uint64_t *mine, const struct hd__replicated_list *list,
                      double wanted, double *numbers, struct hd_error *err)
{
    const struct hd__compiled *c = r->session->compiled;
    double own[HD__GATHERED] = {wanted};
    uint32_t masks[AT_ONCE], n = masks_of(list, masks);
    uint64_t all[AT_ONCE] = {0};
    int32_t wrong = 0;
    for (uint32_t k = 0; k < list->at.count; k++) {
        uint64_t *to = &all[mask_index(masks, n, list->at.at[k].axes)];
        *to = hd__hash(&mine[k], sizeof mine[k], *to);
    }
    for (uint32_t k = 0; k < n; k++)
        put_bits(&own[FIRST + k], all[k]);
    int32_t rc = hd__exec_all_gather(r->session->exec, own, numbers, err);
    uint64_t *value = hd__alloc((size_t)c->mesh.ranks * sizeof *value);
    for (int32_t s = 0; s < c->n_stages && !rc; s++) {
        uint32_t n_masks = masks_of(&r->stages[s], masks);
        for (uint32_t k = 0; k < n_masks; k++) {
            struct hd__replicas_verdict v = {0};
            for (int32_t rank = 0; rank < c->mesh.ranks; rank++)
                value[rank] = bits_of(numbers[rank * HD__GATHERED + FIRST + (int32_t)k]);
            hd__replicas_judge(&c->mesh, s, masks[k], value, &v);
            wrong |= v.n_wrong > 0;
            hd__text_free(&v.words);
        }
    }
    free(value);
    return rc ? rc : wrong;
}

/* ---- when */

enum { EARLIEST = 10, SHARE = 400 }; /* of auto: steps between; a comparison takes at most one part in so many */

void hd__train_replicas_init(struct hd__train_replicas *r, struct hd__train_session *session, int64_t done)
{
    const struct hd__compiled *c = session->compiled;
    int64_t every = c->job->watch.replicas_every;
    int host_memory = (c->device_choice.component->ops.device.caps & HD_DEVICE_HOST_MEMORY) != 0;
    uint32_t pieces = 0;
    *r = (struct hd__train_replicas){.session = session, .every = HD__MAX(every, 0), .compared = done};
    if (!every || (every == HD__REPLICAS_AUTO && !host_memory))
        return;
    r->stages = hd__alloc((size_t)c->n_stages * sizeof *r->stages);
    for (int32_t s = 0; s < c->n_stages; s++) {
        hd__replicated_find(c->stage[s], &r->stages[s]);
        pieces += r->stages[s].at.count;
    }
    r->next = every > 0 ? (done / every + 1) * every : done + EARLIEST;
    if (pieces)
        return;
    if (every > 0 && session->env->rank == 0)
        hd__log(HD_LOG_WARN, NULL,
                "watch.replicas: no two ranks hold copies of the same state, so nothing is compared");
    hd__train_replicas_free(r);
}

static int is_due(const struct hd__train_replicas *r, int64_t step, int now)
{
    return r->stages && (now || step >= r->next) && step != r->compared;
}

/* Before its update: later others have its memory. */
static int32_t hash_gradient(void *user, const struct hd__flat *flat, struct hd_error *err)
{
    struct hd__train_replicas *r = user;
    struct hd__exec *exec = r->session->exec;
    const struct hd_program *p = hd__exec_program(exec);
    const struct hd__replicated_list *list = &r->stages[p->stage];
    double start = hd__now();
    int copied = 0;
    int32_t rc = HD_OK;
    for (uint32_t k = 0; k < list->at.count && !rc; k++) {
        const struct hd__replicated *piece = &list->at.at[k];
        if (!piece->fleeting || &p->flats.at[piece->flat] != flat)
            continue;
        if (!copied++)
            rc = hd__exec_copy_tensors(exec, HD__D2H, &piece->tensor, 1, err);
        r->fleeting[k] = hd__replicated_hash(p, piece, hd__exec_coord(exec), hd__exec_host_arena(exec));
    }
    if (copied)
        hd__exec_drop_mirror(exec);
    r->hashing_s += hd__now() - start;
    return rc;
}

void hd__train_replicas_begin(struct hd__train_replicas *r, int64_t step, int saves)
{
    int hashes = 0;
    if (is_due(r, step, saves)) {
        const struct hd__replicated_list *list = &r->stages[hd__exec_program(r->session->exec)->stage];
        for (uint32_t k = 0; k < list->at.count; k++)
            hashes |= list->at.at[k].fleeting != 0;
        free(r->fleeting);
        r->fleeting = hd__alloc((list->at.count + 1) * sizeof *r->fleeting);
        r->hashed = step;
    }
    r->hashing_s = 0;
    hd__exec_set_update_hook(r->session->exec, hashes ? hash_gradient : NULL, r);
}

/* The largest wish of all ranks. */
static void set_next(struct hd__train_replicas *r, int64_t step, const double *numbers)
{
    double steps = EARLIEST;
    for (int32_t rank = 0; rank < r->session->compiled->mesh.ranks; rank++)
        steps = HD__MAX(steps, numbers[rank * HD__GATHERED]);
    r->next = r->every ? (step / r->every + 1) * r->every : step + (int64_t)HD__MIN(steps, 1e9);
    r->compared = step;
}

/* From the device, tensor by tensor. */
static int32_t fetch(struct hd__train_replicas *r, const struct hd__replicated_list *list, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t k = 0; k < list->at.count && !rc; k++)
        if (!list->at.at[k].fleeting && (!k || list->at.at[k].tensor != list->at.at[k - 1].tensor))
            rc = hd__exec_copy_tensors(r->session->exec, HD__D2H, &list->at.at[k].tensor, 1, err);
    return rc;
}

int32_t hd__train_replicas_compare(struct hd__train_replicas *r, int64_t step, double step_s, int now, int32_t *wrong,
                                   struct hd_error *err)
{
    if (!is_due(r, step, now))
        return HD_OK;
    struct hd__exec *exec = r->session->exec;
    const struct hd_program *p = hd__exec_program(exec);
    const struct hd__replicated_list *list = &r->stages[p->stage];
    uint64_t *mine = hd__alloc((list->at.count + 1) * sizeof *mine);
    double *numbers = hd__alloc((size_t)r->session->compiled->mesh.ranks * HD__GATHERED * sizeof *numbers);
    double start = hd__now();
    int32_t rc = fetch(r, list, err);
    for (uint32_t k = 0; k < list->at.count && !rc; k++)
        if (!list->at.at[k].fleeting)
            mine[k] = hd__replicated_hash(p, &list->at.at[k], hd__exec_coord(exec), hd__exec_host_arena(exec));
        else if (r->hashed == step)
            mine[k] = r->fleeting[k];
    hd__exec_drop_mirror(exec);
    if (!rc)
        rc = differ(r, mine, list, ceil((hd__now() - start + r->hashing_s) * SHARE / HD__MAX(step_s, 1e-6)), numbers,
                    err);
    if (!rc)
        set_next(r, step, numbers);
    else if ((r->corrupt = rc > 0))
        rc = name_difference(r, step, mine, list->at.count, numbers, wrong, err);
    free(numbers);
    free(mine);
    return rc;
}

void hd__train_replicas_free(struct hd__train_replicas *r)
{
    for (int32_t s = 0; r->stages && s < r->session->compiled->n_stages; s++)
        hd__free_array(&r->stages[s].at);
    free(r->stages);
    free(r->fleeting);
    r->stages = NULL;
    r->fleeting = NULL;
}
