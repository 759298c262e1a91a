/* Saving: begin, write, agree on checksums, index, commit. */
#include "service/checkpoint/checkpoint.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/cpu/parallel_for.h"
#include "service/checkpoint/internal.h"

struct saving {
    const struct hd__ckpt_store *store;
    const struct hd__ckpt_save *save;
    uint32_t rank, ranks; /* 0 of 1 where there are no peers */
    uint32_t threads;
    struct hd__arena arena;
    struct hd__ckpt_layout layout;
    struct hd__ckpt_pieces pieces;
    struct hd_ckpt_tx *tx;
    uint64_t *hashes;        /* by block; of all on rank 0 alone */
    uint8_t *hash_known;     /* by block: this rank has its hash, and has not told rank 0 */
    uint8_t *missing;        /* a bit a block: nobody has its hash */
    uint64_t *shared_blocks; /* blocks that ranks share */
    uint64_t n_shared;
    uint64_t has, written; /* bytes of this rank's pieces; of those, what is written */
    uint64_t most, total;  /* bytes, as of the last agreement: that a rank has; that all have written */
    char name[32];
};

/* ---- agreement */

/* The status of a rank after a phase; of all, the first that has failed. */
struct phase_status {
    int32_t code, rank;
    uint64_t has, written, origin; /* has: the most */
    char words[512];
};

static void fold_status(void *sum, const void *other)
{
    struct phase_status *all = sum;
    const struct phase_status *one = other;
    uint64_t written = all->written + one->written, has = HD__MAX(all->has, one->has);
    if (!all->code)
        *all = *one;
    all->written = written;
    all->has = has;
}

/* HD_OK if all ranks say so; otherwise the error of the first that does not. */
static int32_t agree_on_status(struct saving *s, int32_t rc, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &s->store->peers;
    struct phase_status all = {.code = rc, .rank = (int32_t)s->rank, .has = s->has, .written = s->written};
    s->total = s->written;
    s->most = s->has;
    if (s->ranks == 1)
        return rc;
    if (rc && err) {
        all.origin = err->origin = hd__origin_of(err, all.rank);
        snprintf(all.words, sizeof all.words, "%.511s", err->message);
    }
    int32_t result = peers->all_reduce(peers->user, &all, sizeof all, fold_status, err);
    s->total = all.written;
    s->most = all.has;
    if (result || !all.code)
        return result;
    if (err) {
        err->peer = all.rank;
        err->origin = all.origin;
    }
    return all.rank == (int32_t)s->rank ? rc : hd_fail(err, all.code, "rank %d: %.511s", all.rank, all.words);
}

/* ---- writing: a block is assembled from its pieces and written in as few stretches as they make */

static int32_t write_block(void *user, uint64_t number, char *block, struct hd_error *err)
{
    struct saving *s = user;
    const struct hd__ckpt_piece *piece = s->pieces.at + s->pieces.first[number],
                                *last = s->pieces.at + s->pieces.first[number + 1];
    uint64_t begin, bytes, start = 0, end = 0;
    const char *file = s->layout.files[hd__ckpt_locate_block(&s->layout, number, &begin, &bytes)].name;
    for (; piece < last; piece++) {
        if (piece->at < end)
            return hd_fail(err, HD_E_INTERNAL, "checkpoint: two runs of this rank overlap in %s at byte %lu", file,
                           (unsigned long)(begin + piece->at));
        if (piece->at > end)
            start = piece->at;
        memcpy(block + piece->at, piece->data, piece->bytes);
        end = piece->at + piece->bytes;
        if (piece + 1 < last && piece[1].at == end)
            continue;
        __atomic_add_fetch(&s->written, end - start, __ATOMIC_RELAXED);
        int32_t rc = s->store->ops->write(s->tx, file, begin + start, block + start, end - start, err);
        rc = hd__ckpt_result(rc, "write", err);
        if (rc)
            return rc;
    }
    if (start == 0 && end == bytes) {
        s->hashes[number] = hd__hash(block, bytes, 0);
        s->hash_known[number] = 1;
    }
    return HD_OK;
}

/* ---- checksums */

static int32_t hash_block(void *user, uint64_t i, char *block, struct hd_error *err)
{
    struct saving *s = user;
    uint64_t turn = i * s->ranks + s->rank, begin, bytes;
    if (turn >= s->n_shared || s->hash_known[s->shared_blocks[turn]])
        return HD_OK;
    uint32_t file = hd__ckpt_locate_block(&s->layout, s->shared_blocks[turn], &begin, &bytes);
    int32_t rc = s->store->ops->read_back(s->tx, s->layout.files[file].name, begin, block, bytes, err);
    rc = hd__ckpt_result(rc, "read_back", err);
    if (rc)
        return rc;
    s->hashes[s->shared_blocks[turn]] = hd__hash(block, bytes, 0);
    s->hash_known[s->shared_blocks[turn]] = 1;
    return HD_OK;
}

struct sum {
    uint64_t block, hash;
};

static void take_sums(void *to, const void *part, uint64_t bytes)
{
    struct saving *s = to;
    const struct sum *sums = part;
    for (uint64_t i = 0; i < bytes / sizeof *sums; i++)
        if (sums[i].block < s->layout.n_blocks) {
            s->hashes[sums[i].block] = sums[i].hash;
            s->missing[sums[i].block / 8] &= (uint8_t) ~(1 << sums[i].block % 8);
        }
}

/* Rank 0 writes the index, so it alone gets the hashes, and answers with the blocks that it has none of: nobody wrote
 * them alone. Those the ranks read back in turn, rank 0 first, and tell it once more. */
static int32_t phase_checksums(struct saving *s, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &s->store->peers;
    uint64_t blocks = s->layout.n_blocks, bytes = (blocks + 7) / 8;
    HD__ARRAY(struct sum) mine = {0};
    int32_t rc = HD_OK;
    s->shared_blocks = hd__arena_alloc(&s->arena, blocks * sizeof *s->shared_blocks);
    s->missing = hd__arena_alloc(&s->arena, bytes);
    memset(s->missing, 0xff, bytes);
    do {
        mine.count = 0;
        for (uint64_t b = 0; b < blocks; b++)
            if (s->hash_known[b]) {
                hd__push(&mine, (struct sum){b, s->hashes[b]});
                s->hash_known[b] = 0;
            }
        uint64_t told = mine.count * sizeof *mine.at;
        if (s->ranks == 1)
            take_sums(s, mine.at, told);
        else
            rc = peers->gather(peers->user, mine.at, told, take_sums, s, s->missing, bytes, err);
        s->n_shared = 0;
        for (uint64_t b = 0; b < blocks && !rc; b++)
            if (s->missing[b / 8] >> b % 8 & 1)
                s->shared_blocks[s->n_shared++] = b;
        if (!rc && s->n_shared) {
            uint64_t turns = (s->n_shared + s->ranks - 1) / s->ranks;
            if (peers->busy)
                peers->busy(peers->user, HD__MAX(s->most, turns * HD__CKPT_BLOCK));
            if (s->rank == 0)
                rc = hd__parallel_for(1, 1, HD__CKPT_BLOCK, hash_block, s, err);
            rc = agree_on_status(s, rc, err);
            rc = rc ? rc : hd__parallel_for(s->threads, turns, HD__CKPT_BLOCK, hash_block, s, err);
            rc = agree_on_status(s, rc, err);
        }
    } while (!rc && s->n_shared);
    hd__free_array(&mine);
    return rc;
}

/* ---- the index, and the end */

/* Rank 0 first: with its commit the checkpoint is there. */
static int32_t phase_commit(struct saving *s, struct hd_error *err)
{
    const struct hd_ckpt_ops *ops = s->store->ops;
    const struct hd__ckpt_peers *peers = &s->store->peers;
    int32_t rc = HD_OK;
    if (peers->busy) /* a store may have much to do for it */
        peers->busy(peers->user, s->most);
    if (s->rank == 0) {
        char *text = hd__ckpt_index_text(s->save, &s->layout, s->hashes);
        uint64_t bytes = text ? strlen(text) : 0, there = 0;
        if (text)
            rc = hd__ckpt_result(ops->write(s->tx, HD__CKPT_INDEX, 0, text, bytes, err), "write", err);
        else
            rc = hd_fail(err, HD_E_INTERNAL, "checkpoint: the state cannot be written as JSON (NaN, or not UTF-8)");
        free(text);
        if (!rc)
            rc = hd__ckpt_result(ops->flush(s->tx, err), "flush", err);
        if (!rc) {
            rc = hd__ckpt_result(ops->commit(s->tx, err), "commit", err);
            s->tx = NULL;
        }
        /* a storage that lies would lose it in silence */
        int32_t seen = rc ? HD_OK : ops->size(s->store->ckpt, s->name, HD__CKPT_INDEX, &there, err);
        if (seen || (!rc && there != bytes))
            rc = hd_fail(err, seen < 0 ? seen : HD_E_CORRUPT,
                         "the storage has committed %s, and its index.json %s: nothing was saved", s->name,
                         seen ? "is not there" : "has another size");
    }
    if (!rc && s->rank == 0 && peers->saved) /* also where the others do not hear of it any more */
        peers->saved(peers->user, s->save->step);
    rc = agree_on_status(s, rc, err);
    if (!rc && s->rank && peers->saved)
        peers->saved(peers->user, s->save->step);
    if (!rc && s->tx) {
        rc = hd__ckpt_result(ops->commit(s->tx, err), "commit", err);
        s->tx = NULL;
    }
    return rc;
}

/* ---- older checkpoints */

/* One of those that are there, and what its index says. */
struct old {
    uint64_t step;
    double val_loss; /* INFINITY: none */
    int ours, stays; /* of this run */
};

/* Oldest first in the list. Of equal losses the newer stays. */
static void choose_kept(const struct hd__ckpt_save *policy, struct old *all, uint32_t n)
{
    uint32_t newer = 0;
    for (uint32_t i = n; i--;)
        all[i].stays = !all[i].ours || newer++ < policy->keep || all[i].step == policy->step ||
                       (policy->keep_every && all[i].step % policy->keep_every == 0);
    for (uint32_t k = 0; k < policy->keep_best; k++) {
        struct old *best = NULL;
        for (uint32_t i = n; i--;)
            if (all[i].ours && isfinite(all[i].val_loss) && (!best || all[i].val_loss < best->val_loss))
                best = &all[i];
        if (!best)
            return;
        best->stays = 1;
        best->val_loss = INFINITY;
    }
}

int32_t hd__ckpt_prune(const struct hd__ckpt_store *store, const struct hd__ckpt_save *policy, uint32_t *removed,
                       struct hd_error *err)
{
    uint64_t *steps = NULL;
    uint32_t n = 0;
    int32_t rc = hd__ckpt_list_steps(store, &steps, &n, NULL, err);
    struct old *all = hd__alloc(((size_t)n + 1) * sizeof *all);
    for (uint32_t i = 0; i < n && !rc; i++) { /* one whose index cannot be read is not ours, and stays */
        struct hd_error unused = HD_ERROR_INIT;
        uint64_t bytes = 0;
        char name[32];
        all[i].step = steps[i];
        hd__ckpt_step_name(steps[i], name);
        if (store->ops->size(store->ckpt, name, HD__CKPT_INDEX, &bytes, &unused) || bytes > HD__CKPT_INDEX_MAX)
            continue;
        char *text = hd__alloc(bytes);
        int32_t unread = store->ops->read(store->ckpt, name, HD__CKPT_INDEX, 0, text, bytes, &unused);
        json_t *index = unread ? NULL : json_loadb(text, bytes, 0, NULL);
        const char *of = json_string_value(json_object_get(index, "run"));
        const json_t *loss = json_object_get(json_object_get(index, "state"), "val_loss");
        all[i].ours = index && !strcmp(of ? of : "", policy->run ? policy->run : "");
        all[i].val_loss = json_is_number(loss) ? json_number_value(loss) : INFINITY;
        json_decref(index);
        free(text);
    }
    if (!rc && policy->keep)
        choose_kept(policy, all, n);
    for (uint32_t i = rc ? 0 : n; i-- && policy->keep;) {
        char name[32];
        struct hd_error why = HD_ERROR_INIT;
        if (all[i].stays)
            continue;
        hd__ckpt_step_name(all[i].step, name);
        int32_t code = store->ops->remove(store->ckpt, name, &why);
        if (code && !rc) /* the others go all the same */
            hd_error_copy(err, &why);
        rc = rc ? rc : code;
        *removed += !code;
    }
    free(all);
    free(steps);
    return rc;
}

int32_t hd__ckpt_save(const struct hd__ckpt_store *store, const struct hd__ckpt_save *save, struct hd_error *err)
{
    struct saving s = {.store = store, .save = save, .ranks = 1, .threads = store->threads ? store->threads : 2};
    if (store->peers.ranks > 1) {
        s.rank = (uint32_t)store->peers.rank;
        s.ranks = (uint32_t)store->peers.ranks;
    }
    hd__ckpt_step_name(save->step, s.name);
    int32_t rc = hd__ckpt_layout_make(&s.arena, save->tensors, save->n_tensors, store->file_bytes, &s.layout, err);
    if (!rc)
        rc = hd__ckpt_cut(&s.arena, &s.layout, save->tensors, save->n_tensors, save->runs, save->n_runs, s.rank == 0,
                          &s.pieces, err);
    for (uint32_t i = 0; i < s.pieces.count; i++)
        s.has += s.pieces.at[i].bytes;
    s.hashes = hd__arena_alloc(&s.arena, s.layout.n_blocks * sizeof *s.hashes);
    s.hash_known = hd__arena_alloc(&s.arena, s.layout.n_blocks);
    if (!rc && s.rank == 0)
        rc = hd__ckpt_result(store->ops->begin(store->ckpt, s.name, 1, &s.tx, err), "begin", err);
    rc = agree_on_status(&s, rc, err);
    if (!rc) { /* there is something to join now */
        if (s.rank)
            rc = hd__ckpt_result(store->ops->begin(store->ckpt, s.name, 0, &s.tx, err), "begin", err);
        rc = agree_on_status(&s, rc, err);
    }
    if (!rc) {
        if (store->peers.busy) /* of all ranks, also those with nothing to write: they wait for the others */
            store->peers.busy(store->peers.user, s.most);
        rc = hd__parallel_for(s.threads, s.layout.n_blocks, HD__CKPT_BLOCK, write_block, &s, err);
        if (!rc)
            rc = hd__ckpt_result(store->ops->flush(s.tx, err), "flush", err);
        rc = agree_on_status(&s, rc, err);
    }
    if (!rc && s.total != s.layout.bytes)
        rc = hd_fail(err, HD_E_INTERNAL,
                     "checkpoint: the runs of all ranks have %lu bytes, the tensors %lu: an "
                     "element is owned by no rank, or by two",
                     (unsigned long)s.total, (unsigned long)s.layout.bytes);
    if (!rc)
        rc = phase_checksums(&s, err);
    if (!rc)
        rc = phase_commit(&s, err);
    if (s.tx)
        store->ops->cancel(s.tx);
    if (!rc && store->peers.busy)
        store->peers.busy(store->peers.user, 0);
    uint32_t removed = 0;
    struct hd_error why = HD_ERROR_INIT;
    if (!rc && save->keep && s.rank == 0 && hd__ckpt_prune(store, save, &removed, &why))
        hd__log(HD_LOG_WARN, NULL, "%s is saved, and those that checkpoint.keep leaves out could not be removed: %s",
                s.name, why.message);
    hd__free_array(&s.pieces);
    hd__arena_free(&s.arena);
    return rc;
}
