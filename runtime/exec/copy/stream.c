/* The stream engine: pinned host memory, one asynchronous copy in the stream of its direction. */
#include <stdlib.h>

#include "runtime/exec/copy/copy.h"

struct stream_engine {
    struct hd__copy_engine engine;
    const struct hd__device *device;
};

static int32_t stream_start(struct hd__copy_op *c, struct hd_error *err)
{
    const struct hd__device *d = ((struct stream_engine *)c->engine)->device;
    uint32_t stream = c->out ? HD_STREAM_OUT : HD_STREAM_IN;
    int32_t rc = hd__exec_device_order_streams(d, HD_STREAM_COMPUTE, stream, c->done, err);
    if (!rc)
        rc = d->ops->copy(d->handle, stream, c->out ? c->other : c->main, c->out ? c->main : c->other, (size_t)c->bytes,
                          err);
    return rc ? rc : d->ops->record(d->handle, c->done, stream, err);
}

static int32_t stream_wait(struct hd__copy_op *c, double deadline, struct hd_error *err)
{
    const struct hd__device *d = ((struct stream_engine *)c->engine)->device;
    (void)deadline;
    return d->ops->follow(d->handle, HD_STREAM_COMPUTE, c->done, err);
}

static void stream_close(struct hd__copy_engine *engine)
{
    free(engine);
}

static const struct hd__copy_engine_ops stream_ops = {
    .name = "stream", .capturable = 1, .start = stream_start, .wait = stream_wait, .close = stream_close};

struct hd__copy_engine *hd__exec_copy_stream_create(const struct hd__device *d)
{
    struct stream_engine *s = hd__alloc(sizeof *s);
    s->engine.ops = &stream_ops;
    s->device = d;
    return &s->engine;
}
