/* Prepares a rank's program and walks it. */
#include "core/run/executor.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/workers.h"
#include "core/program/ops.h"
#include "core/run/copies.h"
#include "core/run/exchange.h"
#include "core/run/profile.h"
#include "core/run/safetensors.h"
#include "core/run/transports.h"

enum {
    STEP_KERNEL = 0, STEP_EXCHANGE, STEP_EXCHANGE_WAIT, STEP_COPY, STEP_COPY_WAIT, STEP_FEED, STEP_NOTHING
};

struct step {
    uint32_t kind;
    uint32_t instr;   /* index in its section */
    union {
        struct hd_kernel *kernel;
        struct hd__exchange *exchange;
        struct hd__copy *copy;
        struct {
            int32_t *out;
            int64_t count;
            int32_t labels;
        } feed;
    };
};

struct section {
    const struct hd__code_section *of;
    struct step *steps;
    uint32_t n;
};

struct hd__exec {
    struct hd__exec_config config;
    struct hd_program *p;
    int32_t coord[HD_AXIS_COUNT];
    const struct hd_device_ops *dev;
    struct hd_device *device;
    struct hd__transports transports;
    void *arena;
    struct hd__memories memories; /* the others */
    struct hd__copies *copies;
    int32_t arena_from; /* 0: transport (freed with it), 1: device, 2: mmap */
    int32_t in_flight;
    struct section *sections;
    struct hd__group_ref world; /* of = NULL: there is one rank */
    struct hd__flight_op agree; /* hd__exec_agree, for the recorder */
    double comm_seconds;
    struct hd__profile *profile; /* NULL: nobody asked */
    int32_t profiling, reserved;
    char *bad; /* not NULL: where the first bad number is named; "" until there is one */
    const struct section *at_section;
    uint32_t at_step;
};

/* ---- arena */

static uint32_t arena_kind(const struct hd__exec *e)
{
    return e->dev->caps & HD_DEVICE_HOST_MEMORY ? HD_MEM_HOST : HD_MEM_DEVICE;
}

static int32_t map_arena(struct hd__exec *e, size_t bytes, struct hd_error *err)
{
    for (uint32_t i = 0; i < e->transports.at.count; i++) {
        struct hd__transport *t = e->transports.at.at[i];
        if (t->ops->memory && (e->dev->caps & HD_DEVICE_HOST_MEMORY))
            return t->ops->memory(t->comm, bytes, &e->arena, err);
    }
    if (e->dev->alloc) {
        e->arena_from = 1;
        return e->dev->alloc(e->device, arena_kind(e), bytes, &e->arena, err);
    }
    e->arena_from = 2;
    e->arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->arena == MAP_FAILED) {
        e->arena = NULL;
        return hd_fail(err, HD_E_NOMEM, "cannot map the arena of %zu bytes", bytes);
    }
    madvise(e->arena, bytes, MADV_HUGEPAGE);
    return HD_OK;
}

/* Every page is there before the first step. The memory is zero already, so one byte of each is enough. */
static void touch_pages(char *memory, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 4096)
        *(volatile char *)(memory + at) = 0;
}

/* What the program keeps elsewhere, and who copies it. */
static int32_t open_memories(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc, any = 0;
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        any |= e->p->bytes[memory] > 0;
    if (!any)
        return HD_OK;
    if (!(e->dev->caps & HD_DEVICE_HOST_MEMORY))
        return hd_fail(err, HD_E_UNSUPPORTED, "device-%s cannot copy from and to other memories yet: leave strategies.zero.offload out",
                       e->config.compiled->device_choice.section->use);
    rc = hd__memories_open(e->p, e->arena, &e->memories, err);
    return rc ? rc : hd__copies_open(e->memories.file, HD__COPIES_AUTO, &e->copies, err);
}

static void unmap_arena(struct hd__exec *e)
{
    hd__copies_close(e->copies);
    hd__memories_close(&e->memories);
    if (e->arena && e->arena_from == 1)
        e->dev->free(e->device, arena_kind(e), e->arena);
    if (e->arena && e->arena_from == 2)
        munmap(e->arena, (size_t)e->p->arena_bytes);
}

/* ---- preparing */

static int32_t prepare_kernel(struct hd__exec *e, const struct hd__instr *i, struct step *s, struct hd_error *err)
{
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_instr_desc desc;
    hd__bind(e->p, i, e->coord, e->arena, &desc, in, out);
    s->kind = STEP_KERNEL;
    return e->dev->prepare(e->device, &desc, &s->kernel, err);
}

/* To and from a file whole pages go: both ends were planned so. */
static void prepare_copy(struct hd__exec *e, const struct hd__instr *i, struct step *s)
{
    int32_t out = i->stream == HD__STREAM_OUT;
    hd_tensor there = out ? i->out[0] : i->in[0], here = out ? i->in[0] : i->out[0];
    struct hd__copy *c = hd__arena_alloc(&e->p->arena, sizeof *c);
    *c = (struct hd__copy){.main = hd__address(e->p, here, e->coord, e->arena), .out = out,
                           .bytes = hd__tensor_bytes(e->p, hd__tc(e->p, here))};
    if (hd__memory_of(e->p, there) == HD__MEM_FILE) {
        c->at = e->p->buffers.at[hd__tc(e->p, there)->buffer].offset;
        c->bytes = (c->bytes + 4095) & ~INT64_C(4095);
    } else {
        c->other = hd__address(e->p, there, e->coord, e->arena);
    }
    s->kind = STEP_COPY;
    s->copy = c;
}

static void prepare_wait(const struct section *done, uint32_t at, const struct hd__instr *i, struct step *s)
{
    s->kind = STEP_NOTHING;
    for (uint32_t k = at; k-- > 0;) {
        if (done->of->code.at[k].id != i->wait)
            continue;
        if (done->steps[k].kind == STEP_EXCHANGE) {
            s->kind = STEP_EXCHANGE_WAIT;
            s->exchange = done->steps[k].exchange;
        } else if (done->steps[k].kind == STEP_COPY) {
            s->kind = STEP_COPY_WAIT;
            s->copy = done->steps[k].copy;
        }
        return;
    }
}

static int32_t prepare_step(struct hd__exec *e, struct section *section, uint32_t k, struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    struct step *s = &section->steps[k];
    s->instr = k;
    s->kind = STEP_NOTHING;
    if (hd__op(i->op)->class == HD__CLASS_COLLECTIVE || hd__op(i->op)->class == HD__CLASS_P2P) {
        struct hd__exchange_place place = {.section = section->of->name, .index = k};
        s->kind = STEP_EXCHANGE;
        return hd__exchange_new(&e->transports, e->p, i, &place, e->coord, e->arena, &s->exchange, err);
    }
    if (hd__is_copy(i)) {
        prepare_copy(e, i, s);
        return HD_OK;
    }
    switch (i->op) {
    case HD_OP_WAIT:
        prepare_wait(section, k, i, s);
        return HD_OK;
    case HD_OP_RELEASE:
        return HD_OK;
    case HD_OP_FEED:
        s->kind = STEP_FEED;
        s->feed.out = hd__address(e->p, i->out[0], e->coord, e->arena);
        s->feed.count = hd__numel(e->p, hd__tc(e->p, i->out[0]));
        s->feed.labels = hd__tc(e->p, i->out[0])->origin == e->p->labels;
        return HD_OK;
    default:
        return prepare_kernel(e, i, s, err);
    }
}

static int32_t prepare_all(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = HD_OK;
    e->sections = hd__alloc(e->p->sections.count * sizeof *e->sections);
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++) {
        struct section *section = &e->sections[s];
        section->of = &e->p->sections.at[s];
        section->n = section->of->code.count;
        section->steps = hd__alloc((section->n + 1) * sizeof *section->steps);
        for (uint32_t k = 0; k < section->n && !rc; k++) {
            rc = prepare_step(e, section, k, err);
            if (rc && !err->where[0])
                snprintf(err->where, sizeof err->where, "section %s, instruction %u", section->of->name, k);
        }
    }
    return rc;
}

static int same_group(const struct hd__instr *a, const struct hd__instr *b)
{
    return a->axes == b->axes && a->members == b->members;
}

/* Groups of several stages. Making a group waits for its members, and stages meet theirs in different orders: so all ranks
 * make all of these in one order, that of the stages' programs. */
static int32_t open_stage_groups(struct hd__exec *e, struct hd_error *err)
{
    const struct hd__compiled *c = e->config.compiled;
    HD__ARRAY(const struct hd__instr *) known = {0};
    int32_t rc = HD_OK;
    for (int32_t stage = 0; stage < c->n_stages && c->n_stages > 1; stage++)
        for (uint32_t s = 0; s < c->stage[stage]->sections.count; s++)
            for (uint32_t k = 0; k < c->stage[stage]->sections.at[s].code.count && !rc; k++) {
                const struct hd__instr *i = &c->stage[stage]->sections.at[s].code.at[k];
                struct hd__group_ref unused;
                uint32_t n = 0;
                if (!(i->axes & HD_AXIS_BIT(HD_AXIS_PP)))
                    continue;
                while (n < known.count && !same_group(known.at[n], i))
                    n++;
                if (n < known.count)
                    continue;
                hd__push(&known, i);
                if (!i->members || i->members >> e->coord[HD_AXIS_PP] & 1)
                    rc = hd__transports_group(&e->transports, i->axes, i->members, &unused, err);
            }
    hd__free_array(&known);
    return rc;
}

/* The group of all, and how the recorder calls what it does there. */
static int32_t open_world(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = e->config.compiled->mesh.ranks > 1 ? hd__transports_group(&e->transports, ~UINT32_C(0), 0, &e->world, err) : HD_OK;
    if (rc || !e->world.of)
        return rc;
    e->agree = (struct hd__flight_op){.name = "agree", .section = "step end", .block = "", .tag = UINT64_MAX, .count = 3,
                                      .bytes = 12, .dtype = HD_I32, .redop = HD_MAX, .calls = 1, .root = -1,
                                      .channel = hd__flight_channel(e->transports.flight, e->world.of->name, e->world.of->ranks,
                                                                    e->world.of->n, -1, -1, 0)};
    hd__flight_sign(&e->agree);
    return HD_OK;
}

/* Cores for one rank's threads: those that it is pinned to; where nobody pinned it, its share of the machine's. */
static int32_t thread_count(int32_t local_ranks)
{
    int32_t n = hd__cores();
    return HD__MAX(1, n < sysconf(_SC_NPROCESSORS_ONLN) ? n : n / local_ranks);
}

static int32_t open_device(struct hd__exec *e, struct hd_error *err)
{
    const struct hd__compiled *c = e->config.compiled;
    struct hd_device_place place = {.struct_size = sizeof place, .local_rank = e->config.local_rank,
                                    .local_ranks = e->config.local_ranks,
                                    .threads = thread_count(e->config.local_ranks)};
    int32_t rc = hd__plugin_probe(c->plugins, c->device_choice.component, err);
    if (rc)
        return rc;
    e->dev = &c->device_choice.component->ops.device;
    return e->dev->open(hd__host(), c->device_choice.settings, &place, &e->device, err);
}

int32_t hd__exec_open(const struct hd__exec_config *config, struct hd__exec **exec, struct hd_error *err)
{
    struct hd__exec *e = hd__alloc(sizeof *e);
    int32_t rc;
    e->config = *config;
    e->p = hd__program_of(config->compiled, config->rank);
    hd__mesh_coord(&config->compiled->mesh, config->rank, e->coord);
    e->transports = (struct hd__transports){.compiled = config->compiled, .store = config->store, .rank = config->rank,
                                            .local_rank = config->local_rank, .local_ranks = config->local_ranks};
    e->transports.flight = hd__flight_create((uint64_t)(config->operations ? config->operations : 64));
    rc = open_device(e, err);
    if (!rc)
        rc = hd__transports_open(&e->transports, err);
    if (!rc)
        rc = map_arena(e, (size_t)e->p->arena_bytes, err);
    if (!rc && (e->dev->caps & HD_DEVICE_HOST_MEMORY))
        touch_pages(e->arena, e->p->arena_bytes);
    if (!rc)
        rc = open_memories(e, err);
    if (!rc)
        rc = open_world(e, err);
    if (!rc)
        rc = open_stage_groups(e, err);
    if (!rc)
        rc = prepare_all(e, err);
    if (rc) {
        hd__exec_close(e);
        return rc;
    }
    hd__transports_pump(&e->transports);
    *exec = e;
    return HD_OK;
}

void hd__exec_close(struct hd__exec *e)
{
    if (!e)
        return;
    for (uint32_t s = 0; e->sections && s < e->p->sections.count; s++) {
        for (uint32_t k = 0; e->sections[s].steps && k < e->sections[s].n; k++)
            if (e->sections[s].steps[k].kind == STEP_KERNEL && e->sections[s].steps[k].kernel)
                e->dev->release(e->device, e->sections[s].steps[k].kernel);
        for (uint32_t k = 0; e->sections[s].steps && k < e->sections[s].n; k++)
            if (e->sections[s].steps[k].kind == STEP_EXCHANGE)
                hd__exchange_free(e->sections[s].steps[k].exchange);
        free(e->sections[s].steps);
    }
    free(e->sections);
    hd__profile_free(e->profile);
    unmap_arena(e);
    hd__transports_close(&e->transports);
    if (e->dev)
        e->dev->close(e->device);
    hd__flight_destroy(e->transports.flight);
    free(e);
}

/* ---- running */

static double deadline(const struct hd__exec *e)
{
    return hd__now() + e->config.compiled->job->comm_timeout;
}

static int32_t start_exchange(struct hd__exec *e, struct hd__exchange *x, struct hd_error *err)
{
    int32_t rc = hd__exchange_start(x, err);
    e->in_flight += hd__exchange_pending(x);
    return rc;
}

static int32_t wait_exchange(struct hd__exec *e, struct hd__exchange *x, struct hd_error *err)
{
    if (!hd__exchange_pending(x))
        return HD_OK;
    e->in_flight--;
    return hd__exchange_wait(x, e->config.compiled->job->comm_timeout, &e->comm_seconds, err);
}

static int32_t run_step(struct hd__exec *e, struct step *s, struct hd_error *err)
{
    int32_t rc;
    switch (s->kind) {
    case STEP_KERNEL:
        rc = e->dev->launch(e->device, s->kernel, 0, err);
        return rc || !e->in_flight ? rc : hd__transports_progress(&e->transports, err);
    case STEP_EXCHANGE:
        return start_exchange(e, s->exchange, err);
    case STEP_EXCHANGE_WAIT:
        return wait_exchange(e, s->exchange, err);
    case STEP_COPY:
        return hd__copies_start(e->copies, s->copy, err);
    case STEP_COPY_WAIT:
        return hd__copies_wait(e->copies, s->copy, deadline(e), err);
    case STEP_FEED:
        return e->config.feed(e->config.user, s->feed.labels, s->feed.out, s->feed.count, err);
    default:
        return HD_OK;
    }
}

static int32_t time_step(struct hd__exec *e, const struct section *section, uint32_t k, struct hd_error *err)
{
    double start = hd__now();
    int32_t rc = run_step(e, &section->steps[k], err);
    hd__profile_add(e->profile, (uint32_t)(section - e->sections), k, hd__now() - start);
    return rc;
}

static int all_finite(const struct hd__exec *e, hd_tensor t)
{
    const struct hd__tensor *x = hd__tc(e->p, t);
    const void *data = hd__address(e->p, t, e->coord, e->arena);
    int64_t n = hd__numel(e->p, x);
    float value[256];
    if (x->dtype == HD_I32 || x->dtype == HD_U8)
        return 1;
    for (int64_t i = 0; i < n && x->dtype == HD_F64; i++)
        if (!isfinite(((const double *)data)[i]))
            return 0;
    if (x->dtype == HD_F64)
        return 1;
    for (int64_t i = 0, some; i < n; i += some) {
        some = HD__MIN(256, n - i);
        hd__to_f32(x->dtype, (const char *)data + i * (int64_t)hd_dtype_size(x->dtype), value, (uint64_t)some);
        for (int64_t k = 0; k < some; k++)
            if (!isfinite(value[k]))
                return 0;
    }
    return 1;
}

/* The first of some tensors that is not finite; 0 where all are. */
static hd_tensor first_bad(const struct hd__exec *e, const hd_tensor *t, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if (!all_finite(e, t[k]))
            return t[k];
    return 0;
}

/* A bad number is made where all that is read is finite, or it was in a parameter before. */
static int32_t look_at_step(struct hd__exec *e, const struct section *section, uint32_t k, struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    int look = section->steps[k].kind == STEP_KERNEL && !*e->bad;
    hd_tensor read = look ? first_bad(e, i->in, i->n_in) : 0;
    int32_t rc = run_step(e, &section->steps[k], err);
    if (rc || !look)
        return rc;
    if (read && hd__tc(e->p, read)->param && i->phase != HD__PHASE_O)
        snprintf(e->bad, 160, "parameter %s, before the step", e->p->params.at[hd__tc(e->p, read)->param - 1].desc.name);
    else if (!read && first_bad(e, i->out, i->n_out))
        snprintf(e->bad, 160, "block %s, %s (section %s, instruction %u)", e->p->blocks.at[i->block], hd__op(i->op)->name,
                 section->of->name, k);
    return HD_OK;
}

static int32_t run_once(struct hd__exec *e, const struct section *section, struct hd_error *err)
{
    __atomic_store_n(&e->at_section, section, __ATOMIC_RELAXED);
    for (uint32_t k = 0; k < section->n; k++) {
        int32_t rc;
        __atomic_store_n(&e->at_step, k, __ATOMIC_RELAXED);
        rc = e->bad         ? look_at_step(e, section, k, err)
             : e->profiling ? time_step(e, section, k, err)
                            : run_step(e, &section->steps[k], err);
        if (rc) {
            if (!err->where[0])
                hd__exec_where(e, err->where);
            return rc;
        }
    }
    return HD_OK;
}

static int32_t run_section(struct hd__exec *e, const struct section *section, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int32_t n = 0; n < HD__MAX(1, section->of->repeat) && !rc; n++)
        rc = run_once(e, section, err);
    return rc;
}

int32_t hd__exec_step(struct hd__exec *e, int64_t step, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++)
        if (hd__section_due(e->sections[s].of, step))
            rc = run_section(e, &e->sections[s], err);
    return rc;
}

int32_t hd__exec_section(struct hd__exec *e, const char *name, struct hd_error *err)
{
    const struct hd__code_section *of = hd__section(e->p, name);
    return of ? run_section(e, &e->sections[of - e->p->sections.at], err) : HD_OK;
}

/* Ranks of one program have done the same so far: a transport may not notice where it is not so, as with sums that one rank
 * takes for other numbers. Largest and smallest hash must be one. Stages have programs of their own. */
static int32_t check_chain(const struct hd__exec *e, const int32_t highest[3], struct hd_error *err)
{
    if (e->config.compiled->n_stages > 1 || highest[1] == -highest[2])
        return HD_OK;
    return hd_fail(err, HD_E_MISMATCH, "the ranks have not done the same operations, or not in the same order");
}

int32_t hd__exec_agree(struct hd__exec *e, int32_t mine, int32_t *highest, struct hd_error *err)
{
    int32_t chain = (int32_t)(e->transports.flight->chain >> 33), value[3] = {mine, chain, -chain}, most[3];
    struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_ALL_REDUCE, .dtype = HD_I32, .redop = HD_MAX,
                                .send = value, .recv = most, .count = 3, .tag = UINT64_MAX};
    hd_request request;
    uint64_t flown;
    int32_t rc;
    *highest = mine;
    if (!e->world.of)
        return HD_OK;
    __atomic_store_n(&e->at_section, NULL, __ATOMIC_RELAXED);
    flown = hd__flight_start(e->transports.flight, &e->agree, hd__now());
    hd__pump_enter(e->transports.pump);
    rc = e->world.transport->ops->collective(e->world.of->group, &call, &request, err);
    hd__pump_leave(e->transports.pump, !rc);
    hd__flight_wait(e->transports.flight, flown, hd__now());
    if (!rc)
        rc = hd__transports_wait(&e->transports, e->world.transport, request, deadline(e), err);
    hd__flight_end(e->transports.flight, flown, hd__now(), rc);
    if (!rc)
        *highest = most[0];
    return rc ? rc : check_chain(e, most, err);
}

struct hd__flight *hd__exec_flight(struct hd__exec *e)
{
    return e->transports.flight;
}

void hd__exec_abort(struct hd__exec *e, const char *reason)
{
    for (uint32_t i = 0; i < e->transports.at.count; i++)
        e->transports.at.at[i]->ops->abort(e->transports.at.at[i]->comm, reason);
}

/* ---- looking */

int32_t hd__exec_find_bad(struct hd__exec *e, int64_t step, char out[160], struct hd_error *err)
{
    int32_t rc;
    *out = 0;
    e->bad = out;
    rc = hd__exec_step(e, step, err);
    e->bad = NULL;
    return rc ? rc : *out != 0;
}

void *hd__exec_data(struct hd__exec *e, hd_tensor tensor)
{
    return hd__address(e->p, tensor, e->coord, e->arena);
}

struct hd_program *hd__exec_program(struct hd__exec *e)
{
    return e->p;
}

const int32_t *hd__exec_coord(const struct hd__exec *e)
{
    return e->coord;
}

void *hd__exec_arena(struct hd__exec *e)
{
    return e->arena;
}

double hd__exec_comm_seconds(struct hd__exec *e)
{
    double s = e->comm_seconds;
    e->comm_seconds = 0;
    return s;
}

void hd__exec_profile(struct hd__exec *e, int on)
{
    if (on && !e->profile)
        e->profile = hd__profile_new(e->p);
    e->profiling = on;
}

const struct hd__profile *hd__exec_profiled(const struct hd__exec *e)
{
    return e->profile;
}

double hd__exec_peak_flops(struct hd__exec *e)
{
    return e->dev->peak_flops ? e->dev->peak_flops(e->device, e->p->precision.compute) : 0;
}

const char *hd__exec_where(struct hd__exec *e, char out[128])
{
    const struct section *section = __atomic_load_n(&e->at_section, __ATOMIC_RELAXED);
    uint32_t k = __atomic_load_n(&e->at_step, __ATOMIC_RELAXED);
    const struct hd__instr *i, *on = NULL;
    char axes[64], with[80] = "";
    const char *block;
    if (!section || k >= section->n)
        return strcpy(out, "between sections");
    i = &section->of->code.at[k];
    for (uint32_t j = 0; j < k && i->op == HD_OP_WAIT; j++)
        if (section->of->code.at[j].id == i->wait)
            on = &section->of->code.at[j];
    if (on && hd__op(on->op)->class == HD__CLASS_P2P)
        snprintf(with, sizeof with, " %s stage %d", on->op == HD_OP_RECV ? "from" : "to", on->peer);
    else if (on) {
        hd__axes_text(on->axes, axes);
        snprintf(with, sizeof with, " over %s", axes);
    }
    block = e->p->blocks.at[i->block];
    snprintf(out, 128, "section %s, instruction %u: %s%s%s%s%s%s", section->of->name, k, block, *block ? " " : "",
             hd__op(i->op)->name, on ? " for " : "", on ? hd__op(on->op)->name : "", with);
    return out;
}
