/* Detection of launchers: this process' rank and the rendezvous address from the environment. */
#include <netdb.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/base/file.h"
#include "runtime/rendezvous/address.h"
#include "runtime/rendezvous/tls.h"
#include "service/launch/external.h"
#include "service/launch/launch.h"

#define REFUSAL_SECONDS 5 /* rank 0 was started with this rank and gets here at about the same time */

/* Variables of each launcher, NULL where it has none; the first whose rank and size are set counts. `nodes`, `node`:
 * the number of machines and this one's, where nothing starts a process for each rank. `machines`: set where ranks may
 * run on other machines. `id`: shared by all ranks of one start and by no other; both where there are two. `key`: the
 * same, of 128 random bits that only processes of its user can read (mpirun reads /dev/urandom, and hands it on in the
 * environment). */
static const struct launcher {
    const char *name, *rank, *size, *local_rank, *local_size, *nodes, *node, *machines, *id[2], *key;
} launchers[] = {
    {.name = "the launcher",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .nodes = "NNODES",
     .node = "NODE_RANK",
     .machines = "MASTER_ADDR"},
    {.name = "torchrun", .nodes = "PET_NNODES", .node = "PET_NODE_RANK"}, /* its options */
    {.name = "mpirun",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .machines = "OMPI_MCA_orte_default_hostfile",
     .id = {"PMIX_NAMESPACE"},
     .key = "OMPI_MCA_orte_precondition_transports"},
    {.name = "mpiexec",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .id = {"I_MPI_HYDRA_UUID"}},
    {.name = "srun",
     .rank = "SLURM_PROCID",
     .size = "SLURM_NTASKS",
     .local_rank = "SLURM_LOCALID",
     .machines = "SLURM_JOB_ID",
     .id = {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {.name = "PMIx", .rank = "PMIX_RANK"},
    {.name = "Kubernetes", .node = "JOB_COMPLETION_INDEX"},
    {.name = "PBS", .machines = "PBS_NODEFILE"},
    {.name = "LSF", .machines = "LSB_DJOB_HOSTFILE"},
};

static int env_int(const char *name, int32_t *out)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;
    long value = text && *text ? strtol(text, &end, 10) : -1;
    if (!text || !*text || *end || value < 0 || value > INT32_MAX)
        return 0;
    *out = (int32_t)value;
    return 1;
}

int hd__launch_names_machines(void)
{
    for (size_t i = 0; i < HD__COUNT(launchers); i++)
        if (launchers[i].machines && getenv(launchers[i].machines))
            return 1;
    return 0;
}

double hd__launch_deadline(double limit)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    double now = hd__now(), end = limit > 0 ? now + limit : 0, left = 0;
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    if (text && *text)
        left = strtod(text, NULL) - ((double)day.tv_sec + (double)day.tv_nsec * 1e-9);
    if (text && left <= 0)
        hd__log(HD_LOG_WARN, NULL, "SLURM_JOB_END_TIME=%s is no time to come: not heeded", text);
    return left > 0 && (end <= 0 || now + left < end) ? now + left : end;
}

static int is_slurm(const struct launcher *l)
{
    return l->rank && !strcmp(l->rank, "SLURM_PROCID");
}

/* Half of what a launcher says, and what is no number: to train alone would be silently wrong. */
static int32_t check_variables(const struct launcher *l, int with_local, struct hd_error *err)
{
    const char *const names[] = {l->rank, l->size, l->local_rank, l->local_size};
    const char *set = NULL, *missing = NULL;
    for (int i = 0; i < (with_local ? 4 : 2); i++) {
        const char *text = names[i] ? getenv(names[i]) : NULL;
        int32_t value;
        if (text && (!env_int(names[i], &value) || (!value && i % 2)))
            return hd_fail(err, HD_E_INVALID,
                           "the environment says %s='%s': not a whole number%s; unset it to train without a launcher",
                           names[i], text, i % 2 ? " from 1" : "");
        set = !set && text ? names[i] : set;
        missing = !missing && i < 2 && names[i] && !text ? names[i] : missing;
    }
    if (set && !l->size)
        return hd_fail(err, HD_E_INVALID,
                       "the environment has %s, but not how many ranks there are: set RANK and WORLD_SIZE, or unset it "
                       "to train without a launcher",
                       set);
    return set && missing ? hd_fail(err, HD_E_INVALID,
                                    "the environment has %s, but not %s: %s sets both; unset it to train without one",
                                    set, missing, l->name)
                          : HD_OK;
}

int32_t hd__launch_check_alone(struct hd_error *err)
{
    int32_t nodes = 0;
    for (size_t i = 0; i < HD__COUNT(launchers); i++) {
        const char *several = launchers[i].nodes && getenv(launchers[i].nodes) ? launchers[i].nodes : launchers[i].node;
        if (!several || !getenv(several) ||
            ((env_int("NNODES", &nodes) || env_int("PET_NNODES", &nodes)) && nodes == 1))
            continue;
        return hd_fail(err, HD_E_INVALID,
                       "the environment has %s=%s, but not RANK and WORLD_SIZE: this would train a job of its own on "
                       "each machine. Start a process for each rank with RANK, WORLD_SIZE, LOCAL_RANK, "
                       "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does; or `heddle train` once a "
                       "machine, with --nodes, --node-rank and --rendezvous; to train on this machine alone, unset %s",
                       several, getenv(several), several);
    }
    return HD_OK;
}

/* The names of heddle's own variables: six of people, three of ranks that hd__launch_external_start starts
 * (HEDDLE_BENCH is of `heddle bench`). Those of tests begin as the last two. */
enum { OF_PEOPLE = 6, OF_RANKS = 3 };
static const char *const own_names[] = {"HEDDLE_PLUGIN_PATH", "HEDDLE_SECRET",   "HEDDLE_SECRET_FILE",
                                        "HEDDLE_TLS_CA",      "HEDDLE_TLS_CERT", "HEDDLE_TLS_KEY",
                                        "HEDDLE_BENCH",       HD__LAUNCHED_ENV,  HD__LAUNCH_RENDEZVOUS_ENV,
                                        "HEDDLE_EMULATE_",    "HEDDLE_TEST_"};

static size_t own_index(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(own_names); i++) {
        size_t n = strlen(own_names[i]);
        if (!strncmp(name, own_names[i], n) && (!name[n] || own_names[i][n - 1] == '_'))
            return i;
    }
    return HD__COUNT(own_names);
}

int32_t hd__launch_check_names(struct hd_error *err)
{
    char name[128];
    int32_t rank = 0, later = 0, ours = 0;
    for (size_t i = 0; i < HD__COUNT(launchers); i++)
        if (env_int(launchers[i].rank, &rank)) {
            later |= rank > 0; /* rank 0 warns */
            ours |= getenv(HD__LAUNCHED_ENV) != NULL;
        }
    for (char **at = environ; *at; at++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        size_t own = own_index(name);
        if (!ours && own >= OF_PEOPLE && own < OF_PEOPLE + OF_RANKS)
            return hd_fail(err, HD_E_INVALID,
                           "the environment has %s, which heddle sets for the ranks that it starts by mpirun or its "
                           "like, and it did not start this process: unset it",
                           name);
        if (strncasecmp(name, "HEDDLE_", 7) || own < HD__COUNT(own_names))
            continue;
        const char *names[OF_PEOPLE]; /* behind HEDDLE_, by which all are near */
        for (size_t i = 0; i < OF_PEOPLE; i++)
            names[i] = own_names[i] + 7;
        const char *nearest = hd__nearest(name + 7, names, OF_PEOPLE);
        char *why = hd__format("the environment has %s, and heddle reads no variable of this name%s%s%s", name,
                               !strcmp(name, "HEDDLE_THREADS") ? ": the job says device.threads"
                               : nearest                       ? ": did you mean HEDDLE_"
                                                               : "",
                               nearest ? nearest : "", nearest ? "?" : "");
        if (!strncasecmp(name, "HEDDLE_TLS", 10) || !strncasecmp(name, "HEDDLE_SECRET", 13))
            hd_fail(err, HD_E_INVALID, "%s%s Unset it: the job would be less safe than it says", why,
                    nearest ? "" : ".");
        else if (!later)
            hd__log(HD_LOG_WARN, NULL, "%s", why);
        free(why);
        if (err->code)
            return err->code;
    }
    return HD_OK;
}

/* Slurm sets SLURM_PROCID in batch scripts and interactive shells too, without starting a task for each: their step id
 * is above the small numbers that srun counts. */
static int is_task_of_srun(int32_t rank, int32_t size)
{
    int32_t step, task, tasks;
    return env_int("SLURM_STEP_ID", &step) && env_int("SLURM_PROCID", &task) && env_int("SLURM_NTASKS", &tasks) &&
           task == rank && tasks == size;
}

/* srun --mpi=pmi2 sets rank and size of mpiexec as well, but no local numbers, and those of Slurm are right. */
static int was_started_by(const struct launcher *l, struct hd__launch_env *env)
{
    int32_t local;
    if (!env_int(l->rank, &env->rank) || !env_int(l->size, &env->size) || !env->size)
        return 0;
    int by_srun = is_task_of_srun(env->rank, env->size);
    return is_slurm(l) ? by_srun : strcmp(l->rank, "PMI_RANK") || env_int(l->local_rank, &local) || !by_srun;
}

/* Nobody started this process as a rank: is it left over, of half a launcher, or one of several? */
static int32_t check_unlaunched(struct hd_error *err)
{
    static int said;
    int32_t rc = HD_OK, tasks;
    for (size_t i = 0; i < HD__COUNT(launchers) && !rc; i++)
        if (!is_slurm(&launchers[i]))
            rc = check_variables(&launchers[i], 1, err);
        else if (env_int(launchers[i].size, &tasks) && tasks > 1 && !said++)
            hd__log(HD_LOG_INFO, NULL,
                    "Slurm gave %d tasks (SLURM_NTASKS), but srun did not start this process: all ranks run on this "
                    "machine; `srun heddle ...` makes each task a rank",
                    tasks);
    if (!rc && env_int("PET_NPROC_PER_NODE", &tasks) && tasks > 1 && !said++)
        hd__log(HD_LOG_WARN, NULL,
                "the environment has PET_NPROC_PER_NODE=%d, an option of torchrun, which did not start this process: "
                "heddle starts as many ranks as launch.ranks or mesh says",
                tasks);
    return rc;
}

int32_t hd__launch_check_local(struct hd_error *err)
{
    static struct ssl_ctx_st *tls; /* once a process */
    struct hd__launch_env other;
    uint8_t secret[HD__SECRET_BYTES];
    const char *left = getenv("MASTER_ADDR") ? "MASTER_ADDR" : getenv("MASTER_PORT") ? "MASTER_PORT" : NULL;
    int given, started = getenv("NNODES") != NULL;
    for (size_t i = 0; i < HD__COUNT(launchers); i++)
        started |= was_started_by(&launchers[i], &other); /* as the only rank */
    if (left && !started)
        return hd_fail(err, HD_E_INVALID,
                       "the environment has %s, but not RANK and WORLD_SIZE: these ranks are started here, and nobody "
                       "meets there; unset MASTER_ADDR and MASTER_PORT, or set all that a launcher sets",
                       left);
    int32_t rc = hd__launch_read_secret(secret, &given, err);
    return rc || tls ? rc : hd__tls_context(&tls, err);
}

/* Ranks may be started within the tasks of another launcher, as by torchrun within srun, but then there are at least as
 * many: with fewer each task would train a job of its own. */
static int32_t check_contradiction(const struct launcher *l, const struct hd__launch_env *env, struct hd_error *err)
{
    struct hd__launch_env other;
    const char *nodes = l->nodes ? getenv(l->nodes) : NULL, *said = l->nodes;
    int32_t node = 0, few = nodes && strtol(nodes, NULL, 10) > env->size; /* of MIN:MAX the least */
    if (!few && l->node && env_int(l->node, &node) && node >= env->size)
        few = (said = l->node) != NULL;
    if (few)
        return hd_fail(err, HD_E_INVALID,
                       "the environment has %s=%d and %s=%d, but also %s=%s: fewer ranks than machines, each of which "
                       "would train a job of its own. Unset %s and %s, or %s and %s, whichever are left over",
                       l->rank, env->rank, l->size, env->size, said, getenv(said), l->rank, l->size, l->nodes, l->node);
    for (size_t i = 0; i < HD__COUNT(launchers); i++)
        if (was_started_by(&launchers[i], &other) && other.size > env->size)
            return hd_fail(err, HD_E_INVALID,
                           "the environment has %s=%d and %s=%d, but %s set %s=%d and %s=%d: each of its %d processes "
                           "would train a job of its own. Unset %s and %s, or %s and %s, whichever are left over",
                           l->rank, env->rank, l->size, env->size, launchers[i].name, launchers[i].rank, other.rank,
                           launchers[i].size, other.size, other.size, l->rank, l->size, launchers[i].rank,
                           launchers[i].size);
    return HD_OK;
}

/* Slurm gives the tasks of each machine as "4(x2),3": two machines with 4, one with 3. 0: not known. */
static int32_t slurm_tasks_here(void)
{
    const char *at = getenv("SLURM_STEP_TASKS_PER_NODE");
    int32_t node;
    if (!at || !env_int("SLURM_NODEID", &node))
        return 0;
    for (; *at; at += *at == ',') {
        char *end;
        long tasks = strtol(at, &end, 10), times = 1;
        if (end == at || tasks < 1 || tasks > INT32_MAX)
            return 0;
        if (!strncmp(end, "(x", 2)) {
            times = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (node < times)
            return (int32_t)tasks;
        node -= (int32_t)HD__MIN(times, INT32_MAX);
        at = end;
        if (*at && *at != ',')
            return 0;
    }
    return 0;
}

/* ---- where the rendezvous is */

/* The secret that this rank was given, by its user or by a launcher of which every job has a random key. */
static int32_t given_secret(const struct launcher *l, struct hd__launch_env *env, int *given, struct hd_error *err)
{
    const char *key = l->key ? getenv(l->key) : NULL;
    int32_t rc = hd__launch_read_secret(env->store.secret, given, err);
    if (!rc && !*given && key) {
        hd__store_secret_derive(key, env->store.secret);
        *given = 1;
    }
    return rc;
}

/* Without a secret the kernel has to say who is at the other end, and it knows the processes of one machine only. */
static int32_t meet_locally(const struct launcher *l, struct hd__launch_env *env, const char *port,
                            struct hd_error *err)
{
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    if (env->local_size < env->size || !hd__address_is_here(env->store.host))
        return hd_fail(err, HD_E_INVALID,
                       "ranks meet at MASTER_ADDR=%s and have no secret, so that anybody could join them: "
                       "`export HEDDLE_SECRET=$(openssl rand -hex 32)`, the same for every rank of %s%s",
                       env->store.host, l->name,
                       env->local_size < env->size ? "" : " (or MASTER_ADDR=localhost where all are on one machine)");
    snprintf(env->discovery_id, sizeof env->discovery_id, "%s%s%s", port, run ? "." : "", run ? run : "");
    env->store.host = "127.0.0.1";
    env->store.port = 0;
    return HD_OK;
}

static int32_t set_discovery_id(const struct launcher *l, struct hd__launch_env *env, struct hd_error *err)
{
    const char *id = l->id[0] ? getenv(l->id[0]) : NULL, *more = l->id[1] ? getenv(l->id[1]) : "";
    if (env->local_size < env->size)
        return hd_fail(
            err, HD_E_INVALID,
            "%s started %d ranks, %d of them on this machine, and MASTER_ADDR and MASTER_PORT are not set: "
            "set them to the name of rank 0's machine and to a free port there (1 to 65534), the same for all",
            l->name, env->size, env->local_size);
    if (!id || !more)
        return hd_fail(err, HD_E_INVALID, "%s set %s and %s, but not MASTER_ADDR and MASTER_PORT (1 to 65534)", l->name,
                       l->rank, l->size);
    snprintf(env->discovery_id, sizeof env->discovery_id, "%s%s%s", id, *more ? "." : "", more);
    return HD_OK;
}

/* The rendezvous is served by the `heddle train` that started our launcher. */
static int served_by_launcher(struct hd__launch_env *env)
{
    const char *word = getenv(HD__LAUNCH_RENDEZVOUS_ENV);
    char *end;
    long port = word ? strtol(word, &end, 10) : 0;
    if (port < 1 || port > 65535 || *end != ' ' || !hd__store_secret_parse(end + 1, env->store.secret))
        return 0;
    env->store.port = (uint16_t)port;
    return env->local_size == env->size;
}

static int32_t find_rendezvous(const struct launcher *l, struct hd__launch_env *env, struct hd_error *err)
{
    static struct ssl_ctx_st *tls; /* once a process */
    const char *address = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int32_t port = 0, rc;
    int given;
    env->store.host = "127.0.0.1";
    env->serves_rendezvous = env->rank == 0;
    if (env->size == 1)
        return HD_OK;
    if (served_by_launcher(env)) {
        env->serves_rendezvous = 0;
        env->launched_by_heddle = 1;
        return HD_OK;
    }
    if (!address && !getenv("MASTER_PORT"))
        return set_discovery_id(l, env, err);
    const char *word = getenv("MASTER_PORT");
    if (address && *address && word && *word && (!env_int("MASTER_PORT", &port) || port < 1 || port > 65534))
        return hd_fail(err, HD_E_INVALID,
                       "MASTER_PORT is '%.40s', which is no port: a number from 1 to 65534 is wanted", word);
    if (address && (strchr(address, '/') || (strchr(address, ':') && strchr(address, ':') == strrchr(address, ':'))))
        return hd_fail(err, HD_E_INVALID,
                       "MASTER_ADDR is '%.60s': a name or an address alone is wanted, and the port in "
                       "MASTER_PORT",
                       address);
    if (!address || !*address || !word || !*word)
        return hd_fail(err, HD_E_INVALID, "%s set %s and %s, but not MASTER_ADDR and MASTER_PORT (1 to 65534)", l->name,
                       l->rank, l->size);
    if (agent && !strcmp(agent, "True"))
        port++; /* torchrun's own store listens at MASTER_PORT */
    env->store.host = address;
    env->store.port = (uint16_t)port;
    rc = given_secret(l, env, &given, err);
    if (!rc && !tls)
        rc = hd__tls_context(&tls, err);
    env->store.tls = tls;
    return rc || given ? rc : meet_locally(l, env, getenv("MASTER_PORT"), err);
}

/* Debian maps a machine's own name to 127.0.1.1: rank 0 would listen on an address that others cannot reach. */
static void warn_of_loopback(const struct hd__launch_env *env)
{
    if (!env->rank && !*env->discovery_id && !env->launched_by_heddle && env->local_size < env->size)
        hd__launch_warn_loopback("MASTER_ADDR", env->store.host);
}

/* Unless a rank's machine is known, all are taken to be on rank 0's: their devices, cores and transports are chosen by
 * it. */
static void warn_of_machine(const struct launcher *l, const struct hd__launch_env *env)
{
    if (*env->discovery_id || env->launched_by_heddle || env->size == 1 || hd__address_is_here(env->store.host))
        return;
    hd__log(HD_LOG_WARN, NULL,
            "rank %d is on another machine than MASTER_ADDR=%s, and %s did not say which ranks this one has: cores and "
            "devices are dealt as if it had all of them; set %s and %s, which count the ranks of each machine",
            env->rank, env->store.host, l->name, l->local_size ? l->local_rank : "SLURM_NODEID",
            l->local_size ? l->local_size : "SLURM_STEP_TASKS_PER_NODE");
}

/* Is the rank one of those that there are? */
static int32_t check_ranks(const struct launcher *l, const struct hd__launch_env *env, struct hd_error *err)
{
    int32_t rc = check_variables(l, 1, err);
    if (!rc && env->rank >= env->size)
        rc = hd_fail(err, HD_E_INVALID, "the launcher set rank %d of %d: %s must be below %s", env->rank, env->size,
                     l->rank, l->size);
    if (!rc && env->local_size > env->size)
        rc = hd_fail(err, HD_E_INVALID, "the launcher set %s=%d, but %s=%d: there are not so many ranks", l->local_size,
                     env->local_size, l->size, env->size);
    if (!rc && env->local_rank >= env->local_size)
        rc = hd_fail(err, HD_E_INVALID,
                     "the launcher set %s=%d, but this machine has %d of its ranks: they count from 0", l->local_rank,
                     env->local_rank, env->local_size);
    return rc;
}

/* Two ranks of one number would share cores and a device. In the order of the ranks, as whoever sets RANK numbers those
 * of a machine, it shows without asking the others. mpirun numbers them in the order in which it places them, another
 * one with --rank-by fill or a rankfile, and scripts hand its numbers on. */
static int32_t check_order(const struct launcher *l, const struct hd__launch_env *env, struct hd_error *err)
{
    int32_t before = env->local_rank, after = env->local_size - 1 - env->local_rank, placed;
    if ((env_int("OMPI_COMM_WORLD_LOCAL_RANK", &placed) && placed == env->local_rank) ||
        (env->rank >= before && env->rank + after < env->size))
        return HD_OK;
    return hd_fail(
        err, HD_E_INVALID,
        "the launcher set rank %d of %d, but %s=%d of the %d ranks on this machine: they count from 0 in the "
        "order of %s, each by a number of its own",
        env->rank, env->size, l->local_rank, env->local_rank, env->local_size, l->rank);
}

int32_t hd__launch_detect(struct hd__launch_env *env, int *found, struct hd_error *err)
{
    const struct launcher *l = NULL;
    int32_t rc;
    *found = 0;
    memset(env, 0, sizeof *env);
    if (check_variables(launchers, 0, err))
        return HD_E_INVALID;
    for (size_t i = 0; i < HD__COUNT(launchers) && !l; i++)
        l = was_started_by(&launchers[i], env) ? &launchers[i] : NULL;
    if (!l)
        return check_unlaunched(err);
    if (check_contradiction(l, env, err))
        return HD_E_INVALID;
    if (!getenv(HD__LAUNCHED_ENV))
        hd__output_set_not_terminal();    /* mpirun gives its ranks a terminal, whatever it writes to */
    if (l != launchers && env->size == 1) /* alone under srun or mpirun: not launched */
        return HD_OK;
    if (!env_int(l->local_size, &env->local_size))
        env->local_size = l->local_size ? 0 : slurm_tasks_here();
    int is_told = env->knows_machine = env->local_size > 0;
    if (!is_told)
        env->local_size = env->size;
    int is_numbered = env_int(l->local_rank, &env->local_rank);
    if (!is_numbered)
        env->local_rank = env->local_size ? env->rank % env->local_size : 0;
    rc = check_ranks(l, env, err);
    if (!rc && is_told && is_numbered)
        rc = check_order(l, env, err);
    if (!rc) {
        *found = !(rc = find_rendezvous(l, env, err));
        if (!rc && !is_told)
            warn_of_machine(l, env);
    } else if (env->rank < env->size && env->local_size)
        *found = !find_rendezvous(l, env, NULL);
    return rc;
}

/* ---- meeting */

static int32_t open_server(const struct hd__launch_env *env, struct hd__store_options *options,
                           struct hd__server **server, struct hd_error *err)
{
    struct hd__server_options o = {.address = options->host,
                                   .port = options->port,
                                   .size = env->size,
                                   .rank = 0,
                                   .dead_after = options->dead_after,
                                   .discovery_id = options->discovery_id,
                                   .tls = options->tls,
                                   .on_dumps = env->reporter ? env->reporter->on_dumps : NULL,
                                   .user = (void *)env->reporter};
    int32_t rc;
    hd__launch_set_timeouts(&o, env->reporter);
    o.late_after = env->reporter ? o.late_after : options->late_after;
    warn_of_loopback(env);
    if (options->discovery_id)
        hd__store_secret_generate(options->secret);
    memcpy(o.secret, options->secret, sizeof o.secret);
    rc = hd__server_open(&o, server, err);
    if (rc)
        return rc;
    options->port = hd__server_port(*server);
    options->discovery_id = NULL; /* known */
    return HD_OK;
}

int32_t hd__launch_connect(const struct hd__launch_env *env, double seconds, struct hd_store **store,
                           struct hd__server **server, struct hd_error *err)
{
    struct hd__store_options options = env->store;
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc;
    *store = NULL;
    *server = NULL;
    if (env->size == 1)
        return HD_OK;
    options.rank = env->rank;
    options.size = env->size;
    options.discovery_id = *env->discovery_id ? env->discovery_id : NULL;
    if (!env->serves_rendezvous || !(rc = open_server(env, &options, server, err)))
        return hd__store_connect(&options, hd__now() + seconds, store, err);
    /* Another rank 0 of this job may listen there: it refuses this one, or itself if this one was faster, and tells all
     * ranks. */
    int32_t met = hd__store_connect(&options, hd__now() + REFUSAL_SECONDS, store, &why);
    hd__store_close(*store);
    *store = NULL;
    if (met == HD_OK)
        hd_fail(&why, HD_E_INVALID, "rank 0 has connected before: two processes were started as this rank");
    return met == HD_OK || met == HD_E_INVALID ? hd_fail(err, HD_E_INVALID, "%s", why.message) : rc;
}

int hd__launch_report_refusal(const struct hd__launch_env *env, const char *why)
{
    struct hd__launch_env here = *env;
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server;
    struct hd_store *store;
    here.store.dead_after = 10; /* for a connection that is closed at once */
    if (env->serves_rendezvous || hd__launch_connect(&here, REFUSAL_SECONDS, &store, &server, &err) || !store)
        return 0;
    hd__store_fail(store, HD_E_INVALID, why);
    hd__store_close(store);
    return 1;
}
