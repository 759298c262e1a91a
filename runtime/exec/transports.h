/* runtime/exec/transports: the job's transports on this rank, opened once each, and groups on them. */
#ifndef HD_RUNTIME_EXEC_TRANSPORTS_H
#define HD_RUNTIME_EXEC_TRANSPORTS_H

#include <pthread.h>

#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/group.h"
#include "runtime/comm/open.h"
#include "runtime/exec/device.h"
#include "runtime/exec/progress_thread.h"
#include "runtime/exec/select.h"

struct hd__transport {
    const struct hd__job_section *section; /* of the job; the key of a transport */
    struct hd__comm open;
    const struct hd_comm_ops *ops; /* open.ops: no slot of the data path is NULL */
    struct hd_comm *comm;          /* open.comm */
    struct hd__groups *groups;
    struct hd__algorithm_counts counts; /* only where the job has hooks */
    int32_t stream_ordered;             /* operations are enqueued in a stream of the device */
    int32_t reserved;
};

struct hd__group_ref {
    struct hd__transport *transport;
    const struct hd__group *of; /* of->group is NULL where this rank is the only member */
};

struct hd__transports {
    HD__ARRAY(struct hd__transport *) opened;
    const struct hd__compiled *compiled;
    struct hd_store *store;
    struct hd__exec *exec;                       /* told what is opened */
    const struct hd__device *device;             /* lends a stream to stream-ordered transports */
    struct hd__flight *flight;                   /* the flight recorder, for hooks */
    struct hd__progress_thread *progress_thread; /* NULL: progress between instructions only */
    int32_t rank, local_rank, local_ranks;
    int32_t aborted;      /* transports that are opened later are aborted at once */
    pthread_mutex_t lock; /* of `opened` and `aborted`: another thread may abort while transports are opened */
    char reason[512];
};

/* Opens the transports of all axes larger than 1. Collective. */
int32_t hd__exec_transports_open(struct hd__transports *t, struct hd_error *err);
void hd__exec_transports_close(struct hd__transports *t);
/* [any-thread] Cancels everything pending, also of transports that are opened later. */
void hd__exec_transports_abort(struct hd__transports *t, const char *reason);
/* Section of the job that names the transport of a group over these axes. */
const struct hd__job_section *hd__exec_transports_section(const struct hd__compiled *compiled, uint32_t axes);
void hd__exec_transports_group_name(const struct hd__mesh *mesh, uint32_t axes, uint64_t members, char out[96]);
/* Group of this rank along axes. Collective, in the same order on all ranks; the same axes give the same group. */
int32_t hd__exec_transports_group(struct hd__transports *t, uint32_t axes, uint64_t members,
                                  struct hd__group_ref *group, struct hd_error *err);
/* Starts the progress thread where the job has `comm.progress: thread`: from then on calls into transports go between
 * hd__exec_progress_lock and _unlock. The calls of this file lock themselves. */
void hd__exec_transports_start_thread(struct hd__transports *t);
/* A bounded step of progress on all transports. 1 if anything moved, 0 if not, or an error. */
int32_t hd__exec_transports_progress(struct hd__transports *t, struct hd_error *err);
/* Waits for a request with progress on all transports; the request is completed, also by an error. */
int32_t hd__exec_transports_wait(struct hd__transports *t, struct hd__transport *of, hd_request request,
                                 double deadline, struct hd_error *err);

#endif
