/* runtime/exec/copy: the memories of a rank besides the arena (host pool, file), and asynchronous copies between
 * these and the arena: instructions of the streams IN and OUT start them, and their waits end them. One thread
 * calls. */
#ifndef HD_RUNTIME_EXEC_COPY_COPY_H
#define HD_RUNTIME_EXEC_COPY_COPY_H

#include "core/program/program.h"
#include "runtime/exec/device.h"

/* ---- memories */

struct hd__host_pools { /* of one rank */
    void *base[HD__MEM_COUNT];
    int64_t bytes[HD__MEM_COUNT];
    int file; /* -1: none */
};

/* Prefaults every page of memory that is zero, by writing a byte of each. */
void hd__exec_touch_pages(char *memory, int64_t bytes);
/* Maps the pools of the program, zeroed, and sets p->arena_base. The file is unlinked, and mapped too, so that
 * checkpoints access it as memory. Host memory under a device with streams is pinned. */
int32_t hd__exec_host_pools_open(struct hd_program *p, void *arena, const struct hd__device *device,
                                 struct hd__host_pools *memories, struct hd_error *err);
/* Could the file of a rank be made? */
int32_t hd__exec_check_offload(const struct hd_program *p, struct hd_error *err);
void hd__exec_host_pools_close(struct hd__host_pools *memories, const struct hd__device *device);

/* ---- copies */

struct hd__copy_engine;

/* Unchanged from its start to its wait. */
struct hd__copy_op {
    struct hd__copy_engine *engine;
    void *main;      /* in the arena */
    void *other;     /* in the host pool; NULL: in the engine's file */
    int64_t offset;  /* offset in the file */
    int64_t bytes;   /* for a file: whole pages, since memory planning padded both ends */
    int32_t out;     /* 1: out of the arena */
    uint32_t ticket; /* written by start */
    /* under a device with streams */
    struct hd_event *done;    /* the compute stream at the start, then the end of the copy */
    struct hd__copy_op *next; /* file_offload.c */
    int32_t under_way, reserved;
};

struct hd__copy_engine_ops {
    const char *name;
    int32_t capturable, reserved; /* copies are enqueued on the device as a whole */
    int32_t (*start)(struct hd__copy_op *copy, struct hd_error *err);
    /* Waits until it is complete, or orders later compute behind it; `deadline`: of hd__now(). */
    int32_t (*wait)(struct hd__copy_op *copy, double deadline, struct hd_error *err);
    /* A bounded step: 1 if anything moved, 0 if not, or an error. NULL: needs no calls. */
    int32_t (*progress)(struct hd__copy_engine *engine, struct hd_error *err);
    void (*close)(struct hd__copy_engine *engine); /* waits for copies in flight */
};

/* Base of an engine's state. */
struct hd__copy_engine {
    const struct hd__copy_engine_ops *ops;
};

/* threads.c: one thread for each direction, for host memory and a file (-1: none). The reference. */
int32_t hd__exec_copy_threads_open(int file, struct hd__copy_engine **engine, struct hd_error *err);
/* uring.c: a file by io_uring. HD_E_UNSUPPORTED where heddle was built without liburing, or the kernel has none. */
int32_t hd__exec_copy_uring_open(int file, struct hd__copy_engine **engine, struct hd_error *err);
/* stream.c: host memory under a device with streams, by its asynchronous copies. */
struct hd__copy_engine *hd__exec_copy_stream_create(const struct hd__device *d);
/* file_offload.c: the file of *engine under a device with streams. Takes over *engine and replaces it, also on failure.
 * `chunk`: bytes, a multiple of a page. */
int32_t hd__exec_file_offload_open(const struct hd__device *d, int64_t chunk, struct hd__copy_engine **engine,
                                   struct hd_error *err);

static inline void hd__exec_copy_engine_close(struct hd__copy_engine *engine) /* NULL is fine */
{
    if (engine)
        engine->ops->close(engine);
}

#endif
