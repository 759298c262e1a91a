#include "conformance/device/harness.h"
#include "conformance/check.h"
#include "conformance/device/staged.h"
#include <ctype.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

int h_warnings;
const void *h_settings;
char h_last_log[512], h_log[8192];

__attribute__((format(printf, 3, 4))) static void note(uint32_t level, const char *component, const char *format, ...)
{
    size_t n = strlen(h_log);
    va_list args;
    (void)component;
    if (level > HD_LOG_INFO)
        return;
    va_start(args, format);
    vsnprintf(h_log + n, sizeof h_log - n, format, args);
    va_end(args);
    if (level <= HD_LOG_WARN) {
        h_warnings++;
        snprintf(h_last_log, sizeof h_last_log, "%s", h_log + n);
    }
}

static void *zeroed(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, rounded ? rounded : 64);
    if (p)
        memset(p, 0, bytes);
    return p;
}

static const struct hd_host host = {
    .struct_size = sizeof host, .abi_minor = HD_ABI_MINOR, .log = note, .alloc = zeroed, .free = free};

static const struct hd_component *component_at(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ck_assert_msg(library != NULL, "%s", dlerror());
    hd_plugin_entry entry = (hd_plugin_entry)(uintptr_t)dlsym(library, HD_PLUGIN_SYMBOL);
    ck_assert_ptr_nonnull(entry);
    return entry()->components[0];
}

const struct hd_component *h_component(void)
{
    const char *path = getenv("HEDDLE_TEST_DEVICE");
    ck_assert_msg(path != NULL, "HEDDLE_TEST_DEVICE must name the plugin's file");
    return component_at(path);
}

/* Another device may have to be compared with: the one that has reference kernels. NULL: the one under test has them. */
static const struct hd_component *reference(void)
{
    const char *path = getenv("HEDDLE_TEST_REFERENCE");
    return path ? component_at(path) : NULL;
}

static const struct hd_component *component_of(int kernels)
{
    return kernels == H_REFERENCE && reference() ? reference() : h_component();
}

/* 0 where the plugin has no such option. */
static int set_option(const struct hd_component *c, void *settings, const char *name, int64_t value)
{
    for (size_t i = 0; i < c->n_options; i++) {
        if (strcmp(c->options[i].name, name))
            continue;
        char *at = (char *)settings + c->options[i].offset;
        int32_t choice = (int32_t)value;
        if (c->options[i].type == HD_OPT_ENUM)
            memcpy(at, &choice, sizeof choice);
        else
            memcpy(at, &value, sizeof value);
        return 1;
    }
    return 0;
}

struct h_device *h_open_with(int threads, int kernels, const char *option, int64_t value)
{
    const struct hd_component *c = component_of(kernels);
    struct h_device *d = zeroed(sizeof *d);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    int given = h_settings && (kernels != H_REFERENCE || !reference());
    ck_assert_uint_le(c->settings_size, sizeof d->settings);
    if (given)
        memcpy(d->settings, h_settings, c->settings_size);
    place.threads = given ? threads : 0;
    set_option(c, d->settings, "threads", threads);
    if (!given)
        set_option(c, d->settings, "kernels", kernels);
    if (option)
        ck_assert_msg(set_option(c, d->settings, option, value), "the plugin has no option %s", option);
    d->ops = c->ops;
    ck_assert_msg(d->ops->open(&host, d->settings, &place, &d->device, &err) == HD_OK, "%s", err.message);
    return d;
}

struct h_device *h_open(int threads, int kernels)
{
    return h_open_with(threads, kernels, NULL, 0);
}

void h_close(struct h_device *d)
{
    d->ops->close(d->device);
    free(d);
}

/* ---- values */

double h_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state;
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return (double)(x >> 11) * 0x1p-52 - 1;
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double h_bf16(double v)
{
    return from_bf16(to_bf16((float)v));
}

double h_get(const struct hd_operand *o, int64_t i)
{
    switch (o->dtype) {
    case HD_F32:
        return ((const float *)o->data)[i];
    case HD_F64:
        return ((const double *)o->data)[i];
    case HD_BF16:
        return from_bf16(((const uint16_t *)o->data)[i]);
    case HD_F16:
        return ((const _Float16 *)o->data)[i];
    case HD_I32:
        return ((const int32_t *)o->data)[i];
    }
    ck_abort_msg("the harness does not know dtype %u", o->dtype);
}

void h_set(const struct hd_operand *o, int64_t i, double v)
{
    if (o->dtype == HD_F32)
        ((float *)o->data)[i] = (float)v;
    else if (o->dtype == HD_F64)
        ((double *)o->data)[i] = v;
    else if (o->dtype == HD_BF16)
        ((uint16_t *)o->data)[i] = to_bf16((float)v);
    else if (o->dtype == HD_F16)
        ((_Float16 *)o->data)[i] = (_Float16)v;
    else if (o->dtype == HD_I32)
        ((int32_t *)o->data)[i] = (int32_t)v;
    else
        ck_abort_msg("the harness does not know dtype %u", o->dtype);
}

void h_copy(const struct hd_operand *to, const struct hd_operand *from)
{
    int64_t n = hd_operand_count(from);
    ck_assert_int_eq(n, hd_operand_count(to));
    for (int64_t i = 0; i < n; i++)
        h_set(to, i, h_get(from, i));
}

double h_distance(const struct hd_operand *got, const struct hd_operand *want)
{
    int64_t n = hd_operand_count(want);
    double apart = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = h_get(got, i), b = h_get(want, i);
        if (isnan(a) || isnan(b))
            return INFINITY;
        if (a == b) /* equal infinities too */
            continue;
        apart += (a - b) * (a - b);
        norm += b * b;
    }
    for (int64_t i = 0; i < n; i++) {
        double a = h_get(got, i), b = h_get(want, i);
        norm += a == b && !isinf(b) ? b * b : 0;
    }
    return apart == 0 ? 0 : sqrt(apart / norm);
}

/* ---- instructions */

static void find_dim(const char *dims, char letter, int64_t *extent, int64_t *start)
{
    for (const char *p = dims; *p; p++)
        if (*p == letter && p[1] == '=') {
            char *end;
            *extent = strtoll(p + 2, &end, 10);
            *start = *end == '@' ? strtoll(end + 1, NULL, 10) : 0;
            return;
        }
    ck_abort_msg("no dim %c in \"%s\"", letter, dims);
}

static void *guarded(struct h_instr *i, uint32_t slot, size_t bytes)
{
    char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
    ck_assert_ptr_nonnull(p);
    memset(p, GUARD_BYTE, bytes + 2 * GUARD);
    i->memory[slot] = p;
    i->sizes[slot] = bytes + 2 * GUARD;
    return p + GUARD;
}

static size_t operand_bytes(const struct hd_operand *o)
{
    return (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
}

/* Parses one description; returns what follows it. `kind` is the letter before a colon, or 0. */
static const char *parse(struct hd_operand *o, const char *text, const char *dims, uint32_t dtype, char *kind)
{
    *o = (struct hd_operand){.dtype = dtype};
    *kind = 0;
    if (text[0] && text[1] == ':') {
        *kind = text[0];
        text += 2;
    }
    if (*kind == 'i' || *kind == 'n')
        o->dtype = HD_I32;
    else if (*kind == 'd')
        o->dtype = HD_F64;
    else if (*kind)
        o->dtype = dtype == HD_F64 ? HD_F64 : HD_F32;
    for (; *text && !isspace((unsigned char)*text); text++, o->ndim++) {
        o->dim[o->ndim] = (uint8_t)*text;
        find_dim(dims, *text, &o->extent[o->ndim], &o->start[o->ndim]);
    }
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* The first document of a row begins up to 9 positions before this part of the sequence. */
static void fill_documents(const struct hd_operand *o, uint64_t *seed)
{
    int64_t length = o->extent[o->ndim - 1], before = o->start[o->ndim - 1], n = before < 9 ? before : 9;
    for (int64_t i = 0; i < hd_operand_count(o); i++, n++) {
        if (i % length == 0)
            n = before < 9 ? before : 9;
        else if (h_random(seed) < (i / length % 2 ? -0.98 : -0.7))
            n = 0;
        h_set(o, i, (double)n);
    }
}

static void fill(const struct hd_operand *o, char kind, const char *dims, uint64_t *seed)
{
    int64_t n = hd_operand_count(o), limit = 0, start = 0;
    if (kind == 'n') {
        fill_documents(o, seed);
        return;
    }
    if (kind == 'i')
        find_dim(dims, strstr(dims, "v=") ? 'v' : 'p', &limit, &start);
    for (int64_t i = 0; i < n; i++) {
        double v = h_random(seed);
        if (kind == 'i') /* a few ids fall outside this shard, where there is an outside */
            v = start + floor((v + 1) / 2 * (double)(start ? 2 * limit : limit)) - (start ? limit / 2 : 0);
        else if (kind == '+')
            v = 1.5 + v;
        h_set(o, i, v);
    }
}

static uint32_t make_side(struct h_instr *i, struct hd_operand *side, uint32_t slot, const char *text,
                          const struct h_case *c, uint32_t dtype, uint64_t *seed)
{
    uint32_t n = 0;
    while (text && *text) {
        char kind;
        text = parse(&side[n], text, c->dims, dtype, &kind);
        side[n].data = guarded(i, slot + n, operand_bytes(&side[n]));
        fill(&side[n], kind, c->dims, seed);
        n++;
    }
    return n;
}

struct h_instr *h_make(const struct h_case *c, uint32_t dtype, uint64_t seed)
{
    struct h_instr *i = zeroed(sizeof *i);
    uint64_t state = seed * 2654435761u + c->op;
    i->d.struct_size = sizeof i->d;
    i->d.op = c->op;
    i->d.attrs = c->attrs;
    i->d.attrs.struct_size = sizeof i->d.attrs;
    snprintf(i->d.label, sizeof i->d.label, "%s", c->name);
    i->d.n_in = make_side(i, i->in, 0, c->in, c, dtype, &state);
    i->d.n_out = make_side(i, i->out, HD_MAX_IN, c->out, c, dtype, &state);
    i->d.in = i->in;
    i->d.out = i->out;
    return i;
}

static void copy_as(struct h_instr *i, struct hd_operand *to, uint32_t slot, const struct hd_operand *from,
                    uint32_t dtype)
{
    *to = *from;
    if (from->dtype != HD_I32)
        to->dtype = dtype;
    to->data = guarded(i, slot, operand_bytes(to));
    h_copy(to, from);
}

struct h_instr *h_as(const struct h_instr *from, uint32_t dtype)
{
    struct h_instr *i = zeroed(sizeof *i);
    i->d = from->d;
    for (uint32_t j = 0; j < i->d.n_in; j++)
        copy_as(i, &i->in[j], j, &from->in[j], dtype);
    for (uint32_t j = 0; j < i->d.n_out; j++)
        copy_as(i, &i->out[j], HD_MAX_IN + j, &from->out[j], dtype);
    i->d.in = i->in;
    i->d.out = i->out;
    return i;
}

static void check_guards(const struct h_instr *i, const struct hd_operand *o, uint32_t slot)
{
    const unsigned char *p = i->memory[slot];
    size_t bytes = operand_bytes(o);
    if (!p)
        return;
    size_t whole = 0;
    for (size_t j = 0; j < GUARD; j++)
        whole += p[j] == GUARD_BYTE && p[GUARD + bytes + j] == GUARD_BYTE;
    ck_assert_msg(whole == GUARD, "%s wrote outside an operand", i->d.label);
}

void h_free(struct h_instr *i)
{
    for (uint32_t j = 0; j < i->d.n_in; j++)
        check_guards(i, &i->in[j], j);
    for (uint32_t j = 0; j < i->d.n_out; j++)
        check_guards(i, &i->out[j], HD_MAX_IN + j);
    for (uint32_t j = 0; j < HD_MAX_IN + HD_MAX_OUT; j++)
        free(i->memory[j]);
    free(i);
}

int32_t h_prepare(struct h_device *d, struct h_instr *i, struct hd_kernel **k, struct hd_error *err)
{
    return d->ops->prepare(d->device, &i->d, k, err);
}

void h_refused(struct h_device *d, const struct h_case *c, uint32_t dtype, int32_t code, const char *says)
{
    struct h_instr *i = h_make(c, dtype, 1);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k = (struct hd_kernel *)&err;
    ck_assert_int_eq(h_prepare(d, i, &k, &err), code);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s: said: %s", c->name, err.message);
    ck_assert_ptr_eq(k, &err); /* outputs are written only on success */
    h_free(i);
}

int h_can(uint64_t caps)
{
    const char *path = getenv("HEDDLE_TEST_DEVICE");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    hd_plugin_entry entry = library ? (hd_plugin_entry)(uintptr_t)dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    const struct hd_device_ops *ops = entry ? entry()->components[0]->ops : NULL;
    return ops && (ops->caps & caps) == caps;
}

int h_has_memory(void)
{
    return h_can(HD_DEVICE_STREAMS);
}

int h_is_staged(const struct h_device *d)
{
    return (d->ops->caps & HD_DEVICE_STREAMS) != 0;
}

void h_run(struct h_device *d, struct h_instr *i)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    if (h_is_staged(d)) {
        h_run_staged(d, i, 1);
        return;
    }
    ck_assert_msg(h_prepare(d, i, &k, &err) == HD_OK, "%s", err.message);
    ck_assert_msg(d->ops->launch(d->device, k, 0, &err) == HD_OK, "%s", err.message);
    d->ops->release(d->device, k);
}

/* ---- comparisons */

void h_near(const char *name, const struct h_instr *got, const struct h_instr *want, double tolerance)
{
    for (uint32_t i = 0; i < want->d.n_out; i++) {
        double distance = h_distance(&got->out[i], &want->out[i]);
        ck_assert_msg(distance <= tolerance, "%s, output %u in %s: off by %.3g of the norm, at most %.3g is allowed",
                      name, i, hd_dtype_name(got->out[i].dtype), distance, tolerance);
    }
}

void h_equal(const char *name, const struct h_instr *a, const struct h_instr *b)
{
    for (uint32_t i = 0; i < a->d.n_out; i++)
        ck_assert_msg(!memcmp(a->out[i].data, b->out[i].data, operand_bytes(&a->out[i])),
                      "%s, output %u: the bits differ", name, i);
}

void h_check(struct h_device *d, struct h_instr *got, struct h_instr *want, double tolerance)
{
    struct h_device *plain = h_open(1, H_REFERENCE);
    h_run(d, got);
    h_run(plain, want);
    h_near(got->d.label, got, want, tolerance);
    h_free(got);
    h_free(want);
    h_close(plain);
}

/* A kernel that has run once allocates nothing when it runs again (OpenMP and libraries warm up at first). What CUDA
 * does when it enqueues is its own. */
static void allocates_nothing(struct h_device *d, struct h_instr *i)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    if (h_is_staged(d))
        return;
    ck_assert_msg(h_prepare(d, i, &k, &err) == HD_OK, "%s", err.message);
    ck_assert_int_eq(d->ops->launch(d->device, k, 0, &err), HD_OK);
    long before = h_allocations;
    int32_t rc = d->ops->launch(d->device, k, 0, &err);
    long made = h_allocations - before;
    ck_assert_int_eq(rc, HD_OK);
    ck_assert_msg(made == 0, "%s made %ld allocations when it ran", i->d.label, made);
    d->ops->release(d->device, k);
}

static void fast_variant(const struct h_case *c, uint32_t dtype, double tolerance)
{
    struct h_device *one = h_open(1, H_FAST), *three, *plain;
    if (!one->ops->supports(one->device, c->op, dtype)) { /* which ops a device must have, its own tests say */
        h_close(one);
        return;
    }
    three = h_open(3, H_FAST), plain = h_open(1, H_REFERENCE);
    struct h_instr *a = h_make(c, dtype, 7), *b = h_make(c, dtype, 7), *want = h_as(a, HD_F64);
    h_warnings = 0;
    h_run(one, a);
    h_run(three, b);
    h_run(plain, want);
    ck_assert_msg(h_warnings == 0, "%s: %s", c->name, h_last_log);
    h_near(c->name, a, want, tolerance);
    h_equal(c->name, a, b);
    allocates_nothing(one, a);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(one);
    h_close(three);
    h_close(plain);
}

void h_fast_case(const struct h_case *c, uint32_t dtype, double tolerance, int adds)
{
    fast_variant(c, dtype, tolerance);
    if (adds) {
        struct h_case again = *c;
        char name[128];
        snprintf(name, sizeof name, "%s, accumulating", c->name);
        again.name = name;
        again.attrs.flags |= HD_ATTR_ACCUMULATE;
        fast_variant(&again, dtype, tolerance);
    }
}
