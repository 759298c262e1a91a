/* Runs an instruction on a device with memory of its own: operands, guards included, go there and come back. */
#include "conformance/device/staged.h"
#include "conformance/check.h"
#include <stdlib.h>

struct block {
    char *host, *device;
    size_t bytes;
};

struct staged {
    struct block blocks[HD_MAX_IN + HD_MAX_OUT];
    int n;
    struct hd_instr_desc d;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
};

static size_t bytes_of(const struct hd_operand *o)
{
    return (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
}

/* The operand's memory on the device; several operands may lie in one block. */
static void *place(struct staged *s, struct h_device *d, struct h_instr *i, const struct hd_operand *o)
{
    struct hd_error err = HD_ERROR_INIT;
    char *at = o->data;
    void *memory;
    for (int b = 0; b < s->n; b++)
        if (at >= s->blocks[b].host && at + bytes_of(o) <= s->blocks[b].host + s->blocks[b].bytes)
            return s->blocks[b].device + (at - s->blocks[b].host);
    struct block *b = &s->blocks[s->n++];
    *b = (struct block){.host = at, .bytes = bytes_of(o)};
    for (uint32_t slot = 0; slot < HD_MAX_IN + HD_MAX_OUT; slot++) {
        char *host = i->memory[slot];
        if (host && at >= host && at + bytes_of(o) <= host + i->sizes[slot])
            *b = (struct block){.host = host, .bytes = i->sizes[slot]};
    }
    ck_assert_msg(d->ops->alloc(d->device, HD_MEM_DEVICE, b->bytes + 1, &memory, &err) == HD_OK, "%s", err.message);
    b->device = memory;
    ck_assert_msg(d->ops->copy(d->device, HD_STREAM_COMPUTE, memory, b->host, b->bytes, &err) == HD_OK, "%s",
                  err.message);
    return b->device + (at - b->host);
}

static void stage(struct staged *s, struct h_device *d, struct h_instr *i)
{
    memset(s, 0, sizeof *s);
    s->d = i->d;
    s->d.in = s->in;
    s->d.out = s->out;
    for (uint32_t n = 0; n < i->d.n_in; n++) {
        s->in[n] = i->in[n];
        s->in[n].data = place(s, d, i, &i->in[n]);
    }
    for (uint32_t n = 0; n < i->d.n_out; n++) {
        s->out[n] = i->out[n];
        s->out[n].data = place(s, d, i, &i->out[n]);
    }
}

static void bring_back(struct staged *s, struct h_device *d)
{
    struct hd_error err = HD_ERROR_INIT;
    for (int b = 0; b < s->n; b++)
        ck_assert_msg(d->ops->copy(d->device, HD_STREAM_COMPUTE, s->blocks[b].host, s->blocks[b].device,
                                   s->blocks[b].bytes, &err) == HD_OK,
                      "%s", err.message);
    ck_assert_msg(d->ops->sync(d->device, HD_STREAM_COMPUTE, &err) == HD_OK, "%s", err.message);
    for (int b = 0; b < s->n; b++)
        d->ops->free(d->device, HD_MEM_DEVICE, s->blocks[b].device);
}

static struct hd_kernel *prepare(struct staged *s, struct h_device *d, struct h_instr *i)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    stage(s, d, i);
    ck_assert_msg(d->ops->prepare(d->device, &s->d, &k, &err) == HD_OK, "%s", err.message);
    return k;
}

static void launch(struct h_device *d, struct hd_kernel *k)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(d->ops->launch(d->device, k, HD_STREAM_COMPUTE, &err) == HD_OK, "%s", err.message);
}

void h_run_staged(struct h_device *d, struct h_instr *i, int times)
{
    struct staged s;
    struct hd_kernel *k = prepare(&s, d, i);
    for (int n = 0; n < times; n++)
        launch(d, k);
    bring_back(&s, d);
    d->ops->release(d->device, k);
}

void h_run_staged_all(struct h_device *d, struct h_instr *const *all, int n)
{
    struct staged *s = calloc((size_t)n, sizeof *s);
    struct hd_kernel **k = calloc((size_t)n, sizeof *k);
    ck_assert(s && k);
    for (int i = 0; i < n; i++)
        k[i] = prepare(&s[i], d, all[i]);
    for (int i = 0; i < n; i++)
        launch(d, k[i]);
    for (int i = 0; i < n; i++) {
        bring_back(&s[i], d);
        d->ops->release(d->device, k[i]);
    }
    free(k);
    free(s);
}
