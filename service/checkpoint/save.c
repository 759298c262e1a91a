/* Saving: begin, write, agree on checksums, index, commit. */
#include "service/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdlib.h>

#include "service/checkpoint/internal.h"

/* Checksums travel this many at a time, so that the room for all ranks' stays small. */
enum { HASHES_AT_ONCE = 8192 };

struct saving {
    const struct hd__ckpt_store *store;
    const struct hd__ckpt_save *save;
    struct hd__ckpt_layout layout;
    struct hd__ckpt_byte_ranges ranges;
    struct hd_ckpt_tx *tx;
    uint64_t *hashes;        /* by block */
    uint8_t *hash_known;     /* by block: its hash is known */
    uint64_t *shared_blocks; /* blocks that ranks share */
    uint64_t n_shared;
    uint64_t written; /* bytes, by this rank */
    char name[32];
};

/* ---- agreement */

/* What every rank says after a phase. */
struct phase_status {
    int32_t code, reserved;
    uint64_t written, origin;
    char message[512];
};

static bool is_single_rank(const struct saving *s)
{
    return s->store->peers.ranks <= 1;
}

static bool is_leader(const struct saving *s)
{
    return is_single_rank(s) || s->store->peers.rank == 0;
}

/* HD_OK if all ranks say so; otherwise the error of the first that does not. */
static int32_t agree_on_status(const struct saving *s, int32_t rc, uint64_t *written, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &s->store->peers;
    struct phase_status mine = {.code = rc, .written = s->written}, *all;
    *written = s->written;
    if (is_single_rank(s))
        return rc;
    *written = 0;
    if (rc && err) {
        mine.origin = err->origin = hd__origin_of(err, peers->rank);
        snprintf(mine.message, sizeof mine.message, "%.500s", err->message);
    }
    all = hd__alloc((size_t)peers->ranks * sizeof *all);
    int32_t result = peers->all_gather(peers->user, &mine, sizeof mine, all, err);
    for (int32_t r = 0; r < peers->ranks && !result; r++) {
        *written += all[r].written;
        if (all[r].code && err) {
            err->peer = r;
            err->origin = all[r].origin;
        }
        if (all[r].code) {
            all[r].message[sizeof all[r].message - 1] = '\0';
            result = r == peers->rank ? rc : hd_fail(err, all[r].code, "rank %d: %s", r, all[r].message);
        }
    }
    free(all);
    return result;
}

/* ---- writing: a block is assembled from its pieces and written in as few stretches as they make */

static int32_t write_range(struct saving *s, uint32_t file, uint64_t begin, const char *block, uint64_t from,
                           uint64_t to, struct hd_error *err)
{
    if (from == to)
        return HD_OK;
    __atomic_add_fetch(&s->written, to - from, __ATOMIC_RELAXED);
    return s->store->ops->write(s->tx, s->layout.files[file].name, begin + from, block + from, to - from, err);
}

static int32_t write_block(void *user, uint64_t k, char *block, struct hd_error *err)
{
    struct saving *s = user;
    const struct hd__ckpt_byte_ranges *p = &s->ranges;
    uint64_t begin, bytes, at, from, start = 0, end = 0, number = p->refs[p->first_ref[k]].block;
    uint32_t file = hd__ckpt_locate_block(&s->layout, number, &begin, &bytes);
    int32_t rc = HD_OK;
    for (uint64_t i = p->first_ref[k]; i < p->first_ref[k + 1] && !rc; i++) {
        const struct hd__ckpt_byte_range *range = &p->list[p->refs[i].range];
        uint64_t n = hd__ckpt_clip_to_block(range, begin, bytes, &at, &from);
        if (at != end || i == p->first_ref[k]) {
            if (at < end)
                return hd_fail(err, HD_E_INTERNAL, "checkpoint: two runs of this rank overlap in %s at byte %lu",
                               s->layout.files[file].name, (unsigned long)(begin + at));
            rc = write_range(s, file, begin, block, start, end, err);
            start = at;
        }
        memcpy(block + at, range->data + from, n);
        end = at + n;
    }
    if (start == 0 && end == bytes) {
        s->hashes[number] = hd__hash(block, bytes, 0);
        s->hash_known[number] = 1;
    }
    return rc ? rc : write_range(s, file, begin, block, start, end, err);
}

/* ---- checksums */

/* A rank's hashes [first, first + n) and which of them it knows. */
static void pack_hashes(const struct saving *s, uint64_t first, uint64_t n, uint64_t *out)
{
    for (uint64_t i = 0; i < n; i++) {
        out[2 * i] = s->hash_known[first + i];
        out[2 * i + 1] = s->hashes[first + i];
    }
}

static int32_t share_hashes(struct saving *s, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &s->store->peers;
    uint64_t most = HD__MIN(s->layout.n_blocks, HASHES_AT_ONCE);
    if (is_single_rank(s))
        return HD_OK;
    uint64_t *mine = hd__alloc(most * 16), *all = hd__alloc(most * 16 * (uint64_t)peers->ranks);
    int32_t rc = HD_OK;
    for (uint64_t first = 0; first < s->layout.n_blocks && !rc; first += most) {
        uint64_t n = HD__MIN(most, s->layout.n_blocks - first);
        pack_hashes(s, first, n, mine);
        rc = peers->all_gather(peers->user, mine, n * 16, all, err);
        for (uint64_t i = 0; i < n * (uint64_t)peers->ranks && !rc; i++) {
            if (all[2 * i]) {
                s->hash_known[first + i % n] = 1;
                s->hashes[first + i % n] = all[2 * i + 1];
            }
        }
    }
    free(mine);
    free(all);
    return rc;
}

/* Blocks that nobody wrote alone: all ranks know the same list. */
static void find_shared_blocks(struct saving *s)
{
    s->shared_blocks = hd__alloc((s->layout.n_blocks + 1) * sizeof *s->shared_blocks);
    for (uint64_t b = 0; b < s->layout.n_blocks; b++)
        if (!s->hash_known[b])
            s->shared_blocks[s->n_shared++] = b;
}

static int32_t hash_block(void *user, uint64_t i, char *block, struct hd_error *err)
{
    struct saving *s = user;
    const struct hd__ckpt_peers *peers = &s->store->peers;
    uint64_t turn = is_single_rank(s) ? i : i * (uint64_t)peers->ranks + (uint64_t)peers->rank, begin, bytes;
    if (turn >= s->n_shared)
        return HD_OK;
    uint32_t file = hd__ckpt_locate_block(&s->layout, s->shared_blocks[turn], &begin, &bytes);
    int32_t rc = s->store->ops->read_back(s->tx, s->layout.files[file].name, begin, block, bytes, err);
    if (rc)
        return rc;
    s->hashes[s->shared_blocks[turn]] = hd__hash(block, bytes, 0);
    s->hash_known[s->shared_blocks[turn]] = 1;
    return HD_OK;
}

static int32_t hash_shared_blocks(struct saving *s, struct hd_error *err)
{
    uint64_t ranks = is_single_rank(s) ? 1 : (uint64_t)s->store->peers.ranks;
    return hd__ckpt_parallel_for(s->store->threads, (s->n_shared + ranks - 1) / ranks, hash_block, s, err);
}

/* ---- the phases. Each ends in an agreement. */

static int32_t phase_begin(struct saving *s, int32_t rc, struct hd_error *err)
{
    const struct hd__ckpt_store *st = s->store;
    uint64_t unused;
    if (!rc && is_leader(s))
        rc = st->ops->begin(st->ckpt, s->name, 1, &s->tx, err);
    rc = agree_on_status(s, rc, &unused, err);
    if (rc)
        return rc;
    if (!is_leader(s)) /* there is something to join now */
        rc = st->ops->begin(st->ckpt, s->name, 0, &s->tx, err);
    return agree_on_status(s, rc, &unused, err);
}

static int32_t phase_write(struct saving *s, struct hd_error *err)
{
    uint64_t total;
    int32_t rc = hd__ckpt_parallel_for(s->store->threads, s->ranges.n_blocks, write_block, s, err);
    if (!rc)
        rc = s->store->ops->flush(s->tx, err);
    rc = agree_on_status(s, rc, &total, err);
    if (!rc && total != s->layout.bytes)
        return hd_fail(err, HD_E_INTERNAL,
                       "checkpoint: the runs of all ranks have %lu bytes, the tensors %lu: an "
                       "element is owned by no rank, or by two",
                       (unsigned long)total, (unsigned long)s->layout.bytes);
    return rc;
}

static int32_t phase_checksums(struct saving *s, struct hd_error *err)
{
    uint64_t unused;
    int32_t rc = share_hashes(s, err);
    if (rc)
        return rc;
    find_shared_blocks(s);
    if (!s->n_shared)
        return HD_OK;
    rc = agree_on_status(s, hash_shared_blocks(s, err), &unused, err);
    return rc ? rc : share_hashes(s, err);
}

static int32_t write_index(struct saving *s, struct hd_error *err)
{
    char *text = hd__ckpt_index_text(s->save, &s->layout, s->hashes);
    if (!text)
        return hd_fail(err, HD_E_INTERNAL, "checkpoint: the state cannot be written as JSON (NaN, or not UTF-8)");
    int32_t rc = s->store->ops->write(s->tx, HD__CKPT_INDEX, 0, text, strlen(text), err);
    free(text);
    return rc ? rc : s->store->ops->flush(s->tx, err);
}

static int32_t phase_commit(struct saving *s, struct hd_error *err)
{
    uint64_t unused;
    int32_t rc = HD_OK;
    if (is_leader(s)) {
        rc = write_index(s, err);
        if (!rc) {
            rc = s->store->ops->commit(s->tx, err);
            s->tx = NULL;
        }
    }
    rc = agree_on_status(s, rc, &unused, err);
    if (!rc && s->tx) {
        rc = s->store->ops->commit(s->tx, err);
        s->tx = NULL;
    }
    return rc;
}

/* ---- older checkpoints */

static int32_t remove_old(const struct saving *s, struct hd_error *err)
{
    uint64_t *steps = NULL;
    uint32_t n = 0;
    char name[32];
    int32_t rc = hd__ckpt_list_steps(s->store, &steps, &n, err);
    for (uint32_t i = 0; i < n && n - i > s->save->keep && !rc; i++) {
        if (steps[i] == s->save->step)
            continue;
        hd__ckpt_step_name(steps[i], name);
        rc = s->store->ops->remove(s->store->ckpt, name, err);
    }
    free(steps);
    return rc;
}

int32_t hd__ckpt_save(const struct hd__ckpt_store *store, const struct hd__ckpt_save *save, struct hd_error *err)
{
    struct saving s = {.store = store, .save = save};
    hd__ckpt_step_name(save->step, s.name);
    int32_t rc = hd__ckpt_layout_make(save->tensors, save->n_tensors, store->file_bytes, &s.layout, err);
    if (!rc)
        rc = hd__ckpt_byte_ranges_make(&s.layout, save->tensors, save->n_tensors, save->runs, save->n_runs,
                                       is_leader(&s), &s.ranges, err);
    s.hashes = hd__alloc(s.layout.n_blocks * sizeof *s.hashes);
    s.hash_known = hd__alloc(s.layout.n_blocks);
    rc = phase_begin(&s, rc, err);
    if (!rc)
        rc = phase_write(&s, err);
    if (!rc)
        rc = phase_checksums(&s, err);
    if (!rc)
        rc = phase_commit(&s, err);
    if (s.tx)
        store->ops->cancel(s.tx);
    if (!rc && save->keep && is_leader(&s))
        rc = remove_old(&s, err);
    hd__ckpt_byte_ranges_free(&s.ranges);
    hd__ckpt_layout_free(&s.layout);
    free(s.hashes);
    free(s.hash_known);
    free(s.shared_blocks);
    return rc;
}
