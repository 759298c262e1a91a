/* Promises of every device: its kernels against the reference, over ops, dtypes and shapes; what it does not have is
 * refused; streams and events, where it has them; a whole job. */
#include <math.h>
#include <stdlib.h>

#include "conformance/check.h"
#include "conformance/device/harness.h"
#include "conformance/device/op_table.h"
#include "core/plugin/plugin.h"
#include "core/program/ops.h"
#include "runtime/rendezvous/host_store.h"

static const struct {
    uint32_t dtype;
    double tolerance; /* of the norm of the difference over that of the result */
} dtypes[] = {{HD_F64, 1e-12}, {HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

static uint32_t supported; /* ops of the table that it has in some dtype */
static int table_too;

int conf_device_word(const char *word)
{
    if (!strcmp(word, "table"))
        return table_too = 1;
    return !strncmp(word, "set:", 4) && strchr(word, '=');
}

/* ---- cases: ops of models, and those that every step has */

static const struct hd_range ranges[] = {{0, 100, 0.1}, {100, 613, 0}, {900, 50000, 0.3}, {60000, 1000, 1}};
static const double hyper[HD_HYPER_COUNT] = {0.01, 3, 0.5};

static const struct h_case steps[] = {
    {"fill0", HD_OP_FILL0, NULL, "bh", "b=15 h=201", {0}},
    {"copy", HD_OP_COPY, "bh", "bh", "b=15 h=201", {0}},
    {"accum", HD_OP_ACCUM, "bh", "bh", "b=5 h=101", {0}},
    {"accum into fp32", HD_OP_ACCUM, "bh", "f:bh", "b=3 h=5", {0}},
    {"sumsq", HD_OP_SUMSQ, "n", "d:", "n=40001", {.ranges = ranges, .n_ranges = 4}},
    {"sumsq of a later shard", HD_OP_SUMSQ, "n", "d:", "n=1777@50", {.ranges = ranges, .n_ranges = 4}},
    {"adamw",
     HD_OP_ADAMW,
     "f:n d: d:y",
     "f:n +:n +:n",
     "n=61001 y=8",
     {.ranges = ranges, .n_ranges = 4, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .clip = 1}},
    {"adamw with a copy, later shard",
     HD_OP_ADAMW,
     "n d: d:y",
     "f:n +:n +:n n",
     "n=1777@50 y=8",
     {.ranges = ranges, .n_ranges = 4, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999}},
    {"sgd with momentum and a copy",
     HD_OP_SGD,
     "n d: d:y",
     "f:n f:n n",
     "n=61001 y=8",
     {.ranges = ranges, .n_ranges = 4, .beta1 = 0.9, .clip = 2}},
    {"sgd", HD_OP_SGD, "f:n d: d:y", "f:n", "n=1777@50 y=8", {.ranges = ranges, .n_ranges = 4}},
};

enum { ACCUMULATING = 1, LARGER = 2 };

/* The extents of batch, sequence, hidden and vocabulary times odd numbers: no kernel's tile fits. */
static const char *larger(const char *dims, char text[128])
{
    static const char letters[] = "bshfvp";
    static const int64_t factors[] = {3, 11, 13, 17, 9, 11};
    size_t n = 0;
    for (const char *at = dims; *at; at++) {
        const char *letter = strchr(letters, *at);
        text[n++] = *at;
        if (!letter || at[1] != '=')
            continue;
        char *end;
        int64_t extent = strtoll(at + 2, &end, 10);
        n += (size_t)sprintf(text + n, "=%lld", (long long)(extent > 1 ? extent * factors[letter - letters] : 1));
        at = end - 1;
    }
    text[n] = 0;
    return text;
}

/* Gradient norm, scalars of the step: what they are in training. Returns the instruction with random operands. */
static struct h_instr *make(struct h_device *reference, const struct op_row *row, const struct h_case *c,
                            uint32_t dtype)
{
    struct h_instr *i = h_make(c, dtype, 7);
    if (row && row->routed)
        op_table_route(reference, c->dims, i);
    if (i->d.op == HD_OP_ADAMW || i->d.op == HD_OP_SGD) {
        h_set(&i->in[1], 0, 40);
        for (int n = 0; n < HD_HYPER_COUNT; n++)
            h_set(&i->in[2], n, hyper[n]);
    }
    return i;
}

static void check_inputs(const struct h_case *c, const struct h_instr *before, const struct h_instr *after)
{
    for (uint32_t n = 0; n < before->d.n_in; n++)
        ck_assert_msg(!memcmp(before->in[n].data, after->in[n].data,
                              (size_t)hd_operand_count(&before->in[n]) * hd_dtype_size(before->in[n].dtype)),
                      "%s wrote into its input %u", c->name, n);
}

static void compare(const struct op_row *row, const struct h_case *c, uint32_t dtype, double tolerance)
{
    struct h_device *d = h_open(1, H_FAST), *more = h_open(3, H_FAST), *reference = h_open(1, H_REFERENCE);
    struct h_instr *a = make(reference, row, c, dtype), *b = make(reference, row, c, dtype);
    struct h_instr *before = make(reference, row, c, dtype), *want = h_as(a, HD_F64);
    h_warnings = 0;
    h_run(d, a);
    h_run(more, b);
    h_run(reference, want);
    check_inputs(c, before, a);
    h_near(c->name, a, want, tolerance);
    h_equal(c->name, a, b); /* the same bits again, in another device, with other threads */
    h_free(a);
    h_free(b);
    h_free(before);
    h_free(want);
    h_close(d);
    h_close(more);
    h_close(reference);
}

static void check_case(const struct op_row *row, const struct h_case *c, int how)
{
    char dims[128], name[160];
    struct h_case varied = *c;
    snprintf(name, sizeof name, "%s%s%s", c->name, how & LARGER ? ", larger" : "",
             how & ACCUMULATING ? ", accumulating" : "");
    varied.name = name;
    varied.attrs.flags |= how & ACCUMULATING ? HD_ATTR_ACCUMULATE : 0;
    varied.dims = how & LARGER ? larger(c->dims, dims) : c->dims;
    for (size_t n = 0; n < HD__COUNT(dtypes); n++)
        if (conf_target.component->ops.device.supports(NULL, c->op, dtypes[n].dtype))
            compare(row, &varied, dtypes[n].dtype, dtypes[n].tolerance);
}

static int is_supported(uint32_t op)
{
    int any = 0;
    for (size_t n = 0; n < HD__COUNT(dtypes); n++)
        any |= conf_target.component->ops.device.supports(NULL, op, dtypes[n].dtype);
    return any;
}

START_TEST(model_op)
{
    const struct op_row *row = &op_table[_i];
    const struct h_case c = {row->name, row->op, row->in, row->out, row->dims, row->attrs};
    check_case(row, &c, 0);
    check_case(row, &c, LARGER);
    if (hd__op((uint16_t)row->op)->flags & HD__OP_ACCUMULATES) {
        check_case(row, &c, ACCUMULATING);
        check_case(row, &c, LARGER | ACCUMULATING);
    }
}
END_TEST

START_TEST(step_op)
{
    check_case(NULL, &steps[_i], 0);
}
END_TEST

static void run_cases(void)
{
    char label[96];
    for (int n = 0; n < op_table_count; n++) {
        snprintf(label, sizeof label, "kernel %s", op_table[n].name);
        if (is_supported(op_table[n].op) && ++supported)
            conf_run(label, model_op, n, n + 1, NULL);
    }
    for (int n = 0; n < (int)HD__COUNT(steps); n++) {
        snprintf(label, sizeof label, "kernel %s", steps[n].name);
        if (is_supported(steps[n].op) && ++supported)
            conf_run(label, step_op, n, n + 1, NULL);
    }
}

/* ---- the rest of the table */

START_TEST(opens_and_closes)
{
    struct h_device *a = h_open(1, H_FAST), *b = h_open(2, H_FAST);
    h_close(a);
    h_close(b);
    a = h_open(1, H_FAST);
    a->ops->close(NULL);
    h_close(a);
}
END_TEST

START_TEST(supports_the_same_before_it_is_open)
{
    struct h_device *d = h_open(1, H_FAST);
    for (uint32_t op = 0; op < 300; op++)
        for (uint32_t dtype = 0; dtype < 16; dtype++)
            ck_assert_msg(!d->ops->supports(NULL, op, dtype) == !d->ops->supports(d->device, op, dtype),
                          "supports(op %u, dtype %u) is another answer where the device is open", op, dtype);
    ck_assert_msg(!d->ops->supports(NULL, 60000, HD_F32), "it says that it has an op 60000");
    h_close(d);
}
END_TEST

START_TEST(what_it_does_not_have_is_refused)
{
    struct h_device *d = h_open(1, H_FAST);
    for (int n = -1; n < op_table_count; n++) {
        const struct op_row *row = &op_table[n < 0 ? 0 : n];
        const struct h_case c = {row->name, n < 0 ? 60000 : row->op, row->in, row->out, row->dims, row->attrs};
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k = NULL;
        if (n >= 0 && is_supported(row->op))
            continue;
        struct h_instr *i = h_make(&c, HD_F32, 1);
        int32_t rc = h_prepare(d, i, &k, &err);
        ck_assert_msg(n >= 0 || rc < 0, "prepare takes an op 60000");
        ck_assert_msg(!rc || (err.message[0] && !k), "prepare of %s: %d, \"%s\"; outputs are written only on success",
                      c.name, rc, err.message);
        if (!rc) /* a fused op that is slower than its parts */
            d->ops->release(d->device, k);
        h_free(i);
    }
    h_close(d);
}
END_TEST

START_TEST(memory_is_aligned)
{
    struct h_device *d = h_open(1, H_FAST);
    struct hd_error err = HD_ERROR_INIT;
    for (uint32_t kind = HD_MEM_HOST; kind <= HD_MEM_DEVICE && d->ops->alloc; kind++)
        for (size_t bytes = 1; bytes < 1 << 22; bytes *= 37) {
            void *memory = NULL;
            if (kind != HD_MEM_HOST && !h_is_staged(d))
                continue;
            ck_assert_msg(d->ops->alloc(d->device, kind, bytes, &memory, &err) == HD_OK, "%s", err.message);
            ck_assert_msg(memory && (uintptr_t)memory % 4096 == 0, "memory of kind %u is not aligned to 4096", kind);
            if (kind != HD_MEM_DEVICE)
                memset(memory, 1, bytes);
            d->ops->free(d->device, kind, memory);
        }
    h_close(d);
}
END_TEST

START_TEST(a_kernel_runs_again_and_allocates_nothing)
{
    static const struct h_case c = {"copy", HD_OP_COPY, "bh", "bh", "b=15 h=201", {0}};
    struct h_device *d = h_open(1, H_FAST);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    struct h_instr *i = h_make(&c, HD_F32, 1);
    ck_assert_msg(h_prepare(d, i, &k, &err) == HD_OK, "%s", err.message);
    memset(&i->d, 0xff, sizeof i->d); /* the descriptor may be gone */
    for (int n = 0; n < 3; n++) {
        h_set(&i->in[0], 7, n);
        long before = h_allocations;
        ck_assert_msg(d->ops->launch(d->device, k, 0, &err) == HD_OK, "%s", err.message);
        ck_assert_msg(!n || h_allocations == before, "launch allocates");
        ck_assert_msg(h_get(&i->out[0], 7) == n, "launched again, it does not see its new input");
    }
    d->ops->release(d->device, k);
    h_close(d);
}
END_TEST

/* Copies from the host and back on two streams, the second behind an event of the first. */
START_TEST(streams_follow_events)
{
    enum { BYTES = 1 << 20 };
    struct h_device *d = h_open(1, H_FAST);
    const struct hd_device_ops *ops = d->ops;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_event *event;
    int32_t done = 0;
    void *device, *pinned;
#define OK(call) ck_assert_msg((call) == HD_OK, "%s: %s", #call, err.message)
    OK(ops->alloc(d->device, HD_MEM_DEVICE, BYTES, &device, &err));
    OK(ops->alloc(d->device, HD_MEM_PINNED, 2 * BYTES, &pinned, &err));
    OK(ops->event(d->device, &event, &err));
    OK(ops->reached(d->device, event, &done, &err));
    ck_assert_msg(done, "an event that nothing was recorded in counts as reached");
    for (int n = 0; n < 20; n++) {
        memset(pinned, n, BYTES);
        OK(ops->copy(d->device, HD_STREAM_IN, device, pinned, BYTES, &err));
        OK(ops->record(d->device, event, HD_STREAM_IN, &err));
        OK(ops->follow(d->device, HD_STREAM_OUT, event, &err));
        OK(ops->copy(d->device, HD_STREAM_OUT, (char *)pinned + BYTES, device, BYTES, &err));
        OK(ops->sync(d->device, HD_STREAM_OUT, &err));
        OK(ops->reached(d->device, event, &done, &err));
        ck_assert_msg(done, "what a stream followed is not reached, though that stream is idle");
        ck_assert_msg(((char *)pinned)[2 * BYTES - 1] == n && ((char *)pinned)[BYTES] == n,
                      "a stream did not wait for the event that it follows");
    }
#undef OK
    ops->event_free(d->device, event);
    ops->free(d->device, HD_MEM_DEVICE, device);
    ops->free(d->device, HD_MEM_PINNED, pinned);
    h_close(d);
}
END_TEST

/* ---- a whole job beside one of device-cpu */

START_TEST(a_job_trains_as_on_a_cpu)
{
    static const char job[] =
        "job: {name: device, steps: 6, seed: 3}\n"
        "optimizer: {use: adamw, lr: 1e-2}\n"
        "model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}\n"
        "data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4, shuffle: false}\n";
    char words[64];
    struct hd__text cpu = {0}, own = {0};
    ck_assert_msg(!conf_train(conf_folder(), job, "device.use=cpu", &cpu), "%s", cpu.at);
    snprintf(words, sizeof words, "device.use=%.40s", conf_target.name);
    int code = conf_train(conf_folder(), job, words, &own);
    if (code == 2) /* kernels that it does not have, by name */
        return;
    ck_assert_msg(code == 0, "heddle train %s: exit code %d\n%s", words, code, own.at);
    char want[128], got[128];
    conf_end(&cpu, want);
    conf_end(&own, got);
    ck_assert_msg(fabs(atof(want + 4) - atof(got + 4)) < 2e-3, "it ends with %s, and %s on a CPU", got, want);
}
END_TEST

void conf_device(void)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__component *reference = NULL;
    static struct hd__plugins *own; /* until the process ends */
    own = hd__plugins_create(hd__store_host_table());
    if (hd__plugins_add_default_folders(own, &err) || hd__plugin_find(own, HD_KIND_DEVICE, "cpu", &reference, &err)) {
        fprintf(stderr, "heddle test: the reference kernels are those of device-cpu: %s\n", err.message);
        return;
    }
    setenv("HEDDLE_TEST_DEVICE", conf_target.component->path, 1);
    setenv("HEDDLE_TEST_REFERENCE", reference->path, 1);
    h_settings = conf_settings(&err);
    RUN_TEST(opens_and_closes);
    RUN_TEST(supports_the_same_before_it_is_open);
    RUN_TEST(what_it_does_not_have_is_refused);
    RUN_TEST(memory_is_aligned);
    if (h_has_memory())
        RUN_TEST(streams_follow_events);
    else if (is_supported(HD_OP_COPY))
        RUN_TEST(a_kernel_runs_again_and_allocates_nothing);
    run_cases();
    if (!supported)
        fprintf(stderr, "heddle test: %s supports no op that there is a case of\n", conf_target.label);
    RUN_TEST(a_job_trains_as_on_a_cpu);
    if (table_too)
        op_table_run();
}
