/* The newest checkpoint that all ranks can read. */
#include "service/train/checkpointer/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "service/checkpoint/param_init.h"
#include "service/train/save/peer_copies.h"

/* The result of a rank's reading; of all, the first damage, and the first that looked for another step. */
struct verdict {
    uint64_t step, other_step; /* 0: there is none to read */
    int32_t other_rank, code;  /* other_rank 0: all have the first rank's step */
    int32_t rank, reserved;
    char words[512];
};

static void fold_verdict(void *sum, const void *other)
{
    struct verdict *all = sum;
    const struct verdict *one = other;
    if (!all->other_rank && one->step != all->step) {
        all->other_rank = one->rank;
        all->other_step = one->step;
    }
    if (!hd__checkpointer_is_damage(all->code) && hd__checkpointer_is_damage(one->code)) {
        all->code = one->code;
        memcpy(all->words, one->words, sizeof all->words);
    }
}

/* The code that all go by: damage that any has found; else this rank's own. */
static int32_t agree_on_damage(struct hd__train_checkpointer *k, uint64_t step, int32_t rc, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &k->store.peers;
    struct verdict all = {.step = step, .code = rc, .rank = k->s->env->rank};
    struct hd_error why = HD_ERROR_INIT;
    if (k->s->env->size == 1)
        return rc;
    snprintf(all.words, sizeof all.words, "%.511s", rc ? err->message : "");
    int32_t unheard = peers->all_reduce(peers->user, &all, sizeof all, fold_verdict, &why);
    if (unheard && !rc)
        *err = why;
    if (unheard)
        return rc ? rc : unheard;
    if (all.other_rank) {
        int is_other = all.step == step;
        return hd_fail(err, HD_E_MISMATCH,
                       "%s: the newest checkpoint is of step %" PRIu64 " for rank %d and of step %" PRIu64
                       " for this one: do all machines have the same folder?",
                       k->dir, is_other ? all.other_step : all.step, is_other ? all.other_rank : 0, step);
    }
    return hd__checkpointer_is_damage(all.code) && !hd__checkpointer_is_damage(rc)
               ? hd_fail(err, HD_E_CORRUPT, "%.511s", all.words)
               : rc;
}

/* The newest step of the first *n that may be loaded, and its name; 0: there is none. *n becomes its index. */
static uint64_t next_candidate(const struct hd__train_checkpointer *k, const uint64_t *steps, uint32_t *n,
                               char name[32])
{
    while ((*n)--) {
        struct hd_error unused = HD_ERROR_INIT;
        struct hd__ckpt *ckpt = NULL;
        hd__ckpt_step_name(steps[*n], name);
        int other = k->only_run && !hd__ckpt_open(&k->store, name, &ckpt, &unused) &&
                    strcmp(hd__ckpt_run_id(ckpt), k->only_run) != 0;
        hd__ckpt_close(ckpt);
        if (!other)
            return steps[*n];
    }
    *n = 0;
    return 0;
}

static int64_t newest_step(const struct hd__train_checkpointer *k)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t *steps = NULL, newest = 0;
    uint32_t n = 0;
    char name[32];
    if (!hd__ckpt_list_steps(&k->store, &steps, &n, NULL, &unused))
        newest = next_candidate(k, steps, &n, name);
    free(steps);
    return (int64_t)newest;
}

int32_t hd__checkpointer_load_copies(struct hd__train_checkpointer *k, struct hd__train_progress *progress, int *loaded,
                                     struct hd_error *err)
{
    struct hd__ckpt_train_state of = {0};
    json_t *state = NULL;
    int64_t step;
    int rank_state = 1;
    hd__ckpt_collect_train_state(&of, &k->training, 0, NULL);
    uint32_t n_own_runs = of.runs.count;
    hd__ckpt_collect_rank_state(&of, &k->training);
    const struct hd__peer_wanted wanted = {.tensors = of.tensors.at,
                                           .runs = of.runs.at,
                                           .n_tensors = of.tensors.count,
                                           .n_runs = of.runs.count,
                                           .n_own_runs = n_own_runs,
                                           .run = k->only_run,
                                           .step = newest_step(k)};
    int32_t rc = hd__peer_copies_load(k->copies, &wanted, &step, &state, &rank_state, err);
    *loaded = !rc && step >= 0;
    hd__ckpt_train_state_free(&of);
    if (!*loaded) {
        hd__ckpt_init_zeros(hd__exec_program(k->s->exec), k->training.coord, k->training.arena);
        return rc;
    }
    if (!rank_state && k->s->env->rank == 0)
        hd__log(HD_LOG_WARN, NULL,
                "the copies in memory are of another mesh, so the error feedback of compressed gradients, which is "
                "kept per rank, starts at zero");
    hd__checkpointer_use_state(k, state, (uint64_t)step, progress);
    json_decref(state);
    k->loaded.in_memory = 1;
    snprintf(k->loaded.run, sizeof k->loaded.run, "%s", k->only_run);
    return hd__checkpointer_use_read(k, rc, err);
}

int32_t hd__checkpointer_load_newest(struct hd__train_checkpointer *k, struct hd__train_progress *progress,
                                     struct hd_error *err)
{
    uint64_t *steps = NULL, step = 0;
    uint32_t n = 0;
    int32_t rc = hd__ckpt_list_steps(&k->store, &steps, &n, NULL, err);
    char name[32];
    k->falls_back = 1;
    for (int again = !rc; again;) {
        step = next_candidate(k, steps, &n, name);
        if (!step && k->fell_back) {
            struct hd_error last = *err;
            rc = hd_fail(err, HD_E_CORRUPT,
                         "%.700s; %s has no older one: checkpoint.resume=overwrite starts over, and moves it aside",
                         last.message, k->dir);
            break;
        }
        *k->loaded.run = 0;
        rc = step ? hd__checkpointer_read(k, name, NULL, progress, err) : HD_OK;
        rc = agree_on_damage(k, step, rc, err);
        again = step && hd__checkpointer_is_damage(rc);
        if (!again)
            break;
        if (k->s->env->rank == 0)
            hd__log(HD_LOG_WARN, NULL, "%s is passed over, since it is damaged: %s", name, err->message);
        if (!*k->damaged_run)
            memcpy(k->damaged_run, k->loaded.run, sizeof k->damaged_run);
        k->fell_back = 1;
        hd__ckpt_init_zeros(hd__exec_program(k->s->exec), k->training.coord, k->training.arena);
    }
    k->falls_back = 0;
    free(steps);
    return rc || !step ? rc : hd__checkpointer_use_read(k, rc, err);
}
