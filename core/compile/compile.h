/* core/compile: the composition root. It alone knows both plugins and programs.
 *
 *     job + registry -> open model and optimizer -> for each pipeline stage:
 *     build -> layout -> autodiff -> place -> lower -> transform (strategies) -> fuse -> schedule -> memory -> verify
 */
#ifndef HD_CORE_COMPILE_COMPILE_H
#define HD_CORE_COMPILE_COMPILE_H

#include "core/job/job.h"
#include "core/passes/strategy_api.h"
#include "core/plugin/plugin.h"
#include "core/program/program.h"
#include "heddle/model.h"

/* A component with its settings parsed from the job. */
struct hd__chosen {
    const struct hd__component *component;
    void *settings; /* in the job's arena */
    const struct hd__job_section *section;
};

struct hd__compiled {
    struct hd__job *job;
    struct hd__plugins *plugins;
    const struct hd_host *host;      /* services for plug-ins */
    struct hd__selection *selection; /* transports and hooks: runtime/exec/select.h */
    struct hd__chosen model_choice, optimizer_choice, device_choice;
    struct hd__chosen data_choice;
    struct hd__chosen checkpoint_choice; /* component NULL: nothing is saved */
    struct hd__chosen *strategies;
    uint64_t n_strategies;
    struct hd_model *model;
    struct hd_model_info info;
    struct hd__optimizer optimizer;
    struct hd__reducer reducer; /* of buckets, for other strategies; its index below */
    uint64_t reducing;
    struct hd__mesh mesh;
    int32_t n_stages;
    struct hd_program **stage; /* by pp coordinate */
    double seconds;            /* that compilation took */
    /* fault tests: one rank, `odd_rank`, runs this program, which is not owned; else NULL */
    struct hd_program *override_program;
    int32_t override_rank, reserved;
};

/* Finds the components of the sections that are not read yet, and reads those too: after a mistake, so that the job
 * knows all of them. */
void hd__compile_mistakes(struct hd__job *job, struct hd__plugins *plugins);
/* Finds a component and parses its section of the job. */
int32_t hd__compile_choose(struct hd__job *job, struct hd__plugins *plugins, uint32_t kind,
                           struct hd__job_section *section, struct hd__chosen *chosen, struct hd_error *err);
/* A plug-in's message that begins with a key, as "model.heads (3) is ...", gets that key's place in the job; any
 * other the section's. Strategies are addressed by name: "strategies.zero.bucket is ...". */
int32_t hd__compile_locate_error(struct hd__job *job, const char *section, struct hd_error *err);

/* The parts of hd__exec_compile (runtime/exec/select.h): a frame, for which that chooses device, checkpoints and
 * transports; then the programs of all stages, with the plug-ins that this opens. After an error the frame can still be
 * finished. The job must be resolved for the number of ranks; job, plugins and host outlive it. */
struct hd__compiled *hd__compiled_new(struct hd__job *job, struct hd__plugins *plugins, const struct hd_host *host);
void hd__compiled_finish(struct hd__compiled *c);
/* Fills in the slots with which plug-ins build and edit programs. */
void hd__compile_fill_host(struct hd_host *host);
/* Flags: */
#define HD__COMPILE_LOGITS 1 /* the eval section leaves the logits behind (hd_program.kept_logits) */
/* Weight gradients keep their place in the schedule: they do not sink into waits. */
#define HD__COMPILE_KEEP_WEIGHT_ORDER 2
#define HD__COMPILE_WIDEN 4        /* for an emulation: the job's program, with all of it in fp64 */
#define HD__COMPILE_KEEP_REDUCER 8 /* and with the strategy that reduces buckets, where its ops take fp64 */
/* The eval section leaves the losses of the tokens behind (hd_program.kept_losses). Without HD__FUSE_LOSS_HEAD. */
#define HD__COMPILE_LOSSES 16
/* With LOGITS: and a section `decode`, where the model and the device can (core/passes/decode.c). */
#define HD__COMPILE_DECODE 32
/* The first stage alone; the others stay NULL. For what such a stage needs, not to run. */
#define HD__COMPILE_FIRST 64
/* For the time of a step and a lower bound of its memory, not to run: no temporary has an offset, nothing is proved. */
#define HD__COMPILE_ESTIMATE 128
/* To evaluate, sample or export weights: the program is proved as a whole, then keeps what that takes
 * (hd__memory_evaluation). */
#define HD__COMPILE_EVALUATION (1 << 24)
/* Sets of fusions (HD__FUSE_... of core/program/fusion.h) that are forced on, though the device does not want them:
 * device cpu's reference kernels can run them; and that are forced off. */
#define HD__COMPILE_FUSE(sets) ((uint32_t)(sets) << 8)
#define HD__COMPILE_NO_FUSE(sets) ((uint32_t)(sets) << 16)
int32_t hd__compile_stages(struct hd__compiled *c, uint32_t flags, struct hd_error *err);
/* An estimate of all stages gets its offsets: memory is exact. Still nothing is proved. */
int32_t hd__compile_offsets(struct hd__compiled *c, struct hd_error *err);

/* The program of the rank's stage; belongs to `c`. */
static inline struct hd_program *hd__compiled_program(const struct hd__compiled *c, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    if (c->override_program && rank == c->override_rank)
        return c->override_program;
    hd__mesh_coord(&c->mesh, rank, coord);
    return c->stage[coord[HD_AXIS_PP]];
}

/* Parameters of the whole model, all stages, each once. */
int64_t hd__compiled_parameter_count(const struct hd__compiled *c);
/* Do not all labels count? Their number in a step is then a factor of the loss. */
int hd__compiled_counts_labels(const struct hd__compiled *c);
/* FLOPs per token as README defines them: 6 N without the input embedding's look-up, + 12 layers hidden seq_len halved,
 * since causal work is skipped. */
double hd__compiled_flops_per_token(const struct hd__compiled *c);

#endif
