/* runtime/exec/executor: runs one rank's step program on its device and transports.
 *
 * Opening does all that costs: device, transports, groups, arena (one allocation, every page touched), kernels with
 * final addresses. Running a section walks its instructions, without allocations and without system calls but the
 * transports' own. All calls come from one thread. The compiled job outlives the executor. */
#ifndef HD_RUNTIME_EXEC_EXECUTOR_H
#define HD_RUNTIME_EXEC_EXECUTOR_H

#include "runtime/exec/select.h"

struct hd__exec;
struct hd__trace;

struct hd__exec_config {
    const struct hd__compiled *compiled;
    struct hd_store *store; /* NULL where the job has one rank */
    int32_t rank, local_rank, local_ranks;
    int32_t operations; /* capacity of the flight recorder; 0: 64 */
    /* Fills a micro-batch's tensor, HD__INPUT_...; out has `count` elements, [batch, seq] local. */
    int32_t (*feed)(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err);
    void *user;
};

/* Nothing is open yet, but any thread may abort it and read its flight recorder and position until it is closed. Caller
 * closes. */
struct hd__exec *hd__exec_create(const struct hd__exec_config *config);
/* Opens device, transports and memory, and prepares every instruction: collective over all ranks. After a failure it
 * can only be closed. */
int32_t hd__exec_open(struct hd__exec *exec, struct hd_error *err);
/* Closes all that was opened; position and flight recorder stay until hd__exec_close. NULL is fine for both. */
void hd__exec_shut(struct hd__exec *exec);
void hd__exec_close(struct hd__exec *exec);

/* Runs all sections of step `step`, counted from 1, in the program's order. */
int32_t hd__exec_run_step(struct hd__exec *exec, int64_t step, struct hd_error *err);
/* Changes of the last step to the state that a checkpoint holds, whether it came to its end or not; 0: none. Updates
 * leave it as it was where the gradient norm is not finite. */
enum { HD__STATE_UPDATED = 1, HD__STATE_WRITTEN = 2 };
uint32_t hd__exec_state_written(const struct hd__exec *exec);
/* After an abort or an error: waits for what the device was given. From here on nothing but copies D2H is run. */
void hd__exec_settle(struct hd__exec *exec);
/* Runs the section of a kind, as often as its repeat says, and once where that is 0. HD_OK where there is none. */
int32_t hd__exec_run_section(struct hd__exec *exec, uint8_t kind, struct hd_error *err);

struct hd_program *hd__exec_program(struct hd__exec *exec);
const int32_t *hd__exec_coord(const struct hd__exec *exec);

/* ---- host mirror: the arena itself, or, under a device with memory of its own, a copy with the same offsets. Copy
 * D2H before reading it, H2D after writing it: both synchronize with the device, and do nothing else where the
 * mirror is the arena. */

/* Address of a tensor of this rank. */
void *hd__exec_host_data(struct hd__exec *exec, hd_tensor tensor);
/* Base address for hd__tensor_address. */
void *hd__exec_host_arena(struct hd__exec *exec);
/* `tensors` NULL: all that a checkpoint holds; H2D also the tensors derived from it. */
enum { HD__D2H, HD__H2D };
int32_t hd__exec_copy_tensors(struct hd__exec *exec, int direction, const hd_tensor *tensors, uint32_t n,
                              struct hd_error *err);
/* Frees the pages of a mirror that is not the arena; it reads as zeros then. */
void hd__exec_drop_mirror(struct hd__exec *exec);

/* Barrier of all ranks before the first step, so that its time has no rank's start-up in it. */
int32_t hd__exec_barrier(struct hd__exec *exec, struct hd_error *err);
/* Maximum over all ranks: one decision on signals and faults between steps. */
int32_t hd__exec_all_reduce_max(struct hd__exec *exec, int32_t mine, int32_t *highest, struct hd_error *err);
/* Sum over all ranks, exact for integers below 2^53. */
int32_t hd__exec_all_reduce_sum(struct hd__exec *exec, double mine, double *sum, struct hd_error *err);
/* The same of so many numbers in fp32, in place. */
int32_t hd__exec_all_reduce_floats(struct hd__exec *exec, float *values, int64_t count, struct hd_error *err);
/* Cancels everything pending on all ranks. [any-thread] */
void hd__exec_abort(struct hd__exec *exec, const char *reason);

/* HD__GATHERED numbers of each rank, in the order of ranks. */
enum { HD__GATHERED = 16 };
int32_t hd__exec_all_gather(struct hd__exec *exec, const double mine[HD__GATHERED], double *all, struct hd_error *err);
/* Seconds that compute spent waiting for communication since the last call: in all, and by the outermost axis. 0 where
 * the device waits itself, as with nccl. */
double hd__exec_comm_seconds(struct hd__exec *exec, double by_axis[HD_AXIS_COUNT]);
double hd__exec_peak_flops(struct hd__exec *exec);
/* Bytes a second that a large copy in the device's memory reads and writes, measured in about 0.1 s. 0: failed. */
double hd__exec_copy_rate(struct hd__exec *exec, struct hd_error *err);
/* Turns the timing of every instruction on or off; NULL where it was never on. */
void hd__exec_set_profiling(struct hd__exec *exec, int on);
const struct hd__profile *hd__exec_get_profile(const struct hd__exec *exec);
/* Records every instruction from now on; the caller's. NULL ends it. */
void hd__exec_set_trace(struct hd__exec *exec, struct hd__trace *trace);
/* Called on all ranks before a step that some of them run instruction by instruction (profile, trace): what
 * communicates in the device's streams is replayed on all of its ranks or on none, so in the next step on none. */
void hd__exec_replay_no_comm(struct hd__exec *exec);
/* Graphs that the device captured so far, and how often they were replayed. */
uint32_t hd__exec_graph_count(const struct hd__exec *exec, uint64_t *replays);
/* Runs a whole step again and checks the operands of every kernel: `out` names the block and the instruction that first
 * made a NaN or Inf of finite numbers, or the parameter that had one. Returns 1 if there is one, 0 if not (it came from
 * another rank), or an error. Collective. */
int32_t hd__exec_find_nonfinite(struct hd__exec *exec, int64_t step, char out[160], struct hd_error *err);
/* The next step runs one of its instructions twice, chosen by `draw`, and compares the bits of what came out: one whose
 * inputs its outputs leave as they are. Called on all ranks. */
struct hd__exec_rerun {
    int wanted, chosen, compared;
    int32_t run; /* of the section */
    uint32_t section, instr;
    hd_tensor differs; /* 0: the same bits */
    uint64_t draw;
};
void hd__exec_rerun_next(struct hd__exec *exec, uint64_t draw);
/* The choice in the last step that was asked for one, and what came of it. */
const struct hd__exec_rerun *hd__exec_get_rerun(const struct hd__exec *exec);
/* From now on calls `hook` before the optimizer's update of each flat, whose gradient is whole then. NULL ends it. */
void hd__exec_set_update_hook(struct hd__exec *exec,
                              int32_t (*hook)(void *user, const struct hd__flat *flat, struct hd_error *err),
                              void *user);
/* The flight recorder. From any thread while the executor is open. */
struct hd__flight *hd__exec_flight(struct hd__exec *exec);
/* The instruction that runs now, for messages: "micro_last #118 wait all_reduce(dp_shard)". [any-thread] */
const char *hd__exec_position(struct hd__exec *exec, char out[128]);
/* A call into a plug-in begins, "closing the device", until the next begins; NULL: none. Static storage or the
 * job's. */
void hd__exec_begin_call(struct hd__exec *exec, const char *what);
/* Seconds that this rank has been opening or closing one thing, without waiting at the rendezvous; 0: it is not. */
double hd__exec_call_seconds(struct hd__exec *exec);
/* The position between sections: "loading the checkpoint". Static storage. */
void hd__exec_set_status(struct hd__exec *exec, const char *what);

#endif
