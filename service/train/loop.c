/* The loop: begin, micro-batches, update, agree; evaluate, save, report. */
#include "core/base/file.h"
#include "service/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/comm/flight_recorder.h"
#include "runtime/exec/profile.h"
#include "runtime/rendezvous/liveness.h"
#include "service/metrics/metrics.h"
#include "service/train/checkpointer.h"
#include "service/train/session.h"

struct loop {
    struct hd__session s;
    struct hd__job *job;
    struct hd_program *p;
    struct hd__progress at;
    struct hd__keeper *keeper; /* NULL where nothing is saved */
    int64_t saved;             /* step of the newest checkpoint of this run, -1 if there is none */
    double loss, norm, lr, scale, val_loss; /* scale: of the loss, in this step */
    double step_s, comm_s, peak; /* peak: FLOP/s of all ranks' devices */
    int64_t run, profiled;       /* steps of this run; those that are in the profile */
    double profiled_s;
    struct hd__metrics *metrics; /* of rank 0 */
    int leader, failed_meeting; /* failed_meeting: with the others, before the first step */
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

/* A file that is mapped ended: the word of the kernel is "Bus error". Returns into the fault, which ends the process. */
static char bus_error[160];

static void on_bus_error(int sig)
{
    ssize_t said = write(STDERR_FILENO, bus_error, strlen(bus_error));
    signal(sig, SIG_DFL);
    (void)said;
}

static void catch_bus_errors(const char *prefix)
{
    struct sigaction action = {.sa_handler = on_bus_error};
    snprintf(bus_error, sizeof bus_error, "%serror: a mapped file became shorter while it was read, or its disk failed: most likely data.train\n",
             prefix);
    sigaction(SIGBUS, &action, NULL);
}

static void catch_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* from a launcher that keeps the others to itself */
    signal(SIGPIPE, SIG_IGN); /* neither a dead peer's socket nor a log that nobody reads ends a job without a word */
}

/* ---- one step */

static int32_t set_hyper(struct loop *l, struct hd_error *err)
{
    const hd_tensor set[] = {l->p->hyper, l->p->scale};
    double *hyper = hd__exec_data(l->s.exec, l->p->hyper);
    l->lr = hd__lr(&l->job->schedule, l->at.step + 1, l->job->steps);
    hyper[HD_HYPER_LR] = l->lr;
    hyper[HD_HYPER_STEP] = (double)(l->at.step + 1 - l->at.scaler.skipped);
    hyper[HD_HYPER_INV_SCALE] = 1 / l->at.scaler.scale;
    if (l->p->scale)
        *(double *)hd__exec_data(l->s.exec, l->p->scale) = l->at.scaler.scale;
    hyper[HD_HYPER_SKIP] = 0;
    return hd__exec_push(l->s.exec, set, l->p->scale ? 2 : 1, err);
}

/* Runs the step's data again and looks where the first bad number comes from. The loss is that of all ranks; a norm may be
 * of this rank's replica alone, and then the others do not come along. */
static int32_t find_bad(struct loop *l, char where[160], struct hd_error *err)
{
    int32_t found;
    if (l->p->apart && isfinite(l->loss)) {
        snprintf(where, 160, "a gradient of this replica, which trains apart");
        return HD_OK;
    }
    found = hd__feed_seek(l->s.train, l->at.sequence, err);
    return found ? found : hd__exec_find_bad(l->s.exec, l->at.step + 1, where, err);
}

static const char *remedy(const struct loop *l)
{
    if (!isfinite(l->loss) || l->at.scaler.scaling != HD__LOSS_SCALE_STATIC)
        return "Lower optimizer.lr, set optimizer.clip, or look at the data of this step";
    return l->p->apart ? "Lower precision.loss_scale" : "Lower precision.loss_scale, or say dynamic";
}

/* Only where the norm is not finite the update left the weights as they were; nothing is saved either way. */
static int32_t diverged(struct loop *l, struct hd_error *err)
{
    char where[160] = "";
    int32_t found = find_bad(l, where, err);
    if (found < 0)
        return found;
    /* Where another rank found it, that one says so. */
    return hd_fail(err, where[0] || l->s.place->size == 1 ? HD_E_INVALID : HD_E_CANCELLED, "step %" PRId64 ": the loss is %g and the gradient norm %g; the first bad number: %s. "
                   "Nothing of this step is saved. %s", l->at.step + 1, l->loss, l->norm, where[0] ? where : "on another rank", remedy(l));
}

static int32_t one_step(struct loop *l, struct hd_error *err)
{
    const hd_tensor scalars[] = {l->p->loss_sum, l->p->norm2};
    double value[2];
    int32_t rc = set_hyper(l, err);
    if (!rc)
        rc = hd__exec_step(l->s.exec, l->at.step + 1, err);
    if (!rc)
        rc = hd__session_scalars(&l->s, scalars, 2, value, err);
    if (rc)
        return rc;
    l->loss = value[0];
    l->norm = sqrt(value[1]) / l->at.scaler.scale;
    l->scale = l->at.scaler.scale;
    if (!hd__scaler_update(&l->at.scaler, !isfinite(l->norm)) || (!isfinite(l->loss) && isfinite(l->norm)))
        return diverged(l, err);
    l->at.step++;
    l->at.sequence += l->job->batch;
    l->at.tokens += l->job->batch * l->job->seq_len;
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

static int32_t open_metrics(struct loop *l, const struct hd__compiled *c, struct hd_error *err)
{
    json_t *plan = json_pack("{s:I,s:I,s:I,s:f}", "arena_bytes", (json_int_t)l->p->arena_bytes, "persistent_bytes",
                             (json_int_t)l->p->persistent_bytes, "temporary_bytes", (json_int_t)l->p->temp_bytes, "flops_per_token",
                             hd__flops_per_token(c));
    json_t *start = json_pack("{s:s,s:o,s:o,s:I,s:o}", "event", l->at.step ? "resume" : "start", "job", hd__job_json(l->job), "mesh",
                              mesh_json(&c->mesh), "parameters", (json_int_t)hd__parameter_count(c), "plan", plan);
    int32_t rc;
    if (l->at.step)
        json_object_set_new(start, "from_step", json_integer(l->at.step));
    rc = hd__metrics_open(l->job->metrics_jsonl, l->at.step, start, &l->metrics, err);
    if (rc)
        hd__job_blame(l->job, "metrics.jsonl", err);
    if (!rc && l->job->metrics_tensorboard && (rc = hd__metrics_tensorboard(l->metrics, l->job->metrics_tensorboard, l->at.step, err)))
        hd__job_blame(l->job, "metrics.tensorboard", err);
    json_decref(start);
    l->peak = hd__exec_peak_flops(l->s.exec) * c->mesh.ranks;
    return rc;
}

static void say(const struct loop *l)
{
    double tokens = (double)(l->job->batch * l->job->seq_len);
    struct hd__metrics_row row = {
        .step = l->at.step,
        .steps = l->job->steps,
        .loss = l->loss,
        .val_loss = l->val_loss,
        .grad_norm = l->norm,
        .loss_scale = l->p->scale ? l->scale : 0,
        .skipped = l->at.scaler.skipped,
        .lr = l->lr,
        .tokens = l->at.tokens,
        .tokens_per_s = tokens / l->step_s,
        .step_s = l->step_s,
        .comm_s = l->comm_s,
        .mfu = l->peak > 0 ? hd__flops_per_token(l->s.compiled) * tokens / l->step_s / l->peak : 0,
        .arena_bytes = l->p->arena_bytes,
        .rss_bytes = hd__resident_bytes(),
    };
    hd__metrics_step(l->metrics, &row);
}

/* ---- the profile: the first steps are left out, where there are others */

enum { PROFILE_AFTER = 2 };

/* The first rank of each pipeline stage. */
static int leads_stage(const struct loop *l)
{
    int32_t coord[HD_AXIS_COUNT], others = 0;
    hd__mesh_coord(&l->p->mesh, l->s.place->rank, coord);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        others |= a != HD_AXIS_PP && coord[a];
    return !others;
}

static void profile_begin(struct loop *l)
{
    int wanted = (l->leader && l->job->metrics_profile) || (l->job->metrics_blocks && leads_stage(l));
    if (wanted && (l->run >= PROFILE_AFTER || l->job->steps - l->at.step + l->run <= PROFILE_AFTER))
        hd__exec_profile(l->s.exec, 1);
    l->run++;
}

static void profile_end(struct loop *l)
{
    if (!hd__exec_profiled(l->s.exec))
        return;
    hd__exec_profile(l->s.exec, 0);
    l->profiled++;
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
    int why = 0;
    if (!l->job->metrics_blocks || !leads_stage(l) || l->at.step >= l->job->steps)
        return HD_OK;
    add_blocks_path(l, &path);
    why = hd__make_folders(path.at);
    why = why ? why : hd__try_file(path.at);
    if (why)
        hd__job_fail(l->job, "metrics.blocks", err, "metrics.blocks: %s: %s", path.at, strerror(why));
    hd__text_free(&path);
    return why ? (err->code = HD_E_IO) : HD_OK;
}

static void write_blocks(const struct loop *l)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text path = {0};
    add_blocks_path(l, &path);
    if (hd__profile_blocks(hd__exec_profiled(l->s.exec), l->profiled * l->job->accumulation, path.at, &err))
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
    hd__text_free(&path);
}

static void profile_say(const struct loop *l)
{
    struct hd__text text = {0};
    if (!l->profiled)
        return;
    if (l->job->metrics_blocks)
        write_blocks(l);
    if (!l->job->metrics_profile || !l->leader)
        return;
    hd__profile_text(hd__exec_profiled(l->s.exec), l->profiled, l->profiled_s, hd__exec_peak_flops(l->s.exec), &text);
    fputs(text.at, stdout);
    hd__text_free(&text);
}

static int32_t evaluate(struct loop *l, struct hd_error *err)
{
    return hd__session_evaluate(&l->s, l->job->eval_batches, &l->val_loss, err);
}

static int32_t save(struct loop *l, struct hd_error *err)
{
    l->saved = l->at.step;
    return hd__keeper_save(l->keeper, &l->at, err);
}

static int32_t steps(struct loop *l, int *stopped, struct hd_error *err)
{
    int32_t rc = HD_OK, agreed = 0;
    while (!rc && !agreed && l->at.step < l->job->steps) {
        double start = hd__now();
        int evaluated;
        __atomic_store_n(&hd__exec_flight(l->s.exec)->step, l->at.step + 1, __ATOMIC_RELAXED);
        profile_begin(l);
        hd__exec_comm_seconds(l->s.exec); /* what an evaluation waited for is not this step's */
        rc = one_step(l, err);
        l->step_s = hd__now() - start;
        profile_end(l);
        l->comm_s = hd__exec_comm_seconds(l->s.exec);
        l->val_loss = NAN;
        evaluated = !rc && l->job->eval_every && l->at.step % l->job->eval_every == 0;
        if (evaluated)
            rc = evaluate(l, err);
        if (!rc && l->leader && (evaluated || l->at.step % l->job->metrics_every == 0 || l->at.step == l->job->steps))
            say(l);
        if (!rc)
            rc = hd__exec_agree(l->s.exec, stop_signal, &agreed, err);
        if (!rc && l->keeper && l->job->checkpoint_every && l->at.step % l->job->checkpoint_every == 0)
            rc = save(l, err);
    }
    *stopped = agreed;
    profile_say(l);
    if (!rc && l->keeper && l->saved != l->at.step)
        rc = save(l, err);
    return rc ? rc : hd__keeper_finish(l->keeper, err);
}

/* ---- a run */

static int32_t meet(struct loop *l, struct hd_error *err)
{
    int32_t rc = hd__exec_meet(l->s.exec, err);
    l->failed_meeting = rc != HD_OK;
    return rc;
}

/* Rank 0 alone looks whether a checkpoint can be saved: where it is refused the others have not begun to load one, and end in
 * silence. */
static int32_t load(struct loop *l, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!l->keeper)
        return HD_OK;
    hd__exec_does(l->s.exec, "looking whether a checkpoint can be saved");
    if (l->leader)
        rc = hd__keeper_try(l->keeper, err);
    if (!rc)
        rc = meet(l, err);
    hd__exec_does(l->s.exec, "loading a checkpoint");
    if (!rc)
        rc = hd__keeper_load(l->keeper, l->job->resume, NULL, &l->at, err);
    if (rc != HD_E_NOTFOUND)
        return rc;
    hd__job_fail(l->job, "checkpoint.resume", err, "checkpoint.resume: %s", err->message);
    return err->code = rc;
}

static int32_t begin(struct loop *l, struct hd_error *err)
{
    int32_t rc = HD_OK;
    hd__exec_does(l->s.exec, "making parameters");
    if (!l->at.step)
        rc = hd__session_initialise(&l->s, err);
    l->saved = l->at.step ? l->at.step : -1;
    hd__exec_does(l->s.exec, "finding its place in the data");
    return rc ? rc : hd__feed_seek(l->s.train, l->at.sequence, err);
}

/* Rank 0 alone opens the metrics: as with a checkpoint. */
static int32_t open_files(struct loop *l, struct hd__compiled *compiled, struct hd_error *err)
{
    int32_t rc = check_blocks(l, err);
    hd__exec_does(l->s.exec, "opening the metrics");
    if (!rc && l->leader && l->at.step < l->job->steps)
        rc = open_metrics(l, compiled, err);
    if (!rc)
        rc = meet(l, err);
    hd__exec_does(l->s.exec, "between sections");
    return rc;
}

static int32_t prepare(struct loop *l, const struct hd__place_in_job *place, struct hd__compiled *compiled, struct hd_error *err)
{
    int32_t rc = hd__session_open(&l->s, compiled, place, err);
    hd__scaler_start(&l->at.scaler, l->job);
    if (!rc)
        rc = hd__feed_open(compiled, place->rank, 0, &l->s.train, err);
    if (!rc)
        rc = hd__keeper_open(&l->s, NULL, &l->keeper, err);
    if (!rc)
        rc = load(l, err);
    if (!rc)
        rc = begin(l, err);
    if (rc)
        return rc;
    l->s.feeding = l->s.train;
    l->p = hd__exec_program(l->s.exec);
    return open_files(l, compiled, err);
}

/* "rank 2: "; a rank's words begin with it where another has them. */
static size_t name_of(int32_t rank, char name[24])
{
    return (size_t)snprintf(name, 24, "rank %d: ", rank);
}

static int of_another(const struct loop *l, const struct hd_error *err)
{
    char name[24];
    return err->code == HD_E_PEER || err->code == HD_E_CANCELLED ||
           (err->peer >= 0 && err->peer != l->s.place->rank && !strncmp(err->message, name, name_of(err->peer, name)));
}

/* A transport that another rank aborted may know a moment before the rendezvous says who it was. */
static void wait_for_word(const struct loop *l, const struct hd_error *err)
{
    double until = hd__now() + 0.5;
    while (of_another(l, err) && !hd__live_dead(hd__store_live(l->s.store), NULL, NULL) && hd__now() < until)
        usleep(1000);
}

/* Who ended the job, where it was not this rank, in a few words: the report has all of them. "rank 2 died (silent for 2.0 s)",
 * "rank 2 gave up". 0: this rank has something of its own to say. */
static int says_another(const struct loop *l, const struct hd_error *err, struct hd_error *end)
{
    int32_t rank = -1, code = hd__live_dead(hd__store_live(l->s.store), &rank, end);
    char name[24];
    if (code == HD_OK || rank == l->s.place->rank || (!of_another(l, err) && !strstr(end->message, err->message)))
        return 0;
    if (!strncmp(end->message, name, name_of(rank, name)))
        snprintf(end->message, sizeof end->message, "rank %d gave up", rank);
    else
        end->message[strcspn(end->message, ":")] = '\0';
    return 1;
}

/* One rank says what happened, the others whose failure it is. */
static void fail(struct loop *l, const struct hd_error *err)
{
    struct hd_error end = HD_ERROR_INIT;
    if (l->s.store) {
        wait_for_word(l, err);
        hd__session_fail(&l->s, err->code == HD_E_INVALID ? HD_E_INTERNAL : err->code, err->message); /* no refusal: see below */
    }
    if (l->s.store && says_another(l, err, &end))
        hd__log(HD_LOG_ERROR, NULL, "%s, so this rank ends", end.message);
    else
        hd__log(HD_LOG_ERROR, NULL, "%s%s%s", err->message, err->where[0] ? "; at " : "", err->where);
}

/* Before the first step: was the job refused, by this rank or another? Else it failed, as a step may: who died, or did not do
 * what the others did when they met. */
static int is_refused(const struct loop *l, const struct hd_error *err)
{
    struct hd__live *live = l->s.store ? hd__store_live(l->s.store) : NULL;
    int32_t rank = -1;
    if (live)
        wait_for_word(l, err);
    if (live && hd__live_dead(live, &rank, NULL) && rank != l->s.place->rank)
        return hd__live_fault(live) == HD_E_INVALID;
    return !l->failed_meeting && err->code != HD_E_TIMEOUT && err->code != HD_E_PEER && err->code != HD_E_CANCELLED;
}

/* Where another refused the job it has said why, and this rank is silent. */
static void refuse(struct loop *l, const struct hd_error *err)
{
    if (!hd__session_said(&l->s, err))
        hd__log(HD_LOG_ERROR, NULL, "%s", err->message);
    hd__session_fail(&l->s, HD_E_INVALID, err->message);
}

int hd__train(struct hd__compiled *compiled, const struct hd__place_in_job *place)
{
    struct hd_error err = HD_ERROR_INIT;
    struct loop l = {.job = compiled->job, .leader = place->rank == 0};
    int stopped = 0, prepared, code;
    int32_t rc;
    char prefix[32] = "";
    if (place->size > 1) {
        snprintf(prefix, sizeof prefix, "[rank %d] ", place->rank);
        hd__log_setup(HD_LOG_INFO, prefix);
    }
    catch_bus_errors(prefix);
    catch_signals(on_early_signal);
    rc = prepare(&l, place, compiled, &err);
    catch_signals(on_signal);
    prepared = !rc;
    if (!rc && l.at.step >= l.job->steps && l.leader)
        printf("the job is finished: its checkpoint is at step %" PRId64 " of %" PRId64 "; set job.steps higher to go on\n", l.at.step,
               l.job->steps);
    if (!rc)
        rc = steps(&l, &stopped, &err);
    code = !rc ? 0 : prepared || !is_refused(&l, &err) ? 1 : 2;
    if (rc)
        (code == 1 ? fail : refuse)(&l, &err);
    if (stopped && l.leader)
        fprintf(stderr, "stopped by signal %d after step %" PRId64 "; %s\n", stopped, l.at.step,
                l.keeper ? "the state is saved: the same command goes on" : "no checkpoint section, so nothing is saved");
    hd__metrics_close(l.metrics);
    hd__keeper_close(l.keeper);
    hd__session_close(&l.s, rc, err.message);
    return code ? code : stopped ? 3 : 0;
}

/* ---- does it fit? */

static int64_t number_in(const char *path, const char *key)
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

int64_t hd__memory_left(void)
{
    int64_t left = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", NULL), used = number_in("/sys/fs/cgroup/memory.current", NULL);
    if (limit > 0 && used >= 0)
        left = HD__MIN(left, limit - used);
    limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL);
    used = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL);
    if (limit > 0 && used >= 0)
        left = HD__MIN(left, limit - used);
    return left;
}

int32_t hd__train_fits(const struct hd__compiled *compiled, int32_t local_ranks, struct hd_error *err)
{
    int64_t left = hd__memory_left(), need = 0;
    char a[32], b[32], c[32];
    if (!(compiled->device_choice.component->ops.device.caps & HD_DEVICE_HOST_MEMORY))
        return HD_OK; /* the device says what it has */
    for (int32_t s = 0; s < compiled->n_stages; s++)
        need = HD__MAX(need, compiled->stage[s]->arena_bytes);
    if (left <= 0 || need * local_ranks <= left)
        return HD_OK;
    hd__bytes_text((uint64_t)left, c);
    if (local_ranks == 1)
        return hd_fail(err, HD_E_NOMEM, "does not fit: the arena takes %s, and %s are free: use a smaller micro_batch or model",
                       hd__bytes_text((uint64_t)need, a), c);
    return hd_fail(err, HD_E_NOMEM, "does not fit: the arena of a rank takes %s, %d ranks here take %s, and %s are free: use a smaller "
                   "micro_batch, a higher zero stage, or fewer ranks on this machine", hd__bytes_text((uint64_t)need, a), local_ranks,
                   hd__bytes_text((uint64_t)(need * local_ranks), b), c);
}
