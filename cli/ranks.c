/* Starting the ranks of a job. */
#include "cli/ranks.h"

#include <signal.h>
#include <stdlib.h>

#include "service/launch/external.h"

int64_t hd__cli_launched_ranks(void)
{
    struct hd__launch_env env;
    int found = 0;
    return !hd__launch_detect(&env, &found, NULL) && found ? env.size : 0;
}

/* Reports lie beside the metrics. */
struct hd__reporter hd__cli_reporter(struct hd__job *job)
{
    return (struct hd__reporter){.on_dumps = hd__report_on_dumps,
                                 .job = job->name,
                                 .folder = hd__job_folder(job),
                                 .late_after = job->late_after,
                                 .timeout = job->comm_timeout};
}

int hd__cli_find_launcher(const struct hd__cli_job *loaded, const struct hd_comm_launcher **launcher,
                          struct hd_error *err)
{
    const struct hd__compiled *c = loaded->compiled;
    const char *whose = NULL;
    *launcher = NULL;
    for (uint32_t i = 0; i < c->selection->comms.count; i++) {
        const struct hd_comm_launcher *l = c->selection->comms.at[i].component->ops.comm.launcher;
        if (l && *launcher && strcmp(l->command[0], (*launcher)->command[0]))
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "comm-%s wants its ranks started by %s, comm-%s by %s: use one of them", whose,
                           (*launcher)->command[0], c->selection->comms.at[i].component->name, l->command[0]);
        if (l) {
            *launcher = l;
            whose = c->selection->comms.at[i].component->name;
        }
    }
    return HD_OK;
}

int32_t hd__cli_check_local(const struct hd__cli_job *loaded, struct hd_error *err)
{
    const struct hd_comm_launcher *launcher;
    int32_t rc = hd__cli_find_launcher(loaded, &launcher, err);
    return rc || launcher ? rc : hd__launch_check_local(err);
}

void hd__cli_begin_rank(const struct hd__launch_env *env)
{
    char prefix[32];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the launcher blocked them: `train` answers them when it can */
    if (env->size == 1)
        return;
    snprintf(prefix, sizeof prefix, "[rank %d] ", env->rank);
    hd__log_setup(HD_LOG_INFO, prefix);
}

struct body {
    int (*run)(void *user, const struct hd__launch_env *env);
    void *user;
};

static int run_rank(void *user, const struct hd__launch_env *env)
{
    const struct body *b = user;
    return hd__cli_check_stdout(b->run(b->user, env)); /* a process of its own */
}

static void warn_no_restarts(struct hd__job *job, const char *launcher)
{
    hd__log(HD_LOG_WARN, NULL,
            "%s: launch.restarts is for ranks that heddle itself starts, and %s started these: let it restart them "
            "(torchrun --max-restarts), or start the job again: checkpoint.resume=auto goes on",
            hd__job_where(job, "launch.restarts"), launcher);
}

/* The ranks are this command again, each with what its launcher tells it. */
static int start_ranks(struct hd__cli_job *loaded, int argc, char **argv, const struct hd__reporter *reporter,
                       const struct hd__launch_policy *policy, struct body *body)
{
    const struct hd_comm_launcher *launcher;
    struct hd_error err = HD_ERROR_INIT;
    int32_t ranks = loaded->compiled->mesh.ranks;
    const char **words;
    char self[4096];
    if (hd__cli_find_launcher(loaded, &launcher, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (!launcher)
        return hd__launch_local(ranks, loaded->job->comm_dead_after, reporter, policy, run_rank, body);
    if (policy->restarts)
        warn_no_restarts(loaded->job, launcher->command[0]);
    words = hd__alloc(((size_t)argc + 2) * sizeof *words);
    words[0] = hd__launch_self_path(self);
    memcpy(words + 1, argv, (size_t)argc * sizeof *words);
    int code = hd__launch_command(launcher, ranks, loaded->job->comm_dead_after, reporter, words);
    free(words);
    return code;
}

int hd__cli_detect_launch(const struct hd__cli_job *loaded, struct hd__launch_env *env, int *found)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = hd__launch_detect(env, found, &err);
    if (!rc && *found && env->size != loaded->compiled->mesh.ranks)
        rc = hd_fail(&err, HD_E_INVALID,
                     "the launcher started %d ranks, but the job's mesh has %d: start as many, or change mesh",
                     env->size, loaded->compiled->mesh.ranks);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

int hd__cli_run_ranks(struct hd__cli_job *loaded, int argc, char **argv, const struct hd__launch_policy *policy,
                      int (*run)(void *user, const struct hd__launch_env *env), void *user)
{
    struct hd__reporter reporter = hd__cli_reporter(loaded->job);
    struct body body = {run, user};
    struct hd__launch_env env;
    struct hd_error err = HD_ERROR_INIT;
    int found;
    if (hd__cli_detect_launch(loaded, &env, &found))
        return HD__EXIT_REFUSED;
    if (!found && (hd__launch_check_alone(&err) || hd__cli_check_local(loaded, &err)))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (!found && loaded->job->nodes_max > 1) {
        hd__job_fail(loaded->job, "launch.nodes", &err,
                     "launch.nodes: only `heddle train` runs on several machines by agents of its own: say "
                     "launch.nodes=1 and a mesh of this one, or start a process a rank by torchrun or srun");
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    if (!found && (loaded->compiled->mesh.ranks > 1 || policy->restarts))
        return start_ranks(loaded, argc, argv, &reporter, policy, &body);
    if (found && env.rank == 0 && policy->restarts)
        warn_no_restarts(loaded->job, "another launcher");
    if (!found)
        env = (struct hd__launch_env){.size = 1, .local_size = 1};
    env.store.dead_after = loaded->job->comm_dead_after;
    env.store.late_after = loaded->job->late_after;
    env.reporter = &reporter;
    env.deadline = policy->deadline;
    if (found)
        hd__launch_setup_rank(&env);
    return run(user, &env);
}
