/* Copies between the main memory of a rank and its other ones, beside the compute thread: what the instructions of the
 * streams IN and OUT start and their waits end.
 *
 * Host memory is copied by a thread a direction. A file is read and written by io_uring where heddle was built with
 * liburing and the kernel allows it, else by the same threads with pread and pwrite: slower, and the reference. */
#ifndef HD_RUNTIME_EXEC_COPY_ENGINE_H
#define HD_RUNTIME_EXEC_COPY_ENGINE_H

#include "core/program/program.h"
#include "runtime/exec/device.h"

/* ---- memories */

struct hd__memories { /* of one rank, beside the main one */
    void *base[HD__MEM_COUNT];
    int64_t bytes[HD__MEM_COUNT];
    int file; /* -1: none */
};

/* Maps what the program asks for, zeroed, and says in p->shift where it is. A file is mapped as well, so that checkpoints
 * see it as memory; it has no name and is gone with the process. Host memory under a device with streams is pinned. */
int32_t hd__memories_open(struct hd_program *p, void *arena, const struct hd__device *device, struct hd__memories *memories,
                          struct hd_error *err);
void hd__memories_close(struct hd__memories *memories, const struct hd__device *device);

/* ---- copies */

enum { HD__COPIES_AUTO = 0, HD__COPIES_THREADS, HD__COPIES_URING };

struct hd__copies;

struct hd__copy {
    void *main;      /* in the main memory */
    void *other;     /* in host memory; NULL: in the file */
    int64_t at;      /* offset in the file */
    int64_t bytes;   /* for a file: padded to whole pages by whoever planned both ends */
    int32_t out;     /* 1: out of the main memory */
    uint32_t ticket; /* written by start */
    /* of a device with streams */
    struct hd_event *done;  /* compute's place at the start, then the end of the copy */
    struct hd__copy *next;  /* runtime/exec/file_offload */
    int32_t under_way, reserved;
};

/* file: -1 where there is none. */
int32_t hd__copies_open(int file, uint32_t engine, struct hd__copies **copies, struct hd_error *err);
void hd__copies_close(struct hd__copies *copies); /* waits for what is under way; NULL is fine */
int32_t hd__copies_start(struct hd__copies *copies, struct hd__copy *copy, struct hd_error *err);
/* Until it is complete; `deadline` is of hd__now(). */
int32_t hd__copies_wait(struct hd__copies *copies, const struct hd__copy *copy, double deadline, struct hd_error *err);
/* "io_uring" or "threads": how a file is reached. */
const char *hd__copies_engine(const struct hd__copies *copies);

/* copy_engine_uring.c */
struct hd__uring;
int32_t hd__uring_open(int file, struct hd__uring **uring, struct hd_error *err);
void hd__uring_close(struct hd__uring *uring);
int32_t hd__uring_start(struct hd__uring *uring, struct hd__copy *copy, struct hd_error *err);
int32_t hd__uring_wait(struct hd__uring *uring, const struct hd__copy *copy, double deadline, struct hd_error *err);

#endif
