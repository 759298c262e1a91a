/* Metrics of a run: their start, and a row of numbers of all ranks for each logged step. */
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/version.h" /* from meson */
#include "runtime/cpu/share.h"
#include "service/metrics/watch.h"
#include "service/train/data/data_files.h"
#include "service/train/loop/internal.h"
#include "service/train/train.h"

static json_t *mesh_json(const struct hd__mesh *mesh)
{
    json_t *o = json_object();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        json_object_set_new(o, hd__axis_name(a), json_integer(mesh->size[a]));
    return o;
}

int32_t hd__loop_open_sink(struct hd__train_loop *l, struct hd__metrics *metrics, const struct hd__chosen *chosen,
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
    for (uint64_t i = 0; i < sources->count; i++)
        if (hd__same_file(metrics, sources->at[i].path))
            return hd_fail(err, HD_E_INVALID, "metrics.jsonl: %s is a file of the job's data: name another", metrics);
    return HD_OK;
}

/* A sink would write into heddle's own file. */
static int32_t refuse_sinks_file(struct hd__job *job, struct hd_error *err)
{
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        if (!strncmp(v->path, "metrics.sinks.", 14) && json_is_string(v->json) &&
            hd__same_path(json_string_value(v->json), job->metrics_jsonl))
            return hd__job_fail(job, v->path, err,
                                "%s: %s is heddle's own file (metrics.jsonl), which has these metrics: name another",
                                v->path, job->metrics_jsonl);
    }
    return HD_OK;
}

int32_t hd__train_check_metrics(struct hd__job *job, struct hd_error *err)
{
    if (refuse_sinks_file(job, err))
        return err->code;
    int32_t rc = refuse_data_file(job->metrics_jsonl, &job->train, err);
    rc = rc ? rc : refuse_data_file(job->metrics_jsonl, &job->val, err);
    rc = rc ? rc : refuse_data_file(job->metrics_jsonl, &job->test, err);
    rc = rc ? rc : hd__metrics_check(job->metrics_jsonl, err);
    return rc ? hd__job_locate_error(job, "metrics.jsonl", err) : HD_OK;
}

static struct hd__watch_config watch_config(const struct hd__job *job)
{
    return (struct hd__watch_config){.loss_spike = job->watch.loss_spike,
                                     .grad_norm = job->watch.grad_norm,
                                     .throughput = job->watch.throughput,
                                     .straggler = job->watch.straggler,
                                     .data_wait = job->watch.data_wait,
                                     .exposed_comm = job->watch.exposed_comm,
                                     .utilisation = job->watch.utilisation,
                                     .memory = job->watch.memory,
                                     .descriptors = job->watch.descriptors,
                                     .command = job->watch.command};
}

/* Why a rule that the job asks for raises no alarm, or one after another; NULL: nothing speaks against it. */
static const char *watch_objection(const struct hd__job *job, int32_t rule, double limit, char rows_text[128])
{
    enum { ONE_RANK = 1, ONE_STAGE = 2, PART = 4, EXCESS = 8 };
    static const struct {
        int64_t rows;
        int traits;
    } of[HD__WATCH_RULE_COUNT] = {
        [HD__WATCH_LOSS_SPIKE] = {HD__WATCH_LEAST, EXCESS},
        [HD__WATCH_GRAD_NORM] = {HD__WATCH_LEAST, EXCESS},
        [HD__WATCH_THROUGHPUT] = {HD__WATCH_LEAST + HD__WATCH_RECENT - 1, PART},
        [HD__WATCH_STRAGGLER] = {HD__WATCH_FIRST - 1, ONE_RANK | ONE_STAGE},
        [HD__WATCH_DATA_WAIT] = {HD__WATCH_LEAST - 1, PART},
        [HD__WATCH_EXPOSED_COMM] = {HD__WATCH_LEAST - 1, ONE_RANK | PART},
        [HD__WATCH_UTILISATION] = {HD__WATCH_LEAST - 1, 0},
        [HD__WATCH_MEMORY] = {HD__WATCH_ROWS - 1, 0},
        [HD__WATCH_DESCRIPTORS] = {HD__WATCH_ROWS - 1, 0},
    };
    int64_t rows = job->steps / job->metrics_every; /* 0 steps: of epochs, not known yet */
    if (of[rule].traits & ONE_RANK && job->ranks == 1)
        return "raises no alarm on one rank: it is about several";
    if (of[rule].traits & ONE_STAGE && job->ranks == job->mesh[HD_AXIS_PP])
        return "raises no alarm, because ranks of one pipeline stage are compared, and here each has a stage of its "
               "own";
    if (of[rule].traits & PART && limit >= 1)
        return "raises no alarm, because the fraction that it watches is never above 1: set it below 1, or 0 for no "
               "alarm";
    if (of[rule].traits & EXCESS && limit <= 1)
        return "is 1 or less: ordinary steps are beyond that, too; say a larger number, or 0 for no alarm";
    if (rule == HD__WATCH_UTILISATION && limit >= 1)
        return "is 1: no step is without any wait, so each is below it; say a smaller part, or 0 for no alarm";
    if (!job->steps || rows > of[rule].rows)
        return NULL;
    snprintf(rows_text, 128,
             "raises no alarm before %" PRId64 " rows are logged, and this run logs %" PRId64
             ": lower metrics.every, or leave it out",
             of[rule].rows + 1, rows);
    return rows_text;
}

/* A first word without the shell's signs is a path, or a name that the shell looks up as it will for an alarm. */
static void warn_command(struct hd__job *job, const char *command)
{
    size_t length = strcspn(command, " \t;|&<>()$`\"'*?~\\#={}[]\n");
    char *word = hd__format("%.*s", (int)length, command), *look = hd__format("command -v %s >/dev/null", word);
    int is_path = strchr(word, '/') != NULL, is_plain = length && (!command[length] || strchr(" \t", command[length]));
    if (is_plain && (is_path ? access(word, X_OK) : system(look)))
        hd__log(HD_LOG_WARN, NULL, "%s: watch.command: %s: %s", hd__job_where(job, "watch.command"), word,
                is_path ? strerror(errno) : "no such command: name one that PATH has, or write its path");
    free(look);
    free(word);
}

void hd__train_watch_warn(struct hd__job *job)
{
    const struct hd__watch_config config = watch_config(job);
    int any = job->watch.replicas_every || job->watch.rerun_every;
    for (int32_t rule = 0; rule < HD__WATCH_RULE_COUNT; rule++) {
        double limit = hd__watch_limit(&config, rule);
        char key[64], text[128];
        snprintf(key, sizeof key, "watch.%s", hd__watch_rule_name(rule));
        const struct hd__job_value *value = hd__job_value_get(job, key);
        any |= limit > 0;
        if (limit <= 0 || !hd__train_is_asked(value) || (value->needs && job->ranks == 1)) /* a note says it */
            continue;
        const char *why = watch_objection(job, rule, limit, text);
        if (why)
            hd__log(HD_LOG_WARN, NULL, "%s: %s %s", value->origin, key, why);
    }
    if (config.command)
        warn_command(job, config.command);
    if (config.command && !any)
        hd__log(HD_LOG_WARN, NULL, "%s: watch.command has no effect, because all rules are 0",
                hd__job_where(job, "watch.command"));
}

double hd__loop_device_peak(const struct hd__train_loop *l)
{
    struct hd__launch_progress *p = l->s.env->progress;
    double peak = p ? p->peak_flops : 0;
    if (peak <= 0)
        peak = hd__exec_peak_flops(l->s.exec);
    if (p)
        p->peak_flops = peak;
    return peak;
}

/* Rank 0's machine: two runs of one job may differ by this alone. Threads are those that device cpu takes. */
static json_t *machine_json(const struct hd__train_loop *l)
{
    const struct hd__job_value *asked = hd__job_value_get(l->job, "device.threads");
    json_int_t threads = asked ? json_integer_value(asked->json) : 0;
    char name[96];
    hd__cpu_name(name);
    return json_pack("{s:s,s:I,s:s}", "processor", hd__printable(name), "threads",
                     threads ? threads : (json_int_t)hd__cpu_share_of_rank(l->s.env->local_size), "heddle",
                     HD__VERSION " (" HD__BUILD ")");
}

int32_t hd__loop_open_metrics(struct hd__train_loop *l, const struct hd__compiled *c, struct hd_error *err)
{
    json_t *plan = json_pack("{s:I,s:I,s:I,s:f}", "arena_bytes", (json_int_t)l->p->arena_bytes, "persistent_bytes",
                             (json_int_t)l->p->persistent_bytes, "temporary_bytes", (json_int_t)l->p->temp_bytes,
                             "flops_per_token", hd__compiled_flops_per_token(c));
    if (hd__loop_plan())
        json_object_update_new(
            plan, json_pack("{s:f,s:s}", "step_s", hd__loop_plan()->step_s, "machine", hd__loop_plan()->machine));
    json_t *start = json_pack("{s:s,s:s,s:o,s:o,s:I,s:o}", "event", l->progress.step ? "resume" : "start", "run",
                              l->run, "job", hd__job_json(l->job), "mesh", mesh_json(&c->mesh), "parameters",
                              (json_int_t)hd__compiled_parameter_count(c), "plan", plan);
    struct hd__train_marks files;
    if (l->checkpointer)
        files = *hd__train_checkpointer_marks(l->checkpointer);
    else
        hd__train_marks_make(c, &files);
    json_object_set_new(start, "files_of", hd__train_marks_json(&files));
    json_object_set_new(start, "machine", machine_json(l));
    json_object_set_new(start, "peak_flops", json_real(hd__loop_device_peak(l)));
    if (l->progress.step)
        json_object_set_new(start, "from_step", json_integer(l->progress.step));
    int32_t rc = hd__metrics_open(l->job->metrics_jsonl, l->progress.step, start, &l->metrics, err);
    if (rc)
        hd__job_locate_error(l->job, "metrics.jsonl", err);
    const struct hd__watch_config watch = watch_config(l->job);
    if (!rc)
        hd__metrics_set_watch(l->metrics, &watch);
    for (uint64_t k = 0; k < l->job->n_val_sets && !rc; k++)
        hd__metrics_add_set(l->metrics, l->job->val_sets[k].name);
    for (uint32_t i = 0; i < c->selection->sinks.count && !rc; i++)
        rc = hd__loop_open_sink(l, l->metrics, &c->selection->sinks.at[i], err);
    if (!rc && l->checkpointer && !strcmp(l->job->resume, "auto"))
        hd__train_checkpointer_warn_elsewhere(l->job, l->progress.step);
    if (!rc && (rc = hd__metrics_begin(l->metrics, err)))
        hd__job_locate_error(l->job, "metrics.jsonl", err);
    json_decref(start);
    l->peak_flops = hd__loop_device_peak(l) * c->mesh.ranks;
    return rc;
}

_Static_assert((int)HD__RANK_NUMBERS <= (int)HD__GATHERED, "a rank has more numbers than are gathered");

void hd__loop_add_rank_step(struct hd__train_loop *l)
{
    double by_axis[HD_AXIS_COUNT];
    l->comm_s = hd__exec_comm_seconds(l->s.exec, by_axis);
    l->data_wait_s = hd__train_feed_waited(l->s.train_feed);
    l->rank_sums[HD__RANK_COMM_WAIT] += l->comm_s;
    l->rank_sums[HD__RANK_DATA_WAIT] += l->data_wait_s;
    l->rank_sums[HD__RANK_COMPUTE] += HD__MAX(0, l->step_s - l->comm_s - l->data_wait_s);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        l->rank_sums[HD__RANK_COMM_AXIS + a] += by_axis[a];
    l->summed_steps++;
}

/* Before a row: the means of each rank's steps since the last one; this rank's alone where an evaluation failed, or
 * another rank is lost. */
static int32_t gather_ranks(struct hd__train_loop *l, int32_t failed, struct hd_error *err)
{
    double mine[HD__GATHERED] = {0};
    for (int32_t k = 0; k < HD__RANK_NUMBERS; k++)
        mine[k] = l->rank_sums[k] / (double)HD__MAX(1, l->summed_steps);
    mine[HD__RANK_RSS] = (double)hd__metrics_resident_bytes();
    mine[HD__RANK_FILES] = (double)hd__metrics_open_files();
    mine[HD__RANK_STAGE] = l->p->stage;
    int32_t rc = failed ? failed : hd__exec_all_gather(l->s.exec, mine, l->ranks, err);
    l->ranks_known = rc ? 1 : l->s.env->size;
    if (rc)
        memcpy(l->ranks, mine, sizeof mine);
    return rc;
}

static double mean_of_ranks(const struct hd__train_loop *l, int32_t number)
{
    double sum = 0;
    for (int32_t r = 0; r < l->ranks_known; r++)
        sum += l->ranks[r * HD__GATHERED + number];
    return sum / l->ranks_known;
}

static void log_step(const struct hd__train_loop *l)
{
    double tokens = (double)(l->job->batch * l->job->seq_len);
    struct hd__metrics_row row = {
        .step = l->progress.step,
        .steps = l->last_step,
        .loss = l->loss,
        .val_loss = l->val_loss,
        .val_losses = l->val_losses,
        .epoch = (double)l->progress.sequence / (double)hd__data_sequences(hd__train_feed_data(l->s.train_feed)),
        .grad_norm = l->norm,
        .loss_scale = l->progress.scaler.scaling != HD__LOSS_SCALE_NONE ? l->scale : 0,
        .skipped = l->progress.scaler.skipped,
        .lr = l->lr,
        .tokens = l->progress.tokens,
        .tokens_per_s = tokens / l->step_s,
        .step_s = l->step_s,
        .comm_s = l->comm_s,
        .data_wait_s = l->data_wait_s,
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
int32_t hd__loop_log_row(struct hd__train_loop *l, int32_t failed, struct hd_error *err)
{
    int32_t rc = gather_ranks(l, failed, err);
    if (l->is_leader)
        log_step(l);
    memset(l->rank_sums, 0, sizeof l->rank_sums);
    l->summed_steps = 0;
    return rc;
}
