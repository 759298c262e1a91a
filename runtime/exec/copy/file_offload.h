/* runtime/exec/copy/file_offload: copies between the memory of a device with streams and the file of offloaded state.
 *
 * Files are read and written from pinned memory (runtime/exec/copy/copy), the device copies between that and its own: in chunks, each
 * direction with slots of its own, so that the disk and the device work at once. A copy begins behind what compute was given
 * so far; the wait ends when the file has it, or when compute is ordered behind the last chunk that came from there. One thread. */
#ifndef HD_RUNTIME_EXEC_COPY_FILE_OFFLOAD_H
#define HD_RUNTIME_EXEC_COPY_FILE_OFFLOAD_H

#include "runtime/exec/copy/copy.h"

struct hd__file_offload;

/* `copies` has the file; both outlive it. `chunk`: bytes, a multiple of a page. */
int32_t hd__exec_file_offload_open(const struct hd__device *d, struct hd__copy_engine *copies, int64_t chunk,
                                   struct hd__file_offload **spill, struct hd_error *err);
void hd__exec_file_offload_close(struct hd__file_offload *spill); /* NULL is fine */

/* `copy` stays as it is until its wait; its event is of its own. */
int32_t hd__exec_file_offload_start(struct hd__file_offload *spill, struct hd__copy_op *copy, struct hd_error *err);
/* A bounded piece of what is under way: 1 if anything moved, 0 if not, or an error. */
int32_t hd__exec_file_offload_progress(struct hd__file_offload *spill, struct hd_error *err);
int32_t hd__exec_file_offload_wait(struct hd__file_offload *spill, struct hd__copy_op *copy, double deadline,
                                   struct hd_error *err);

#endif
