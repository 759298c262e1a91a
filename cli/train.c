/* heddle train: trains a job, in processes of its own or as one rank of another launcher's. */
#include "cli/train.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "analysis/plan/plan.h"
#include "analysis/tp_span_warning.h"
#include "cli/warnings/warnings.h"
#include "core/base/file.h"
#include "core/base/yaml_tree.h"
#include "runtime/cpu/parallel_for.h"
#include "runtime/cpu/share.h"
#include "runtime/exec/device.h"
#include "runtime/exec/profile.h"
#include "service/launch/external.h"
#include "service/launch/launch.h"
#include "service/report/report.h"
#include "service/report/speaker.h"
#include "service/train/checkpointer/checkpointer.h"
#include "service/train/data/batch_feed.h"
#include "service/train/data/corpus.h"
#include "service/train/data/data_files.h"
#include "service/train/data/frequencies.h"
#include "service/train/trace/trace.h"
#include "service/train/train.h"

/* A run for its trace has a result: all else that it prints is for standard error. */
static int train_rank(void *user, const struct hd__launch_env *env)
{
    struct hd__compiled *c = user;
    int kept = c->job->trace.ends ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0) : -1, code;
    fflush(stdout);
    if (kept >= 0)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    code = hd__train(c, env);
    int lost = fflush(stdout) || ferror(stdout);
    if (lost && kept < 0)
        hd__log(HD_LOG_WARN, NULL, "what it prints could not be written: %s; steps and checkpoints do not depend on it",
                strerror(errno));
    if (lost)
        clearerr(stdout);
    if (kept < 0)
        return code;
    dup2(kept, STDOUT_FILENO);
    close(kept);
    return code;
}

/* Refuses a model that is not to be trained, and weights that are not its own. */
static int32_t check_model(const struct hd__compiled *c, int32_t local_rank, struct hd_error *err)
{
    if (c->info.untrainable) {
        hd_fail(err, HD_E_UNSUPPORTED, "%s", c->info.untrainable);
        return hd__compile_locate_error(c->job, "model", err);
    }
    return local_rank ? HD_OK : hd__cli_check_from(c, 1, err);
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
        {"checkpoint.dir",
         c->checkpoint_choice.component && !strstr(job->checkpoint_dir, "://") ? job->checkpoint_dir : NULL, "/step"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        int why = rows[i].path ? hd__can_write(hd__arena_format(&job->arena, "%s%s", rows[i].path, rows[i].file)) : 0;
        if (why)
            return hd__job_fail(job, rows[i].key, err, "%s: %s: %s", rows[i].key, rows[i].path,
                                why == ENXIO ? "not a regular file but a FIFO or a socket" : strerror(why));
        for (size_t k = 0; rows[i].path && k < i; k++)
            if (rows[k].path && strncmp(rows[i].path, "/dev/", 5) != 0 && hd__same_path(rows[i].path, rows[k].path))
                return hd__job_fail(job, rows[i].key, err, "%s: %s is where %s writes: name another", rows[i].key,
                                    rows[i].path, rows[k].key);
    }
    for (uint32_t i = 0; i < job->values.count; i++) { /* paths of sinks */
        const struct hd__job_value *v = &job->values.at[i];
        int is_sink = v->owner && v->flags & HD_OPTION_PATH && !strncmp(v->path, "metrics.", 8) && v->text;
        for (size_t k = 0; is_sink && k < HD__COUNT(rows); k++)
            if (rows[k].path && hd__same_path(v->text, rows[k].path))
                return hd__job_fail(job, v->owner->path, err, "%s: %s is where %s writes: name another", v->owner->path,
                                    v->text, rows[k].key);
    }
    const char *own = hd__arena_format(&job->arena, "runs/%s", job->name), *dir = rows[HD__COUNT(rows) - 1].path;
    if (dir && !strcmp(hd__job_folder(job), own) && hd__same_path(dir, own))
        return hd__job_fail(job, "checkpoint.dir", err,
                            "checkpoint.dir: %s is the run's folder, which has a lock of its own: name another, as %s",
                            dir, hd__arena_format(&job->arena, "%s/checkpoints", own));
    if (dir && !access(hd__arena_format(&job->arena, "%s/index.json", dir), F_OK))
        return hd__job_fail(job, "checkpoint.dir", err,
                            "checkpoint.dir: %s is one checkpoint: name the folder that it is in, or another; "
                            "checkpoint.resume goes on from it",
                            dir);
    struct hd_error why = HD_ERROR_INIT;
    if (job->metrics_blocks && !access(job->metrics_blocks, F_OK) &&
        hd__output_check(job->metrics_blocks, HD__PROFILE_BEGINS, &why))
        return hd__job_fail(job, "metrics.blocks", err, "metrics.blocks: %s", why.message);
    if (job->metrics_blocks && !hd__ends_with(job->metrics_blocks, ".csv"))
        return hd__job_fail(job, "metrics.blocks", err,
                            "metrics.blocks: %s: CSV is written there, and strategies.3d.split knows it by a name that "
                            "ends in .csv: call it so",
                            job->metrics_blocks);
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
    if (!rc && loaded->job->eval_every)
        rc = hd__train_feed_check_sets(c, local_rank == 0, err);
    if (!rc && local_rank == 0)
        hd__train_frequencies_check(c, loaded->job->eval_every > 0);
    return rc;
}

/* ---- a step as a machine file plans it */

static const char *machine_name; /* --machine */
static struct hd__machine machine;
static struct hd__train_plan step_plan;
static const struct hd__assume as_it_is;

static double planned_seconds(const struct hd_program *p, const struct hd__instr *i)
{
    return hd__plan_seconds(&machine, &as_it_is, p, i);
}

/* A file that was measured on another processor, or with other threads than a rank takes. */
static void warn_measured(const struct hd__job *job, int32_t threads)
{
    const struct hd__job_value *asked = hd__job_value_get(job, "device.threads");
    char name[96];
    hd__cpu_name(name);
    if (machine.processor && *name && strcmp(machine.processor, name) != 0)
        hd__log(HD_LOG_WARN, NULL,
                "--machine %s was measured on %s, and this is %s: planned times are of the former: measure again "
                "(heddle calibrate)",
                machine_name, machine.processor, name);
    if (machine.threads && asked && !json_integer_value(asked->json) && machine.threads != threads)
        hd__log(HD_LOG_WARN, NULL,
                "--machine %s was measured with %lld thread%s a rank, and a rank takes %d here: planned times are of "
                "the former: measure again (heddle calibrate --ranks N)",
                machine_name, (long long)machine.threads, machine.threads > 1 ? "s" : "", threads);
}

/* `threads` of a rank; 0: another rank warns. */
static int32_t plan_step(const struct hd__compiled *c, int32_t threads, struct hd_error *err)
{
    struct hd__plan plan;
    if (!machine_name)
        return HD_OK;
    if (!machine.name && hd__machine_read(machine_name, &machine, err))
        return err->code;
    if (strcmp(machine.device, c->device_choice.component->name))
        return hd_fail(
            err, HD_E_INVALID,
            "--machine %s: its device is %s, and the job's device.use is %s: give a file for that, as heddle "
            "calibrate --device %s prints it",
            machine_name, machine.device, c->device_choice.component->name, c->device_choice.component->name);
    hd__cli_warn_machine(c->job, &machine);
    if (threads)
        warn_measured(c->job, threads);
    if (hd__plan_make(c, &machine, &as_it_is, &plan, err))
        return err->code;
    step_plan = (struct hd__train_plan){machine.name,
                                        plan.seconds,
                                        planned_seconds,
                                        {hd__machine_peak(&machine, c->job->precision.compute) * machine.product,
                                         machine.bandwidth * machine.memory_share, NULL,
                                         hd__arena_format(&c->job->arena, "of %s", machine.name)}};
    hd__train_set_plan(&step_plan);
    return HD_OK;
}

static int64_t resumes_from; /* the step, as --dry-run finds it */

/* For --dry-run: what the ranks would refuse when they open. */
static int32_t check_opening(struct hd__compiled *c, const struct hd__launch_env *env, struct hd_error *err)
{
    int leads = !env || env->rank == 0;
    int32_t rc = hd__exec_check_settings(c, env && env->local_size < env->size, leads, err);
    return !rc && leads ? hd__train_checkpointer_check_start(c, &resumes_from, err) : rc;
}

/* OpenMP's variable is set by torchrun, asked or not. */
static void warn_threads(const struct hd__job *job, int32_t local_ranks)
{
    const struct hd__job_value *threads = hd__job_value_get(job, "device.threads"); /* of device cpu */
    const char *omp = getenv("OMP_NUM_THREADS");
    int32_t share = hd__cpu_share(local_ranks, local_ranks);
    if (omp && threads && !json_integer_value(threads->json) && atoi(omp) != share && !getenv("TORCHELASTIC_RUN_ID"))
        hd__log(HD_LOG_WARN, NULL, "OMP_NUM_THREADS is %s, and not read: a rank has %d of the cores, or device.threads",
                omp, share);
}

/* Ends that a job would come to later. */
static void warn_ends(struct hd__job *job)
{
    const char *file = job->notice_file, *slash = file ? strrchr(file, '/') : NULL;
    long long limit = hd__launch_processor_limit();
    if (file && !access(file, F_OK))
        hd__log(HD_LOG_WARN, NULL,
                "%s: launch.notice: %s is already there, so the job would save and end at once: remove it",
                hd__job_where(job, "launch.notice"), file);
    else if (slash && access(hd__arena_format(&job->arena, "%.*s/", (int)(slash - file), file), F_OK))
        hd__log(HD_LOG_WARN, NULL, "%s: launch.notice: %s: its folder is not there, so the notice may never come",
                hd__job_where(job, "launch.notice"), file);
    if (limit)
        hd__log(HD_LOG_WARN, NULL,
                "a process may use %lld s of processor time here (ulimit -t), and the kernel then kills it: `ulimit -t "
                "unlimited`, or have the limit raised",
                limit);
}

/* Before any process starts: whether the data is there, the plan fits, and all that will be opened can be. */
static int check_inputs(struct hd__cli_job *loaded, int dry, const struct hd__launch_env *env, int32_t local_ranks)
{
    struct hd__compiled *c = loaded->compiled;
    struct hd_error err = HD_ERROR_INIT;
    int32_t local_rank = env ? env->local_rank : 0;
    int32_t rc = hd__train_check_memory(c, local_ranks, &err);
    if (!rc)
        rc = hd__launch_check_files(!env || env->rank == 0 ? c->mesh.ranks /* all connect to it */ : local_ranks, &err);
    if (!rc)
        rc = check_model(c, local_rank, &err);
    if (!rc)
        rc = check_data(loaded, dry, env != NULL, local_rank, &err);
    if (!rc && (!env || env->rank == 0)) {
        hd__cli_print_late_warnings(loaded);
        hd__train_data_files_warn(c, 1);
        hd__train_watch_warn(c->job);
        warn_threads(c->job, local_ranks);
        warn_ends(c->job);
        if (machine_name && c->job->launch_machine && strcmp(machine_name, c->job->launch_machine))
            hd__log(HD_LOG_WARN, NULL, "%s: launch.machine is %s, and --machine %s counts",
                    hd__job_where(c->job, "launch.machine"), c->job->launch_machine, machine_name);
        rc = check_outputs(c, &err);
    }
    if (!rc)
        rc = hd__exec_check_plugins(c, dry && local_rank == 0 ? local_ranks : 0, &err);
    if (!rc && dry && local_rank == 0)
        rc = check_opening(c, env, &err);
    if (!rc)
        rc = plan_step(c,
                       local_rank               ? 0
                       : env && env->local_size ? hd__cpu_share_of_rank(local_ranks)
                                                : hd__cpu_share(local_ranks, local_ranks),
                       &err);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

/* A rank of another launcher may be bound to its own core: then the machine's count. */
static void warn_cores(struct hd__job *job, int32_t ranks, int launched)
{
    int32_t all = (int32_t)sysconf(_SC_NPROCESSORS_ONLN), cores = launched ? all : hd__cpu_count();
    const struct hd__job_value *each = hd__job_value_get(job, "device.threads"); /* 0: as many as fit */
    int64_t threads = each && !strcmp(job->device->use, "cpu") ? HD__MAX(1, json_integer_value(each->json)) : 1;
    double quota = hd__cpu_quota();
    const char *key = job->launch_ranks ? "launch.ranks" : "mesh";
    const char *where = launched ? "" : hd__arena_format(&job->arena, "%s: %s: ", hd__job_where(job, key), key);
    if (quota > 0 && (double)ranks * (double)threads > HD__MAX(1, quota))
        hd__log(HD_LOG_WARN, NULL,
                "%s%d rank%s of %" PRId64
                " thread%s, and the quota of the cgroup is %.3g cores, so that the kernel stops "
                "them in the middle of a step: lower launch.ranks or device.threads, or raise it (--cpus)",
                where, ranks, ranks > 1 ? "s" : "", threads, threads > 1 ? "s" : "", quota);
    else if (ranks > cores)
        hd__log(HD_LOG_WARN, NULL, "%s%d ranks share the %d core%s %s, and take turns: start at most %d here%s", where,
                ranks, cores, cores > 1 ? "s" : "",
                cores < all ? "that this process may use (taskset or --cpus-per-task leave it no more)"
                            : "of this machine",
                cores, cores < all ? "" : ", and others on more machines");
}

static int print_config(struct hd__cli_training *t)
{
    struct hd__cli_job *loaded = &t->loaded;
    struct hd__text text = {0};
    int code = hd__cli_compile_job(loaded); /* plugins parse their sections: then every value is known */
    if (code)
        return code;
    hd__cli_print_warnings(&t->arguments, loaded);
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
    if (c->job->steps && resumes_from >= c->job->steps) /* of epochs they may not be known yet */
        printf("the job is finished: its checkpoint is at step %" PRId64 "%s%" PRId64 "; nothing is left to train\n",
               resumes_from, resumes_from > c->job->steps ? ", and the job ends at " : " of ", c->job->steps);
    else
        printf("ready: %d rank%s, arena %s a rank; nothing was started\n", c->mesh.ranks, c->mesh.ranks > 1 ? "s" : "",
               hd__bytes_text((uint64_t)most, arena));
}

static struct hd__launch_policy policy_of(const struct hd__job *job)
{
    return (struct hd__launch_policy){.restarts = job->launch_restarts,
                                      .pause = job->launch_pause,
                                      .copies = job->checkpoint_peers > 0 &&
                                                (job->launch_restarts || job->nodes_min < job->nodes_max),
                                      .deadline = hd__launch_deadline(job->launch_time_limit)};
}

/* Sinks that listen where the rendezvous does, at `n` ports from `port` on, which only shows once that is open. */
static int32_t check_ports(struct hd__job *job, uint16_t port, int32_t n, struct hd_error *err)
{
    for (uint32_t i = 0; i < job->values.count && port; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        int is_port = v->owner && !strncmp(v->path, "metrics.", 8) && hd__ends_with(v->path, ".port");
        int64_t at = is_port ? json_integer_value(v->json) : 0;
        if (at >= port && at < port + n)
            return hd__job_fail(job, v->owner->path, err,
                                "%s: port %lld is the rendezvous's, which uses %d%s: name another", v->owner->path,
                                (long long)at, port, n > 1 ? hd__arena_format(&job->arena, " and %d", port + 1) : "");
    }
    return HD_OK;
}

/* Ranks of another launcher that are all on this machine. How many machines others take, one of them cannot know: they
 * may have different numbers of ranks. */
static int32_t check_machines(struct hd__job *job, const struct hd__launch_env *env, struct hd_error *err)
{
    const struct hd__job_value *nodes = hd__job_value_get(job, "launch.nodes");
    if (!nodes || !strcmp(nodes->origin, "default") || !env->knows_machine || env->local_size < env->size ||
        job->nodes_min <= 1)
        return HD_OK;
    return hd__job_fail(job, "launch.nodes", err,
                        "launch.nodes is %s, but variables of a launcher (WORLD_SIZE, LOCAL_WORLD_SIZE or their like) "
                        "say %d rank%s on 1 machine: make them equal, or unset the variables where no launcher "
                        "started this",
                        job->launch_nodes, env->size, env->size > 1 ? "s" : "");
}

static int start(struct hd__cli_training *t, int argc, char **argv)
{
    struct hd__cli_job *loaded = &t->loaded;
    struct hd__launch_env env;
    const struct hd_comm_launcher *launcher = NULL; /* its ranks are this command again */
    struct hd_error err = HD_ERROR_INIT;
    int found, code;
    if (hd__cli_detect_launch(loaded, &env, &found))
        return HD__EXIT_REFUSED;
    if (found && check_machines(loaded->job, &env, &err)) /* on all ranks alike */
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (found && env.serves_rendezvous && env.size == 1 && check_ports(loaded->job, env.store.port, 1, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    int32_t said = loaded->job->nodes_max > 1 ? env.local_size : env.size;
    if (found && env.rank == 0 && loaded->job->launch_ranks && loaded->job->launch_ranks != said)
        hd__log(HD_LOG_WARN, NULL,
                "%s: launch.ranks is %" PRId64 ", but variables of a launcher (RANK, WORLD_SIZE or their like) say %d, "
                "and they count; unset them where no launcher started this",
                hd__job_where(loaded->job, "launch.ranks"), loaded->job->launch_ranks, said);
    if (found && env.rank == 0)
        hd__warn_tp_span(loaded->compiled, env.local_size);
    if (!found || (env.local_rank == 0 && !env.launched_by_heddle))
        warn_cores(loaded->job, found ? env.local_size : loaded->compiled->mesh.ranks, found);
    if (t->dry && !found && hd__cli_check_local(loaded, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    t->leads = found ? env.rank == 0 : t->dry || (!hd__cli_find_launcher(loaded, &launcher, &err) && !launcher);
    if (t->leads)
        hd__cli_print_warnings(&t->arguments, loaded);
    code = check_inputs(loaded, t->dry, found ? &env : NULL, found ? env.local_size : loaded->compiled->mesh.ranks);
    if (!code && t->dry && (!found || env.rank == 0))
        print_ready(loaded->compiled);
    if (code || t->dry)
        return code;
    if ((!found || env.rank == 0) && hd__cli_keep_choice(loaded, &err))
        return hd__cli_print_error(&err, HD__EXIT_FAILED);
    const struct hd__launch_policy policy = policy_of(loaded->job);
    return hd__cli_run_ranks(loaded, argc, argv, &policy, train_rank, loaded->compiled);
}

/* ---- on several machines */

static int32_t find_nodes(void *user, struct hd__job *job, struct hd_error *err)
{
    static const char *const names[] = {"--nodes", "--node-rank", "--rendezvous"};
    struct hd__cli_training *t = user;
    const struct hd__job_value *nodes = hd__job_value_get(job, "launch.nodes");
    int said = nodes && strcmp(nodes->origin, "default") != 0;
    const struct hd__launch_nodes_given given = {.nodes = said ? job->launch_nodes : NULL,
                                                 .nodes_at = hd__job_where(job, "launch.nodes"),
                                                 .rendezvous = job->launch_rendezvous,
                                                 .rendezvous_at = hd__job_where(job, "launch.rendezvous"),
                                                 .node_rank = t->options[HD__CLI_NODE_RANK],
                                                 .any_node = t->print_config != 0};
    struct hd__launch_env env;
    int32_t rc;
    int found;
    if (t->given.before_resolve && t->given.before_resolve(t->given.user, job, err))
        return err->code;
    for (size_t i = 0; t->launched && i < HD__COUNT(names); i++)
        if (t->options[i])
            return hd_fail(err, HD_E_INVALID,
                           "%s: another launcher started this process as one of %" PRId64
                           " ranks (RANK or its like is set), and an agent starts its ranks itself: unset it, or leave "
                           "%s out",
                           names[i], t->launched, names[i]);
    if (t->launched)
        return HD_OK;
    if (hd__launch_detect(&env, &found, err)) /* variables of half a launcher, or of two */
        return err->code;
    rc = hd__launch_nodes_find(&given, &t->nodes, err);
    job->nodes_min = t->nodes.min;
    job->nodes_max = t->nodes.max;
    return rc || t->nodes.max > 1 ? rc : hd__launch_check_alone(err);
}

static void say_mesh(const struct hd__compiled *c)
{
    const struct hd__job *job = c->job;
    int64_t dp = job->mesh[HD_AXIS_DP_REPLICATE] * job->mesh[HD_AXIS_DP_SHARD];
    char rate[48] = "";
    if (job->batch != job->batch_of_all)
        snprintf(rate, sizeof rate, " and the learning rate x %.4g", job->lr_factor);
    hd__log(HD_LOG_INFO, NULL,
            "%" PRId64 " rank%s: data.batch %s %" PRId64 "%s, as dp %" PRId64 " x %" PRId64
            " micro-batches of %" PRId64,
            job->ranks, job->ranks > 1 ? "s" : "", *rate ? "becomes" : "stays", job->batch, rate,
            dp * job->mesh[HD_AXIS_EP], job->accumulation, job->micro_batch);
}

/* The job for the machines of a round. */
static int prepare_round(void *user, int32_t ranks)
{
    struct hd__cli_training *t = user;
    struct hd__launch_env env = {.rank = t->nodes.node > 0, .size = 2};
    int code;
    if (t->loaded.compiled && t->loaded.compiled->mesh.ranks == ranks)
        return 0;
    hd__cli_unload_job(&t->loaded);
    code = hd__cli_load_job(&t->arguments, ranks, &t->loaded);
    if (!code)
        code = check_inputs(&t->loaded, 0, &env, (int32_t)t->loaded.job->ranks_each);
    if (!code && t->nodes.node == 0)
        say_mesh(t->loaded.compiled);
    if (code)
        hd__cli_unload_job(&t->loaded);
    return code;
}

static int train_round(void *user, const struct hd__launch_env *env)
{
    const struct hd__cli_training *t = user;
    return train_rank(t->loaded.compiled, env);
}

/* Threads of ranks that share cores have to give them away at once. OpenMP's library would see that by itself, but it
 * counts cores when device cpu is loaded, before ranks are bound to their own; it reads this then, too. */
static void limit_omp_waiting(const struct hd__job *job)
{
    const struct hd__tree_node *device = job->device->node, *threads = device ? hd__tree_get(device, "threads") : NULL;
    const char *spins = getenv("GOMP_SPINCOUNT");
    if (!threads || !threads->text || getenv("OMP_WAIT_POLICY") || (spins && strcmp(spins, HD__CLI_OMP_SPINS)) ||
        atoll(threads->text) <= HD__MAX(1, hd__cpu_count() / HD__MAX(1, (int32_t)job->ranks_each)))
        return;
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "passive", 1);
}

/* As many machines as there may be, or the most that the job fits on. */
static int load(struct hd__cli_training *t)
{
    int code = hd__cli_resolve_job(&t->arguments, t->launched, &t->loaded);
    if (!code && !t->launched)
        limit_omp_waiting(t->loaded.job);
    code = code ? code : hd__cli_compile_job(&t->loaded);
    for (int32_t n = t->nodes.max - 1; code && t->loaded.job && t->nodes.min && n >= t->nodes.min; n--) {
        int64_t each = t->loaded.job->ranks_each;
        if (!each || t->loaded.too_few_nodes || t->loaded.job->mistakes.count > 1)
            break;
        hd__cli_unload_job(&t->loaded);
        code = hd__cli_load_job(&t->arguments, n * each, &t->loaded);
        if (!code)
            hd__log(HD_LOG_WARN, NULL, "the job does not fit on %d machines: at most %d train", t->nodes.max, n);
    }
    return code;
}

static int start_agent(struct hd__cli_training *t)
{
    struct hd__cli_job first = t->loaded; /* what the reports are named by outlives a round */
    struct hd__job *job = first.job;
    const struct hd__reporter reporter = hd__cli_reporter(job);
    const struct hd__launch_policy policy = policy_of(job);
    const struct hd__launch_env env = {.rank = t->nodes.node > 0, .size = 2};
    const struct hd_comm_launcher *launcher;
    struct hd_error err = HD_ERROR_INIT;
    int32_t each = (int32_t)job->ranks_each;
    uint8_t secret[HD__SECRET_BYTES];
    int code;
    if (hd__cli_find_launcher(&first, &launcher, &err) || (!t->nodes.node && check_ports(job, t->nodes.port, 2, &err)))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (launcher) {
        hd__job_fail(job, "launch.nodes", &err,
                     "launch.nodes: a transport of this job works in ranks of %s only, and that starts those of all "
                     "machines by itself: take another transport, or leave launch.nodes out",
                     launcher->command[0]);
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    t->leads = !t->nodes.node;
    if (t->leads)
        hd__cli_print_warnings(&t->arguments, &first);
    hd__warn_tp_span(first.compiled, each);
    warn_cores(job, each, 0);
    code = check_inputs(&first, t->dry, &env, each);
    if (!code)
        code = hd__cli_check_transports(first.compiled, each);
    if (!code && hd__launch_agents_secret(&t->nodes, secret, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (!code && t->dry)
        print_ready(first.compiled);
    if (code || t->dry)
        return code;
    if (!t->nodes.node && hd__cli_keep_choice(&first, &err))
        return hd__cli_print_error(&err, HD__EXIT_FAILED);
    const struct hd__launch_agents agents = {
        .nodes = &t->nodes,
        .ranks = each,
        .grows = job->checkpoint && (job->checkpoint_every || job->checkpoint_seconds > 0),
        .timeout = job->comm_timeout,
        .dead_after = job->comm_dead_after,
        .late_after = job->late_after,
        .reporter = &reporter,
        .policy = &policy,
        .prepare = prepare_round,
        .body = train_round,
        .user = t,
        .notice_file = job->notice_file,
        .notice_command = job->notice_command,
        .notice_every = job->notice_every,
    };
    t->loaded = (struct hd__cli_job){0};
    code = hd__launch_agents_run(&agents);
    hd__cli_unload_job(&t->loaded);
    t->loaded = first;
    return code;
}

/* The options as the keys that they are. */
static void add_overrides(struct hd__cli_training *t, const char **words, char nodes[64], char rendezvous[320])
{
    size_t n = t->arguments.n_overrides;
    memcpy(words, t->arguments.overrides, n * sizeof *words);
    if (t->options[HD__CLI_NODES]) {
        snprintf(nodes, 64, "launch.nodes=%s", t->options[HD__CLI_NODES]);
        words[n++] = nodes;
    }
    if (t->options[HD__CLI_RENDEZVOUS]) {
        snprintf(rendezvous, 320, "launch.rendezvous='%s'", t->options[HD__CLI_RENDEZVOUS]);
        words[n++] = rendezvous;
    }
    t->arguments.overrides = words;
    t->arguments.n_overrides = n;
}

int hd__cli_train(struct hd__cli_training *t, int argc, char **argv)
{
    char nodes[64], rendezvous[320];
    const char *words[300];
    int code;
    t->launched = hd__cli_launched_ranks();
    t->given = t->arguments;
    add_overrides(t, words, nodes, rendezvous);
    t->arguments.before_resolve = find_nodes;
    t->arguments.user = t;
    if (t->print_config)
        code = hd__cli_resolve_job(&t->arguments, t->launched, &t->loaded);
    else
        code = load(t);
    if (!code && t->print_config)
        code = print_config(t);
    else if (!code && !t->launched && t->nodes.max > 1)
        code = start_agent(t);
    else if (!code)
        code = start(t, argc, argv);
    hd__cli_unload_job(&t->loaded);
    t->arguments = t->given;
    return code;
}

int hd__cli_as_rank(int (*run)(int argc, char **argv), int argc, char **argv)
{
    struct hd__launch_env env;
    struct hd_error why = HD_ERROR_INIT;
    int found, known = !hd__launch_detect(&env, &found, &why), code;
    if (known && found && env.local_rank > 0)
        hd__speaker_defer(1);
    code = run(argc, argv);
    if (code && !known && found)
        hd__launch_report_refusal(&env, why.message);
    if (code && known && *hd__speaker_deferred() && hd__launch_report_refusal(&env, hd__speaker_deferred()))
        fprintf(stderr, "rank %d: %s\n", env.rank, hd__speaker_deferred());
    return code;
}

static int train(int argc, char **argv)
{
    struct hd__cli_training t = {0};
    const struct hd__cli_flag flags[] = {{"--print-config", NULL, &t.print_config},
                                         {"--dry-run", NULL, &t.dry},
                                         {"--machine", &machine_name, NULL},
                                         HD__CLI_NODE_FLAGS(t)};
    int code = hd__cli_job_arguments(&hd__command_train, argc, argv, flags, HD__COUNT(flags), &t.arguments);
    t.arguments.machine = machine_name;
    if (!code && t.dry && t.print_config)
        return hd__cli_usage_error(&hd__command_train,
                                   "--print-config prints and looks at nothing, as --dry-run would: "
                                   "give one of them");
    return code ? code : hd__cli_train(&t, argc, argv);
}

static int run(int argc, char **argv)
{
    return hd__cli_as_rank(train, argc, argv);
}

const struct hd__command hd__command_train = {
    .name = "train",
    .usage = "JOB [key=value ...] [--nodes N] [--node-rank I] [--rendezvous HOST:PORT] [--machine NAME | FILE.yaml] "
             "[--print-config] [--dry-run]",
    .summary = "train a model",
    .help = "Compiles the job into one step program per rank, starts launch.ranks processes on this machine\n"
            "(unless another launcher set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) and trains.\n\n"
            "  key=value         sets any key of the job file: optimizer.lr=1e-3 mesh.tp=2 strategies.zero.stage=1\n"
            "  --machine NAME    print what heddle plan --machine NAME says of a step beside what it takes\n"
            "  --print-config    print the resolved job with the origin of each value, and stop\n"
            "  --dry-run         compile, look at the data and the memory, and stop\n\n"
            "On several machines, once on each; launch.ranks is the number of ranks of one machine:\n\n"
            "  --nodes N         so many machines take part; MIN:MAX: those that are there (launch.nodes)\n"
            "  --node-rank I     which of them this is, from 0\n"
            "  --rendezvous HOST:PORT\n"
            "                    where they meet: a name or address of node 0 (launch.rendezvous)\n",
    .example = "  heddle train examples/kjv.yaml job.steps=50 optimizer.lr=1e-3\n",
    .run = run,
};
