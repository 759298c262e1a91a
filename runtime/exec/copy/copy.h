/* Copies between the main memory of a rank and its other ones, beside the compute thread: what the instructions of the
 * streams IN and OUT start and their waits end.
 *
 * Host memory is copied by a thread a direction. A file is read and written by io_uring where heddle was built with
 * liburing and the kernel allows it, else by the same threads with pread and pwrite: slower, and the reference. */
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

/* Maps what the program asks for, zeroed, and says in p->shift where it is. A file is mapped as well, so that checkpoints
 * see it as memory; it has no name and is gone with the process. Host memory under a device with streams is pinned. */
int32_t hd__exec_host_pools_open(struct hd_program *p, void *arena, const struct hd__device *device,
                                 struct hd__host_pools *memories, struct hd_error *err);
void hd__exec_host_pools_close(struct hd__host_pools *memories, const struct hd__device *device);

/* ---- copies */

enum { HD__COPY_ENGINE_AUTO = 0, HD__COPY_ENGINE_THREADS, HD__COPY_ENGINE_URING };

struct hd__copy_engine;

struct hd__copy_op {
    void *main;      /* in the main memory */
    void *other;     /* in host memory; NULL: in the file */
    int64_t offset;  /* offset in the file */
    int64_t bytes;   /* for a file: padded to whole pages by whoever planned both ends */
    int32_t out;     /* 1: out of the main memory */
    uint32_t ticket; /* written by start */
    /* of a device with streams */
    struct hd_event *done;    /* compute's place at the start, then the end of the copy */
    struct hd__copy_op *next; /* runtime/exec/copy/file_offload */
    int32_t under_way, reserved;
};

/* file: -1 where there is none. */
int32_t hd__exec_copy_engine_open(int file, uint32_t engine, struct hd__copy_engine **copies, struct hd_error *err);
void hd__exec_copy_engine_close(struct hd__copy_engine *copies); /* waits for what is under way; NULL is fine */
int32_t hd__exec_copy_engine_start(struct hd__copy_engine *copies, struct hd__copy_op *copy, struct hd_error *err);
/* Until it is complete; `deadline` is of hd__now(). */
int32_t hd__exec_copy_engine_wait(struct hd__copy_engine *copies, const struct hd__copy_op *copy, double deadline,
                                  struct hd_error *err);
/* "io_uring" or "threads": how a file is reached. */
const char *hd__exec_copy_engine_name(const struct hd__copy_engine *copies);

/* uring.c */
struct hd__uring;
int32_t hd__exec_uring_open(int file, struct hd__uring **uring, struct hd_error *err);
void hd__exec_uring_close(struct hd__uring *uring);
int32_t hd__exec_uring_start(struct hd__uring *uring, struct hd__copy_op *copy, struct hd_error *err);
int32_t hd__exec_uring_wait(struct hd__uring *uring, const struct hd__copy_op *copy, double deadline,
                            struct hd_error *err);

#endif
