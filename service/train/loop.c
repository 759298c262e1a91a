/* The loop: begin, micro-batches, update, agree; evaluate, save, report. */
#include "core/base/file.h"
#include "service/train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "runtime/comm/flight_recorder.h"
#include "runtime/exec/profile.h"
#include "runtime/rendezvous/liveness.h"
#include "service/launch/notice.h"
#include "service/metrics/metrics.h"
#include "service/train/checkpointer.h"
#include "service/train/replicas.h"
#include "service/train/save/emergency.h"
#include "service/train/session.h"
#include "service/train/trace/trace.h"

struct loop {
    struct hd__train_session s;
    struct hd__job *job;
    struct hd_program *p;
    struct hd__train_progress progress;
    struct hd__train_checkpointer *checkpointer; /* NULL where nothing is saved */
    int64_t saved;                               /* step of the newest checkpoint of this run, -1 if there is none */
    int64_t skipped_for;                         /* while this one was written a save was left out, which was said */
    double loss, norm, lr, scale, val_loss;      /* scale: of the loss, in this step */
    double val_losses[HD__VAL_SETS];
    double step_s, comm_s, peak_flops;  /* peak: FLOP/s of all ranks' devices */
    double rank_sums[HD__RANK_NUMBERS]; /* HD__RANK_... of this rank, over the steps since the last row */
    double *ranks;                      /* HD__GATHERED numbers of each, at the last row */
    int64_t summed_steps;
    int32_t ranks_known;                         /* how many of them these are of: all, or this one */
    double saved_at, longest_step, longest_save; /* seconds: when the last save began, of rank 0's clock */
    double trained_s, best_val_loss;             /* of the steps since this process began */
    int64_t trained_tokens, best_step;           /* best 0: nothing was evaluated */
    int64_t steps_run, profiled_steps;           /* steps of this run; those that are in the profile */
    double profiled_s;
    struct hd__train_trace trace;
    struct hd__train_replicas replicas;
    struct hd__metrics *machine_metrics; /* of the first rank of another machine than rank 0's: sinks without rows */
    struct hd__metrics *metrics;         /* of rank 0, as what follows */
    struct hd__run_locks locks;
    char run[HD__RUN_ID];
    int is_leader;
    int in_step, skips_updates; /* the step that has begun is not over; its updates did nothing */
    int storage_failed;         /* the last save, by a fault of its own */
};

static volatile sig_atomic_t stop_signal;

static void on_signal(int sig)
{
    stop_signal = sig;
}

/* While a run is prepared (it may wait for other ranks for long) there is no step to finish and nothing to save. */
static void on_early_signal(int sig)
{
    static const char text[] = "stopped before the first step\n";
    ssize_t said = write(STDERR_FILENO, text, sizeof text - 1);
    (void)sig, (void)said;
    _exit(3);
}

/* Signals of a crash, and the line that is said before the process ends by them: libraries replace their handlers, and
 * then nobody may say anything. Sanitizers print more of all but the first. */
static const struct {
    int signal;
    const char *why; /* NULL: the signal's name says it */
} crashes[] = {
    {SIGBUS, "a mapped file became shorter while it was read, or its disk failed: most likely data.train"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    {SIGSEGV, NULL},
    {SIGILL, NULL},
    {SIGFPE, NULL},
    {SIGABRT, NULL},
#endif
};
static char crash_line[HD__COUNT(crashes)][160];

static void on_crash(int sig)
{
    for (size_t i = 0; i < HD__COUNT(crashes); i++) {
        ssize_t said = sig == crashes[i].signal ? write(STDERR_FILENO, crash_line[i], strlen(crash_line[i])) : 0;
        (void)said;
    }
    raise(sig); /* SA_RESETHAND: the default ends the process */
}

/* Again after others' code was called that may have installed its own. */
static void catch_crashes(const char *prefix)
{
    static char stack[65536]; /* of the main thread, whose own may have overflowed */
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND | SA_NODEFER | SA_ONSTACK};
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    for (size_t i = 0; i < HD__COUNT(crashes); i++) {
        if (crashes[i].why)
            snprintf(crash_line[i], sizeof crash_line[i], "%serror: %s\n", prefix, crashes[i].why);
        else
            snprintf(crash_line[i], sizeof crash_line[i], "%serror: this rank crashed: %s\n", prefix,
                     strsignal(crashes[i].signal));
        sigaction(crashes[i].signal, &action, NULL);
    }
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
static void start_alarm(const struct loop *l)
{
    double left = l->s.env->deadline - l->job->launch_margin - hd__now();
    struct itimerval timer = {.it_value.tv_sec = (time_t)HD__MAX(left, 0)};
    timer.it_value.tv_usec = HD__MAX(1, (suseconds_t)((left - (double)timer.it_value.tv_sec) * 1e6));
    if (l->is_leader && l->s.env->deadline > 0)
        setitimer(ITIMER_REAL, &timer, NULL);
}

/* A step and a save that take as long as the longest so far are to end in time, twice over. */
static void check_time(const struct loop *l)
{
    double margin = HD__MAX(l->job->launch_margin, 2 * (l->longest_step + l->longest_save));
    if (l->is_leader && l->s.env->deadline > 0 && !stop_signal && hd__now() + margin >= l->s.env->deadline)
        stop_signal = SIGALRM;
}

/* ---- one step */

/* label_factor: hd__train_session_label_factor. */
static int32_t set_hyperparameters(struct loop *l, double label_factor, struct hd_error *err)
{
    const hd_tensor set[] = {l->p->hyper, l->p->scale};
    double *hyper = hd__exec_host_data(l->s.exec, l->p->hyper);
    l->lr = hd__lr(&l->job->schedule, l->progress.step + 1, l->job->steps);
    hyper[HD_HYPER_LR] = l->lr;
    hyper[HD_HYPER_STEP] = (double)(l->progress.step + 1 - l->progress.scaler.skipped);
    hyper[HD_HYPER_INV_SCALE] = 1 / l->progress.scaler.scale;
    if (l->p->scale)
        *(double *)hd__exec_host_data(l->s.exec, l->p->scale) = l->progress.scaler.scale * label_factor;
    hyper[HD_HYPER_SKIP] = 0;
    return hd__exec_copy_tensors(l->s.exec, HD__H2D, set, l->p->scale ? 2 : 1, err);
}

/* Runs the step's data again and looks where the first bad number comes from. The loss is that of all ranks; a norm
 * may be of this rank's replica alone, and then the others do not come along. */
static int32_t find_nonfinite(struct loop *l, char where[160], struct hd_error *err)
{
    int32_t found;
    if (l->p->independent_axes && isfinite(l->loss)) {
        snprintf(where, 160, "a gradient of this local-SGD replica");
        return HD_OK;
    }
    found = hd__train_feed_seek(l->s.train_feed, l->progress.sequence, err);
    return found ? found : hd__exec_find_nonfinite(l->s.exec, l->progress.step + 1, where, err);
}

static const char *remedy(const struct loop *l)
{
    if (!isfinite(l->loss) || l->progress.scaler.scaling != HD__LOSS_SCALE_STATIC)
        return "Lower optimizer.lr, set optimizer.clip, or look at the data of this step";
    return l->p->independent_axes ? "Lower precision.loss_scale" : "Lower precision.loss_scale, or say dynamic";
}

/* Only where the norm is not finite the update left the weights as they were; nothing is saved either way. */
static int32_t fail_diverged(struct loop *l, struct hd_error *err)
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

static int32_t train_step(struct loop *l, struct hd_error *err)
{
    const hd_tensor scalars[] = {l->p->loss_sum, l->p->norm2};
    double value[2], factor = 1;
    int64_t labels = 0;
    int32_t rc = hd__train_shards_ready(&l->s, l->progress.sequence, err);
    l->in_step = 1;
    if (!rc)
        rc = hd__train_feed_count_labels(l->s.train_feed, &labels, err);
    if (!rc)
        rc = hd__train_session_label_factor(&l->s, 1, labels, &factor, err);
    if (!rc && !factor && l->is_leader)
        hd__log(HD_LOG_WARN, NULL,
                "%s: step %" PRId64 ": none of the labels of its %" PRId64
                " sequences counts in the loss, which is 0, as "
                "are the gradients",
                hd__train_feed_where(l->s.train_feed), l->progress.step + 1, l->job->batch);
    if (!rc)
        rc = set_hyperparameters(l, factor, err);
    if (!rc)
        rc = hd__exec_run_step(l->s.exec, l->progress.step + 1, err);
    if (!rc)
        rc = hd__train_session_read_scalars(&l->s, scalars, 2, value, err);
    if (rc)
        return rc;
    l->loss = value[0] * factor;
    l->norm = sqrt(value[1]) / l->progress.scaler.scale;
    l->scale = l->progress.scaler.scale;
    l->skips_updates = !isfinite(l->norm);
    if (!hd__train_loss_scaler_update(&l->progress.scaler, !isfinite(l->norm)) ||
        (!isfinite(l->loss) && isfinite(l->norm)))
        return fail_diverged(l, err);
    l->progress.step++;
    l->progress.sequence += l->job->batch;
    l->progress.tokens += l->job->batch * l->job->seq_len;
    l->in_step = 0;
    return HD_OK;
}

/* ---- reporting */

static json_t *mesh_json(const struct hd__mesh *mesh)
{
    json_t *o = json_object();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        json_object_set_new(o, hd__axis_name(a), json_integer(mesh->size[a]));
    return o;
}

static int32_t open_sink(struct loop *l, struct hd__metrics *metrics, const struct hd__chosen *chosen,
                         struct hd_error *err)
{
    const char *path = chosen->section->path;
    const struct hd__metrics_sink_config config = {
        .name = path,
        .ops = &chosen->component->ops.metrics,
        .settings = chosen->settings,
        .host = l->s.compiled->host,
        .job = l->job->name,
        .steps = l->job->steps,
    };
    int32_t rc = hd__plugin_probe(l->s.compiled->plugins, chosen->component, err);
    if (!rc)
        rc = hd__metrics_add_sink(metrics, &config, err);
    if (!rc)
        return HD_OK;
    hd__job_fail(l->job, path, err, "%s: %s", path, err->message);
    return err->code = rc;
}

/* The metrics of a run may be another's data. */
static int32_t refuse_data_file(const char *metrics, const struct hd__sources *sources, struct hd_error *err)
{
    struct stat a, b;
    for (uint64_t i = 0; i < sources->count && !stat(metrics, &a); i++)
        if (!stat(sources->at[i].path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return hd_fail(err, HD_E_INVALID, "metrics.jsonl: %s is a file of the job's data: name another", metrics);
    return HD_OK;
}

int32_t hd__train_check_metrics(struct hd__job *job, struct hd_error *err)
{
    int32_t rc = refuse_data_file(job->metrics_jsonl, &job->train, err);
    rc = rc ? rc : refuse_data_file(job->metrics_jsonl, &job->val, err);
    rc = rc ? rc : refuse_data_file(job->metrics_jsonl, &job->test, err);
    rc = rc ? rc : hd__metrics_check(job->metrics_jsonl, err);
    return rc ? hd__job_locate_error(job, "metrics.jsonl", err) : HD_OK;
}

static void set_watch(const struct loop *l)
{
    const struct hd__job *job = l->job;
    const struct hd__watch_config config = {.loss_spike = job->watch.loss_spike,
                                            .grad_norm = job->watch.grad_norm,
                                            .throughput = job->watch.throughput,
                                            .straggler = job->watch.straggler,
                                            .data_wait = job->watch.data_wait,
                                            .exposed_comm = job->watch.exposed_comm,
                                            .utilisation = job->watch.utilisation,
                                            .memory = job->watch.memory,
                                            .descriptors = job->watch.descriptors,
                                            .command = job->watch.command};
    hd__metrics_set_watch(l->metrics, &config);
}

static int32_t open_metrics(struct loop *l, const struct hd__compiled *c, struct hd_error *err)
{
    json_t *plan = json_pack("{s:I,s:I,s:I,s:f}", "arena_bytes", (json_int_t)l->p->arena_bytes, "persistent_bytes",
                             (json_int_t)l->p->persistent_bytes, "temporary_bytes", (json_int_t)l->p->temp_bytes,
                             "flops_per_token", hd__compiled_flops_per_token(c));
    json_t *start = json_pack("{s:s,s:s,s:o,s:o,s:I,s:o}", "event", l->progress.step ? "resume" : "start", "run",
                              l->run, "job", hd__job_json(l->job), "mesh", mesh_json(&c->mesh), "parameters",
                              (json_int_t)hd__compiled_parameter_count(c), "plan", plan);
    if (l->progress.step)
        json_object_set_new(start, "from_step", json_integer(l->progress.step));
    int32_t rc = hd__metrics_open(l->job->metrics_jsonl, l->progress.step, start, &l->metrics, err);
    if (rc)
        hd__job_locate_error(l->job, "metrics.jsonl", err);
    if (!rc)
        set_watch(l);
    for (uint64_t k = 0; k < l->job->n_val_sets && !rc; k++)
        hd__metrics_add_set(l->metrics, l->job->val_sets[k].name);
    for (uint32_t i = 0; i < c->selection->sinks.count && !rc; i++)
        rc = open_sink(l, l->metrics, &c->selection->sinks.at[i], err);
    if (!rc && (rc = hd__metrics_begin(l->metrics, err)))
        hd__job_locate_error(l->job, "metrics.jsonl", err);
    json_decref(start);
    l->peak_flops = hd__exec_peak_flops(l->s.exec) * c->mesh.ranks;
    return rc;
}

/* "139,584" */
static const char *count_text(int64_t n, char out[32])
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static void print_packing(const struct hd__data *d, int64_t seq_len)
{
    char pieces[32], sequences[32];
    int64_t n = (int64_t)hd__data_sequences(d);
    printf("packed %s documents or pieces of them into %s sequences of %" PRId64
           ": %.2f%% of these are tokens, the rest is padding\n",
           count_text((int64_t)hd__data_pieces(d), pieces), count_text(n, sequences), seq_len,
           100 * (double)hd__data_tokens(d) / ((double)n * (double)seq_len));
}

/* Data, memory, transports and the place of a run. */
static void print_plan(const struct loop *l, const struct hd__compiled *c)
{
    const struct hd__data *data = hd__train_feed_data(l->s.train_feed);
    double sequences = (double)hd__data_sequences(data), peak = hd__exec_peak_flops(l->s.exec);
    char tokens[32], arena[32], kept[32], temporary[32];
    const char *separator = "transports: ";
    printf("data: %s tokens, seen %.3g times in all steps\n", count_text((int64_t)hd__data_tokens(data), tokens),
           (double)(l->job->batch * l->job->steps) / sequences);
    printf("arena %s a rank: %s of state, %s of temporaries", hd__bytes_text((uint64_t)l->p->arena_bytes, arena),
           hd__bytes_text((uint64_t)l->p->persistent_bytes, kept),
           hd__bytes_text((uint64_t)l->p->temp_bytes, temporary));
    if (peak > 0)
        printf("; peak of the device %.1f %s", peak / (peak < 1e12 ? 1e9 : 1e12), peak < 1e12 ? "GFLOP/s" : "TFLOP/s");
    printf("\n");
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (c->mesh.size[a] > 1) {
            printf("%s%s %s", separator, hd__axis_name(a), l->job->comm_axis[a]->use);
            separator = ", ";
        }
    printf("%srun folder: %s\n", *separator == ',' ? "\n" : "", hd__job_folder(l->job));
}

static void print_start(const struct loop *l, const struct hd__compiled *c)
{
    const char *loaded = hd__train_checkpointer_loaded(l->checkpointer), *separator = " (";
    int64_t tokens = l->job->batch * l->job->seq_len;
    char parameters[32], step[32], total[32];
    if (loaded)
        printf("run %s, resuming from step %" PRId64 " of %s: ", l->run, l->progress.step, loaded);
    else
        printf("run %s, from %s: ", l->run, c->info.weights ? c->info.weights : "scratch");
    printf("%s parameters, %s tokens a step, %s in %" PRId64 " steps",
           count_text(hd__compiled_parameter_count(c), parameters), count_text(tokens, step),
           count_text(tokens * l->job->steps, total), l->job->steps);
    if (l->job->epochs > 0)
        printf(", %g epoch%s of %s sequences", l->job->epochs, l->job->epochs == 1 ? "" : "s",
               count_text((int64_t)hd__train_feed_sequences(l->s.train_feed), step));
    printf("\n%d rank%s", c->mesh.ranks, c->mesh.ranks > 1 ? "s" : "");
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (c->mesh.size[a] > 1) {
            printf("%s%s %d", separator, hd__axis_name(a), c->mesh.size[a]);
            separator = ", ";
        }
    printf("%s, device %s, %s\n", *separator == ',' ? ")" : "", c->device_choice.component->name,
           hd_dtype_name(l->job->precision.compute));
    if (l->job->documents == HD__DOCUMENTS_PACK)
        print_packing(hd__train_feed_data(l->s.train_feed), l->job->seq_len);
    print_plan(l, c);
    fflush(stdout);
}

static void print_end(const struct loop *l)
{
    char tokens[32], rate[32];
    if (l->trained_s <= 0)
        return;
    printf("trained to step %" PRId64 ": %s tokens in %.1f s, mean %s tokens/s", l->progress.step,
           count_text(l->trained_tokens, tokens), l->trained_s,
           count_text((int64_t)((double)l->trained_tokens / l->trained_s), rate));
    if (l->best_step)
        printf(", best val_loss %.4f at step %" PRId64, l->best_val_loss, l->best_step);
    printf("\n");
}

/* ---- numbers of all ranks */

_Static_assert((int)HD__RANK_NUMBERS <= (int)HD__GATHERED, "a rank has more numbers than are gathered");

static void add_rank_step(struct loop *l)
{
    double by_axis[HD_AXIS_COUNT], waited = hd__train_feed_waited(l->s.train_feed);
    l->comm_s = hd__exec_comm_seconds(l->s.exec, by_axis);
    l->rank_sums[HD__RANK_COMM_WAIT] += l->comm_s;
    l->rank_sums[HD__RANK_DATA_WAIT] += waited;
    l->rank_sums[HD__RANK_COMPUTE] += HD__MAX(0, l->step_s - l->comm_s - waited);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        l->rank_sums[HD__RANK_COMM_AXIS + a] += by_axis[a];
    l->summed_steps++;
}

/* Before a row: the means of each rank's steps since the last one; this rank's alone where an evaluation failed, or
 * another rank is lost. */
static int32_t gather_ranks(struct loop *l, int32_t failed, struct hd_error *err)
{
    double mine[HD__GATHERED] = {0};
    for (int32_t k = 0; k < HD__RANK_NUMBERS; k++)
        mine[k] = l->rank_sums[k] / (double)l->summed_steps;
    mine[HD__RANK_RSS] = (double)hd__metrics_resident_bytes();
    mine[HD__RANK_FILES] = (double)hd__metrics_open_files();
    mine[HD__RANK_STAGE] = l->p->stage;
    int32_t rc = failed ? failed : hd__exec_all_gather(l->s.exec, mine, l->ranks, err);
    l->ranks_known = rc ? 1 : l->s.env->size;
    if (rc)
        memcpy(l->ranks, mine, sizeof mine);
    return rc;
}

static double mean_of_ranks(const struct loop *l, int32_t number)
{
    double sum = 0;
    for (int32_t r = 0; r < l->ranks_known; r++)
        sum += l->ranks[r * HD__GATHERED + number];
    return sum / l->ranks_known;
}

static void log_step(const struct loop *l)
{
    double tokens = (double)(l->job->batch * l->job->seq_len);
    struct hd__metrics_row row = {
        .step = l->progress.step,
        .steps = l->job->steps,
        .loss = l->loss,
        .val_loss = l->val_loss,
        .val_losses = l->val_losses,
        .epoch = (double)l->progress.sequence / (double)hd__train_feed_sequences(l->s.train_feed),
        .grad_norm = l->norm,
        .loss_scale = l->progress.scaler.scaling != HD__LOSS_SCALE_NONE ? l->scale : 0,
        .skipped = l->progress.scaler.skipped,
        .lr = l->lr,
        .tokens = l->progress.tokens,
        .tokens_per_s = tokens / l->step_s,
        .step_s = l->step_s,
        .comm_s = l->comm_s,
        .data_wait_s = l->rank_sums[HD__RANK_DATA_WAIT],
        .tokens_per_s_per_rank = tokens / l->step_s / l->s.env->size,
        .samples_per_s = (double)l->job->batch / l->step_s,
        .exposed_comm_s = mean_of_ranks(l, HD__RANK_COMM_WAIT),
        .ranks = l->ranks,
        .n_ranks = l->ranks_known,
        .stride = HD__GATHERED,
        .axes = hd__mesh_axes(&l->p->mesh),
        .mfu = l->peak_flops > 0 ? hd__compiled_flops_per_token(l->s.compiled) * tokens / l->step_s / l->peak_flops : 0,
        .arena_bytes = l->p->arena_bytes,
        .rss_bytes = (int64_t)l->ranks[HD__RANK_RSS],
    };
    hd__metrics_log_step(l->metrics, &row);
}

/* Collective. The step has its row, whatever fails. */
static int32_t log_row(struct loop *l, int32_t failed, struct hd_error *err)
{
    int32_t rc = gather_ranks(l, failed, err);
    if (l->is_leader)
        log_step(l);
    memset(l->rank_sums, 0, sizeof l->rank_sums);
    l->summed_steps = 0;
    return rc;
}

/* ---- the profile: the first steps are left out, where there are others */

enum { PROFILE_AFTER = 2 };

/* The first rank of each pipeline stage. */
static int is_stage_leader(const struct loop *l)
{
    int32_t coord[HD_AXIS_COUNT], others = 0;
    hd__mesh_coord(&l->p->mesh, l->s.env->rank, coord);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        others |= a != HD_AXIS_PP && coord[a];
    return !others;
}

static void profile_begin(struct loop *l)
{
    int wanted = (l->is_leader && l->job->metrics_profile) || (l->job->metrics_blocks && is_stage_leader(l));
    if (wanted && (l->steps_run >= PROFILE_AFTER || l->job->steps - l->progress.step + l->steps_run <= PROFILE_AFTER))
        hd__exec_set_profiling(l->s.exec, 1);
    l->steps_run++;
}

static void profile_end(struct loop *l)
{
    if (!hd__exec_get_profile(l->s.exec))
        return;
    hd__exec_set_profiling(l->s.exec, 0);
    l->profiled_steps++;
    l->profiled_s += l->step_s;
}

static void add_blocks_path(const struct loop *l, struct hd__text *path)
{
    hd__text_add(path, "%s", l->job->metrics_blocks);
    if (l->p->stage)
        hd__text_add(path, ".%d", l->p->stage);
}

/* Before the first step, not after the last. */
static int32_t check_blocks(const struct loop *l, struct hd_error *err)
{
    struct hd__text path = {0};
    struct hd_error why = HD_ERROR_INIT;
    if (!l->job->metrics_blocks || !is_stage_leader(l) || l->progress.step >= l->job->steps)
        return HD_OK;
    add_blocks_path(l, &path);
    hd__make_folders(path.at);
    int32_t rc = hd__output_check(path.at, HD__PROFILE_BEGINS, &why);
    if (rc)
        hd__job_fail(l->job, "metrics.blocks", err, "metrics.blocks: %s", why.message);
    hd__text_free(&path);
    return rc;
}

static void write_blocks(const struct loop *l)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text path = {0};
    add_blocks_path(l, &path);
    if (hd__exec_profile_write_blocks(hd__exec_get_profile(l->s.exec), l->profiled_steps * l->job->accumulation,
                                      path.at, &err))
        hd__log(HD_LOG_ERROR, NULL, "metrics.blocks: %s", err.message);
    hd__text_free(&path);
}

static void print_profile(const struct loop *l)
{
    struct hd__text text = {0};
    if (!l->profiled_steps)
        return;
    if (l->job->metrics_blocks)
        write_blocks(l);
    if (!l->job->metrics_profile || !l->is_leader)
        return;
    hd__exec_profile_print(hd__exec_get_profile(l->s.exec), l->profiled_steps, l->profiled_s,
                           hd__exec_peak_flops(l->s.exec), &text);
    hd__text_add(&text, "\n");
    hd__text_print(&text, stdout);
}

static int32_t evaluate(struct loop *l, struct hd_error *err)
{
    return hd__train_session_evaluate_sets(&l->s, l->job->eval_batches, &stop_signal, l->val_losses, &l->val_loss, err);
}

/* ---- saving */

/* Into the metrics, once a save is on disk. */
static void log_saved(struct loop *l)
{
    struct hd__train_saved saved;
    if (!l->is_leader || !hd__train_checkpointer_finished(l->checkpointer, &saved))
        return;
    json_t *event = json_pack("{s:s,s:I,s:f,s:f,s:I}", "event", "checkpoint", "step", (json_int_t)saved.step, "seconds",
                              saved.seconds, "exposed_s", saved.exposed, "bytes", (json_int_t)saved.bytes);
    if (isfinite(saved.val_loss))
        json_object_set_new(event, "val_loss", json_real(saved.val_loss));
    hd__metrics_log_event(l->metrics, event);
    l->longest_save = HD__MAX(l->longest_save, HD__MAX(saved.seconds, saved.exposed));
    if (l->s.env->progress)
        l->s.env->progress->saved = saved.step;
}

/* A save that failed is none, by its own fault or because another rank is gone. */
static int32_t note_save(struct loop *l, int32_t rc)
{
    if (rc)
        l->saved = -1;
    l->storage_failed = rc && !hd__speaker_blames_another(rc);
    return rc;
}

static int32_t finish_save(struct loop *l, struct hd_error *err)
{
    int32_t rc = hd__train_checkpointer_wait(l->checkpointer, err);
    log_saved(l);
    return note_save(l, rc);
}

/* `now`: before a save, so that no state is saved that is known to be wrong, or could be. */
static int32_t compare_replicas(struct loop *l, int now, struct hd_error *err)
{
    int32_t wrong = 0, rc = hd__train_replicas_compare(&l->replicas, l->progress.step, l->step_s, now, &wrong, err);
    if (rc == HD_E_CORRUPT && l->is_leader)
        hd__metrics_log_event(l->metrics, json_pack("{s:s,s:s,s:I,s:i,s:i,s:i,s:s}", "event", "alarm", "rule",
                                                    "replicas", "step", (json_int_t)l->progress.step, "rank", wrong,
                                                    "value", 1, "limit", 0, "words", err->message));
    return rc;
}

/* `stopped`: there is no time for an evaluation. */
static int32_t save_checkpoint(struct loop *l, int stopped, struct hd_error *err)
{
    int32_t rc = finish_save(l, err);
    if (!rc)
        rc = compare_replicas(l, 1, err);
    if (!rc && l->job->checkpoint_keep_best && !isfinite(l->val_loss) && !stopped)
        rc = evaluate(l, err);
    l->saved = l->progress.step;
    l->saved_at = hd__now();
    l->progress.val_loss = l->val_loss;
    return rc ? rc : note_save(l, hd__train_checkpointer_save(l->checkpointer, &l->progress, err));
}

/* Wishes of the ranks after a step, of which the highest counts; STOP and a signal's number, or END_OF_ROUND. */
enum { NOTHING, SAVE, WRITER_BUSY, STOP = 256, END_OF_ROUND = 255 };

static int is_time_to_save(const struct loop *l)
{
    return l->is_leader && l->job->checkpoint_seconds > 0 && hd__now() >= l->saved_at + l->job->checkpoint_seconds;
}

static int is_step_to_save(const struct loop *l)
{
    return l->job->checkpoint_every && l->progress.step % l->job->checkpoint_every == 0;
}

static int32_t wish(const struct loop *l)
{
    const struct hd__launch_progress *p = l->s.env->progress;
    if (stop_signal)
        return STOP + stop_signal;
    if (p && p->grow && l->is_leader && l->checkpointer && l->progress.step < l->job->steps &&
        (is_step_to_save(l) || is_time_to_save(l)))
        return STOP + END_OF_ROUND;
    if (hd__train_checkpointer_busy(l->checkpointer))
        return WRITER_BUSY;
    return is_time_to_save(l) ? SAVE : NOTHING;
}

/* A save that is due while the last is still being written is left out: saves do not queue. */
static int32_t save_if_due(struct loop *l, int32_t agreed, struct hd_error *err)
{
    int by_steps = is_step_to_save(l);
    if (!l->checkpointer || agreed >= STOP || l->progress.step == l->job->steps) /* the end saves */
        return HD_OK;
    if (agreed != WRITER_BUSY)
        return agreed == SAVE || by_steps ? save_checkpoint(l, 0, err) : HD_OK;
    if (l->is_leader && (by_steps || is_time_to_save(l)) && l->skipped_for != l->saved)
        hd__log(HD_LOG_WARN, NULL,
                "no checkpoint of step %" PRId64 ": that of step %" PRId64
                " is still being written after %.3g s, so the disk is "
                "slower than checkpoint.every",
                l->progress.step, l->saved, hd__now() - l->saved_at);
    l->skipped_for = by_steps || is_time_to_save(l) ? l->saved : l->skipped_for;
    return HD_OK;
}

static int32_t run_steps(struct loop *l, int *stopped, struct hd_error *err)
{
    int32_t rc = HD_OK, agreed = 0;
    start_alarm(l);
    hd__train_replicas_init(&l->replicas, &l->s, l->progress.step);
    hd__train_trace_init(&l->trace, &l->s, l->progress.step);
    l->ranks = hd__alloc((size_t)l->s.env->size * HD__GATHERED * sizeof *l->ranks);
    l->saved_at = hd__now();
    while (!rc && agreed < STOP && l->progress.step < l->job->steps) {
        double start = hd__now();
        int evaluated, completed;
        __atomic_store_n(&hd__exec_flight(l->s.exec)->step, l->progress.step + 1, __ATOMIC_RELAXED);
        profile_begin(l);
        hd__train_trace_begin(&l->trace, l->progress.step + 1);
        hd__exec_comm_seconds(l->s.exec,
                              (double[HD_AXIS_COUNT]){0}); /* what an evaluation waited for is not this step's */
        rc = train_step(l, err);
        completed = !rc;
        l->step_s = hd__now() - start;
        profile_end(l);
        if (!rc)
            hd__train_trace_end(&l->trace, l->progress.step);
        add_rank_step(l);
        l->val_loss = NAN;
        evaluated = !rc && l->job->eval_every && l->progress.step % l->job->eval_every == 0;
        if (!rc) {
            l->trained_s += l->step_s;
            l->trained_tokens += l->job->batch * l->job->seq_len;
        }
        if (evaluated)
            rc = evaluate(l, err);
        if (evaluated && !rc && (!l->best_step || l->val_loss < l->best_val_loss)) {
            l->best_val_loss = l->val_loss;
            l->best_step = l->progress.step;
        }
        if (rc)
            l->val_loss = NAN;
        if (completed &&
            (evaluated || l->progress.step % l->job->metrics_every == 0 || l->progress.step == l->job->steps))
            rc = log_row(l, rc, err);
        l->longest_step = HD__MAX(l->longest_step, hd__now() - start);
        check_time(l);
        log_saved(l);
        if (!rc)
            rc = hd__exec_all_reduce_max(l->s.exec, wish(l), &agreed, err);
        if (!rc)
            rc = compare_replicas(l, 0, err);
        if (!rc)
            rc = save_if_due(l, agreed, err);
    }
    *stopped = agreed >= STOP ? agreed - STOP : 0;
    if (*stopped && *stopped != END_OF_ROUND && l->s.env->progress)
        l->s.env->progress->stopping = 1;
    print_profile(l);
    if (!rc)
        hd__train_trace_finish(&l->trace);
    if (!rc && l->checkpointer && l->saved != l->progress.step)
        rc = save_checkpoint(l, *stopped, err);
    return rc ? rc : finish_save(l, err);
}

/* ---- a run */

static int32_t barrier(struct loop *l, struct hd_error *err)
{
    int32_t rc = hd__exec_barrier(l->s.exec, err);
    l->s.speaker.barrier_failed = rc != HD_OK;
    return rc;
}

/* The run goes on as another round of its launcher. */
static const char *restarted_run(const struct loop *l)
{
    const struct hd__launch_env *env = l->s.env;
    return env->progress && env->n_restarts && env->progress->run[0] ? env->progress->run : NULL;
}

/* A restart takes its own run's checkpoints, and begins as the job says where there is none yet. */
static int32_t load_state(struct loop *l, struct hd_error *err)
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

/* Rank 0 alone looks whether a checkpoint can be saved: where it is refused the others have not begun to load one,
 * and end in silence. */
static int32_t load_checkpoint(struct loop *l, struct hd_error *err)
{
    int32_t rc;
    if (!l->checkpointer)
        return HD_OK;
    rc = l->is_leader ? hd__run_locks_take(l->job, &l->locks, err) : HD_OK;
    hd__train_session_phase(&l->s, "looking whether a checkpoint can be saved");
    if (l->is_leader && !rc && !restarted_run(l))
        rc = hd__train_checkpointer_check_dir(l->checkpointer, err);
    if (!rc)
        rc = barrier(l, err);
    hd__train_session_phase(&l->s, "loading a checkpoint");
    if (!rc)
        rc = load_state(l, err);
    if (rc != HD_E_NOTFOUND)
        return rc;
    hd__job_fail(l->job, "checkpoint.resume", err, "checkpoint.resume: %s", err->message);
    return err->code = rc;
}

static int32_t init_run(struct loop *l, struct hd_error *err)
{
    int32_t rc = HD_OK;
    hd__train_session_phase(&l->s, "making parameters");
    if (!l->progress.step)
        rc = hd__train_session_init_params(&l->s, err);
    l->saved = l->progress.step ? l->progress.step : -1;
    hd__train_session_phase(&l->s, "finding its place in the data");
    return rc ? rc : hd__train_feed_seek(l->s.train_feed, l->progress.sequence, err);
}

/* Each restart that no round has logged yet. */
static void log_restarts(struct loop *l)
{
    const struct hd__launch_env *env = l->s.env;
    for (int32_t i = env->progress ? env->progress->logged : 0; i < env->n_restarts; i++) {
        const struct hd__launch_restart *r = &env->restarts[i];
        json_t *lost = json_array();
        for (int32_t k = 0; k < r->n_lost; k++)
            json_array_append_new(lost, json_integer(r->lost[k]));
        hd__metrics_log_event(l->metrics, json_pack("{s:s,s:i,s:I,s:i,s:o,s:f}", "event", r->event, "round", r->round,
                                                    "step", (json_int_t)l->progress.step, "ranks", r->ranks, "lost",
                                                    lost, "seconds", hd__now() - r->since));
        env->progress->logged = i + 1;
    }
}

/* The next round goes on with this run. */
static void tell_launcher(const struct loop *l)
{
    struct hd__launch_progress *p = l->s.env->progress;
    if (!p)
        return;
    snprintf(p->run, sizeof p->run, "%s", l->run);
    p->saved = HD__MAX(p->saved, l->progress.step);
}

/* The run gets its id, and the place that it needs. */
static int32_t begin_run(struct loop *l, struct hd__compiled *compiled, struct hd_error *err)
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
        rc = open_metrics(l, compiled, err);
    if (!rc && l->checkpointer)
        rc = hd__train_checkpointer_set_aside(l->checkpointer, err);
    if (rc)
        return rc;
    tell_launcher(l);
    hd__train_emergency_prepare(&l->s, l->run);
    log_restarts(l);
    print_start(l, compiled);
    return HD_OK;
}

/* Sinks that every machine has, in its first rank. */
static int32_t open_machine_sinks(struct loop *l, const struct hd__compiled *c, struct hd_error *err)
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
        rc = open_sink(l, l->machine_metrics, chosen, err);
    }
    return rc;
}

/* Rank 0 alone opens the metrics: as with a checkpoint. */
static int32_t open_files(struct loop *l, struct hd__compiled *compiled, struct hd_error *err)
{
    int32_t rc = check_blocks(l, err);
    hd__train_session_phase(&l->s, "opening the metrics");
    if (!rc && l->is_leader && l->progress.step < l->job->steps)
        rc = begin_run(l, compiled, err);
    if (!rc)
        rc = open_machine_sinks(l, compiled, err);
    if (!rc)
        rc = barrier(l, err);
    hd__exec_set_status(l->s.exec, "between sections");
    return rc;
}

static int32_t open_run(struct loop *l, const struct hd__launch_env *env, struct hd__compiled *compiled,
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
static int state_is_whole(const struct loop *l)
{
    uint32_t written = hd__exec_state_written(l->s.exec);
    return !l->in_step || !(l->skips_updates ? written & ~(uint32_t)HD__STATE_UPDATED : written);
}

static int save_what_is_left(struct loop *l, const struct hd_error *why)
{
    l->progress.val_loss = l->in_step ? NAN : l->val_loss;
    const struct hd__emergency e = {.session = &l->s,
                                    .checkpointer = l->checkpointer,
                                    .progress = &l->progress,
                                    .whole = state_is_whole(l) && !l->replicas.corrupt,
                                    .storage_failed = l->storage_failed,
                                    .saved = l->saved,
                                    .run = l->run,
                                    .folder = l->job->checkpoint_dir,
                                    .why = why};
    if (!l->checkpointer || !hd__train_emergency_save(&e))
        return 0;
    if (l->metrics)
        hd__metrics_log_event(l->metrics, json_pack("{s:s,s:I,s:b}", "event", "checkpoint", "step",
                                                    (json_int_t)l->progress.step, "emergency", 1));
    return 1;
}

/* NaN, a token out of range: it is there again when the step is. */
static int is_own_fault(int32_t code)
{
    return code == HD_E_INVALID || code == HD_E_UNSUPPORTED || code == HD_E_CORRUPT;
}

int hd__train(struct hd__compiled *compiled, const struct hd__launch_env *env)
{
    struct hd_error err = HD_ERROR_INIT;
    struct loop l = {.job = compiled->job, .is_leader = env->rank == 0, .locks = {{-1, -1}}};
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
    catch_signals(on_early_signal);
    if (l.is_leader && !env->agents && (compiled->job->notice_file || compiled->job->notice_command))
        notice = hd__launch_notice_start(compiled->job->notice_file, compiled->job->notice_command,
                                         compiled->job->notice_every);
    rc = open_run(&l, env, compiled, &err);
    catch_crashes(prefix);
    catch_signals(on_signal);
    prepared = !rc;
    if (!rc && l.progress.step >= l.job->steps && l.is_leader)
        printf("the job is finished: its checkpoint is at step %" PRId64 " of %" PRId64
               "; set job.%s higher to go on\n",
               l.progress.step, l.job->steps, l.job->epochs > 0 ? "epochs" : "steps");
    if (!rc)
        rc = run_steps(&l, &stopped, &err);
    if (rc && prepared && is_own_fault(err.code) && env->progress)
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
                : !l.checkpointer               ? "no checkpoint section, so nothing is saved"
                : rc && !emergency              ? "the state of this step is not saved"
                : strcmp(l.job->resume, "auto") ? "the state is saved: checkpoint.resume=auto goes on"
                                                : "the state is saved: the same command goes on");
    if (!rc && l.is_leader)
        print_end(&l);
    if (!rc && l.steps_run && l.checkpointer && l.is_leader)
        printf("checkpoint: %s/step-%08" PRId64 "\n", l.job->checkpoint_dir, l.saved);
    hd__train_trace_free(&l.trace);
    if (l.replicas.session)
        hd__train_replicas_free(&l.replicas);
    free(l.ranks);
    hd__metrics_close(l.metrics);
    hd__metrics_close(l.machine_metrics);
    if (!rc && l.checkpointer)
        hd__train_session_closing(&l.s, "closing the storage of checkpoints");
    hd__train_checkpointer_close(l.checkpointer);
    hd__train_session_close(&l.s, rc != HD_OK);
    hd__run_locks_release(&l.locks);
    hd__launch_notice_stop(notice);
    return code ? code : stopped ? 3 : 0;
}

/* ---- does it fit? */

static int64_t read_number(const char *path, const char *key)
{
    char line[256];
    int64_t value = -1;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        size_t n = key ? strlen(key) : 0;
        if (!key || !strncmp(line, key, n)) {
            char *end;
            long long v = strtoll(line + n, &end, 10);
            value = end != line + n ? v : -1;
            break;
        }
    }
    if (f)
        fclose(f);
    return value;
}

int64_t hd__train_memory_available(void)
{
    int64_t left = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    int64_t limit = read_number("/sys/fs/cgroup/memory.max", NULL),
            used = read_number("/sys/fs/cgroup/memory.current", NULL);
    if (limit > 0 && used >= 0)
        left = HD__MIN(left, limit - used);
    limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL);
    used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL);
    if (limit > 0 && used >= 0)
        left = HD__MIN(left, limit - used);
    return left;
}

int32_t hd__train_check_memory(const struct hd__compiled *compiled, int32_t local_ranks, struct hd_error *err)
{
    int64_t left = hd__train_memory_available(), need = 0;
    char a[32], b[32], c[32];
    if (!(compiled->device_choice.component->ops.device.caps & HD_DEVICE_HOST_MEMORY))
        return HD_OK; /* the device says what it has */
    for (int32_t s = 0; s < compiled->n_stages; s++)
        need = HD__MAX(need, compiled->stage[s]->arena_bytes);
    if (left <= 0 || need * local_ranks <= left)
        return HD_OK;
    hd__bytes_text((uint64_t)left, c);
    if (local_ranks == 1)
        return hd_fail(err, HD_E_NOMEM,
                       "does not fit: the arena takes %s, and %s are free: use a smaller micro_batch or model",
                       hd__bytes_text((uint64_t)need, a), c);
    return hd_fail(err, HD_E_NOMEM,
                   "does not fit: the arena of a rank takes %s, %d ranks here take %s, and %s are free: use a smaller "
                   "micro_batch, a higher zero stage, or fewer ranks on this machine",
                   hd__bytes_text((uint64_t)need, a), local_ranks, hd__bytes_text((uint64_t)(need * local_ranks), b),
                   c);
}
