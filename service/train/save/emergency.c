#include "service/train/save/emergency.h"

#include <inttypes.h>
#include <stdlib.h>

#include "service/train/save/store_gather.h"

#define RUN_KEY "run/id"
#define DATA_KEY "run/data"
#define SAVED_KEY "run/left" /* the step that was saved after a fault */
#define MEET_SECONDS 2.0     /* the ranks hear of a fault within one */

/* The state of a rank that is left, as it tells the others. */
struct holding {
    int64_t step, saved; /* step -1: its state is not whole */
    int64_t storage_failed;
};

struct meeting {
    const struct hd__emergency *e;
    struct hd_store *store; /* NULL: a single rank */
    int32_t size, me;
    uint8_t *present;        /* by rank */
    struct holding *holding; /* of those that are */
    int32_t *ranks, n;       /* that hold the step which is tried */
};

void hd__train_emergency_prepare(struct hd__train_session *session, const char run[HD__RUN_ID])
{
    struct hd_error unused = HD_ERROR_INIT;
    if (session->store)
        hd__store_put(session->store, RUN_KEY, run, HD__RUN_ID, &unused);
}

void hd__train_emergency_tell_data(struct hd__train_session *session, const struct hd__train_data_mark *data)
{
    struct hd_error unused = HD_ERROR_INIT;
    json_t *json = hd__train_data_json(data);
    char *text = json_dumps(json, JSON_COMPACT);
    if (session->store && text)
        hd__store_put(session->store, DATA_KEY, text, strlen(text), &unused);
    free(text);
    json_decref(json);
}

json_t *hd__train_emergency_find_data(const struct hd__train_session *session)
{
    char text[8192];
    size_t bytes = sizeof text;
    struct hd_error unused = HD_ERROR_INIT;
    int known =
        session->store && !hd__store_get(session->store, DATA_KEY, text, &bytes, hd__now() + MEET_SECONDS, &unused);
    return known ? json_loadb(text, bytes, 0, NULL) : NULL;
}

/* The ranks that are left, and what they hold: the same for all of them. */
static int32_t meet(struct meeting *m, struct hd_error *err)
{
    const struct hd__emergency *e = m->e;
    struct holding mine = {.step = e->whole ? e->progress->step : -1,
                           .saved = hd__train_checkpointer_end(e->checkpointer, e->saved),
                           .storage_failed = e->storage_failed};
    struct hd__store_gather g = {.session = e->session, .name = "left", .ranks = m->ranks, .patience = MEET_SECONDS};
    m->present[m->me] = 1;
    m->holding[m->me] = mine;
    if (!m->store)
        return HD_OK;
    hd__store_outlive(m->store);
    int32_t rc = hd__store_roll_call(m->store, "left", m->present, hd__now() + MEET_SECONDS, err);
    for (int32_t r = 0; r < m->size; r++)
        if (m->present[r])
            m->ranks[g.n++] = r;
    struct hd__ckpt_peers peers = hd__store_gather_peers(&g);
    rc = rc ? rc : peers.all_gather(peers.user, &mine, sizeof mine, m->holding, err);
    while (g.n-- > 0) /* from the front to the places of their ranks: the last first */
        m->holding[m->ranks[g.n]] = m->holding[g.n];
    return rc;
}

/* The ranks that hold the newest step before `step`. Returns it; -1: there is none. */
static int64_t take_step(struct meeting *m, int64_t step)
{
    int64_t newest = -1;
    for (int32_t r = 0; r < m->size; r++)
        if (m->present[r] && m->holding[r].step < step)
            newest = HD__MAX(newest, m->holding[r].step);
    m->n = 0;
    for (int32_t r = 0; r < m->size; r++)
        if (m->present[r] && m->holding[r].step == newest)
            m->ranks[m->n++] = r;
    return newest;
}

static json_t *describe(const struct meeting *m)
{
    json_t *lost = json_array();
    char *why = hd__printable(hd__strdup(m->e->why->message));
    for (int32_t r = 0; r < m->size; r++)
        if (!m->present[r])
            json_array_append_new(lost, json_integer(r));
    json_t *o = json_pack("{s:o,s:s}", "lost", lost, "why", why);
    free(why);
    return o ? o : json_object();
}

int32_t hd__train_emergency_find_run(const struct hd__train_session *session, char run[HD__RUN_ID],
                                     struct hd_error *err)
{
    size_t bytes = HD__RUN_ID;
    return session->store ? hd__store_get(session->store, RUN_KEY, run, &bytes, hd__now() + MEET_SECONDS, err) : HD_OK;
}

/* The newest step of which they hold all; *why: what the newest of all lacked. -1: of none. */
static int64_t choose_step(struct meeting *m, int64_t saved, struct hd_error *why)
{
    struct hd_error older = HD_ERROR_INIT;
    int64_t newest = take_step(m, INT64_MAX), step = newest;
    while (step > saved &&
           hd__train_checkpointer_collect_left(m->e->checkpointer, m->ranks, m->n, step == newest ? why : &older))
        step = take_step(m, step);
    return step > saved ? step : -1;
}

static void say_not_saved(const struct meeting *m, int64_t newest, const struct hd_error *why)
{
    if (memchr(m->present, 1, (size_t)m->size) != m->present + m->me) /* the first of them speaks for all */
        return;
    if (newest < 0)
        hd__log(HD_LOG_WARN, NULL,
                "the last steps are not saved: each rank that is left was in the middle of an update, or has a "
                "state that is known to be wrong");
    else
        hd__log(HD_LOG_WARN, NULL, "the state after step %" PRId64 " is not saved: the ranks that are left lack %s",
                newest, why->message);
}

/* The first of those that save tells rank 0, also that it failed. */
static void tell_saved(const struct meeting *m, int64_t step, struct hd__emergency_saved *saved)
{
    const struct hd__emergency *e = m->e;
    struct hd_error unused = HD_ERROR_INIT;
    *saved = (struct hd__emergency_saved){.step = step,
                                          .sequence = e->progress->sequence,
                                          .tokens = e->progress->tokens,
                                          .skipped = e->progress->scaler.skipped,
                                          .loss = e->loss,
                                          .norm = e->norm,
                                          .scale = e->scale};
    if (m->me && m->present[0])
        hd__store_put(m->store, SAVED_KEY, saved, sizeof *saved, &unused);
}

static int save_step(struct meeting *m, int64_t step, struct hd__emergency_saved *saved)
{
    struct hd_error err = HD_ERROR_INIT;
    char run[HD__RUN_ID];
    snprintf(run, sizeof run, "%s", m->e->run);
    int32_t rc = *run ? HD_OK : hd__train_emergency_find_run(m->e->session, run, &err);
    if (!m->present[m->me] || m->holding[m->me].step != step)
        return 0;
    rc = rc ? rc
            : hd__train_checkpointer_save_left(m->e->checkpointer, m->e->progress, m->ranks, run, describe(m), &err);
    if (!rc)
        hd__launch_note_saved(m->e->session->env->progress, step);
    if (m->me == m->ranks[0])
        tell_saved(m, rc ? 0 : step, saved);
    if (m->me == m->ranks[0] && rc)
        hd__log(HD_LOG_ERROR, NULL, "the state after step %" PRId64 " could not be saved: %s", step, err.message);
    else if (m->me == m->ranks[0])
        hd__log(HD_LOG_INFO, NULL,
                "the ranks that are left have all of the state after step %" PRId64
                ", and saved it: %s/step-%08" PRId64,
                step, m->e->folder, step);
    return !rc;
}

int hd__train_emergency_save(const struct hd__emergency *e, struct hd__emergency_saved *saved_step)
{
    struct hd_error err = HD_ERROR_INIT, why = HD_ERROR_INIT;
    int32_t size = e->session->env->size;
    int64_t step = -1, saved = 0, newest;
    int done = 0, storage_failed = 0;
    struct meeting m = {.e = e,
                        .store = e->session->store,
                        .size = size,
                        .me = e->session->env->rank,
                        .present = hd__alloc((size_t)size),
                        .holding = hd__alloc((size_t)size * sizeof *m.holding),
                        .ranks = hd__alloc((size_t)size * sizeof *m.ranks)};
    hd__exec_settle(e->session->exec);
    if (!meet(&m, &err)) {
        for (int32_t r = 0; r < size; r++) {
            saved = m.present[r] ? HD__MAX(saved, m.holding[r].saved) : saved;
            storage_failed |= m.present[r] && m.holding[r].storage_failed;
        }
        newest = storage_failed ? saved : take_step(&m, INT64_MAX); /* it has said so */
        step = storage_failed ? -1 : choose_step(&m, saved, &why);
        if (step > 0)
            done = save_step(&m, step, saved_step);
        else if (newest > saved || newest < 0)
            say_not_saved(&m, newest, &why);
    } else if (e->progress->step > m.holding[m.me].saved) {
        hd__log(HD_LOG_WARN, NULL,
                "the state after step %" PRId64 " is not saved: the ranks that are left could not tell each other what "
                "they hold: %s; the job goes on from its newest checkpoint when it is started again",
                e->progress->step, err.message);
    }
    int32_t unheard = HD_OK;
    if (m.store) /* one of them may serve the rendezvous: all leave together */
        unheard = hd__store_roll_call(m.store, "leaves", m.present, hd__now() + e->session->compiled->job->comm_timeout,
                                      &err);
    if (m.n && !unheard && m.present[m.ranks[0]]) { /* it has read back what was saved */
        hd__store_gather_busy(&(struct hd__store_gather){.session = e->session}, 0);
        size_t bytes = sizeof *saved_step;
        if (step > 0 && !m.me && m.ranks[0])
            hd__store_get(m.store, SAVED_KEY, saved_step, &bytes, hd__now() + MEET_SECONDS, &err);
    }
    free(m.present);
    free(m.holding);
    free(m.ranks);
    return done;
}
