/* cli/job: what the commands that read a job share: arguments, loading, compiling, messages. */
#ifndef HD_CLI_JOB_H
#define HD_CLI_JOB_H

#include "cli/command.h"
#include "runtime/exec/select.h"
#include "service/train/data/token_origin.h"
#include "service/train/session.h"

/* GOMP_SPINCOUNT, where nobody has set it: threads of a kernel that is done wait for about 0.2 ms, and then sleep. */
#define HD__CLI_OMP_SPINS "20000"

struct hd__cli_job_arguments {
    const char *file;
    const char *const *overrides; /* key=value words */
    size_t n_overrides;
    /* Called when the job is read and its mesh is not resolved yet; NULL: nothing is. */
    int32_t (*before_resolve)(void *user, struct hd__job *job, struct hd_error *err);
    void *user;
    const char *machine; /* --machine, for mesh: auto and strategies: auto; NULL: the job's */
    int32_t unchosen;    /* a job with these is as if it left them out */
    int32_t reserved;
};

/* Splits the words after the command's name into flags, the job file and overrides. HD__EXIT_DONE or a refusal. */
int hd__cli_job_arguments(const struct hd__command *command, int argc, char **argv, const struct hd__cli_flag *flags,
                          size_t n_flags, struct hd__cli_job_arguments *out);

struct hd__cli_job {
    struct hd__job *job;
    struct hd__plugins *plugins;
    struct hd__compiled *compiled;
    char *chosen;      /* a line about mesh: auto and strategies: auto; NULL: the job names both */
    char *words;       /* the overrides that these became, a line each */
    int too_few_nodes; /* the least of launch.nodes cannot hold the mesh: no fewer are tried */
};

/* plan/auto_mesh.c: where the job leaves mesh or strategies to heddle, the fastest plan for the ranks at hand and the
 * machine: opens the job again with it. A run that can go on from a checkpoint keeps what it began with (the file mesh
 * of its folder). Prints what is wrong; returns an exit code. */
int hd__cli_choose(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *loaded);
/* Keeps the choice for the runs that go on from this one's checkpoints. */
int32_t hd__cli_keep_choice(const struct hd__cli_job *loaded, struct hd_error *err);
/* Refuses what a search would lose: strategies other than 3d and zero, and options that it does not set. */
int hd__cli_refuse_lost(const struct hd__cli_job *loaded, const char *who);

/* Freed memory stays with the process: for a command that compiles a program after another. */
void hd__cli_keep_freed(void);
/* Loads, resolves for `ranks` (0: as the job says) and compiles. Prints what is wrong; returns an exit code. */
int hd__cli_load_job(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *out);
/* The same without compiling. */
int hd__cli_resolve_job(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *out);
int hd__cli_compile_job(struct hd__cli_job *loaded);
/* The same compiled with HD__COMPILE_...; `more` are further overrides. */
int hd__cli_load_with(const struct hd__cli_job_arguments *arguments, int64_t ranks, uint32_t flags,
                      const char *const *more, size_t n_more, struct hd__cli_job *out);
/* That on one rank, whatever the job's mesh. */
int hd__cli_load_single_rank(const struct hd__cli_job_arguments *arguments, uint32_t flags, const char *const *more,
                             size_t n_more, struct hd__cli_job *out);
/* Choice of weights to work on. */
struct hd__cli_weights {
    const char *checkpoint; /* "auto", a name or a path */
    const char *name;       /* "model", or an average that a strategy keeps */
    int random;             /* as initialised by job.seed */
    /* The tokenizer of the command's input; one that the weights were not trained with is named on standard error. */
    struct hd__token_maker tokens;
    uint32_t used_for; /* HD__DIFF_... */
    uint32_t reserved;
    int64_t positions; /* of a sequence that are used; those that were not trained are named */
};
/* Refuses a --checkpoint (other than "auto") of a job that has no checkpoint section, and --random-weights beside other
 * weights. */
int hd__cli_check_weights(struct hd__cli_job *loaded, const struct hd__cli_weights *weights);
/* Are the tensors of model.from those of the model? Warns, where it `says` so, of matrices that are all 0. */
int32_t hd__cli_check_from(const struct hd__compiled *compiled, int says, struct hd_error *err);
/* Opens a rank (env NULL: the only one) with these weights; those of model.from where the job has no checkpoint yet,
 * and random ones where they were asked for, are named on standard error. *step: of the checkpoint. The caller closes
 * the session. */
int32_t hd__cli_open_weights(const struct hd__cli_job *loaded, const struct hd__cli_weights *weights,
                             const struct hd__launch_env *env, struct hd__train_session *session, int64_t *step,
                             struct hd_error *err);
void hd__cli_unload_job(struct hd__cli_job *loaded);

/* --per-machine N of 1 to `ranks`; 0 and 0 where it was not given, a refusal's exit code otherwise. */
int hd__cli_parse_per_machine(const struct hd__command *command, const char *text, int32_t ranks, int32_t *n);

/* Refuses a job that its script could not go on with: `command` is started again after whatever ends it. */
int hd__cli_check_batch(const struct hd__command *command, const struct hd__cli_job_arguments *arguments,
                        const struct hd__compiled *c);

/* Refuses a transport between machines of so many ranks each that stays inside one. */
int hd__cli_check_transports(const struct hd__compiled *c, int32_t per_machine);
/* Refuses a job that does not fit so many machines with so many ranks each: its mesh, batch, or transports. It is left
 * loaded in `all`, in the place of what was there. */
int hd__cli_check_machines(const struct hd__cli_job_arguments *arguments, int64_t machines, int32_t per_machine,
                           struct hd__cli_job *all);

/* Warns of values of device cpu other than those that the machine file was measured with. */
struct hd__machine;
void hd__cli_warn_machine(const struct hd__job *job, const struct hd__machine *m);

/* Prints an error; returns `code`. */
int hd__cli_print_error(const struct hd_error *err, int code);

#endif
