/* runtime/exec/executor: one rank's step program on a device and its transports.
 *
 *     open: device, transports, groups, arena (one allocation, touched once), kernels with final addresses
 *     section: walks the instructions; collectives are enqueued, waits wait. No allocation, no system call but the
 *     transports' own
 *
 * All calls come from one thread. The compiled job outlives the executor. */
#ifndef HD_RUNTIME_EXEC_EXECUTOR_H
#define HD_RUNTIME_EXEC_EXECUTOR_H

#include "runtime/exec/select.h"

struct hd__exec;

struct hd__exec_config {
    const struct hd__compiled *compiled;
    struct hd_store *store; /* NULL where the job has one rank */
    int32_t rank, local_rank, local_ranks;
    int32_t operations; /* that the flight recorder keeps; 0: 64 */
    /* Fills a micro-batch's tensor: `labels` 0 for ids, 1 for labels; out has `count` elements, [batch, seq] local. */
    int32_t (*feed)(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err);
    void *user;
};

/* One that has nothing open yet. From here to its close any thread may abort it, and ask what it does. Caller closes. */
struct hd__exec *hd__exec_create(const struct hd__exec_config *config);
/* Opens device, transports and memory, and prepares every instruction: collective over all ranks. After a failure it can only
 * be closed. */
int32_t hd__exec_open(struct hd__exec *exec, struct hd_error *err);
void hd__exec_close(struct hd__exec *exec); /* NULL is fine */

/* Runs all sections of step `step`, counted from 1, in the program's order. */
int32_t hd__exec_run_step(struct hd__exec *exec, int64_t step, struct hd_error *err);
/* Runs the section of a kind, as often as its repeat says, and once where that is 0. HD_OK where there is none. */
int32_t hd__exec_run_section(struct hd__exec *exec, uint8_t kind, struct hd_error *err);

struct hd_program *hd__exec_program(struct hd__exec *exec);
const int32_t *hd__exec_coord(const struct hd__exec *exec);

/* ---- memory as the host sees it: the arena itself, or, where the device has memory of its own, a view with the same
 * offsets. Copy D2H before reading it, H2D after writing it: both wait until all that was launched is done, and where
 * the view is the arena they do nothing else. */

/* Where a tensor of this rank lies. */
void *hd__exec_host_data(struct hd__exec *exec, hd_tensor tensor);
/* What hd__tensor_address counts from. */
void *hd__exec_host_arena(struct hd__exec *exec);
/* `tensors` NULL: all that a checkpoint holds; into the device also what is derived from it. */
enum { HD__D2H, HD__H2D };
int32_t hd__exec_copy_tensors(struct hd__exec *exec, int direction, const hd_tensor *tensors, uint32_t n,
                              struct hd_error *err);
/* Gives back what a view that is not the arena takes; it is all zeros then. */
void hd__exec_drop_mirror(struct hd__exec *exec);

/* Waits for all ranks, before the first step: what one of them does there keeps the others. */
int32_t hd__exec_barrier(struct hd__exec *exec, struct hd_error *err);
/* The maximum of a small number over all ranks: agreement on signals and faults between steps. */
int32_t hd__exec_all_reduce_max(struct hd__exec *exec, int32_t mine, int32_t *highest, struct hd_error *err);
/* Ends everything pending on all ranks. [any-thread] */
void hd__exec_abort(struct hd__exec *exec, const char *reason);

/* Seconds that compute spent waiting for communication since the last call. */
double hd__exec_comm_seconds(struct hd__exec *exec);
double hd__exec_peak_flops(struct hd__exec *exec);
/* From now on the time of every instruction is taken, or no longer; what was taken: runtime/exec/profile.h, NULL for nothing. */
void hd__exec_set_profiling(struct hd__exec *exec, int on);
const struct hd__profile *hd__exec_get_profile(const struct hd__exec *exec);
/* Pieces of the program that the device captured so far, and how often one was replayed. */
uint32_t hd__exec_graph_count(const struct hd__exec *exec, uint64_t *replays);
/* Runs a step and looks at what every kernel read and wrote: the block and the instruction of the first that made a NaN or
 * Inf of finite numbers, or the parameter that had one, go to `out`. Returns 1 if there is one, 0 if not (it came from another
 * rank), or an error. For a step that went wrong; all ranks call it, and each runs the whole step. */
int32_t hd__exec_find_nonfinite(struct hd__exec *exec, int64_t step, char out[160], struct hd_error *err);
/* The flight recorder. From any thread while the executor is open. */
struct hd__flight *hd__exec_flight(struct hd__exec *exec);
/* What runs now: "micro_last #118 wait all_reduce(dp_shard)"; for messages, from any thread. */
const char *hd__exec_position(struct hd__exec *exec, char out[128]);
/* What that says between sections: "loading the checkpoint". Of static storage. */
void hd__exec_set_status(struct hd__exec *exec, const char *what);

#endif
