/* heddle/device.h: a device executes instructions.
 *
 * Life: open -> (alloc) -> prepare each instruction once, with its final addresses -> launch kernels every step ->
 * release -> close. All addresses are known at prepare: choose algorithms, pack descriptors and allocate scratch
 * there; launch allocates nothing.
 *
 * A device without HD_DEVICE_STREAMS is done with a kernel when launch returns, and has no slot from `event` on. One
 * with it only enqueues: work given to one stream runs in order, streams run beside each other, and events order
 * them. The core never reads or writes HD_MEM_DEVICE itself: everything goes through `copy`. */
#ifndef HEDDLE_DEVICE_H
#define HEDDLE_DEVICE_H

#include "heddle/plugin.h"
#include "heddle/program.h"

struct hd_device;   /* the plugin's own */
struct hd_kernel;   /* the plugin's own */
struct hd_event;    /* the plugin's own: a place in a stream */
struct hd_captured; /* the plugin's own: a piece of a step that is launched as one */

enum { HD_MEM_HOST = 0, HD_MEM_PINNED = 1, HD_MEM_DEVICE = 2 };

/* The device computes on host memory: arenas may come from a transport. */
#define HD_DEVICE_HOST_MEMORY (UINT64_C(1) << 0)
/* Read only of plugins with abi_minor 0, whose `supports` is not asked: it has HD_OP_XENT_HEAD. */
#define HD_DEVICE_XENT_HEAD (UINT64_C(1) << 1)
/* Streams: all slots from `event` to `native` are there, but the capture's, and `sync`. */
#define HD_DEVICE_STREAMS (UINT64_C(1) << 2)
/* Its einsum honours HD_ATTR_ONCE for fp32 and fp64 outputs: exact sums are then added where products are made. */
#define HD_DEVICE_ADDS_ONCE (UINT64_C(1) << 3)
/* HD_OP_COPY takes operands whose dims stand in another order, [a b c] -> [b a c]: how an all_to_all is packed on
 * the device. Without it such a copy is made of many small ones. */
#define HD_DEVICE_PERMUTES (UINT64_C(1) << 4)
/* Read only of plugins with abi_minor 0: it has HD_OP_EINSUM_BIAS, HD_OP_EINSUM_GELU, HD_OP_EINSUM_GELU_GRAD and
 * HD_OP_EINSUM_BIAS_DW. */
#define HD_DEVICE_EPILOGUES (UINT64_C(1) << 5)
/* Read only of plugins with abi_minor 0: it has HD_OP_ADD_RMSNORM, HD_OP_ADD_LAYERNORM, HD_OP_RMSNORM_DX_ADD and
 * HD_OP_LAYERNORM_DX_ADD. */
#define HD_DEVICE_NORM_SUMS (UINT64_C(1) << 6)
/* HD_OP_ROWMAX, HD_OP_XENT_LOCAL and HD_OP_XENT_GRAD honour attrs.window. Without it a vocabulary that the mesh does
 * not divide is refused. */
#define HD_DEVICE_PADDED_VOCAB (UINT64_C(1) << 7)
/* `alloc` gives memory of zeros. Without it the core clears what is persistent by copies from the host. */
#define HD_DEVICE_ZEROED_MEMORY (UINT64_C(1) << 8)
/* HD_OP_ATTENTION and its gradient honour HD_ATTR_NOT_CAUSAL, attrs.top_k and attrs.clip, HD_OP_ROPE a table that
 * is shorter than d/2 and HD_ATTR_INTERLEAVED. Without it a model that uses one of these is refused. */
#define HD_DEVICE_MASKS (UINT64_C(1) << 9)
/* HD_OP_XENT_LOCAL, HD_OP_XENT_GRAD and HD_OP_XENT_HEAD ignore labels below 0. Without it a source of data that has
 * labels of its own is refused. */
#define HD_DEVICE_IGNORED_LABELS (UINT64_C(1) << 10)
/* HD_OP_ATTENTION and its gradient take positions in documents, their last input. Without it a job whose attention does
 * not cross documents is refused. */
#define HD_DEVICE_DOCUMENTS (UINT64_C(1) << 11)

/* Streams of a device that has them. Kernels run on the first; transports with HD_COMM_STREAM_ORDERED on the second. */
enum { HD_STREAM_COMPUTE = 0, HD_STREAM_COMM = 1, HD_STREAM_OUT = 2, HD_STREAM_IN = 3, HD_STREAM_COUNT = 4 };

struct hd_device_place {
    size_t struct_size;
    int32_t local_rank;
    int32_t local_ranks; /* ranks on this machine */
    int32_t threads;     /* 0: the device decides */
    uint32_t reserved;
};

struct hd_device_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. `settings` is the parsed option struct; it outlives the device. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                    struct hd_device **device, struct hd_error *err);
    void (*close)(struct hd_device *device); /* [control] mandatory; NULL is fine */
    /* [control] Memory of one kind, 4096-byte aligned. NULL slot: the core allocates host memory. */
    int32_t (*alloc)(struct hd_device *device, uint32_t kind, size_t bytes, void **memory, struct hd_error *err);
    void (*free)(struct hd_device *device, uint32_t kind, void *memory);
    /* [control] mandatory. 1 if `op` runs when the compute dtype is `dtype`; a fused op (heddle/ops.h), if it also
     * takes no longer than the ops that it stands for: the compiler makes it of them wherever this is 1, and so
     * changes what runs. `device` is NULL when the compiler asks: programs are compiled before a device is open, and
     * on machines that have none. The answer is then that of the kind of device, whatever its options are. */
    int32_t (*supports)(struct hd_device *device, uint32_t op, uint32_t dtype);
    /* [control] mandatory. Makes an instruction ready; the descriptor and its operands may be gone afterwards, the
     * memory they point to stays. Inputs and outputs may be the same memory where heddle/ops.h says so. */
    int32_t (*prepare)(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err);
    /* [progress] mandatory. Enqueues on stream (0 = compute); host devices are done when it returns. */
    int32_t (*launch)(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err);
    void (*release)(struct hd_device *device, struct hd_kernel *kernel); /* [control] mandatory */
    /* [progress] Waits until a stream is idle. NULL slot: launches are synchronous. */
    int32_t (*sync)(struct hd_device *device, uint32_t stream, struct hd_error *err);
    /* [control] Measured or known peak of the device for a dtype in FLOP/s; 0 if unknown. */
    double (*peak_flops)(struct hd_device *device, uint32_t dtype);

    /* ---- devices with HD_DEVICE_STREAMS */

    /* [control] An event that nothing was recorded in counts as reached. */
    int32_t (*event)(struct hd_device *device, struct hd_event **event, struct hd_error *err);
    void (*event_free)(struct hd_device *device, struct hd_event *event); /* [control] */
    /* [progress] `event` is now the end of what `stream` was given so far. */
    int32_t (*record)(struct hd_device *device, struct hd_event *event, uint32_t stream, struct hd_error *err);
    /* [progress] What `stream` is given from now on starts when `event`, as it stands now, is reached. Does not
     * wait. */
    int32_t (*follow)(struct hd_device *device, uint32_t stream, struct hd_event *event, struct hd_error *err);
    /* [progress] *done = 1 when everything before the event is complete. Does not wait. */
    int32_t (*reached)(struct hd_device *device, struct hd_event *event, int32_t *done, struct hd_error *err);
    /* [progress] Enqueues a copy between any two memories. Between pinned and device memory it runs beside the other
     * streams; with plain host memory it may wait. */
    int32_t (*copy)(struct hd_device *device, uint32_t stream, void *to, const void *from, size_t bytes,
                    struct hd_error *err);
    /* [control] What a stream-ordered transport of this kind of device enqueues on: a cudaStream_t. It belongs to
     * the device. */
    void *(*native)(struct hd_device *device, uint32_t stream);
    /* [control] Optional, all four or none. What is enqueued between begin and end (on the compute stream, and on
     * those that follow it and that it follows again before the end) is not run but kept, to be launched as often as
     * one likes. HD_E_UNSUPPORTED, from begin, from a call in between or from the end: the piece is launched
     * without. A begin that was HD_OK is followed by an end, even where a call in between failed. */
    int32_t (*capture_begin)(struct hd_device *device, struct hd_error *err);
    int32_t (*capture_end)(struct hd_device *device, struct hd_captured **captured, struct hd_error *err);
    int32_t (*replay)(struct hd_device *device, struct hd_captured *captured,
                      struct hd_error *err);                                       /* [progress] on compute */
    void (*captured_free)(struct hd_device *device, struct hd_captured *captured); /* [control] */
};

#endif
