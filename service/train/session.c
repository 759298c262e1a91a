/* Opening and closing one rank of a job. */
#include "service/train/session.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/base/dtype.h"
#include "runtime/rendezvous/liveness.h"
#include "service/checkpoint/param_init.h"
#include "service/report/report.h"
#include "service/train/agreement.h"
#include "service/train/data/corpus.h"

static int32_t feed(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err)
{
    struct hd__train_session *s = user;
    return s->feed_override ? s->feed_override(s->feed_override_user, input, out, count, err)
                            : hd__train_feed_next(s->current_feed, input, out, count, err);
}

void hd__train_session_feed_positions(const struct hd__train_session *s, int32_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)hd__sequence_position(hd__exec_program(s->exec), i % s->compiled->job->seq_len);
}

void hd__train_session_override_feed(struct hd__train_session *s,
                                     int32_t (*override)(void *user, int32_t input, int32_t *out, int64_t count,
                                                         struct hd_error *err),
                                     void *user)
{
    s->feed_override = override;
    s->feed_override_user = user;
}

/* From the thread that listens to the rendezvous, also while this rank still opens: another died or gave up. */
static void on_peer_failure(void *user, const char *cause)
{
    struct hd__train_session *s = user;
    hd__exec_abort(s->exec, cause);
}

/* ---- what this rank is doing, for those who ask; from any thread */

static size_t write_dump(void *user, char *out, size_t room)
{
    struct hd__train_session *s = user;
    char what[128], at[160];
    snprintf(at, sizeof at, "%s%s", hd__store_is_waiting(s->store) ? "the rendezvous: " : "",
             hd__exec_position(s->exec, what));
    return hd__report_rank_dump(hd__exec_flight(s->exec), s->env->rank, at, hd__exec_call_seconds(s->exec), out, room);
}

/* The main thread's: this is asked by one that lives on beside it. */
static double wait_seconds(void *user)
{
    struct hd__train_session *s = user;
    return HD__MAX(hd__comm_flight_waited(hd__exec_flight(s->exec)), hd__exec_call_seconds(s->exec));
}

static void went_on(void *user, double now)
{
    struct hd__train_session *s = user;
    hd__comm_flight_went_on(hd__exec_flight(s->exec), now);
}

static void set_status_provider(struct hd__train_session *s)
{
    /* Ranks are polled early, to find a collective mismatch that the transport does not notice; the log follows
     * later. */
    struct hd__store_status_provider w = {.user = s,
                                          .write_dump = write_dump,
                                          .wait_seconds = wait_seconds,
                                          .went_on = went_on,
                                          .poll_after = s->compiled->job->late_after / 8,
                                          .timeout = s->compiled->job->comm_timeout};
    hd__store_liveness_notify(hd__store_liveness(s->store), on_peer_failure, s);
    hd__store_set_status_provider(s->store, &w);
}

/* The process that serves the rendezvous (rank 0, or the launcher: -1) writes the report: if it is gone, each rank
 * writes its own part. */
static void write_local_report(struct hd__train_session *s)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rank = -1, served_by = hd__store_server_rank(s->store);
    char *dump = hd__alloc(65536);
    if (s->env->reporter && hd__store_liveness_check(hd__store_liveness(s->store), &rank, &err) == HD_E_PEER &&
        rank == served_by) {
        write_dump(s, dump, 65536);
        hd__report_write_local(s->env->reporter, s->env->rank, s->env->size, dump, rank, err.message);
    }
    free(dump);
}

/* ---- opening and closing */

int32_t hd__train_session_open(struct hd__train_session *s, struct hd__compiled *compiled,
                               const struct hd__launch_env *env, struct hd_error *err)
{
    struct hd__exec_config config = {.compiled = compiled,
                                     .rank = env->rank,
                                     .local_rank = env->local_rank,
                                     .local_ranks = env->local_size,
                                     .feed = feed,
                                     .user = s};
    *s = (struct hd__train_session){.compiled = compiled, .env = env};
    int32_t rc = hd__launch_connect(env, compiled->job->comm_timeout, &s->store, &s->server, err);
    s->speaker = (struct hd__speaker){.store = s->store, .rank = env->rank, .shared_log = env->launched_by_heddle};
    config.store = s->store;
    config.operations = (int32_t)compiled->job->flight_operations;
    if (rc)
        return rc;
    s->exec = hd__exec_create(&config);
    if (s->store)
        set_status_provider(s);
    hd__train_session_phase(s, "comparing the job with rank 0's");
    rc = hd__train_agree(compiled, env->rank, s->store, err);
    hd__train_session_phase(s, "waiting for the tokens of data.train");
    if (!rc)
        rc = hd__train_corpus_meet(compiled, env, s->store, err);
    if (rc)
        return rc;
    hd__launch_exit_watchdog_start(&s->exit_watchdog, &s->speaker, s->server, "opening");
    rc = hd__exec_open(s->exec, err);
    hd__launch_exit_watchdog_stop(&s->exit_watchdog);
    if (!rc)
        hd__ckpt_init_zeros(hd__exec_program(s->exec), hd__exec_coord(s->exec), hd__exec_host_arena(s->exec));
    return rc;
}

void hd__train_session_warn_replaced(const struct hd__train_session *s, const char *key, const char *path)
{
    struct stat there;
    if (!s->env->n_restarts && !stat(path, &there) && S_ISREG(there.st_mode))
        hd__log(HD_LOG_WARN, NULL, "%s: %s: %s is there and is replaced: name another file to keep it",
                hd__job_where(s->compiled->job, key), key, path);
}

void hd__train_session_phase(struct hd__train_session *s, const char *phase)
{
    s->speaker.phase++;
    hd__exec_set_status(s->exec, phase);
}

void hd__train_session_closing(struct hd__train_session *s, const char *what)
{
    if (s->store)
        hd__store_liveness_notify(hd__store_liveness(s->store), NULL, NULL);
    if (!s->exit_watchdog.running)
        hd__launch_exit_watchdog_start(&s->exit_watchdog, &s->speaker, s->server, "closing");
    hd__exec_begin_call(s->exec, what);
}

void hd__train_session_close(struct hd__train_session *s, int failed)
{
    if (s->store) {
        hd__store_liveness_notify(hd__store_liveness(s->store), NULL, NULL);
        if (failed)
            hd__store_set_status_provider(s->store, NULL);
        if (failed && s->exec)
            write_local_report(s);
    }
    if (!failed && s->train_feed)
        hd__train_session_closing(s, "closing data.train");
    hd__train_feed_close(s->train_feed);
    if (!failed && s->exec)
        hd__train_session_closing(s, "closing data.val");
    for (size_t i = 0; i < HD__COUNT(s->eval_feeds); i++)
        hd__train_feed_close(s->eval_feeds[i]);
    hd__exec_shut(s->exec);
    if (!failed)
        hd__launch_exit_watchdog_stop(&s->exit_watchdog);
    if (s->store)
        hd__store_set_status_provider(s->store, NULL);
    hd__exec_close(s->exec);
    hd__store_close(s->store);
    if (s->server) /* others read why; after a failure some may be gone, or have never come; else one may hang */
        hd__server_drain(s->server, hd__now() + (failed ? 2 : s->compiled->job->comm_timeout + 10));
    hd__server_close(s->server);
    *s = (struct hd__train_session){0};
}

int32_t hd__train_session_init_params(struct hd__train_session *s, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->exec);
    const int32_t *coord = hd__exec_coord(s->exec);
    void *arena = hd__exec_host_arena(s->exec);
    int32_t rc = s->compiled->info.weights
                     ? hd__ckpt_init_from_safetensors(p, coord, arena, s->compiled->info.weights, err)
                     : hd__ckpt_init_params(p, coord, arena, (uint64_t)s->compiled->job->seed, err);
    if (rc && s->compiled->info.weights) {
        hd__job_fail(s->compiled->job, "model.from", err, "model.from: %s", err->message);
        err->code = rc;
    }
    if (!rc)
        rc = hd__exec_copy_tensors(s->exec, HD__H2D, NULL, 0, err);
    hd__exec_drop_mirror(s->exec);
    return rc;
}

int32_t hd__train_session_read_scalars(struct hd__train_session *s, const hd_tensor *scalars, uint32_t n,
                                       double *values, struct hd_error *err)
{
    int32_t rc = hd__exec_copy_tensors(s->exec, HD__D2H, scalars, n, err);
    for (uint32_t k = 0; k < n && !rc; k++) {
        const struct hd__tensor *t = hd__tensor_const(hd__exec_program(s->exec), scalars[k]);
        values[k] = hd__dtype_load(t->dtype, hd__exec_host_data(s->exec, scalars[k]));
    }
    return rc;
}

int32_t hd__train_session_label_factor(struct hd__train_session *s, int64_t steps, int64_t counted, double *factor,
                                       struct hd_error *err)
{
    const struct hd__job *job = s->compiled->job;
    double all = 0;
    *factor = 1;
    if (!hd__compiled_counts_labels(s->compiled))
        return HD_OK;
    int32_t rc = hd__exec_all_reduce_sum(s->exec, (double)counted, &all, err);
    if (!rc)
        *factor = all > 0 ? (double)steps * (double)job->batch * (double)job->seq_len / all : 0;
    return rc;
}

static int32_t open_eval_feed(struct hd__train_session *s, int32_t part, struct hd__train_feed **feed,
                              struct hd_error *err)
{
    struct hd__train_feed **at = &s->eval_feeds[part == HD__FEED_TEST ? 0 : part];
    int32_t rc = *at ? HD_OK : hd__train_feed_open(s->compiled, s->env->rank, part, at, err);
    *feed = *at;
    return rc ? rc : hd__train_feed_seek(*at, 0, err);
}

/* Training goes on without the loss of such a set. */
static int32_t nothing_to_evaluate(const struct hd__train_session *s, const struct hd__train_feed *feed,
                                   int64_t batches, int training, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    hd_fail(&why, HD_E_INVALID, "%s: none of the labels of %lld batches counts in the loss: nothing to evaluate",
            hd__train_feed_where(feed), (long long)batches);
    if (training && s->env->rank == 0)
        hd__log(HD_LOG_WARN, NULL, "%s", why.message);
    if (!training)
        *err = why;
    return training ? HD_OK : HD_E_INVALID;
}

int32_t hd__train_session_evaluate(struct hd__train_session *s, int32_t part, int64_t batches, const _Atomic int *stop,
                                   double *loss, double *labels, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->exec);
    struct hd__train_feed *before = s->current_feed, *feed;
    double sum = 0, factor = 1, sequences = (double)batches * (double)s->compiled->job->batch;
    int64_t counted = 0;
    int32_t stopped = 0, rc = open_eval_feed(s, part, &feed, err);
    s->current_feed = feed;
    if (!rc && p->gather_deferred)
        rc = hd__exec_run_section(s->exec, HD__SECTION_RESTORE, err);
    if (!rc)
        rc = hd__exec_run_section(s->exec, HD__SECTION_BEGIN, err);
    for (int64_t n = 0; n < batches && !rc && !stopped; n++) {
        rc = hd__train_feed_count_labels(feed, &counted, err);
        for (int64_t m = 0; m < hd__micro_batches_of(p, s->env->rank) && !rc; m++)
            rc = hd__exec_run_section(s->exec, HD__SECTION_EVAL, err);
        if (!rc && stop)
            rc = hd__exec_all_reduce_max(s->exec, *stop, &stopped, err);
    }
    if (!rc)
        rc = hd__exec_run_section(s->exec, HD__SECTION_EVAL_END, err);
    s->current_feed = before;
    if (!rc)
        rc = hd__train_session_read_scalars(s, &p->loss_sum, 1, &sum, err);
    if (!rc && !stopped)
        rc = hd__train_session_label_factor(s, batches, counted, &factor, err);
    if (rc)
        return rc;
    *loss = *labels = NAN;
    if (stopped)
        return HD_OK;
    *labels = factor > 0 ? sequences * (double)s->compiled->job->seq_len / factor : 0;
    if (!*labels)
        return nothing_to_evaluate(s, feed, batches, stop != NULL, err);
    *loss = sum * factor / (double)batches;
    *loss = isnan(*loss) ? INFINITY : *loss; /* NaN says that it was cut off */
    return HD_OK;
}

int32_t hd__train_session_evaluate_sets(struct hd__train_session *s, int64_t batches, const _Atomic int *stop,
                                        double losses[HD__VAL_SETS], double *loss, struct hd_error *err)
{
    double sum = 0, all = 0, labels = 0;
    int32_t rc = HD_OK, sets = hd__train_feed_sets(s->compiled->job);
    for (int32_t k = 0; k < sets && !rc && !isnan(labels); k++) {
        rc = hd__train_session_evaluate(s, HD__FEED_VAL + k, batches, stop, &losses[k], &labels, err);
        sum += !rc && labels != 0 ? losses[k] * labels : 0;
        all += rc ? 0 : labels;
    }
    if (!rc)
        *loss = sets == 1 ? losses[0] : sum / all;
    return rc;
}
