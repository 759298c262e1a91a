/* The io_uring engine: reads and writes of the offload file in flight without threads of their own. */
#include "runtime/exec/copy/copy.h"

#include <errno.h>
#include <stdlib.h>

#ifdef HEDDLE_URING

#include <liburing.h>

#define ENTRIES 64
#define MAX_REQUEST_BYTES (INT64_C(1) << 26) /* larger copies are several requests */

struct request {
    struct hd__copy_op copy;
    int64_t done;
    int32_t used, complete;
};

struct uring_engine {
    struct hd__copy_engine engine;
    struct io_uring ring;
    int file;
    HD__ARRAY(struct request) requests; /* a ticket is an index + 1 */
    uint32_t in_flight;
};

/* Submits the next part of a request. */
static int32_t submit(struct uring_engine *u, uint32_t index, struct hd_error *err)
{
    struct request *r = &u->requests.at[index];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    unsigned n = (unsigned)HD__MIN(r->copy.bytes - r->done, MAX_REQUEST_BYTES);
    int rc;
    if (!sqe)
        return hd_fail(err, HD_E_IO, "offload: the submission queue of io_uring is full");
    if (r->copy.out)
        io_uring_prep_write(sqe, u->file, (char *)r->copy.main + r->done, n, (__u64)(r->copy.offset + r->done));
    else
        io_uring_prep_read(sqe, u->file, (char *)r->copy.main + r->done, n, (__u64)(r->copy.offset + r->done));
    io_uring_sqe_set_data64(sqe, index);
    do {
        rc = io_uring_submit(&u->ring);
    } while (rc == -EINTR || rc == -EAGAIN);
    if (rc < 0)
        return hd_fail(err, HD_E_IO, "offload: io_uring_submit: %s", strerror(-rc));
    u->in_flight++;
    return HD_OK;
}

/* Handles one completion; after a short one the rest is submitted. */
static int32_t wait_completion(struct uring_engine *u, struct hd_deadline *end, struct hd_error *err)
{
    struct io_uring_cqe *cqe;
    int rc = io_uring_peek_cqe(&u->ring, &cqe);
    for (int late = 0; !late && (rc == -EAGAIN || rc == -ETIME);) { /* not in one sleep: it may be stopped meanwhile */
        double left = HD__MIN(HD__MAX(end->at - hd__now(), 0), HD_LOOK_SECONDS / 2);
        struct __kernel_timespec t = {.tv_nsec = (long long)(left * 1e9)};
        rc = io_uring_wait_cqe_timeout(&u->ring, &cqe, &t);
        late = hd_deadline_passed(end, hd__now());
    }
    if (rc == -EINTR)
        return HD_OK;
    if (rc < 0)
        return hd_fail(err, rc == -ETIME ? HD_E_TIMEOUT : HD_E_IO, "offload: waiting for io_uring: %s", strerror(-rc));
    uint32_t index = (uint32_t)io_uring_cqe_get_data64(cqe);
    struct request *r = &u->requests.at[index];
    int got = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    u->in_flight--;
    if (got == -EINTR || got == -EAGAIN)
        return submit(u, index, err);
    if (got <= 0)
        return hd_fail(err, HD_E_IO, "%s %lld bytes at %lld of the file of offloaded state: %s",
                       r->copy.out ? "writing" : "reading", (long long)(r->copy.bytes - r->done),
                       (long long)(r->copy.offset + r->done), got ? strerror(-got) : "it is shorter than planned");
    r->done += got;
    r->complete = r->done >= r->copy.bytes;
    return r->complete ? HD_OK : submit(u, index, err);
}

static int32_t uring_start(struct hd__copy_op *copy, struct hd_error *err)
{
    struct uring_engine *u = (struct uring_engine *)copy->engine;
    uint32_t index = 0;
    while (index < u->requests.count && u->requests.at[index].used)
        index++;
    if (index == u->requests.count)
        hd__push(&u->requests, (struct request){0});
    while (u->in_flight >= ENTRIES) {
        struct hd_deadline end = hd_deadline_in(60, hd__now());
        int32_t rc = wait_completion(u, &end, err);
        if (rc)
            return rc;
    }
    copy->ticket = index + 1;
    u->requests.at[index] = (struct request){.copy = *copy, .used = 1};
    return submit(u, index, err);
}

static int32_t uring_wait(struct hd__copy_op *copy, double deadline, struct hd_error *err)
{
    struct uring_engine *u = (struct uring_engine *)copy->engine;
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    uint32_t index = copy->ticket - 1;
    int32_t rc = HD_OK;
    while (!rc && !u->requests.at[index].complete)
        rc = wait_completion(u, &end, err);
    if (!rc)
        u->requests.at[index].used = 0;
    return rc;
}

static void uring_close(struct hd__copy_engine *engine)
{
    struct uring_engine *u = (struct uring_engine *)engine;
    struct hd_error err = HD_ERROR_INIT;
    for (struct hd_deadline end = hd_deadline_in(10, hd__now()); u->in_flight && !wait_completion(u, &end, &err);
         end = hd_deadline_in(10, hd__now()))
        ;
    io_uring_queue_exit(&u->ring);
    hd__free_array(&u->requests);
    free(u);
}

static const struct hd__copy_engine_ops uring_ops = {
    .name = "io_uring", .start = uring_start, .wait = uring_wait, .close = uring_close};

int32_t hd__exec_copy_uring_open(int file, struct hd__copy_engine **engine, struct hd_error *err)
{
    struct uring_engine *u = hd__alloc(sizeof *u);
    int rc = io_uring_queue_init(ENTRIES, &u->ring, 0);
    if (rc < 0) {
        free(u);
        return hd_fail(err, HD_E_UNSUPPORTED, "the kernel has no io_uring (%s)", strerror(-rc));
    }
    u->engine.ops = &uring_ops;
    u->file = file;
    *engine = &u->engine;
    return HD_OK;
}

#else

int32_t hd__exec_copy_uring_open(int file, struct hd__copy_engine **engine, struct hd_error *err)
{
    (void)file;
    (void)engine;
    return hd_fail(err, HD_E_UNSUPPORTED, "this heddle was built without liburing");
}

#endif
