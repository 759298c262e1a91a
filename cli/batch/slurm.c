/* heddle slurm: prints a script for sbatch that trains a job on machines, and goes on after whatever ends it. */
#include <stdlib.h>
#include <unistd.h>

#include "cli/warnings/warnings.h"
#include "service/launch/external.h"

struct slurm_request {
    const char *nodes, *per_machine, *margin;
    int32_t min, max;     /* machines */
    int32_t ranks, each;  /* of the job as it is; of a machine */
    int64_t seconds_left; /* before the limit, when Slurm is to signal */
};

/* "4", "2:4" */
static int parse_nodes(struct slurm_request *r)
{
    r->min = r->max = 1;
    if (r->nodes && !hd__range_parse(r->nodes, 65536, &r->min, &r->max))
        return hd__cli_usage_error(&hd__command_slurm, "--nodes %s: a number of machines is wanted, as 4, or MIN:MAX",
                                   r->nodes);
    return HD__EXIT_DONE;
}

/* In single quotes, for a shell. */
static void add_quoted(struct hd__text *out, const char *word)
{
    hd__text_add(out, " '");
    for (; *word; word++)
        hd__text_add(out, *word == '\'' ? "'\\''" : "%c", *word);
    hd__text_add(out, "'");
}

static void add_command(struct hd__text *out, const struct hd__cli_job_arguments *arguments)
{
    char self[4096];
    add_quoted(out, hd__launch_self_path(self));
    hd__text_add(out, " train");
    add_quoted(out, arguments->file);
    for (size_t i = 0; i < arguments->n_overrides; i++)
        add_quoted(out, arguments->overrides[i]);
}

static void add_directives(struct hd__text *out, const struct slurm_request *r, const struct hd__compiled *c)
{
    const struct hd__job *job = c->job;
    const struct hd__job_value *threads = hd__job_value_get(job, "device.threads"); /* of device cpu */
    int64_t minutes = (int64_t)(job->launch_time_limit / 60);
    hd__text_add(out,
                 "#SBATCH --job-name=%s\n#SBATCH --output=%s-%%j.log\n#SBATCH --open-mode=append\n"
                 "#SBATCH --nodes=%d",
                 job->name, job->name, r->min);
    if (r->max > r->min)
        hd__text_add(out, "-%d", r->max);
    hd__text_add(out, "\n#SBATCH --ntasks-per-node=%d\n", r->each);
    long long cores = threads ? json_integer_value(threads->json) : 0;
    int cpu = !strcmp(c->device_choice.component->name, "cpu");
    if (!cpu)
        hd__text_add(out, "#SBATCH --gpus-per-node=%d\n", r->each);
    if (cores > 0)
        hd__text_add(out, "#SBATCH --cpus-per-task=%lld\n", cores);
    else if (cpu) {
        hd__text_add(out, "# device.threads is not set: without sbatch --cpus-per-task=N a rank gets one core\n");
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: device.threads is not set, and Slurm gives a rank one core where --cpus-per-task is not: set it, or "
            "say sbatch --cpus-per-task=N",
            hd__job_where(c->job, "device.threads"));
    }
    if (minutes)
        hd__text_add(out, "#SBATCH --time=%lld\n", (long long)minutes);
    hd__text_add(out,
                 "#SBATCH --requeue\n"
                 "#SBATCH --signal=B:USR1@%lld\n" /* B: the script, which has to know */
                 ,
                 (long long)r->seconds_left);
}

static const char meeting[] =
    "# Where the ranks meet, and the secret by which they know each other: new ones for each start.\n"
    "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
    "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n"
    "export HEDDLE_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n"
    "# srun has not taken sbatch's --cpus-per-task from SLURM_CPUS_PER_TASK since 22.05, and gives a task one core.\n"
    "[ ! \"$SLURM_CPUS_PER_TASK\" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n\n";

/* Bash waits again where a signal came in between. A rank that was stopped says 3, for whatever reason: before the time
 * limit, which it may have seen itself, or by scancel, which signals this script too. */
static const char ending[] =
    "train=$!\n"
    "cancelled= again=1\n"
    "trap 'again=1; kill -USR1 $train' USR1\n"
    "trap 'again=1 cancelled=1; kill -TERM $train' TERM\n"
    "while [ \"$again\" ]; do\n"
    "    again=\n"
    "    wait $train\n"
    "    code=$?\n"
    "done\n\n"
    "# 0: the steps are done. 1, or a rank that was killed: failed. 2: refused. 3: stopped, and the state is saved.\n"
    "case $code in\n"
    "0 | 2 | 3) failed=0; rm -f $failures ;;\n"
    "*) [ \"$cancelled\" ] || { echo \"exit code $code\" >>$failures; failed=$(wc -l <$failures); } ;;\n"
    "esac\n"
    "[ ! \"$cancelled\" ] || exit $code\n"
    "[ \"$failed\" -le $restarts ] || { rm -f $failures; exit 1; }\n"
    "case $code in 0 | 2) exit $code ;; esac\n"
    "echo \"exit code $code: the job is queued again, and goes on from its newest checkpoint\"\n"
    "scontrol requeue \"$SLURM_JOB_ID\"\n";

static void print_script(const struct hd__cli_job_arguments *arguments, const struct slurm_request *r,
                         const struct hd__compiled *c)
{
    struct hd__text out = {0};
    char here[4096];
    hd__text_add(&out, "#!/bin/bash\n# Printed by `heddle slurm`: sbatch THIS-FILE\n");
    add_directives(&out, r, c);
    hd__text_add(&out,
                 "\nrestarts=%lld # after failures in a row; after a time limit and a lost machine always\n"
                 "failures=%s-$SLURM_JOB_ID.failures # their exit codes (SLURM_RESTART_COUNT counts every start)\n\n",
                 (long long)c->job->launch_restarts, c->job->name);
    hd__text_add(&out, "cd");
    add_quoted(&out, getcwd(here, sizeof here) ? here : ".");
    hd__text_add(&out, " || exit 2\n");
    hd__text_add(&out, "%s", meeting);
    hd__text_add(&out, "srun --kill-on-bad-exit=0");
    add_command(&out, arguments);
    hd__text_add(&out, " &\n%s", ending);
    fputs(out.at, stdout);
    hd__text_free(&out);
}

static int parse_margin(struct slurm_request *r)
{
    char *end;
    r->seconds_left = r->margin ? strtol(r->margin, &end, 10) : 120;
    if (r->margin && (*end || r->seconds_left < 1 || r->seconds_left > 65535)) /* Slurm takes no more */
        return hd__cli_usage_error(&hd__command_slurm, "--signal %s: seconds are wanted, 1 to 65535", r->margin);
    return HD__EXIT_DONE;
}

/* Slurm's limit is in whole minutes. A signal that comes with the start would queue the job again for ever. */
static int check_margin(const struct slurm_request *r, struct hd__job *job)
{
    struct hd_error err = HD_ERROR_INIT;
    if (job->launch_time_limit <= 0 || r->seconds_left < (int64_t)(job->launch_time_limit / 60) * 60)
        return HD__EXIT_DONE;
    hd__job_fail(job, "launch.time_limit", &err,
                 "launch.time_limit: Slurm counts minutes, and would signal at the start, %lld s before the end: give "
                 "%lld min or more, or a smaller --signal",
                 (long long)r->seconds_left, (long long)(r->seconds_left / 60 + 1));
    return hd__cli_print_error(&err, HD__EXIT_REFUSED);
}

/* Ranks refuse another number of machines than launch.nodes allows. */
static int check_nodes(const struct slurm_request *r, const struct hd__job *job)
{
    const struct hd__job_value *nodes = hd__job_value_get(job, "launch.nodes");
    int said = nodes && strcmp(nodes->origin, "default") != 0;
    if (!r->nodes || !said || (r->min >= job->nodes_min && r->max <= job->nodes_max))
        return HD__EXIT_DONE;
    return hd__cli_usage_error(&hd__command_slurm, "--nodes %s: launch.nodes is %s: make them equal, or leave one out",
                               r->nodes, job->launch_nodes);
}

/* Folders that each machine has for itself. */
static void warn_folder(struct hd__job *job)
{
    static const char *const own[] = {"/tmp/", "/var/tmp/", "/dev/shm/"};
    const char *dir = job->checkpoint_dir, *where = hd__job_where(job, "checkpoint.dir");
    for (size_t i = 0; i < HD__COUNT(own); i++)
        if (!strncmp(dir, own[i], strlen(own[i])))
            hd__log(HD_LOG_WARN, NULL,
                    "%s: checkpoint.dir: %s is each machine's own as a rule, and is emptied: a start on other machines "
                    "would not find it: name a folder that all of them see",
                    where, dir);
    if (strchr(dir, '%'))
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.dir: %s: Slurm replaces %% in its own options alone, and all starts need one folder: "
                "leave it out",
                where, dir);
}

/* Slurm may give any number from the least to the most; a job that searches finds a mesh for each. */
static int check_machines(const struct slurm_request *r, const struct hd__cli_job_arguments *arguments, int searches,
                          struct hd__cli_job *all)
{
    int code = hd__cli_check_machines(arguments, r->min, r->each, all);
    for (int32_t n = r->min + 1; n < r->max && !code && !searches; n++) { /* more of the same: the mesh and the batch */
        hd__cli_unload_job(all);
        code = hd__cli_resolve_job(arguments, (int64_t)n * r->each, all);
        if (code)
            hd__cli_usage_error(&hd__command_slurm, "so the job would fail where Slurm gives %d machines", n);
    }
    return code || r->max == r->min ? code : hd__cli_check_machines(arguments, r->max, r->each, all);
}

static int run(int argc, char **argv)
{
    struct slurm_request r = {0};
    const struct hd__cli_flag flags[] = {
        {"--nodes", &r.nodes, NULL}, {"--per-machine", &r.per_machine, NULL}, {"--signal", &r.margin, NULL}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0}, all = {0};
    int code = hd__cli_job_arguments(&hd__command_slurm, argc, argv, flags, HD__COUNT(flags), &arguments);
    code = code ? code : parse_nodes(&r);
    code = code ? code : parse_margin(&r);
    if (!code)
        code = hd__cli_load_job(&arguments, 0, &loaded);
    if (!code)
        code = hd__cli_parse_per_machine(&hd__command_slurm, r.per_machine, loaded.compiled->mesh.ranks, &r.each);
    if (!code)
        code = hd__cli_check_batch(&hd__command_slurm, &arguments, loaded.compiled);
    if (!code && loaded.job->launch_rendezvous)
        code = hd__cli_usage_error(&hd__command_slurm,
                                   "launch.rendezvous is %s, and the script has its ranks meet on the first machine: "
                                   "leave it out",
                                   loaded.job->launch_rendezvous);
    if (!code)
        code = check_margin(&r, loaded.job);
    if (!code)
        code = check_nodes(&r, loaded.job);
    if (!code && !r.each)
        r.each = loaded.compiled->mesh.ranks / loaded.job->nodes_max;
    if (!code && !r.nodes) {
        r.min = loaded.job->nodes_min;
        r.max = loaded.job->nodes_max;
    }
    if (!code)
        code = check_machines(&r, &arguments, loaded.chosen != NULL, &all);
    if (!code) {
        warn_folder(loaded.job);
        hd__cli_print_warnings(&arguments, &all);
        print_script(&arguments, &r, loaded.compiled);
    }
    hd__cli_unload_job(&all);
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_slurm = {
    .name = "slurm",
    .usage = "JOB [key=value ...] [--nodes N | MIN:MAX] [--per-machine N] [--signal SECONDS]",
    .summary = "print a script for sbatch that trains a job",
    .help =
        "Prints a script that trains the job on Slurm's machines, a task a rank, from this folder, which all of them\n"
        "see. It saves before the time limit and queues itself again, goes on after a lost machine or a failure\n"
        "(launch.restarts times), and ends where the job is done, refused or cancelled.\n"
        "Give other options (partition, account) to sbatch itself.\n\n"
        "  --nodes N          on so many machines, or as many as there are from MIN to MAX (launch.nodes)\n"
        "  --per-machine N    ranks of a machine (default: those of the job as it is written)\n"
        "  --signal SECONDS   before the limit, when it is to save (120); launch.time_limit is the limit\n",
    .example = "  heddle slurm job.yaml launch.ranks=8 launch.restarts=3 data.pad_batch=always --nodes 2:4 > train.sh\n"
               "  sbatch train.sh\n",
    .run = run,
};
