/* Faults planted at random in the programs of every strategy: what changes the meaning of a job is found by verify or
 * by the token machine, all of it. What neither finds is emulated: there it must train like one rank all the same.
 *
 *     test_mutations [MUTANTS [SEED]] plants more, by hand
 *     test_mutations --jobs DIR       writes its jobs there, as tests/golden/frozen.py wants them */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "runtime/exec/select.h"
#include "tests/analysis/blocks.h"
#include "tests/suite.h"
#include "tests/support/edits.h"
#include "tests/support/scratch.h"

#define TOLERANCE 1e-9

static uint32_t mutants = 1500; /* of all jobs together */
static uint64_t seed = 1, state;
static const char *jobs_folder; /* of --jobs */

static uint32_t pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

/* ---- jobs: mesh, 3d's options, zero's, the model, micro-batches */

/* Ranks that train apart and meet in every step train like one, with SGD. */
#define AVERAGED "}, {use: localsgd, every: 1, outer_lr: 1, momentum: 0"

static const struct kind_of_job {
    const char *mesh, *three, *zero, *model;
    int micro_batch; /* sequences */
    const char *recompute, *deterministic;
    uint32_t flags; /* of hd__exec_compile_with */
} jobs[] = {
    {"dp: 4", "vocab_parallel: true", "stage: 0, bucket: 0", "family: llama, kv_heads: 2", 1},
    {"dp: 2", "vocab_parallel: true", "stage: 1, bucket: 4000", "family: gpt2, tied: true", 1},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 2, bucket: 0, gather_in_forward: false",
     "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 3, prefetch: 2", "family: llama, tied: true", 2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 3, reshard_after_forward: false", "family: gpt2",
     2},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 1", "family: llama, kv_heads: 2", 2},
    {"tp: 4", "sequence_parallel: false", "stage: 0", "family: llama, kv_heads: 1", 4},
    {"tp: 4", "sequence_parallel: true", "stage: 0", "family: llama, kv_heads: 2", 4},
    {"dp: 2, cp: 2", "vocab_parallel: true", "stage: 3", "family: llama", 2},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 1", "family: llama", 1},
    {"pp: 3", "schedule: gpipe", "stage: 0", "family: gpt2, tied: true", 2},
    {"pp: 2, dp: 2", "schedule: interleaved", "stage: 2, bucket: 0", "family: llama, tied: true", 1},
    {"pp: 4", "schedule: zb-v", "stage: 0", "family: llama", 1},
    {"pp: 2, dp: 2", "schedule: zb-h1, split: blocks.csv", "stage: 1", "family: llama", 1}, /* see measured_split */
    {"pp: 2, tp: 2", "schedule: zb-h1, sequence_parallel: true", "stage: 3", "family: llama", 2},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 3", "family: gpt2", 1},
    {"dp: 2", "vocab_parallel: true", "stage: 1, bucket: 0, offload: {optimizer: host}", "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 3, offload: {optimizer: host, params: host}", "family: llama", 2},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 3", "family: llama", 2, "full"},
    {"pp: 2, dp: 2", "schedule: zb-v", "stage: 1", "family: gpt2", 1, "selective"},
    {"dp: 2", "vocab_parallel: true", "stage: 0, bucket: 0" AVERAGED, "family: llama", 2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 3" AVERAGED ", axes: [dp_replicate]",
     "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 2, bucket: 0}, {use: ema, decay: 0.5", "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 0, bucket: 4000, compress: {kind: powersgd, rank: 64}", "family: llama",
     2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true",
     "stage: 1, compress: {kind: powersgd, rank: 64, warmup: 1}", "family: gpt2", 1},
    {"ep: 2, dp: 2", "vocab_parallel: true", "stage: 1",
     "family: mixtral, experts: 4, experts_per_token: 2, router_aux_loss_coef: 0.3", 1},
    {"ep: 2, tp: 2", "sequence_parallel: true", "stage: 3",
     "family: mixtral, experts: 4, experts_per_token: 2, capacity: 1.5", 2},
    {"cp: 2, dp: 2", "context: ring", "stage: 2", "family: llama", 2},
    {"cp: 4", "context: ring", "stage: 1", "family: gpt2, tied: true", 4},
    {"cp: 4", "context: ring", "stage: 1", "family: llama, sliding_window: 2", 4},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 1, bucket: 0", "family: llama, tied: true", 1,
     "none", "exact"},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 0", "family: gpt2, tied: true", 1, "none", "exact"},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 2, bucket: 0", "family: gpt2", 1, "none", "normal",
     HD__COMPILE_FUSE(HD__FUSE_EPILOGUES)},
    {"pp: 2, dp: 2", "schedule: zb-h1", "stage: 3", "family: gpt2", 1, "selective", "normal",
     HD__COMPILE_FUSE(HD__FUSE_EPILOGUES)},
};

static struct hd__plugins *plugins;
static struct hd__job *job, *job_of_one;
static struct hd__compiled *fine, *broken, *one;
static char job_text[1024];
static struct hd_error err;
static const char *mesh;
static uint32_t missed;

static void compile(const char *text, uint32_t flags, struct hd__job **j, struct hd__compiled **c)
{
    int32_t rc = *j ? HD_OK : hd__job_parse("job", text, strlen(text), NULL, 0, j, &err);
    if (!rc && !*c)
        rc = hd__job_resolve(*j, 0, &err);
    ck_assert_msg(!rc && !hd__exec_compile_with(*j, plugins, flags, c, &err), "%s\n%s", err.message, text);
}

static void write_job(const struct kind_of_job *k, const char *axes, int micro_batch)
{
    snprintf(job_text, sizeof job_text,
             "job: {name: mutations, steps: 2, deterministic: %s}\nmesh: {%s}\nstrategies: [{use: 3d, %s}, {use: zero, "
             "%s}]\n"
             "optimizer: %s\n"
             "model: {use: transformer, %s, layers: 8, hidden: 8, heads: 4, ffn: 8, vocab: 16, max_seq_len: 8}\n"
             "data: {train: none, seq_len: 8, batch: 8, micro_batch: %d}\n"
             "recompute: %s\nprecision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n",
             k->deterministic ? k->deterministic : "normal", axes, k->three, k->zero,
             strstr(k->zero, AVERAGED) ? "{use: sgd, lr: 1e-1}" : "{use: adamw, lr: 1e-2, clip: 1.0}", k->model,
             micro_batch, k->recompute ? k->recompute : "none");
}

static void open_job(const struct kind_of_job *k)
{
    job = job_of_one = NULL;
    fine = broken = one = NULL;
    write_job(k, "dp: 1", 8);
    compile(job_text, HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD | HD__FUSE_NORM_SUMS), &job_of_one, &one);
    write_job(k, k->mesh, k->micro_batch);
    compile(job_text, k->flags, &job, &fine);
    ck_assert_msg(!hd__exec_compile_with(job, plugins, k->flags, &broken, &err), "%s", err.message);
}

static void close_job(void)
{
    hd__exec_compiled_free(one);
    hd__exec_compiled_free(fine);
    hd__exec_compiled_free(broken);
    hd__job_free(job);
    hd__job_free(job_of_one);
}

/* The first stage gets two of eight layers, the other six: where the job asks for times that were measured. */
static void measured_split(void)
{
    static const double seconds[] = {1, 4, 4, 1, 1, 1, 1, 1, 1, 3};
    write_blocks("blocks.csv", seconds, 8, 2);
}

static int64_t parameters(const struct hd_program *p)
{
    int64_t n = 0;
    for (uint32_t f = 0; f < p->flats.count; f++)
        n += p->flats.at[f].count;
    return n;
}

static void check_split(const struct kind_of_job *k)
{
    if (strstr(k->three, "blocks.csv"))
        ck_assert_int_gt(parameters(fine->stage[1]), 2 * parameters(fine->stage[0]));
}

/* ---- edits */

static void move(hd__code *code, uint32_t from, uint32_t to) /* to: where it stands in the end */
{
    struct hd__instr i = code->at[from];
    erase(code, from);
    insert(code, to, i);
}

static int is_message(const struct hd__instr *i)
{
    return i->op == HD_OP_SEND || i->op == HD_OP_RECV;
}

/* Attention over keys that have come so many members around a ring. */
static int is_tile(const struct hd__instr *i)
{
    return (i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD) && i->axes;
}

/* ---- kinds of faults: each changes code->at[at], or what belongs to it, and returns 1; or returns 0 */

static int dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t wait = wait_of(code, code->at[at].id);
    (void)p;
    if (!hd__is_async(&code->at[at]) || wait == code->count)
        return 0;
    erase(code, wait);
    erase(code, at);
    return 1;
}

/* With the next of its stream. Either the waits go with them, or they stay with the place. */
static int swapped(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t other = at + 1, id = code->at[at].id;
    struct hd__instr i = code->at[at];
    (void)p;
    while (other < code->count && (!hd__is_async(&code->at[other]) || code->at[other].stream != i.stream))
        other++;
    if (!hd__is_async(&i) || other == code->count)
        return 0;
    code->at[at] = code->at[other];
    code->at[other] = i;
    if (pick(2)) {
        code->at[other].id = code->at[at].id;
        code->at[at].id = id;
    }
    return 1;
}

static int wait_dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (code->at[at].op != HD_OP_WAIT)
        return 0;
    erase(code, at);
    return 1;
}

static int wait_late(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (code->at[at].op != HD_OP_WAIT || at + 1 >= code->count)
        return 0;
    move(code, at, at + 1 + pick(HD__MIN(code->count - at - 1, 20)));
    return 1;
}

/* Before the last instruction that reads or writes what is released; or that one moves behind the release. */
static int released_early(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t buffer, use = at;
    int found = 0;
    if (code->at[at].op != HD_OP_RELEASE)
        return 0;
    buffer = hd__tensor_const(p, code->at[at].in[0])->buffer;
    while (use > 0 && !found) {
        use--;
        for (uint32_t k = hd__accesses(p, &code->at[use], t); k-- > 0;)
            found |= t[k].buffer == buffer;
    }
    if (!found)
        return 0;
    if (pick(2))
        move(code, at, use);
    else
        move(code, use, at);
    return 1;
}

static int other_axes(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t live = 0, axes;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        live |= p->mesh.size[a] > 1 ? HD_AXIS_BIT(a) : 0;
    axes = live & (1 + pick((1 << HD_AXIS_COUNT) - 1));
    if (!hd__is_collective(i->op) || !axes || axes == (i->axes & live))
        return 0;
    i->axes = axes;
    return 1;
}

static int other_peer(struct hd_program *p, hd__code *code, uint32_t at)
{
    int16_t peer = (int16_t)pick((uint32_t)p->mesh.size[HD_AXIS_PP]);
    if (!is_message(&code->at[at]) || peer == code->at[at].peer)
        return 0;
    code->at[at].peer = peer;
    return 1;
}

static int other_tag(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (!is_message(&code->at[at]) && !is_tile(&code->at[at]))
        return 0;
    code->at[at].tag ^= (uint16_t)(1 + pick(3));
    return 1;
}

/* Once more, at once; a sum again over what it made. */
static int doubled(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr again = code->at[at], wait;
    uint32_t behind = wait_of(code, again.id);
    if (!hd__is_async(&again) || behind == code->count)
        return 0;
    wait = code->at[behind];
    again.id = wait.wait = ++p->next_id;
    wait.id = ++p->next_id;
    if (again.op == HD_OP_ALL_REDUCE)
        again.in[0] = again.out[0];
    insert(code, behind + 1, again);
    insert(code, behind + 2, wait);
    return 1;
}

static int other_sum(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    (void)p;
    if (i->op != HD_OP_ALL_REDUCE && i->op != HD_OP_REDUCE_SCATTER)
        return 0;
    i->redop = i->redop == HD_SUM ? HD_MAX : HD_SUM;
    return 1;
}

/* What clears, adds to, or makes the gradient's norm of the digits that it is summed in. */
static int norm_dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    const struct hd__instr *i = &code->at[at];
    if (i->op != HD_OP_FILL0 && i->op != HD_OP_SUMSQ && i->op != HD_OP_TOTAL)
        return 0;
    if (i->out[0] != p->norm2 && (!p->norm_digits || i->out[0] != p->norm_digits))
        return 0;
    erase(code, at);
    return 1;
}

static int work_dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (hd__is_async(&code->at[at]) || code->at[at].op == HD_OP_WAIT || code->at[at].op == HD_OP_RELEASE)
        return 0;
    erase(code, at);
    return 1;
}

static int work_moved(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t to = pick(code->count);
    (void)p;
    if (hd__is_async(&code->at[at]) || code->at[at].op == HD_OP_WAIT || code->at[at].op == HD_OP_RELEASE || to == at)
        return 0;
    move(code, at, to);
    return 1;
}

/* What adds to something, or changes it where it is. */
static int work_doubled(struct hd_program *p, hd__code *code, uint32_t at)
{
    (void)p;
    if (hd__is_async(&code->at[at]) || !hd__reads_outputs(&code->at[at]))
        return 0;
    insert(code, at + 1, code->at[at]);
    return 1;
}

/* What adds writes, what writes adds. */
static int other_write(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    if (i->op == HD_OP_ACCUM) {
        i->op = HD_OP_COPY;
        return 1;
    }
    if (!(hd__op(i->op)->flags & HD__OP_ACCUMULATES))
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    attrs->flags ^= HD_ATTR_ACCUMULATE;
    i->attrs = attrs;
    return 1;
}

/* Do two tensors look the same? */
static int alike(const struct hd_program *p, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *x = hd__tensor_const(p, a), *y = hd__tensor_const(p, b);
    return x->ndim == y->ndim && x->dtype == y->dtype && hd__numel(p, x) == hd__numel(p, y) &&
           hd__memory_of(p, a) == hd__memory_of(p, b);
}

static hd_tensor *operand(struct hd__instr *i, uint32_t k)
{
    return k < i->n_in ? &i->in[k] : &i->out[k - i->n_in];
}

/* What another instruction of the same op has in this place. */
static int other_operand(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? pick(operands) : 0, start = pick(code->count);
    if (!operands || i->op == HD_OP_RELEASE)
        return 0;
    for (uint32_t n = 0; n < code->count; n++) {
        struct hd__instr *from = &code->at[(start + n) % code->count];
        if (from->op != i->op || from->n_in != i->n_in || from->n_out != i->n_out ||
            *operand(from, k) == *operand(i, k) || !alike(p, *operand(from, k), *operand(i, k)))
            continue;
        *operand(i, k) = *operand(from, k);
        return 1;
    }
    return 0;
}

/* The first two inputs in the other order. */
static int inputs_exchanged(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    hd_tensor first = i->in[0];
    if (i->n_in < 2 || first == i->in[1] || hd__is_async(i) || !alike(p, first, i->in[1]))
        return 0;
    i->in[0] = i->in[1];
    i->in[1] = first;
    return 1;
}

/* Of what the model says how: a factor, a sign, an epsilon, a window. */
static int other_number(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    if (hd__op(i->op)->class != HD__CLASS_MODEL || !i->attrs)
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    attrs->scale *= 2;
    attrs->eps *= 1000;
    attrs->sign = -attrs->sign;
    attrs->window = attrs->window ? attrs->window + 1 : 0;
    i->attrs = attrs;
    return attrs->scale != 0 || attrs->eps != 0 || attrs->sign || attrs->window;
}

/* Cut or joined along another of its dims. */
static int other_dim(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    const struct hd__tensor *t = i->n_in ? hd__tensor_const(p, i->in[0]) : NULL;
    uint16_t *dim = i->from && (!i->to || pick(2)) ? &i->from : &i->to, other;
    if (!t || !t->ndim || !*dim || i->op == HD_OP_ALL_REDUCE)
        return 0;
    other = t->dim[pick(t->ndim)];
    if (other == *dim)
        return 0;
    *dim = other;
    return 1;
}

/* Another part of a whole. */
static int other_place(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? pick(operands) : 0;
    struct hd__tensor t;
    if (!operands || i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    t = *hd__tensor_const(p, *operand(i, k));
    if (t.offset < 16)
        return 0;
    t.offset -= 16;
    *operand(i, k) = hd__tensor_new(p, &t);
    return 1;
}

/* Read or written as another dtype. */
static int other_dtype(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? pick(operands) : 0;
    struct hd__tensor t;
    if (!operands || i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    t = *hd__tensor_const(p, *operand(i, k));
    t.dtype = t.dtype == HD_F32 ? HD_BF16 : HD_F32;
    *operand(i, k) = hd__tensor_new(p, &t);
    return 1;
}

/* A buffer of the plan lies elsewhere. */
static int other_offset(struct hd_program *p, hd__code *code, uint32_t at)
{
    const struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? pick(operands) : 0;
    struct hd__buffer *b = operands ? &p->buffers.at[hd__tensor_const(p, *operand(&code->at[at], k))->buffer] : NULL;
    if (!b || b->offset < 64)
        return 0;
    b->offset -= 64;
    return 1;
}

/* One parameter buffer is updated by other rules. */
static int other_update(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    if (!hd__is_update(i) || !i->attrs)
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    if (pick(2) && attrs->beta1 != 0)
        attrs->beta1 /= 2;
    else
        attrs->clip = attrs->clip != 0 ? 0 : 1;
    i->attrs = attrs;
    return 1;
}

/* One of its ranges: weight decay of an update, or what a term of the norm counts. */
static int other_range(struct hd_program *p, struct hd__instr *i)
{
    struct hd_attrs *attrs;
    struct hd_range *ranges;
    uint32_t n;
    if (!i->attrs || !i->attrs->n_ranges)
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    attrs->ranges = ranges = hd__arena_copy(&p->arena, attrs->ranges, attrs->n_ranges * sizeof *ranges);
    n = pick((uint32_t)attrs->n_ranges);
    if (pick(2) || i->op == HD_OP_SUMSQ)
        ranges[n].value *= 2;
    else if (pick(2))
        ranges[n].first += 16;
    else
        attrs->n_ranges--;
    i->attrs = attrs;
    return 1;
}

static int other_decay(struct hd_program *p, hd__code *code, uint32_t at)
{
    return hd__is_update(&code->at[at]) && other_range(p, &code->at[at]);
}

static int other_norm(struct hd_program *p, hd__code *code, uint32_t at)
{
    return code->at[at].op == HD_OP_SUMSQ && other_range(p, &code->at[at]);
}

/* Of a weighted sum. */
static int other_weight(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    double *table;
    if (i->op != HD_OP_BLEND || !i->attrs || !i->attrs->n_table)
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    attrs->table = table = hd__arena_copy(&p->arena, attrs->table, attrs->n_table * sizeof *table);
    table[0] *= 2;
    i->attrs = attrs;
    return 1;
}

/* One is fed twice, or a section runs once more. */
static int other_micro(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t s = 0;
    if (code->at[at].op != HD_OP_FEED)
        return 0;
    while (&p->sections.at[s].code != code)
        s++;
    if (!p->sections.at[s].repeat || (p->sections.at[s].kind == HD__SECTION_STEP && p->accumulation < 2))
        return 0;
    if (p->sections.at[s].kind == HD__SECTION_STEP)
        code->at[at].micro = (int16_t)((code->at[at].micro + 1) % p->accumulation);
    else
        p->sections.at[s].repeat++;
    return 1;
}

/* All of an axis but its last. */
static int other_group(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    if (!hd__is_collective(i->op) || i->members || __builtin_popcount(i->axes) != 1 ||
        hd__mesh_ways(&p->mesh, i->axes) < 2)
        return 0;
    i->members = (UINT32_C(1) << (hd__mesh_ways(&p->mesh, i->axes) - 1)) - 1;
    return 1;
}

/* Pieces along two axes in the order of other ranks. */
static int other_order(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? pick(operands) : 0;
    struct hd__tensor t;
    if (!operands || i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    t = *hd__tensor_const(p, *operand(i, k));
    for (int32_t d = 0; d < t.ndim; d++) {
        uint32_t *shard = &t.placement.shard[d];
        if (*shard < 16 || p->mesh.size[(*shard & 15) - 1] == 1 || p->mesh.size[(*shard >> 4 & 15) - 1] == 1)
            continue;
        *shard = (*shard & ~UINT32_C(0xff)) | (*shard & 15) << 4 | (*shard >> 4 & 15);
        *operand(i, k) = hd__tensor_new(p, &t);
        return 1;
    }
    return 0;
}

/* The gradient of the loss is multiplied by it, or by something. */
static int other_loss_scale(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    if (i->op != HD_OP_SPREAD && (i->op != HD_OP_XENT_HEAD || i->n_out == 1))
        return 0;
    if (p->scale)
        i->n_in--;
    else
        i->in[i->n_in++] = p->norm2;
    return 1;
}

/* Of another axis. */
static int other_stream(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint16_t stream = (uint16_t)(HD__STREAM_AXIS + pick(HD_AXIS_COUNT));
    (void)p;
    if (!hd__is_collective(i->op) || stream == i->stream)
        return 0;
    i->stream = stream;
    return 1;
}

/* What a strategy declared of one of its tensors. */
static int other_fact(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__fact *f = p->facts.count ? &p->facts.at[pick(p->facts.count)] : NULL;
    (void)code, (void)at;
    if (!f)
        return 0;
    if (f->what == HD_FACT_FEEDBACK)
        *f = p->facts.at[--p->facts.count];
    else if (f->axes && pick(2))
        f->axes = 0;
    else
        f->what ^= HD_FACT_AVERAGE | HD_FACT_ZERO_SUM;
    return 1;
}

/* And of the parameters, where a section of its own ends. */
static int other_declaration(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t s = 0;
    (void)at;
    while (&p->sections.at[s].code != code)
        s++;
    if (!p->sections.at[s].equal_axes)
        return 0;
    if (pick(2))
        p->sections.at[s].declares = 0;
    else
        p->sections.at[s].equal_axes &= p->sections.at[s].equal_axes - 1;
    return 1;
}

/* The error feedback of the steps before is not read: its weight goes to the gradient alone, or codes start anew. */
static int feedback_lost(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    if (i->op != HD_OP_BLEND || i->n_in != 2 || i->in[0] != i->out[0] || i->attrs->table[1] < 0)
        return 0;
    for (uint32_t n = 0; n < p->facts.count; n++)
        if (p->facts.at[n].what == HD_FACT_FEEDBACK &&
            hd__tensor_const(p, p->facts.at[n].tensor)->buffer == hd__tensor_const(p, i->out[0])->buffer) {
            struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
            i->in[0] = i->in[1];
            i->n_in = 1;
            attrs->n_table = 1;
            i->attrs = attrs;
            return 1;
        }
    return 0;
}

/* From another rank than the one before. */
static int other_shift(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    if (i->op != HD_OP_SHIFT)
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    attrs->index = 2;
    i->attrs = attrs;
    return 1;
}

static const struct fault {
    const char *name;
    int (*plant)(struct hd_program *p, hd__code *code, uint32_t at);
} kinds[] = {
    {"transfer dropped", dropped},
    {"two swapped", swapped},
    {"wait dropped", wait_dropped},
    {"wait too late", wait_late},
    {"released too early", released_early},
    {"other axes", other_axes},
    {"other peer", other_peer},
    {"other tag", other_tag},
    {"done twice", doubled},
    {"maximum for sum", other_sum},
    {"part of the norm dropped", norm_dropped},
    {"work dropped", work_dropped},
    {"work moved", work_moved},
    {"work done twice", work_doubled},
    {"sum for write", other_write},
    {"other operand", other_operand},
    {"inputs exchanged", inputs_exchanged},
    {"other number", other_number},
    {"other dim", other_dim},
    {"other place", other_place},
    {"other dtype", other_dtype},
    {"other offset", other_offset},
    {"other update", other_update},
    {"other weight decay", other_decay},
    {"other weight in the norm", other_norm},
    {"other factor of a mean", other_weight},
    {"other micro-batch", other_micro},
    {"other group", other_group},
    {"other order of axes", other_order},
    {"other loss scale", other_loss_scale},
    {"other stream", other_stream},
    {"other fact", other_fact},
    {"other declaration", other_declaration},
    {"error feedback lost", feedback_lost},
    {"other shift", other_shift},
};
static uint32_t found[HD__COUNT(kinds)], kept[HD__COUNT(kinds)];

/* ---- one mutant */

struct mutant {
    uint32_t kind, section, at;
    int32_t stage, rank; /* rank -1: all of the stage */
};

/* In the next section, and of it the next instruction, that will do, from one picked at random. */
static int plant(struct mutant *m)
{
    struct hd_program *p;
    uint32_t first;
    m->kind = pick(HD__COUNT(kinds));
    m->stage = (int32_t)pick((uint32_t)broken->n_stages);
    p = broken->stage[m->stage];
    m->rank = -1;
    if (pick(2)) {
        int32_t per_stage = p->mesh.ranks / p->mesh.size[HD_AXIS_PP];
        m->rank = m->stage * per_stage + (int32_t)pick((uint32_t)per_stage);
    }
    first = pick(p->sections.count);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        m->section = (first + s) % p->sections.count;
        hd__code *code = &p->sections.at[m->section].code;
        uint32_t start = code->count ? pick(code->count) : 0;
        for (uint32_t k = 0; k < code->count && p->sections.at[m->section].kind != HD__SECTION_RESTORE; k++) {
            m->at = (start + k) % code->count; /* all but restore can be emulated */
            if (kinds[m->kind].plant(p, code, m->at))
                return 1;
        }
    }
    return 0;
}

static void set_programs(const struct mutant *m)
{
    fine->override_program = m->rank < 0 ? NULL : broken->stage[m->stage];
    fine->override_rank = m->rank;
}

/* The job as a mutant has it: all broken programs, or the fine ones with an odd rank. */
static struct hd__compiled *mutated(const struct mutant *m)
{
    return m->rank < 0 ? broken : fine;
}

static int is_found(const struct mutant *m)
{
    const struct hd_program *programs[16];
    struct hd__sim *machine;
    int32_t rc = hd__verify(broken->stage[m->stage], &err);
    if (rc)
        return 1;
    for (int32_t r = 0; r < fine->mesh.ranks; r++)
        programs[r] = hd__compiled_program(mutated(m), r);
    machine = hd__sim_create(&fine->mesh, programs, NULL);
    rc = hd__sim_verify(machine, &err);
    hd__sim_destroy(machine);
    return rc != HD_OK;
}

/* Does the job still train like one rank? Other orders of events may show what one hides. */
static int keeps_its_meaning(const struct mutant *m, uint32_t n)
{
    for (uint64_t order = 1; order <= 2; order++) {
        struct hd__numerics result;
        char text[160];
        int32_t rc = hd__numerics(one, mutated(m), 2, order, &result, &err);
        if (!rc && result.worst < TOLERANCE)
            continue;
        fprintf(stderr, "not found, mutant %u of mesh %s: %s, %s, stage %d, rank %d: %s\n", n, mesh,
                kinds[m->kind].name,
                hd__instr_text(fine->stage[m->stage], &fine->stage[m->stage]->sections.at[m->section], m->at, text),
                m->stage, m->rank, rc ? err.message : result.where);
        return 0;
    }
    return 1;
}

static void restore(struct hd_program *to, const struct hd_program *from)
{
    memcpy(to->buffers.at, from->buffers.at, from->buffers.count * sizeof *from->buffers.at);
    to->facts.count = from->facts.count;
    for (uint32_t n = 0; n < from->facts.count; n++)
        to->facts.at[n] = from->facts.at[n];
    for (uint32_t s = 0; s < from->sections.count; s++) {
        to->sections.at[s].repeat = from->sections.at[s].repeat;
        to->sections.at[s].declares = from->sections.at[s].declares;
        to->sections.at[s].equal_axes = from->sections.at[s].equal_axes;
        to->sections.at[s].code.count = 0;
        hd__append(&to->sections.at[s].code, from->sections.at[s].code.at, from->sections.at[s].code.count);
    }
}

static void plant_many(uint32_t wanted, uint32_t *n)
{
    for (uint32_t planted = 0; planted < wanted;) {
        struct mutant m;
        if (!plant(&m))
            continue;
        set_programs(&m);
        if (is_found(&m)) {
            found[m.kind]++;
        } else {
            missed += !keeps_its_meaning(&m, *n);
            kept[m.kind]++;
        }
        fine->override_program = NULL;
        restore(broken->stage[m.stage], fine->stage[m.stage]);
        planted++;
        ++*n;
    }
}

START_TEST(all_faults_are_found)
{
    uint32_t n = 0, all = 0, each = mutants / HD__COUNT(jobs) + 1;
    struct scratch scratch;
    scratch_init(&scratch);
    ck_assert_int_eq(chdir(scratch.dir), 0);
    measured_split();
    err = (struct hd_error)HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
    state = seed;
    for (size_t k = 0; k < HD__COUNT(jobs); k++) {
        mesh = jobs[k].mesh;
        open_job(&jobs[k]);
        check_split(&jobs[k]);
        plant_many(each, &n);
        close_job();
    }
    for (size_t k = 0; k < HD__COUNT(kinds); k++) {
        fprintf(stderr, "%-24s %4u found, %3u without effect\n", kinds[k].name, found[k], kept[k]);
        ck_assert_uint_gt(found[k], 0);
        all += found[k];
    }
    fprintf(stderr, "%u faults that change the meaning are found, %u are not\n", all, missed);
    ck_assert_uint_eq(missed, 0);
    ck_assert_uint_ge(all, 500);
    scratch_finish(&scratch);
    hd__plugins_destroy(plugins);
}
END_TEST

START_TEST(all_jobs_are_written)
{
    ck_assert_int_eq(chdir(jobs_folder), 0);
    measured_split();
    for (size_t k = 0; k < HD__COUNT(jobs); k++) {
        char name[32];
        FILE *f;
        snprintf(name, sizeof name, "%02zu.yaml", k);
        write_job(&jobs[k], jobs[k].mesh, jobs[k].micro_batch);
        f = fopen(name, "w");
        ck_assert_msg(f && fputs(job_text, f) >= 0 && !fclose(f), "%s", name);
    }
}
END_TEST

int main(int argc, char **argv)
{
    TCase *c = tcase_create("mutations");
    if (argc > 2 && !strcmp(argv[1], "--jobs")) {
        jobs_folder = argv[2];
        tcase_add_test(c, all_jobs_are_written);
        return suite_run_case("mutations", c);
    }
    if (argc > 1)
        mutants = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    tcase_set_timeout(c, argc > 1 ? 36000 : 120);
    tcase_add_test(c, all_faults_are_found);
    return suite_run_case("mutations", c);
}
