/* core/compile: the composition root. It alone knows both plugins and programs.
 *
 *     job + registry -> open model and optimizer -> for each pipeline stage:
 *     build -> layout -> autodiff -> place -> lower -> transform (strategies) -> fuse -> schedule -> memory -> verify */
#ifndef HD_CORE_COMPILE_COMPILE_H
#define HD_CORE_COMPILE_COMPILE_H

#include "core/job/job.h"
#include "core/passes/strategy_api.h"
#include "core/plugin/plugin.h"
#include "core/program/program.h"
#include "heddle/model.h"
#include "runtime/comm/algorithms/select.h"
#include "runtime/comm/hook.h"

/* The table that is lent to plugins. */
struct hd_host *hd__host(void);

/* A component with its settings parsed from the job. */
struct hd__chosen {
    const struct hd__component *component;
    void *settings; /* in the job's arena */
    const struct hd__section *section;
};

/* A wrapper of the job's transports with its settings; the first is outermost. */
struct hd__hooked {
    const struct hd__hook_kind *kind;
    void *settings; /* in the job's arena */
};

struct hd__compiled {
    struct hd__job *job;
    struct hd__plugins *plugins;
    struct hd__chosen model_choice, optimizer_choice, device_choice;
    struct hd__chosen checkpoint_choice; /* component NULL: nothing is saved */
    HD__ARRAY(struct hd__chosen) comms;  /* jobs with more than one rank: each transport once */
    struct hd__tuning tuning;            /* of collectives over send and recv: comm.tune, comm.sums */
    HD__ARRAY(struct hd__hooked) hooks;
    struct hd__chosen *strategies;
    uint64_t n_strategies;
    struct hd_model *model;
    struct hd_model_info info;
    struct hd__optimizer optimizer;
    struct hd__mesh mesh;
    int32_t n_stages;
    struct hd_program **stage; /* by pp coordinate */
    double seconds;            /* that compilation took */
    struct hd_program *odd;    /* tests of faults: one rank, `odd_rank`, runs this program, which is lent; else NULL */
    int32_t odd_rank, reserved;
};

/* Finds a component and parses its section of the job. */
int32_t hd__choose(struct hd__job *job, struct hd__plugins *plugins, uint32_t kind, struct hd__section *section,
                   struct hd__chosen *chosen, struct hd_error *err);

/* Compiles all stages. The job must be resolved for the number of ranks; job and plugins outlive the result. */
int32_t hd__compile(struct hd__job *job, struct hd__plugins *plugins, struct hd__compiled **compiled, struct hd_error *err);
/* Flags: HD__COMPILE_LOGITS: the eval section leaves the logits behind (hd_program.kept_logits). */
#define HD__COMPILE_LOGITS 1
#define HD__COMPILE_KEEP_HEAD 2 /* the loss stays a chain of instructions: fuse_loss_head.c is left out */
#define HD__COMPILE_KEEP_WEIGHT_ORDER 4 /* gradients of weights stay where the schedule has them, and do not sink into waits */
#define HD__COMPILE_EPILOGUES 8 /* as if the device had HD_DEVICE_EPILOGUES: device cpu's reference kernels do */
#define HD__COMPILE_KEEP_NORMS 16 /* sums stay apart from norms: fuse_norms.c is left out */
int32_t hd__compile_with(struct hd__job *job, struct hd__plugins *plugins, uint32_t flags, struct hd__compiled **compiled,
                         struct hd_error *err);
void hd__compiled_free(struct hd__compiled *compiled); /* NULL is fine */

/* That of the rank's stage; belongs to `c`. */
static inline struct hd_program *hd__program_of(const struct hd__compiled *c, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    if (c->odd && rank == c->odd_rank)
        return c->odd;
    hd__mesh_coord(&c->mesh, rank, coord);
    return c->stage[coord[HD_AXIS_PP]];
}

/* The transport that a section of the job names. */
const struct hd__chosen *hd__chosen_comm(const struct hd__compiled *c, const struct hd__section *section);

/* Warns where ranks along tp are on several machines, of `per_machine` ranks each, one machine after the other: with the bytes
 * that they send, and what would fit. */
void hd__warn_of_machines(const struct hd__compiled *c, int32_t per_machine);

/* Parameters of the whole model, all stages, each once. */
int64_t hd__parameter_count(const struct hd__compiled *c);
/* FLOPs per token as README defines them: 6 N without the input embedding's look-up, + 12 layers hidden seq_len halved,
 * since causal work is skipped. */
double hd__flops_per_token(const struct hd__compiled *c);

#endif
