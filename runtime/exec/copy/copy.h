/* runtime/exec/copy: the memories of a rank beside the main one, and copies between these and the main one beside the
 * compute thread: what the instructions of the streams IN and OUT start and their waits end. One thread calls. */
#ifndef HD_RUNTIME_EXEC_COPY_COPY_H
#define HD_RUNTIME_EXEC_COPY_COPY_H

#include "core/program/program.h"
#include "runtime/exec/device.h"

/* ---- memories */

struct hd__host_pools { /* of one rank, beside the main one */
    void *base[HD__MEM_COUNT];
    int64_t bytes[HD__MEM_COUNT];
    int file; /* -1: none */
};

/* Every page is there before the first step. The memory is zero already, so one byte of each is enough. */
void hd__exec_touch_pages(char *memory, int64_t bytes);
/* Maps what the program asks for, zeroed, and says in p->shift where it is. A file is mapped as well, so that
 * checkpoints see it as memory; it has no name and is gone with the process. Host memory under a device with streams is
 * pinned. */
int32_t hd__exec_host_pools_open(struct hd_program *p, void *arena, const struct hd__device *device,
                                 struct hd__host_pools *memories, struct hd_error *err);
void hd__exec_host_pools_close(struct hd__host_pools *memories, const struct hd__device *device);

/* ---- copies */

struct hd__copy_engine;

/* Stays as it is from its start to its wait. */
struct hd__copy_op {
    struct hd__copy_engine *engine;
    void *main;      /* in the main memory */
    void *other;     /* in host memory; NULL: in the engine's file */
    int64_t offset;  /* offset in the file */
    int64_t bytes;   /* for a file: padded to whole pages by whoever planned both ends */
    int32_t out;     /* 1: out of the main memory */
    uint32_t ticket; /* written by start */
    /* of a device with streams */
    struct hd_event *done;    /* compute's place at the start, then the end of the copy */
    struct hd__copy_op *next; /* file_offload.c */
    int32_t under_way, reserved;
};

struct hd__copy_engine_ops {
    const char *name;
    int32_t capturable, reserved; /* a copy is enqueued on the device as a whole */
    int32_t (*start)(struct hd__copy_op *copy, struct hd_error *err);
    /* Until it is complete, or compute is ordered behind its end; `deadline` is of hd__now(). */
    int32_t (*wait)(struct hd__copy_op *copy, double deadline, struct hd_error *err);
    /* A bounded piece of what is under way: 1 if anything moved, 0 if not, or an error. NULL: it moves by itself. */
    int32_t (*progress)(struct hd__copy_engine *engine, struct hd_error *err);
    void (*close)(struct hd__copy_engine *engine); /* waits for what is under way */
};

/* How one of the memories is reached; its state begins with this. */
struct hd__copy_engine {
    const struct hd__copy_engine_ops *ops;
};

/* threads.c: a thread a direction, for host memory and a file (-1: none). The reference. */
int32_t hd__exec_copy_threads_open(int file, struct hd__copy_engine **engine, struct hd_error *err);
/* uring.c: a file by io_uring. HD_E_UNSUPPORTED where heddle was built without liburing, or the kernel has none. */
int32_t hd__exec_copy_uring_open(int file, struct hd__copy_engine **engine, struct hd_error *err);
/* stream.c: host memory under a device with streams, which copies it itself. */
struct hd__copy_engine *hd__exec_copy_stream_create(const struct hd__device *d);
/* file_offload.c: the memory of a device with streams and the file of *engine, which is its own from here on and which
 * it stands in for, also where it fails. `chunk`: bytes, a multiple of a page. */
int32_t hd__exec_file_offload_open(const struct hd__device *d, int64_t chunk, struct hd__copy_engine **engine,
                                   struct hd_error *err);

static inline void hd__exec_copy_engine_close(struct hd__copy_engine *engine) /* NULL is fine */
{
    if (engine)
        engine->ops->close(engine);
}

#endif
