/* runtime/exec/select: a compiled job with its plug-ins: device, data, checkpoints, transports, hooks, metrics
 * sinks. */
#ifndef HD_RUNTIME_EXEC_SELECT_H
#define HD_RUNTIME_EXEC_SELECT_H

#include "core/compile/compile.h"
#include "runtime/comm/algorithms/select.h"

/* The host table for plug-ins. */
struct hd_host *hd__exec_host_table(void);

/* The plug-ins of a struct hd__compiled besides its device_choice, data_choice and checkpoint_choice. */
struct hd__selection {
    HD__ARRAY(struct hd__chosen) comms; /* each transport once; empty for a single rank */
    struct hd__tuning tuning;           /* of collectives over send and recv: comm.tune, comm.sums */
    HD__ARRAY(struct hd__chosen) hooks; /* comm.hooks, the outermost first */
    HD__ARRAY(struct hd__chosen) sinks; /* metrics.sinks */
};

/* Compiles all stages. The job must be resolved for the number of ranks; job and plugins outlive the result. */
int32_t hd__exec_compile(struct hd__job *job, struct hd__plugins *plugins, struct hd__compiled **compiled,
                         struct hd_error *err);
/* `flags`: HD__COMPILE_... */
int32_t hd__exec_compile_with(struct hd__job *job, struct hd__plugins *plugins, uint32_t flags,
                              struct hd__compiled **compiled, struct hd_error *err);
void hd__exec_compiled_free(struct hd__compiled *compiled); /* NULL is fine */

/* The transport that a section of the job names. */
const struct hd__chosen *hd__exec_chosen_comm(const struct hd__compiled *c, const struct hd__job_section *section);

/* A hash of all that a program computes and communicates: program_hash.c. */
uint64_t hd__program_hash(const struct hd_program *p);

#endif
