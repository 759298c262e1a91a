/* The loop: begin, micro-batches, update, agree; evaluate, save, report. */
#include "service/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/plugin/crash.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/rendezvous/liveness.h"
#include "service/launch/notice.h"
#include "service/train/data/frequencies.h"
#include "service/train/loop/internal.h"
#include "service/train/save/emergency.h"
#include "service/train/save/peer_copies.h"

static _Atomic int stop_signal; /* any thread may take the signal, also those of libraries */
static int speaks_of_stop;      /* one rank of those that `heddle train` started on this machine */

static void on_signal(int sig)
{
    stop_signal = sig;
}

/* While a run is prepared (it may wait for other ranks for long) there is no step to finish and nothing to save. */
static void on_early_signal(int sig)
{
    static const char text[] = "stopped before the first step\n";
    static atomic_flag taken = ATOMIC_FLAG_INIT; /* by another thread: a group's signal and the launcher's */
    ssize_t said =
        speaks_of_stop && !atomic_flag_test_and_set(&taken) ? write(STDERR_FILENO, text, sizeof text - 1) : 0;
    (void)sig, (void)said;
    _exit(3);
}

static void catch_crashes(const char *prefix)
{
    char who[64];
    snprintf(who, sizeof who, "%serror: this rank", prefix);
    hd__crash_catch(who,
                    ": a mapped file became shorter while it was read, or its disk failed: most likely data.train");
}

static void catch_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, hangup;
    sigset_t none;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* from Slurm, and from a launcher that keeps the others to itself */
    sigaction(SIGALRM, &action, NULL); /* the time is up: start_alarm */
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* our launcher blocked them until they are answered */
    signal(SIGPIPE, SIG_IGN); /* neither a dead peer's socket nor a log that nobody reads ends a job without a word */
}

/* ---- the end of the job's time, which rank 0 looks at */

/* In a long evaluation, too. */
static void start_alarm(const struct hd__train_loop *l)
{
    double left = l->s.env->deadline - l->job->launch_margin - hd__now();
    struct itimerval timer = {.it_value.tv_sec = (time_t)HD__MAX(left, 0)};
    timer.it_value.tv_usec = HD__MAX(1, (suseconds_t)((left - (double)timer.it_value.tv_sec) * 1e6));
    if (l->is_leader && l->s.env->deadline > 0)
        setitimer(ITIMER_REAL, &timer, NULL);
}

/* A step and a save that take as long as the longest so far are to end in time, twice over. */
static void check_time(const struct hd__train_loop *l)
{
    double margin = HD__MAX(l->job->launch_margin, 2 * (l->longest_step + l->longest_save));
    if (l->is_leader && l->s.env->deadline > 0 && !stop_signal && hd__now() + margin >= l->s.env->deadline)
        stop_signal = SIGALRM;
}

/* ---- one step */

/* label_factor: hd__train_session_label_factor. */
static int32_t set_hyperparameters(struct hd__train_loop *l, double label_factor, struct hd_error *err)
{
    const hd_tensor set[] = {l->p->hyper, l->p->scale, l->p->auxiliary_scale};
    uint32_t n = 1;
    double *hyper = hd__exec_host_data(l->s.exec, l->p->hyper);
    l->lr = hd__job_lr(l->job, l->progress.step + 1);
    hyper[HD_HYPER_LR] = l->lr;
    hyper[HD_HYPER_STEP] = (double)(l->progress.step + 1 - l->progress.scaler.skipped);
    hyper[HD_HYPER_INV_SCALE] = 1 / l->progress.scaler.scale;
    for (; n < HD__COUNT(set) && set[n]; n++)
        *(double *)hd__exec_host_data(l->s.exec, set[n]) = l->progress.scaler.scale * (n == 1 ? label_factor : 1);
    hyper[HD_HYPER_SKIP] = 0;
    return hd__exec_copy_tensors(l->s.exec, HD__H2D, set, n, err);
}

/* Runs the step's data again and looks where the first bad number comes from. The loss is that of all ranks; a norm
 * may be of this rank's replica alone, and then the others do not come along. */
static int32_t find_nonfinite(struct hd__train_loop *l, char where[160], struct hd_error *err)
{
    int32_t found;
    if (l->p->independent_axes && isfinite(l->loss)) {
        snprintf(where, 160, "a gradient of this local-SGD replica");
        return HD_OK;
    }
    found = hd__train_feed_seek(l->s.train_feed, l->progress.sequence, err);
    return found ? found : hd__exec_find_nonfinite(l->s.exec, l->progress.step + 1, where, err);
}

static const char *remedy(const struct hd__train_loop *l)
{
    if (!isfinite(l->loss) || l->progress.scaler.scaling != HD__LOSS_SCALE_STATIC)
        return "Lower optimizer.lr, set optimizer.clip, or look at the data of this step";
    return l->p->independent_axes ? "Lower precision.loss_scale" : "Lower precision.loss_scale, or say dynamic";
}

/* Only where the norm is not finite the update left the weights as they were; nothing is saved either way. */
static int32_t fail_diverged(struct hd__train_loop *l, struct hd_error *err)
{
    char where[160] = "";
    int32_t found = find_nonfinite(l, where, err);
    if (found < 0)
        return found;
    /* The rank that found it says so; of several that did, one. */
    if (where[0] && !l->p->independent_axes)
        err->origin = hd__speaker_shared(&l->s.speaker, (uint32_t)l->progress.step + 1);
    return hd_fail(err, where[0] || l->s.env->size == 1 ? HD_E_INVALID : HD_E_CANCELLED,
                   "step %" PRId64 ": the loss is %g and the gradient norm %g; the first bad number: %s. "
                   "Nothing of this step is saved. %s",
                   l->progress.step + 1, l->loss, l->norm, where[0] ? where : "on another rank", remedy(l));
}

/* A run that learns nothing has a loss like any other. */
static void warn_of_no_gradient(struct hd__train_loop *l, double factor)
{
    if (l->norm != 0 || !factor || !l->is_leader || l->said_still)
        return;
    hd__log(HD_LOG_WARN, NULL,
            "step %" PRId64 ": the gradient norm is 0, so this step learns nothing: are weights 0, or so large that "
            "activations overflow, or do gradients vanish in fp16 (precision.loss_scale)?",
            l->progress.step + 1);
    l->said_still = 1;
}

static int32_t train_step(struct hd__train_loop *l, struct hd_error *err)
{
    const hd_tensor scalars[] = {l->p->loss_sum, l->p->norm2};
    double value[2], factor = 1;
    int64_t labels = 0;
    int32_t rc = hd__train_shards_ready(&l->s, l->progress.sequence, err);
    if (!rc)
        rc = hd__train_feed_count_labels(l->s.train_feed, &labels, err);
    if (!rc)
        rc = hd__train_session_label_factor(&l->s, 1, labels, &factor, err);
    if (!rc && !factor && l->is_leader)
        hd__log(HD_LOG_WARN, NULL,
                "%s: step %" PRId64 ": none of the labels of its %" PRId64
                " sequences counts in the loss, which is 0, as "
                "are its gradients",
                hd__train_feed_where(l->s.train_feed), l->progress.step + 1, l->job->batch);
    if (!rc)
        rc = set_hyperparameters(l, factor, err);
    if (rc)
        return rc;
    l->in_step = 1; /* until here the state is that of the step before */
    rc = hd__exec_run_step(l->s.exec, l->progress.step + 1, err);
    if (!rc)
        rc = hd__train_session_read_scalars(&l->s, scalars, 2, value, err);
    if (rc)
        return rc;
    l->loss = value[0] * factor;
    l->norm = sqrt(value[1]) / l->progress.scaler.scale;
    l->scale = l->progress.scaler.scale;
    l->skips_updates = !isfinite(l->norm);
    warn_of_no_gradient(l, factor);
    if (!hd__train_loss_scaler_update(&l->progress.scaler, !isfinite(l->norm)) ||
        (!isfinite(l->loss) && isfinite(l->norm)))
        return fail_diverged(l, err);
    l->progress.step++;
    l->progress.sequence += l->job->batch;
    l->progress.tokens += l->job->batch * l->job->seq_len;
    l->in_step = 0;
    if (l->is_leader && l->progress.step == 1)
        hd__train_frequencies_judge(l->s.compiled, l->s.train_feed, l->loss, "step 1");
    return HD_OK;
}

static int32_t evaluate(struct hd__train_loop *l, struct hd_error *err)
{
    return hd__train_session_evaluate_sets(&l->s, l->job->eval_batches, &stop_signal, l->val_losses, &l->val_loss, err);
}

/* ---- saving */

static json_t *save_event(const char *name, int64_t step, int64_t bytes, double seconds, double exposed)
{
    return json_pack("{s:s,s:I,s:f,s:f,s:I}", "event", name, "step", (json_int_t)step, "seconds", seconds, "exposed_s",
                     exposed, "bytes", (json_int_t)bytes);
}

/* Into the metrics, once a save is on disk. */
static void log_saved(struct hd__train_loop *l)
{
    struct hd__train_saved saved;
    if (!l->is_leader || !hd__train_checkpointer_finished(l->checkpointer, &saved))
        return;
    json_t *event = save_event("checkpoint", saved.step, saved.bytes, saved.seconds, saved.exposed);
    if (isfinite(saved.val_loss))
        json_object_set_new(event, "val_loss", json_real(saved.val_loss));
    hd__metrics_log_event(l->metrics, event);
    if (hd__comm_flight_took(hd__exec_flight(l->s.exec), l->saved_at) > 0)
        l->longest_save = HD__MAX(l->longest_save, HD__MAX(saved.seconds, saved.exposed));
    if (l->saves_skipped > 1)
        hd__log(HD_LOG_WARN, NULL,
                "%" PRId64 " checkpoints were left out while that of step %" PRId64 " was written, up to step %" PRId64,
                l->saves_skipped, saved.step, l->progress.step);
    l->saves_skipped = 0;
}

/* The same for copies in memory. */
static void log_copied(struct hd__train_loop *l)
{
    struct hd__peer_copied copied;
    if (!l->is_leader || !hd__peer_copies_finished(hd__train_checkpointer_copies(l->checkpointer), &copied))
        return;
    hd__metrics_log_event(l->metrics, save_event("copy", copied.step, copied.bytes, copied.seconds, copied.exposed));
    l->s.env->progress->copied = copied.step;
}

/* A save that failed is none, by its own fault or because another rank is gone. */
static int32_t note_save(struct hd__train_loop *l, int32_t rc)
{
    if (rc)
        l->saved = -1;
    l->storage_failed = rc && !hd__speaker_blames_another(rc);
    return rc;
}

static int32_t finish_save(struct hd__train_loop *l, struct hd_error *err)
{
    int32_t rc = hd__train_checkpointer_wait(l->checkpointer, err);
    log_saved(l);
    return note_save(l, rc);
}

/* The rank that is wrong ends the job, once the row is written, for its machine is the one that failed. */
static int32_t end_by_corruption(struct hd__train_loop *l, const char *rule, int32_t rank, struct hd_error *err)
{
    if (l->is_leader)
        hd__metrics_log_event(l->metrics, json_pack("{s:s,s:s,s:I,s:i,s:i,s:i,s:s}", "event", "alarm", "rule", rule,
                                                    "step", (json_int_t)l->progress.step, "rank", rank, "value", 1,
                                                    "limit", 0, "words", err->message));
    int32_t rc = hd__exec_barrier(l->s.exec, err);
    if (!rc && l->s.env->rank != rank)
        rc = hd__exec_barrier(l->s.exec, err); /* until it has */
    return rc ? rc : HD_E_CORRUPT;
}

/* `now`: before a save, so that no state is saved that is known to be wrong, or could be. */
static int32_t compare_replicas(struct hd__train_loop *l, int now, struct hd_error *err)
{
    int32_t wrong = 0, rc = hd__train_replicas_compare(&l->replicas, l->progress.step, l->step_s, now, &wrong, err);
    return rc == HD_E_CORRUPT ? end_by_corruption(l, "replicas", wrong, err) : rc;
}

static int32_t compare_reruns(struct hd__train_loop *l, struct hd_error *err)
{
    int32_t wrong = 0, rc = hd__train_rerun_name(&l->s, l->progress.step, &wrong, err);
    l->replicas.corrupt = 1;
    return rc == HD_E_CORRUPT ? end_by_corruption(l, "rerun", wrong, err) : rc;
}

/* Files of data.train that are no longer what they were when the run began: no step has an error of it. */
static void check_files(struct hd__train_loop *l)
{
    const struct hd__data *data = hd__train_feed_data(l->s.train_feed);
    uint32_t n = l->is_leader ? hd__data_files(data) : 0;
    int begins = !l->files;
    l->files = begins && n ? hd__alloc(n * sizeof *l->files) : l->files;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t tokens;
        int skipped;
        struct stat st;
        const char *path = hd__data_file(data, i, &tokens, &skipped);
        if (skipped || strstr(path, "://") || stat(path, &st)) /* an open file stays what it is when its name goes */
            continue;
        const int64_t marks[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (int64_t)st.st_ino};
        uint64_t hash = hd__hash(marks, sizeof marks, 0);
        if (!begins && hash != l->files[i])
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %s was changed while the job reads it (by step %" PRId64
                    "): it may have trained on either; give a changed file another name",
                    hd__train_feed_where(l->s.train_feed), path, l->progress.step);
        l->files[i] = hash;
    }
}

/* `stopped`: there is no time for an evaluation. */
static int32_t save_checkpoint(struct hd__train_loop *l, int stopped, struct hd_error *err)
{
    int32_t rc = finish_save(l, err);
    check_files(l);
    if (!rc)
        rc = compare_replicas(l, 1, err);
    if (!rc && l->job->checkpoint_keep_best && !isfinite(l->val_loss) && !stopped)
        rc = evaluate(l, err);
    if (rc) /* nothing of this step is saved: the ranks that are left may still do it */
        return rc;
    if (l->is_leader && hd__run_locks_check(&l->locks, l->run, err)) {
        if (l->s.env->progress) /* ranks that are started again would go on in another job's folder */
            l->s.env->progress->stopping = 1;
        return note_save(l, err->code);
    }
    l->saved = l->progress.step;
    l->saved_at = hd__now();
    l->progress.val_loss = l->val_loss;
    return note_save(l, hd__train_checkpointer_save(l->checkpointer, &l->progress, err));
}

/* Wishes of the ranks after a step, of which the highest counts; STOP and a signal's number, or END_OF_ROUND.
 * CORRUPT is no wish. */
enum { NOTHING, SAVE, WRITER_BUSY, STOP = 256, END_OF_ROUND = 255, CORRUPT = 1024 };

static int is_time_to_save(const struct hd__train_loop *l)
{
    return l->is_leader && l->job->checkpoint_seconds > 0 && hd__now() >= l->saved_at + l->job->checkpoint_seconds;
}

static int is_multiple(int64_t step, int64_t every)
{
    return every && step % every == 0;
}

static int is_step_to_save(const struct hd__train_loop *l)
{
    return is_multiple(l->progress.step, l->job->checkpoint_every);
}

/* Will the state after this step be saved or copied, as far as it is known before? */
static int will_save(const struct hd__train_loop *l, int64_t step)
{
    return l->checkpointer && (step == l->last_step || is_multiple(step, l->job->checkpoint_every) ||
                               is_multiple(step, l->job->checkpoint_peers));
}

static int32_t wish(const struct hd__train_loop *l)
{
    const struct hd__launch_progress *p = l->s.env->progress;
    if (hd__exec_get_rerun(l->s.exec)->differs)
        return CORRUPT;
    if (stop_signal)
        return STOP + stop_signal;
    if (p && p->grow && l->is_leader && l->checkpointer && l->progress.step < l->job->steps &&
        (is_step_to_save(l) || is_time_to_save(l)))
        return STOP + END_OF_ROUND;
    if (hd__train_checkpointer_busy(l->checkpointer))
        return WRITER_BUSY;
    return is_time_to_save(l) ? SAVE : NOTHING;
}

/* A save that is due while the last is still being written is left out: saves do not queue. One that checkpoint.keep
 * promises to keep is waited for. */
static int32_t save_if_due(struct hd__train_loop *l, int32_t agreed, struct hd_error *err)
{
    int by_steps = is_step_to_save(l), kept = by_steps && is_multiple(l->progress.step, l->job->checkpoint_keep_every);
    if (!l->checkpointer || agreed >= STOP || l->progress.step == l->job->steps) /* the end saves */
        return HD_OK;
    if (agreed != WRITER_BUSY || kept) { /* one that has failed is known now, not when the next is due */
        int32_t rc = finish_save(l, err);
        return !rc && (agreed == SAVE || by_steps) ? save_checkpoint(l, 0, err) : rc;
    }
    if (l->is_leader && (by_steps || is_time_to_save(l)) && !l->saves_skipped++)
        hd__log(HD_LOG_WARN, NULL,
                "no checkpoint of step %" PRId64 ": that of step %" PRId64
                " is still being written after %.3g s, so the disk is "
                "slower than checkpoint.every",
                l->progress.step, l->saved, hd__now() - l->saved_at);
    return HD_OK;
}

static int32_t copy_if_due(struct hd__train_loop *l, int32_t agreed, struct hd_error *err)
{
    struct hd__peer_copies *copies = hd__train_checkpointer_copies(l->checkpointer);
    int ready = 0;
    if (!copies || agreed >= STOP || !is_multiple(l->progress.step, l->job->checkpoint_peers) ||
        l->progress.step == l->job->steps)
        return HD_OK;
    int32_t rc = hd__peer_copies_ready(copies, &ready, err);
    if (!rc && ready)
        rc = compare_replicas(l, 1, err);
    if (!rc && !ready && l->is_leader && !l->copy_skipped++)
        hd__log(HD_LOG_WARN, NULL,
                "no copy of step %" PRId64
                " in memory: the one before is not whole everywhere yet; if the metrics have "
                "few copies, raise checkpoint.peers (others that are left out are not said)",
                l->progress.step);
    return rc || !ready ? rc : hd__train_checkpointer_copy(l->checkpointer, &l->progress, err);
}

static int has_row(const struct hd__train_loop *l)
{
    return l->progress.step % l->job->metrics_every == 0 || l->progress.step == l->last_step;
}

static int32_t run_steps(struct hd__train_loop *l, int *stopped, struct hd_error *err)
{
    int32_t rc = HD_OK, agreed = 0;
    start_alarm(l);
    check_files(l);
    hd__train_replicas_init(&l->replicas, &l->s, l->progress.step);
    l->rerun_every = hd__train_rerun_every(l->s.compiled);
    hd__train_trace_init(&l->trace, &l->s, l->progress.step);
    l->last_step = l->job->trace.ends ? l->trace.last : l->job->steps;
    l->ranks = hd__alloc((size_t)l->s.env->size * HD__GATHERED * sizeof *l->ranks);
    l->saved_at = hd__now();
    while (!rc && agreed < STOP && l->progress.step < l->last_step) {
        double start = hd__now();
        int evaluated, completed;
        __atomic_store_n(&hd__exec_flight(l->s.exec)->step, l->progress.step + 1, __ATOMIC_RELAXED);
        hd__loop_profile_begin(l);
        hd__train_trace_begin(&l->trace, l->progress.step + 1);
        if (l->rerun_every && (l->progress.step + 1) % l->rerun_every == 0)
            hd__train_rerun_next(&l->s, l->progress.step + 1);
        hd__train_replicas_begin(&l->replicas, l->progress.step + 1, will_save(l, l->progress.step + 1));
        hd__exec_comm_seconds(l->s.exec,
                              (double[HD_AXIS_COUNT]){0}); /* what an evaluation waited for is not this step's */
        rc = train_step(l, err);
        completed = !rc;
        l->step_s = hd__now() - start;
        hd__loop_add_rank_step(l);
        hd__loop_profile_end(l);
        if (!rc)
            rc = hd__train_trace_end(&l->trace, l->progress.step, err);
        l->val_loss = NAN;
        evaluated = !rc && l->job->eval_every && !l->job->trace.ends && l->progress.step % l->job->eval_every == 0;
        if (!rc) {
            hd__loop_compare_plan(l);
            l->trained_s += l->step_s;
            l->trained_tokens += l->job->batch * l->job->seq_len;
        }
        if (evaluated) {
            check_files(l);
            rc = evaluate(l, err);
        }
        if (evaluated && !rc && !isnan(l->val_loss) && /* nan: it was cut off by a signal */
            (!l->best_step || l->val_loss < l->best_val_loss)) {
            l->best_val_loss = l->val_loss;
            l->best_step = l->progress.step;
        }
        if (rc)
            l->val_loss = NAN;
        if (completed && (evaluated || has_row(l)))
            rc = hd__loop_log_row(l, rc, err);
        l->longest_step = HD__MAX(l->longest_step, hd__comm_flight_took(hd__exec_flight(l->s.exec), start));
        check_time(l);
        log_saved(l);
        log_copied(l);
        if (!rc)
            rc = hd__exec_all_reduce_max(l->s.exec, wish(l), &agreed, err);
        if (!rc && agreed == CORRUPT) {
            rc = compare_reruns(l, err);
            agreed = NOTHING;
        }
        if (!rc)
            rc = compare_replicas(l, 0, err);
        if (!rc)
            rc = save_if_due(l, agreed, err);
        if (!rc)
            rc = copy_if_due(l, agreed, err);
    }
    check_files(l);
    *stopped = agreed >= STOP ? agreed - STOP : 0;
    if (*stopped && *stopped != END_OF_ROUND && l->s.env->progress)
        l->s.env->progress->stopping = 1;
    hd__loop_print_profile(l);
    if (!rc)
        rc = hd__train_trace_finish(&l->trace, err);
    if (!rc && l->checkpointer && l->saved != l->progress.step)
        rc = save_checkpoint(l, *stopped, err);
    return rc ? rc : finish_save(l, err);
}

/* ---- a run */

static int32_t barrier(struct hd__train_loop *l, struct hd_error *err)
{
    int32_t rc = hd__exec_barrier(l->s.exec, err);
    l->s.speaker.barrier_failed = rc != HD_OK;
    return rc;
}

/* The run goes on as another round of its launcher. */
static const char *restarted_run(const struct hd__train_loop *l)
{
    const struct hd__launch_env *env = l->s.env;
    return env->progress && env->n_restarts && env->progress->run[0] ? env->progress->run : NULL;
}

/* A restart takes its own run's checkpoints, and begins as the job says where there is none yet. */
static int32_t load_state(struct hd__train_loop *l, struct hd_error *err)
{
    const char *run = restarted_run(l);
    int32_t rc = HD_OK;
    if (run) {
        hd__train_checkpointer_continue(l->checkpointer, run);
        rc = hd__train_checkpointer_load(l->checkpointer, "auto", NULL, &l->progress, err);
    }
    if (!run || (!rc && !l->progress.step && strcmp(l->job->resume, "auto")))
        rc = hd__train_checkpointer_load(l->checkpointer, l->job->resume, NULL, &l->progress, err);
    return rc;
}

/* Rank 0 looks whether a checkpoint can be saved, and then all, whether it is the same place: where it is refused the
 * others have not begun to load one, and end in silence. */
static int32_t load_checkpoint(struct hd__train_loop *l, struct hd_error *err)
{
    int32_t rc;
    if (!l->checkpointer)
        return HD_OK;
    rc = l->is_leader ? hd__run_locks_take(l->job, &l->locks, err) : HD_OK;
    hd__train_session_phase(&l->s, "looking whether a checkpoint can be saved");
    if (l->is_leader && !rc && !restarted_run(l))
        rc = hd__train_checkpointer_check_dir(l->checkpointer, err);
    if (!rc)
        rc = hd__shared_place_check(hd__train_checkpointer_place(l->checkpointer), err);
    if (!rc)
        rc = barrier(l, err);
    hd__shared_place_end(hd__train_checkpointer_place(l->checkpointer));
    hd__train_session_phase(&l->s, "loading a checkpoint");
    if (!rc)
        rc = load_state(l, err);
    if (rc != HD_E_NOTFOUND)
        return rc;
    hd__job_fail(l->job, "checkpoint.resume", err, "checkpoint.resume: %s", err->message);
    return err->code = rc;
}

static int32_t init_run(struct hd__train_loop *l, struct hd_error *err)
{
    int32_t rc = HD_OK;
    hd__train_session_phase(&l->s, "making parameters");
    if (!l->progress.step)
        rc = hd__train_session_init_params(&l->s, err);
    l->saved = l->progress.step && !hd__train_checkpointer_loaded(l->checkpointer)->in_memory ? l->progress.step : -1;
    hd__train_session_phase(&l->s, "finding its place in the data");
    return rc ? rc : hd__train_feed_seek(l->s.train_feed, l->progress.sequence, err);
}

/* Each restart that no round has logged yet. */
static void log_restarts(struct hd__train_loop *l)
{
    const struct hd__launch_env *env = l->s.env;
    for (int32_t i = env->progress ? env->progress->logged : 0; i < env->n_restarts; i++) {
        const struct hd__launch_restart *r = &env->restarts[i];
        json_t *lost = json_array();
        for (int32_t k = 0; k < r->n_lost; k++)
            json_array_append_new(lost, json_integer(r->lost[k]));
        json_t *row =
            json_pack("{s:s,s:i,s:I,s:i,s:o,s:f}", "event", r->event, "round", r->round, "step",
                      (json_int_t)l->progress.step, "ranks", r->ranks, "lost", lost, "seconds", hd__now() - r->since);
        if (hd__train_checkpointer_copies(l->checkpointer) && i + 1 == env->n_restarts && l->progress.step)
            json_object_set_new(
                row, "from",
                json_string(hd__train_checkpointer_loaded(l->checkpointer)->in_memory ? "memory" : "disk"));
        hd__metrics_log_event(l->metrics, row);
        env->progress->logged = i + 1;
    }
}

/* The next round goes on with this run. */
static void tell_launcher(const struct hd__train_loop *l)
{
    struct hd__launch_progress *p = l->s.env->progress;
    if (!p)
        return;
    snprintf(p->run, sizeof p->run, "%s", l->run);
    if (hd__train_checkpointer_loaded(l->checkpointer)->in_memory)
        p->copied = HD__MAX(p->copied, l->progress.step);
    else
        hd__launch_note_saved(p, l->progress.step);
}

/* The run gets its id, and the place that it needs. */
static int32_t begin_run(struct hd__train_loop *l, struct hd__compiled *compiled, struct hd_error *err)
{
    const char *run = restarted_run(l);
    int32_t rc = l->checkpointer ? HD_OK : hd__run_locks_take(l->job, &l->locks, err);
    if (!rc && run)
        memcpy(l->run, run, sizeof l->run);
    else if (!rc)
        rc = hd__run_id(l->run, err);
    if (!rc && l->checkpointer)
        rc = hd__train_checkpointer_begin(l->checkpointer, l->run, err);
    hd__run_locks_name(&l->locks, l->run);
    if (!rc)
        rc = hd__loop_open_metrics(l, compiled, err);
    if (!rc && l->checkpointer)
        rc = hd__train_checkpointer_set_aside(l->checkpointer, err);
    if (rc)
        return rc;
    tell_launcher(l);
    hd__train_emergency_prepare(&l->s, l->run);
    log_restarts(l);
    hd__loop_print_start(l, compiled);
    return HD_OK;
}

/* Sinks that every machine has, in its first rank. */
static int32_t open_machine_sinks(struct hd__train_loop *l, const struct hd__compiled *c, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (l->is_leader || l->s.env->local_rank || l->progress.step >= l->job->steps)
        return HD_OK;
    for (uint32_t i = 0; i < c->selection->sinks.count && !rc; i++) {
        const struct hd__chosen *chosen = &c->selection->sinks.at[i];
        if (!(chosen->component->ops.metrics.caps & HD_METRICS_EACH_MACHINE))
            continue;
        if (!l->machine_metrics)
            l->machine_metrics = hd__metrics_open_machine(l->progress.step);
        rc = hd__loop_open_sink(l, l->machine_metrics, chosen, err);
    }
    return rc;
}

/* Rank 0 alone opens the metrics: as with a checkpoint. */
static int32_t open_files(struct hd__train_loop *l, struct hd__compiled *compiled, struct hd_error *err)
{
    int32_t rc = hd__loop_check_blocks(l, err);
    hd__train_session_phase(&l->s, "opening the metrics");
    if (!rc && l->is_leader && l->progress.step < l->job->steps)
        rc = begin_run(l, compiled, err);
    if (!rc)
        rc = open_machine_sinks(l, compiled, err);
    if (!rc && !l->is_leader && l->checkpointer && l->progress.step < l->job->steps)
        rc = hd__train_checkpointer_wait_aside(l->checkpointer, err);
    if (!rc)
        rc = barrier(l, err);
    if (!rc) /* from here on ranks stop together, behind a step */
        catch_signals(on_signal);
    if (!rc && l->progress.step < l->job->steps)
        hd__loop_measure_rates(l);
    hd__exec_set_status(l->s.exec, "between sections");
    return rc;
}

static int32_t open_run(struct hd__train_loop *l, const struct hd__launch_env *env, struct hd__compiled *compiled,
                        struct hd_error *err)
{
    int32_t rc = hd__train_session_open(&l->s, compiled, env, err);
    hd__train_loss_scaler_init(&l->progress.scaler, l->job);
    if (!rc)
        rc = hd__train_feed_open(compiled, env->rank, 0, &l->s.train_feed, err);
    if (!rc)
        rc = hd__train_checkpointer_open(&l->s, NULL, &l->checkpointer, err);
    if (!rc)
        rc = load_checkpoint(l, err);
    if (!rc)
        rc = hd__train_shards_agree(&l->s, err);
    if (!rc)
        rc = init_run(l, err);
    if (rc)
        return rc;
    l->s.current_feed = l->s.train_feed;
    l->p = hd__exec_program(l->s.exec);
    return open_files(l, compiled, err);
}

/* Is the state of this rank that after the last step? */
static int state_is_whole(const struct hd__train_loop *l)
{
    uint32_t written = hd__exec_state_written(l->s.exec);
    return !l->in_step || !(l->skips_updates ? written & ~(uint32_t)HD__STATE_UPDATED : written);
}

/* A step that others have ended and saved has its row, too: nobody trains it again. */
static void log_step_of_others(struct hd__train_loop *l, const struct hd__emergency_saved *saved)
{
    struct hd_error unused = HD_ERROR_INIT;
    l->progress.step = saved->step;
    l->progress.sequence = saved->sequence;
    l->progress.tokens = saved->tokens;
    l->progress.scaler.skipped = saved->skipped;
    l->loss = saved->loss;
    l->norm = saved->norm;
    l->scale = saved->scale;
    l->lr = hd__job_lr(l->job, saved->step);
    l->val_loss = NAN;
    if (has_row(l))
        hd__loop_log_row(l, HD_E_CANCELLED, &unused);
}

static int save_what_is_left(struct hd__train_loop *l, const struct hd_error *why)
{
    struct hd__emergency_saved saved = {0};
    l->progress.val_loss = l->in_step ? NAN : l->val_loss;
    const struct hd__emergency e = {.session = &l->s,
                                    .checkpointer = l->checkpointer,
                                    .progress = &l->progress,
                                    .whole = state_is_whole(l) && !l->replicas.corrupt,
                                    .storage_failed = l->storage_failed,
                                    .saved = l->saved,
                                    .run = l->run,
                                    .folder = l->job->checkpoint_dir,
                                    .why = why,
                                    .loss = l->loss,
                                    .norm = l->norm,
                                    .scale = l->scale};
    int done = l->checkpointer && hd__train_emergency_save(&e, &saved);
    log_saved(l); /* one that ended since the last step */
    if (!l->is_leader)
        return done;
    if (saved.step > l->progress.step)
        log_step_of_others(l, &saved);
    if (saved.step > 0)
        hd__metrics_log_event(l->metrics, json_pack("{s:s,s:I,s:b}", "event", "checkpoint", "step",
                                                    (json_int_t)saved.step, "emergency", 1));
    hd__train_checkpointer_wait(l->checkpointer, NULL); /* as closing does: one that was committed meanwhile */
    log_saved(l);
    return done || saved.step > 0;
}

/* NaN, a token out of range: it is there again when the step is. */
static int is_own_fault(int32_t code)
{
    return code == HD_E_INVALID || code == HD_E_UNSUPPORTED || code == HD_E_CORRUPT;
}

int hd__train(struct hd__compiled *compiled, const struct hd__launch_env *env)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__train_loop l = {.job = compiled->job, .is_leader = env->rank == 0, .locks = {{-1, -1}}};
    int stopped = 0, prepared, code = 0, emergency = 0;
    char why[32];
    int32_t rc;
    char prefix[32] = "";
    pid_t notice = 0;
    if (env->size > 1) {
        snprintf(prefix, sizeof prefix, "[rank %d] ", env->rank);
        hd__log_setup(HD_LOG_INFO, prefix);
    }
    catch_crashes(prefix);
    speaks_of_stop = !env->local_rank || !env->launched_by_heddle;
    catch_signals(on_early_signal);
    if (l.is_leader && !env->agents && (compiled->job->notice_file || compiled->job->notice_command))
        notice = hd__launch_notice_start(env->progress ? getppid() : getpid(), compiled->job->notice_file,
                                         compiled->job->notice_command, compiled->job->notice_every);
    rc = open_run(&l, env, compiled, &err);
    catch_crashes(prefix);
    catch_signals(on_signal);
    prepared = !rc;
    if (!rc && l.progress.step >= l.job->steps && l.is_leader)
        printf("the job is finished: its checkpoint is at step %" PRId64 "%s%" PRId64
               "; set job.%s higher to go on, or %s\n",
               l.progress.step, l.progress.step > l.job->steps ? ", and the job ends at " : " of ", l.job->steps,
               l.job->epochs > 0 ? "epochs" : "steps",
               strchr(l.job->resume, '/') ? "begin at step 0 with its weights: `heddle ckpt export`, then model.from"
                                          : "checkpoint.resume=overwrite to train anew");
    if (!rc)
        rc = run_steps(&l, &stopped, &err);
    if (rc && prepared && is_own_fault(err.code) && !l.replicas.corrupt && env->progress)
        env->progress->failed_step = l.progress.step + 1;
    if (rc)
        code = hd__speaker_fail(&l.s.speaker, &err, !prepared);
    if (rc && prepared)
        emergency = save_what_is_left(&l, &err);
    snprintf(why, sizeof why,
             stopped == SIGALRM        ? "the end of its time"
             : stopped == END_OF_ROUND ? "the end of its round"
                                       : "signal %d",
             stopped);
    if (stopped && l.is_leader)
        fprintf(stderr, "stopped by %s after step %" PRId64 "; %s\n", why, l.progress.step,
                stopped == END_OF_ROUND && !rc  ? "the state is saved, and more machines go on"
                : l.job->trace.ends             ? "a run for its trace saves nothing"
                : !l.checkpointer               ? "no checkpoint section, so nothing is saved"
                : rc && !emergency              ? "the state of this step is not saved"
                : strcmp(l.job->resume, "auto") ? "the state is saved: checkpoint.resume=auto goes on"
                                                : "the state is saved: the same command goes on");
    if (!rc && l.is_leader)
        hd__loop_print_end(&l);
    if (!rc && l.steps_run && l.checkpointer && l.is_leader)
        printf("checkpoint: %s/step-%08" PRId64 "\n", l.job->checkpoint_dir, l.saved);
    if (!rc && l.steps_run && !l.checkpointer && !l.job->trace.ends && l.is_leader)
        printf("nothing is saved: the job has no checkpoint section\n");
    hd__train_trace_free(&l.trace);
    if (l.replicas.session)
        hd__train_replicas_free(&l.replicas);
    free(l.ranks);
    free(l.files);
    hd__metrics_close(l.metrics);
    hd__metrics_close(l.machine_metrics);
    if (!rc && l.checkpointer)
        hd__train_session_closing(&l.s, "closing the storage of checkpoints");
    hd__train_checkpointer_close(l.checkpointer);
    code = code ? code : stopped ? 3 : 0;
    if (l.s.store && !fflush(stdout) && !ferror(stdout)) /* else a command may fail, and its exit code be another */
        hd__store_say_exit(l.s.store, code);
    hd__train_session_close(&l.s, rc != HD_OK);
    hd__run_locks_release(&l.locks);
    hd__launch_notice_stop(notice);
    return code;
}
