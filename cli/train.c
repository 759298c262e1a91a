/* heddle train: trains a job, in processes of its own or as one rank of another launcher's. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "analysis/tp_span_warning.h"
#include "cli/ranks.h"
#include "core/base/file.h"
#include "runtime/exec/device.h"
#include "service/launch/external.h"
#include "service/launch/launch.h"
#include "service/report/report.h"
#include "service/report/speaker.h"
#include "service/train/batch_feed.h"
#include "service/train/checkpointer.h"
#include "service/train/corpus.h"
#include "service/train/trace.h"
#include "service/train/train.h"

static int train_rank(void *user, const struct hd__launch_env *env)
{
    return hd__train(user, env);
}

/* Refuses a model that is not to be trained, and weights that are not its own. */
static int32_t check_model(const struct hd__compiled *c, int32_t local_rank, struct hd_error *err)
{
    if (c->info.untrainable) {
        hd_fail(err, HD_E_UNSUPPORTED, "%s", c->info.untrainable);
        return hd__compile_locate_error(c->job, "model", err);
    }
    return local_rank ? HD_OK : hd__cli_check_from(c, err);
}

/* Outputs of a run: can they be written? And what it goes on from: is it there? */
static int32_t check_outputs(const struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    const struct {
        const char *key, *path, *file;
    } rows[] = {
        {"metrics.jsonl", job->metrics_jsonl, ""},
        {"metrics.blocks", job->metrics_blocks, ""},
        {"metrics.trace", job->trace.file, ""},
        {"checkpoint.dir", c->checkpoint_choice.component ? job->checkpoint_dir : NULL, "/step"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        if (rows[i].path && rows[i].path[0] == '~')
            return hd__job_fail(job, rows[i].key, err, "%s: %s: ~ is not expanded: write the whole path", rows[i].key,
                                rows[i].path);
        int why = rows[i].path ? hd__can_write(hd__arena_format(&job->arena, "%s%s", rows[i].path, rows[i].file)) : 0;
        if (why)
            return hd__job_fail(job, rows[i].key, err, "%s: %s: %s", rows[i].key, rows[i].path,
                                why == ENXIO ? "not a regular file but a FIFO or a socket" : strerror(why));
    }
    if (hd__train_check_metrics(job, err) || hd__train_trace_check(c, err))
        return err->code;
    return hd__train_checkpointer_check_resume(c, err);
}

/* Text is tokenized here where this process starts the ranks; ranks of another launcher meet first. *missing: there are
 * no tokens to look at yet. */
static int32_t check_data(struct hd__cli_job *loaded, int dry, int found, int32_t local_rank, struct hd_error *err)
{
    struct hd__compiled *c = loaded->compiled;
    int32_t missing = 0;
    int32_t rc = hd__train_corpus_prepare(c,
                                          dry && local_rank == 0 ? HD__CORPUS_SAY
                                          : found || dry         ? HD__CORPUS_LOOK
                                                                 : HD__CORPUS_MAKE,
                                          &missing, err);
    if (rc || missing)
        return rc;
    rc = hd__train_feed_check(c, HD__FEED_TRAIN, local_rank == 0, err);
    return rc || !loaded->job->eval_every ? rc : hd__train_feed_check_sets(c, local_rank == 0, err);
}

/* Before any process starts: whether the data is there, the plan fits, and all that will be opened can be. */
static int check_inputs(struct hd__cli_job *loaded, int dry, const struct hd__launch_env *env, int32_t local_ranks)
{
    struct hd__compiled *c = loaded->compiled;
    struct hd_error err = HD_ERROR_INIT;
    int32_t local_rank = env ? env->local_rank : 0;
    int32_t rc = hd__train_check_memory(c, local_ranks, &err);
    if (!rc)
        rc = hd__launch_check_files(local_ranks, &err);
    if (!rc)
        rc = check_model(c, local_rank, &err);
    if (!rc)
        rc = check_data(loaded, dry, env != NULL, local_rank, &err);
    if (!rc && (!env || env->rank == 0))
        rc = check_outputs(c, &err);
    if (!rc)
        rc = hd__exec_check_plugins(c, dry && local_rank == 0 ? local_ranks : 0, &err);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

static int print_config(struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    int code = hd__cli_compile_job(loaded); /* plugins parse their sections: then every value is known */
    if (code)
        return code;
    hd__cli_say_notes(loaded);
    hd__job_print(loaded->job, &text);
    hd__text_print(&text, stdout);
    return HD__EXIT_DONE;
}

static void print_ready(const struct hd__compiled *c)
{
    int64_t most = 0;
    char arena[32];
    for (int32_t s = 0; s < c->n_stages; s++)
        most = HD__MAX(most, c->stage[s]->arena_bytes);
    printf("ready: %d rank%s, arena %s a rank; nothing was started\n", c->mesh.ranks, c->mesh.ranks > 1 ? "s" : "",
           hd__bytes_text((uint64_t)most, arena));
}

static int start(struct hd__cli_job *loaded, int dry, int argc, char **argv)
{
    struct hd__launch_env env;
    const struct hd_comm_launcher *launcher; /* its ranks are this command again */
    struct hd_error err = HD_ERROR_INIT;
    int found, code;
    if (hd__launch_detect(&env, &found, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (found && env.size != loaded->compiled->mesh.ranks) {
        hd_fail(&err, HD_E_INVALID,
                "the launcher started %d ranks, but the job's mesh has %d: start as many, or change mesh", env.size,
                loaded->compiled->mesh.ranks);
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    if (found && env.rank == 0 && loaded->job->launch_ranks && loaded->job->launch_ranks != env.size)
        hd__log(HD_LOG_INFO, NULL,
                "%s: launch.ranks is %" PRId64 ", but RANK or its like says that a launcher started %d: as many train",
                hd__job_where(loaded->job, "launch.ranks"), loaded->job->launch_ranks, env.size);
    if (found && env.rank == 0)
        hd__warn_tp_span(loaded->compiled, env.local_size);
    if (found ? env.rank == 0 : !hd__cli_find_launcher(loaded, &launcher, &err) && !launcher)
        hd__cli_say_notes(loaded);
    code = check_inputs(loaded, dry, found ? &env : NULL, found ? env.local_size : loaded->compiled->mesh.ranks);
    if (!code && dry && (!found || env.rank == 0))
        print_ready(loaded->compiled);
    if (code || dry)
        return code;
    const struct hd__launch_policy policy = {.restarts = loaded->job->launch_restarts,
                                             .pause = loaded->job->launch_pause,
                                             .deadline = hd__launch_deadline(loaded->job->launch_time_limit)};
    return hd__cli_run_ranks(loaded, argc, argv, &policy, train_rank, loaded->compiled);
}

static int train(int argc, char **argv)
{
    int config = 0, dry = 0, code;
    const struct hd__cli_flag flags[] = {{"--print-config", NULL, &config}, {"--dry-run", NULL, &dry}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    code = hd__cli_job_arguments(&hd__command_train, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (code)
        return code;
    code = hd__cli_resolve_job(&arguments, hd__cli_launched_ranks(), &loaded);
    if (!code && config)
        code = print_config(&loaded);
    else if (!code && !(code = hd__cli_compile_job(&loaded)))
        code = start(&loaded, dry, argc, argv);
    hd__cli_unload_job(&loaded);
    return code;
}

/* Ranks that another launcher started on one machine see the same job and the same files: the first of them says what
 * is wrong. The others speak only where it went on without them. */
static int run(int argc, char **argv)
{
    struct hd__launch_env env;
    struct hd_error why = HD_ERROR_INIT;
    int found, known = !hd__launch_detect(&env, &found, &why), code;
    if (known && found && env.local_rank > 0)
        hd__speaker_defer();
    code = train(argc, argv);
    if (code && !known && found)
        hd__launch_report_refusal(&env, why.message);
    if (code && known && *hd__speaker_deferred() && hd__launch_report_refusal(&env, hd__speaker_deferred()))
        fprintf(stderr, "rank %d: %s\n", env.rank, hd__speaker_deferred());
    return code;
}

const struct hd__command hd__command_train = {
    .name = "train",
    .usage = "JOB [key=value ...] [--print-config] [--dry-run]",
    .summary = "train a model",
    .help = "Compiles the job into one step program per rank, starts launch.ranks processes on this machine\n"
            "(unless another launcher set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) and trains.\n\n"
            "  key=value         sets any key of the job file: optimizer.lr=1e-3 mesh.tp=2 strategies.zero.stage=1\n"
            "  --print-config    print the resolved job with the origin of each value, and stop\n"
            "  --dry-run         compile, look at the data and the memory, and stop\n",
    .example = "  heddle train examples/kjv.yaml job.steps=50 optimizer.lr=1e-3\n",
    .run = run,
};
