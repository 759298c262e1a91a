/* Functions of NCCL (2.18 and later) and of the CUDA driver, declared here so that comm-nccl is built without either:
 * both are opened at run time. A row of a table is a function; those that are not needed may be missing in the library.
 * Names and values are those of nccl.h and cuda.h; the tests compare them where these headers are found. */
#ifndef HD_COMM_NCCL_API_H
#define HD_COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* ---- NCCL */

typedef struct ncclComm *nc_comm;

enum {
    NC_SUCCESS = 0,
    NC_CUDA = 1,
    NC_SYSTEM = 2,
    NC_INTERNAL = 3,
    NC_ARGUMENT = 4,
    NC_USAGE = 5,
    NC_REMOTE = 6,
    NC_IN_PROGRESS = 7
};
enum { NC_SUM = 0, NC_MAX = 2, NC_AVG = 4 };
enum { NC_U8 = 1, NC_I32 = 2, NC_F16 = 6, NC_F32 = 7, NC_F64 = 8, NC_BF16 = 9 };

#define NC_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NC_ID_BYTES 128
#define NC_UNSET INT_MIN
#define NC_MAGIC 0xcafebeefu

struct nc_id {
    char internal[NC_ID_BYTES];
};

/* ncclConfig_t as of 2.28. A library of before reads its own, shorter part; a later one takes its defaults for the
 * rest. */
struct nc_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
};

/* X(needed, name, result, arguments) */
#define NC_NCCL(X)                                                                                                     \
    X(1, GetVersion, int, (int *version))                                                                              \
    X(1, GetUniqueId, int, (struct nc_id * id))                                                                        \
    X(1, GetErrorString, const char *, (int result))                                                                   \
    X(1, GetLastError, const char *, (nc_comm comm))                                                                   \
    X(1, CommInitRankConfig, int, (nc_comm * comm, int n, struct nc_id id, int rank, struct nc_config *config))        \
    X(1, CommFinalize, int, (nc_comm comm))                                                                            \
    X(1, CommDestroy, int, (nc_comm comm))                                                                             \
    X(1, CommAbort, int, (nc_comm comm))                                                                               \
    X(1, CommGetAsyncError, int, (nc_comm comm, int *result))                                                          \
    X(0, CommSplit, int, (nc_comm comm, int color, int key, nc_comm *made, struct nc_config *config))                  \
    X(0, CommRegister, int, (nc_comm comm, void *buffer, size_t bytes, void **handle))                                 \
    X(0, CommDeregister, int, (nc_comm comm, void *handle))                                                            \
    X(1, GroupStart, int, (void))                                                                                      \
    X(1, GroupEnd, int, (void))                                                                                        \
    X(1, AllReduce, int, (const void *send, void *recv, size_t count, int type, int op, nc_comm comm, void *stream))   \
    X(1, AllGather, int, (const void *send, void *recv, size_t count, int type, nc_comm comm, void *stream))           \
    X(1, ReduceScatter, int,                                                                                           \
      (const void *send, void *recv, size_t count, int type, int op, nc_comm comm, void *stream))                      \
    X(0, AlltoAll, int, (const void *send, void *recv, size_t count, int type, nc_comm comm, void *stream))            \
    X(1, Broadcast, int, (const void *send, void *recv, size_t count, int type, int root, nc_comm comm, void *stream)) \
    X(1, Reduce, int,                                                                                                  \
      (const void *send, void *recv, size_t count, int type, int op, int root, nc_comm comm, void *stream))            \
    X(1, Send, int, (const void *send, size_t count, int type, int peer, nc_comm comm, void *stream))                  \
    X(1, Recv, int, (void *recv, size_t count, int type, int peer, nc_comm comm, void *stream))

/* ---- the driver: streams and events are CUstream and CUevent, which a cudaStream_t is too */

enum { NC_CU_NOT_READY = 600, NC_CU_NON_BLOCKING = 1, NC_CU_NO_TIMING = 2, NC_CU_RELAXED = 2 };

#define NC_DRIVER(X)                                                             \
    X(cuInit, (unsigned flags))                                                  \
    X(cuDriverGetVersion, (int *version))                                        \
    X(cuDeviceGetCount, (int *count))                                            \
    X(cuGetErrorString, (int result, const char **text))                         \
    X(cuCtxGetCurrent, (void **context))                                         \
    X(cuCtxSetCurrent, (void *context))                                          \
    X(cuCtxGetStreamPriorityRange, (int *least, int *greatest))                  \
    X(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority)) \
    X(cuStreamDestroy_v2, (void *stream))                                        \
    X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))            \
    X(cuStreamIsCapturing, (void *stream, int *status))                          \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                            \
    X(cuEventCreate, (void **event, unsigned flags))                             \
    X(cuEventDestroy_v2, (void *event))                                          \
    X(cuEventRecord, (void *event, void *stream))                                \
    X(cuEventQuery, (void *event))                                               \
    X(cuMemAlloc_v2, (uint64_t * memory, size_t bytes))                          \
    X(cuMemFree_v2, (uint64_t memory))                                           \
    X(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream))   \
    X(cuMemGetAddressRange_v2, (uint64_t * base, size_t * bytes, uint64_t at))

struct nc_api {
    int version; /* NC_VERSION of the library that was opened */
    int reserved;
#define NC_SLOT(needed, name, result, arguments) result(*name) arguments;
    NC_NCCL(NC_SLOT)
#undef NC_SLOT
#define NC_SLOT(name, arguments) int(*name) arguments;
    NC_DRIVER(NC_SLOT)
#undef NC_SLOT
};

#endif
