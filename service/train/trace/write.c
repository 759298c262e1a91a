/* Events of all ranks -> Chrome's trace format, which Perfetto reads: a process a rank, a thread a stream, flows, and a
 * counter of the arena.
 *
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
#include <math.h>
#include <stdlib.h>

#include "core/base/file.h"
#include "core/program/access.h"
#include "core/program/cost.h"
#include "core/program/ops.h"
#include "runtime/exec/profile.h"
#include "service/train/trace/trace.h"

/* Thread ids: that of a stream of the program, from 1, as Perfetto takes thread 0 of a process for the one whose id is
 * that of the process, which may be another stream's; that of whole steps. */
enum { LANE = 1, STEP_LANE = 9999 };
static const double INSTANT = 2e-9; /* at least one of the nanoseconds that are written */

/* The part of an instruction that is the same in all its runs. */
struct instr_words {
    char *head;      /* name, phase, and the beginning of args */
    uint32_t target; /* of a wait: what it waits for; UINT32_MAX: nothing in its section */
    uint32_t kind;
    int64_t live; /* bytes of the arena that are in use */
};

struct section_words {
    struct instr_words *instr;
    int32_t micro; /* its first micro-batch; -1: it has none */
};

struct kind {
    char name[96], axes[64];
    double flops, bytes, sent;
};

/* A transfer of one rank, from its start to the end of its wait. */
struct span {
    const struct hd__instr *instr;
    const struct hd__trace_event *event; /* of the start */
    uint64_t flow;                       /* equal on all its ranks; 0: of this rank alone */
    double start, end;
    int32_t rank;
    uint32_t stream;
};

struct writer {
    FILE *out;
    const struct hd__compiled *c;
    struct section_words **words; /* by stage and section */
    HD__ARRAY(struct kind) kinds;
    HD__ARRAY(struct span) spans; /* of all ranks */
    double zero;                  /* the earliest time */
    int32_t *group;               /* scratch: ranks of a group */
};

/* ---- words of a program */

static void add_quoted(struct hd__text *out, const char *plain)
{
    hd__text_add(out, "\"");
    for (; *plain; plain++)
        if ((unsigned char)*plain < 0x20)
            hd__text_add(out, " ");
        else
            hd__text_add(out, *plain == '"' || *plain == '\\' ? "\\%c" : "%c", *plain);
    hd__text_add(out, "\"");
}

static int is_same(const struct kind *a, const struct kind *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->axes, b->axes) && a->flops == b->flops && a->bytes == b->bytes &&
           a->sent == b->sent;
}

static uint32_t kind_of(struct writer *w, const struct hd_program *p, const struct hd__instr *i)
{
    struct kind k = {.flops = hd__instr_flops(p, i), .bytes = hd__instr_bytes(p, i)};
    hd__exec_instr_kind(p, i, k.name);
    if (hd__is_async(i) && !hd__is_copy(i)) {
        k.sent = hd__instr_traffic(p, i);
        hd__axes_text(i->axes ? i->axes & hd__mesh_axes(&p->mesh) : HD_AXIS_BIT(HD_AXIS_PP), k.axes);
    }
    for (uint32_t n = 0; n < w->kinds.count; n++)
        if (is_same(&w->kinds.at[n], &k))
            return n;
    hd__push(&w->kinds, k);
    return w->kinds.count - 1;
}

/* Bytes of temporaries in use at each instruction of a section, and what persists. */
static void count_live(const struct hd_program *p, const hd__code *code, const uint32_t *position,
                       struct instr_words *words)
{
    uint32_t t[HD__MAX_ACCESSES];
    uint32_t *first = hd__alloc(p->buffers.count * sizeof *first), *last = hd__alloc(p->buffers.count * sizeof *last);
    int64_t *delta = hd__alloc((code->count + 2) * sizeof *delta), live = p->persistent_bytes;
    for (uint32_t n = 0; n < code->count; n++)
        for (uint32_t k = hd__live_buffers(p, code, position, n, t); k-- > 0;) {
            first[t[k]] = first[t[k]] ? first[t[k]] : n + 1;
            last[t[k]] = n + 1;
        }
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (first[b] && p->buffers.at[b].life != HD__LIFE_PERSISTENT) {
            delta[first[b] - 1] += p->buffers.at[b].bytes;
            delta[last[b]] -= p->buffers.at[b].bytes;
        }
    for (uint32_t n = 0; n < code->count; n++)
        words[n].live = live += delta[n];
    free(first);
    free(last);
    free(delta);
}

static void make_instr_words(struct writer *w, const struct hd_program *p, const struct hd__code_section *s, uint32_t n,
                             const uint32_t *position, struct instr_words *words)
{
    const struct hd__instr *i = &s->code.at[n], *of = i;
    struct hd__text text = {0};
    words->target = i->op == HD_OP_WAIT ? hd__wait_target(p, &s->code, position, i) : UINT32_MAX;
    if (words->target != UINT32_MAX)
        of = &s->code.at[words->target];
    words->kind = kind_of(w, p, of);
    hd__text_add(&text, "\"name\":");
    struct hd__text name = {0};
    hd__text_add(&name, "%s%s", of != i ? "wait " : "", hd__instr_name(of));
    add_quoted(&text, name.at);
    hd__text_free(&name);
    hd__text_add(&text,
                 ",\"cat\":\"%s\",\"ph\":\"X\",\"args\":{\"block\":", of != i ? "wait" : hd__phase_name(i->phase));
    add_quoted(&text, p->blocks.at[i->block]);
    hd__text_add(&text, ",\"section\":\"%s\",\"instr\":%u,\"kind\":%u", s->name, n, words->kind);
    words->head = hd__text_to_arena(&text, &w->c->job->arena);
}

static struct section_words *make_words(struct writer *w, const struct hd_program *p)
{
    struct section_words *all = hd__alloc((p->sections.count + 1) * sizeof *all);
    uint32_t *position = hd__instr_positions(p);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *section = &p->sections.at[s];
        all[s].instr = hd__alloc((section->code.count + 1) * sizeof *all[s].instr);
        all[s].micro = hd__section_feeds(section) ? 0 : -1;
        for (uint32_t n = 0; n < section->code.count; n++)
            make_instr_words(w, p, section, n, position, &all[s].instr[n]);
        count_live(p, &section->code, position, all[s].instr);
    }
    free(position);
    return all;
}

/* ---- events */

/* In whole nanoseconds. Perfetto counts in those, and drops an event that begins before the one before it on its thread
 * has ended: rounding start and length, each for itself, lets some end a nanosecond late. */
static double micros(const struct writer *w, double seconds)
{
    return round((seconds - w->zero) * 1e9) / 1e3;
}

static double length(const struct writer *w, double start, double end)
{
    return micros(w, end) - micros(w, start);
}

static void put_slice(const struct writer *w, const struct instr_words *words, int32_t micro, uint32_t step,
                      double start, double end, int32_t rank, uint32_t lane)
{
    fprintf(w->out, ",\n{%s,\"micro\":%d,\"step\":%u},\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%u}", words->head,
            micro, step, micros(w, start), length(w, start, end), rank, lane);
}

static void put_name(const struct writer *w, const char *what, int32_t rank, uint32_t lane, const char *name)
{
    fprintf(w->out, ",\n{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":\"%s\"}}", what, rank,
            lane, name);
    if (!strcmp(what, "thread_name"))
        fprintf(w->out,
                ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"sort_index\":%d}}",
                rank, lane, lane == STEP_LANE ? -1 : (int)lane);
}

static int32_t micro_of(const struct hd__instr *i, const struct section_words *section, const struct hd__trace_event *e)
{
    if (i->micro >= 0 || i->phase == HD__PHASE_O || section->micro < 0)
        return i->micro;
    return section->micro + e->run;
}

/* A hash of what tells a transfer from all others, equal on its ranks. `sent`: messages of this step so far, by
 * stream. */
static uint64_t flow_of(const struct writer *w, const struct hd_program *p, const struct hd__instr *i,
                        const struct hd__trace_event *e, int32_t rank, uint32_t *sent)
{
    int32_t coord[HD_AXIS_COUNT], peer;
    if (hd__is_copy(i))
        return 0;
    if (i->op == HD_OP_SEND || i->op == HD_OP_RECV) {
        hd__mesh_coord(&p->mesh, rank, coord);
        coord[HD_AXIS_PP] = i->peer;
        peer = hd__mesh_rank(&p->mesh, coord);
        int receives = i->op == HD_OP_RECV;
        uint64_t match[] = {1,
                            e->step,
                            (uint64_t)(receives ? peer : rank),
                            (uint64_t)(receives ? rank : peer),
                            hd__stream_way(i),
                            sent[i->stream]++};
        return hd__hash(match, sizeof match, 0);
    }
    if (hd__mesh_group(&p->mesh, rank, i->axes, i->members, w->group) < 2)
        return 0;
    const char *name = p->tensors.at[hd__instr_tensor(i)].name;
    int spans_stages = (i->axes & HD_AXIS_BIT(HD_AXIS_PP)) != 0; /* which number instructions each for itself */
    uint64_t match[] = {2,
                        e->step,
                        (uint64_t)w->group[0],
                        i->axes,
                        i->members,
                        e->run,
                        spans_stages ? hd__hash(name, strlen(name), i->op) : e->section,
                        spans_stages ? 0 : e->instr};
    return hd__hash(match, sizeof match, 0);
}

/* Streams run in order, so an operation began when the one before it on its stream had ended, and ended before the next
 * was seen to end; by INSTANT, as no flow would find an event without length. */
static void clip_spans(struct span *spans, uint32_t n)
{
    for (uint32_t k = n; k-- > 0;)
        for (uint32_t j = k + 1; j < n; j++)
            if (spans[j].stream == spans[k].stream) {
                spans[k].end = HD__MIN(spans[k].end, spans[j].end - INSTANT);
                break;
            }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t j = k; j-- > 0;)
            if (spans[j].stream == spans[k].stream) {
                spans[k].start = HD__MAX(spans[k].start, spans[j].end);
                spans[k].end = HD__MAX(spans[k].end, spans[k].start);
                break;
            }
}

struct rank_state {
    const struct hd__trace_rank *from;
    const struct hd_program *p;
    struct section_words *words;
    uint32_t *open; /* of the section that runs: index + 1 of the span that an instruction started */
    uint32_t sent[16 + 4 * HD__STAGES];
    uint32_t step, first; /* first: of this rank's spans */
    int64_t live;
    double done; /* when the last event on compute had ended */
};

static void put_event(struct writer *w, struct rank_state *r, const struct hd__trace_event *e)
{
    const struct section_words *section = &r->words[e->section];
    const struct hd__instr *i = &r->p->sections.at[e->section].code.at[e->instr];
    const struct instr_words *words = &section->instr[e->instr];
    /* a long event may seem to end in the next: its seconds are a float */
    double start = HD__MAX(e->start + r->from->offset, r->done),
           end = HD__MAX(e->start + r->from->offset + (double)e->seconds, start);
    r->done = end;
    if (e->step != r->step)
        memset(r->sent, 0, sizeof r->sent);
    r->step = e->step;
    if (hd__is_async(i)) {
        struct span span = {.instr = i, .event = e, .start = start, .end = end, .rank = r->from->rank};
        span.flow = flow_of(w, r->p, i, e, r->from->rank, r->sent);
        span.stream = i->stream;
        hd__push(&w->spans, span);
        r->open[e->instr] = w->spans.count;
    }
    if (words->target != UINT32_MAX && r->open[words->target]) {
        w->spans.at[r->open[words->target] - 1].end = end;
        r->open[words->target] = 0;
    }
    if (!hd__is_async(i))
        put_slice(w, words, micro_of(i, section, e), e->step, start, end, r->from->rank, LANE);
    else
        fprintf(w->out,
                ",\n{\"name\":\"start %s\",\"cat\":\"start\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
                "\"tid\":%d,\"args\":{\"kind\":%u,\"step\":%u}}",
                hd__instr_name(i), micros(w, start), length(w, start, end), r->from->rank, LANE, words->kind, e->step);
    if (llabs(words->live - r->live) <= r->p->arena_bytes / 256)
        return;
    r->live = words->live;
    fprintf(w->out, ",\n{\"name\":\"arena in use\",\"ph\":\"C\",\"ts\":%.3f,\"pid\":%d,\"args\":{\"bytes\":%lld}}",
            micros(w, start), r->from->rank, (long long)r->live);
}

static void put_spans(struct writer *w, struct rank_state *r)
{
    struct span *spans = w->spans.at + r->first;
    uint32_t n = w->spans.count - r->first;
    uint8_t named[16 + 4 * HD__STAGES] = {0};
    char stream[32];
    clip_spans(spans, n);
    for (uint32_t k = 0; k < n; k++) {
        const struct hd__trace_event *e = spans[k].event;
        const struct section_words *section = &r->words[e->section];
        if (!named[spans[k].stream])
            put_name(w, "thread_name", r->from->rank, LANE + spans[k].stream, hd__stream_text(spans[k].instr, stream));
        named[spans[k].stream] = 1;
        put_slice(w, &section->instr[e->instr], micro_of(spans[k].instr, section, e), e->step, spans[k].start,
                  spans[k].end, r->from->rank, LANE + spans[k].stream);
    }
}

static void put_rank(struct writer *w, const struct hd__trace_rank *from)
{
    const struct hd_program *p = hd__compiled_program(w->c, from->rank);
    struct rank_state r = {.from = from, .p = p, .words = w->words[p->stage], .first = w->spans.count, .live = -1};
    uint32_t longest = 0;
    char name[64];
    for (uint32_t s = 0; s < p->sections.count; s++) {
        longest = HD__MAX(longest, p->sections.at[s].code.count);
        if (r.words[s].micro >= 0)
            r.words[s].micro = hd__micro_batches_before(p, s, from->rank);
    }
    r.open = hd__alloc((longest + 1) * sizeof *r.open);
    snprintf(name, sizeof name, w->c->n_stages > 1 ? "rank %d, stage %d" : "rank %d", from->rank, p->stage);
    put_name(w, "process_name", from->rank, LANE, name);
    put_name(w, "thread_name", from->rank, LANE, "compute");
    put_name(w, "thread_name", from->rank, STEP_LANE, "steps");
    for (uint32_t n = 0; n < from->count; n++) {
        const struct hd__trace_event *e = &from->events[n];
        if (e->section != HD__TRACE_STEP)
            put_event(w, &r, e);
        else
            fprintf(w->out,
                    ",\n{\"name\":\"step %u\",\"cat\":\"step\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
                    "\"tid\":%d,\"args\":{\"step\":%u}}",
                    e->step, micros(w, e->start + from->offset), 1e6 * (double)e->seconds, from->rank, STEP_LANE,
                    e->step);
    }
    put_spans(w, &r);
    free(r.open);
}

/* ---- flows: from the rank that came last to the ends of the others; of a message, called send, to its end */

static int by_flow(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->flow != y->flow)
        return x->flow < y->flow ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : (x->rank > y->rank) - (x->rank < y->rank);
}

/* A rank whose span begins after another's has ended did not come last: the one before it on its stream was seen late
 * to have ended. */
static const struct span *source_of(const struct span *spans, uint32_t n)
{
    const struct span *source = spans;
    for (uint32_t k = 0; k < n; k++) {
        if (spans[k].start > spans[0].end - INSTANT)
            continue;
        if (spans[k].instr->op == HD_OP_SEND)
            return &spans[k];
        source = spans[k].start > source->start ? &spans[k] : source;
    }
    return source;
}

static void put_flow(const struct writer *w, const struct span *spans, uint32_t n, uint32_t id)
{
    const struct span *source = source_of(spans, n);
    const char *name = hd__instr_name(spans[0].instr->op == HD_OP_RECV ? spans[1].instr : spans[0].instr);
    const char *format = ",\n{\"name\":\"%s\",\"cat\":\"flow\",\"ph\":\"%s\",\"id\":%u,\"ts\":%.3f,\"pid\":%d,"
                         "\"tid\":%u%s}";
    uint32_t left = n - 1; /* that are not written */
    fprintf(w->out, format, name, "s", id, micros(w, source->start), source->rank, LANE + source->stream, "");
    for (uint32_t k = 0; k < n; k++) { /* a little before the end, to lie in the slice */
        if (&spans[k] == source)
            continue;
        left--;
        fprintf(w->out, format, name, left ? "t" : "f", id, micros(w, spans[k].end) - 0.001, spans[k].rank,
                LANE + spans[k].stream, left ? "" : ",\"bp\":\"e\"");
    }
}

static void put_flows(struct writer *w)
{
    uint32_t id = 0;
    hd__sort(&w->spans, by_flow);
    for (uint32_t from = 0, to; from < w->spans.count; from = to) {
        for (to = from + 1; to < w->spans.count && w->spans.at[to].flow == w->spans.at[from].flow;)
            to++;
        if (w->spans.at[from].flow && to - from > 1)
            put_flow(w, &w->spans.at[from], to - from, ++id);
    }
}

/* ---- the file */

static void put_header(const struct writer *w, const struct hd__trace_rank *ranks, uint32_t n)
{
    struct hd__text text = {0};
    uint64_t dropped = 0;
    hd__text_add(&text, HD__TRACE_BEGINS "1,\"job\":");
    add_quoted(&text, w->c->job->name);
    hd__text_add(&text, ",\"stages\":%d,\"device\":", w->c->n_stages);
    add_quoted(&text, w->c->device_choice.component->name);
    hd__text_add(&text, ",\"mesh\":{");
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        hd__text_add(&text, "%s\"%s\":%d", a ? "," : "", hd__axis_name(a), w->c->mesh.size[a]);
    hd__text_add(&text, "},\"ranks\":[");
    for (uint32_t k = 0; k < n; k++) {
        hd__text_add(&text, "%s{\"rank\":%d,\"stage\":%d,\"clock_offset_s\":%.9f}", k ? "," : "", ranks[k].rank,
                     hd__compiled_program(w->c, ranks[k].rank)->stage, ranks[k].offset);
        dropped += ranks[k].dropped;
    }
    hd__text_add(&text, "],\"dropped\":%llu,\"kinds\":[", (unsigned long long)dropped);
    for (uint32_t k = 0; k < w->kinds.count; k++) {
        const struct kind *kind = &w->kinds.at[k];
        hd__text_add(&text, "%s\n{\"name\":", k ? "," : "");
        add_quoted(&text, kind->name);
        hd__text_add(&text, ",\"axes\":\"%s\",\"flops\":%.17g,\"bytes\":%.17g,\"sent\":%.17g}", kind->axes, kind->flops,
                     kind->bytes, kind->sent);
    }
    fprintf(w->out, "%s]},\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"trace\",\"ph\":\"M\",\"pid\":0}",
            text.at);
    hd__text_free(&text);
}

int32_t hd__trace_write(const struct hd__compiled *c, const struct hd__trace_rank *ranks, uint32_t n, const char *path,
                        struct hd_error *err)
{
    struct writer w = {.c = c, .zero = INFINITY};
    hd__make_folders(path);
    w.out = hd__output_create(path, HD__TRACE_BEGINS, err);
    if (!w.out)
        return err->code;
    w.group = hd__alloc((size_t)c->mesh.ranks * sizeof *w.group);
    w.words = hd__alloc((size_t)c->n_stages * sizeof(struct section_words *));
    for (int32_t s = 0; s < c->n_stages; s++)
        w.words[s] = make_words(&w, c->stage[s]);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t e = 0; e < ranks[k].count; e++)
            w.zero = HD__MIN(w.zero, ranks[k].events[e].start + ranks[k].offset);
    put_header(&w, ranks, n);
    for (uint32_t k = 0; k < n; k++)
        put_rank(&w, &ranks[k]);
    put_flows(&w);
    fprintf(w.out, "\n]}\n");
    for (int32_t s = 0; s < c->n_stages; s++) {
        for (uint32_t k = 0; k < c->stage[s]->sections.count; k++)
            free(w.words[s][k].instr);
        free(w.words[s]);
    }
    free(w.words);
    free(w.group);
    hd__free_array(&w.kinds);
    hd__free_array(&w.spans);
    return hd__output_close(w.out, path, err);
}
