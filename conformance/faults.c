/* Kinds of faults, each an edit of one instruction or of what belongs to it. See faults.h. */
#include "conformance/faults.h"

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "conformance/edits.h"
#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"

static uint64_t state;

void conf_faults_seed(uint64_t seed)
{
    state = seed;
}

uint32_t conf_faults_pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

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
    if (conf_faults_pick(2)) {
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
    move(code, at, at + 1 + conf_faults_pick(HD__MIN(code->count - at - 1, 20)));
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
    if (conf_faults_pick(2))
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
    axes = live & (1 + conf_faults_pick((1 << HD_AXIS_COUNT) - 1));
    if (!hd__is_collective(i->op) || !axes || axes == (i->axes & live))
        return 0;
    i->axes = axes;
    return 1;
}

static int other_peer(struct hd_program *p, hd__code *code, uint32_t at)
{
    int16_t peer = (int16_t)conf_faults_pick((uint32_t)p->mesh.size[HD_AXIS_PP]);
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
    code->at[at].tag ^= (uint16_t)(1 + conf_faults_pick(3));
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
    uint32_t to = conf_faults_pick(code->count);
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
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? conf_faults_pick(operands) : 0,
             start = conf_faults_pick(code->count);
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
    uint16_t *dim = i->from && (!i->to || conf_faults_pick(2)) ? &i->from : &i->to, other;
    if (!t || !t->ndim || !*dim || i->op == HD_OP_ALL_REDUCE)
        return 0;
    other = t->dim[conf_faults_pick(t->ndim)];
    if (other == *dim)
        return 0;
    *dim = other;
    return 1;
}

/* Another part of a whole. */
static int other_place(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? conf_faults_pick(operands) : 0;
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
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? conf_faults_pick(operands) : 0;
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
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? conf_faults_pick(operands) : 0;
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
    if (conf_faults_pick(2) && attrs->beta1 != 0)
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
    n = conf_faults_pick((uint32_t)attrs->n_ranges);
    if (conf_faults_pick(2) || i->op == HD_OP_SUMSQ)
        ranges[n].value *= 2;
    else if (conf_faults_pick(2))
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
    i->members = (UINT64_C(1) << (hd__mesh_ways(&p->mesh, i->axes) - 1)) - 1;
    return 1;
}

/* Pieces along two axes in the order of other ranks. */
static int other_order(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t operands = (uint32_t)i->n_in + i->n_out, k = operands ? conf_faults_pick(operands) : 0;
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
    uint16_t stream = (uint16_t)(HD__STREAM_AXIS + conf_faults_pick(HD_AXIS_COUNT));
    (void)p;
    if (!hd__is_collective(i->op) || stream == i->stream)
        return 0;
    i->stream = stream;
    return 1;
}

/* A fact that a strategy declared of one of its tensors. */
static int other_fact(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__fact *f = p->facts.count ? &p->facts.at[conf_faults_pick(p->facts.count)] : NULL;
    (void)code, (void)at;
    if (!f)
        return 0;
    if (f->what == HD_FACT_FEEDBACK)
        *f = p->facts.at[--p->facts.count];
    else if (f->axes && conf_faults_pick(2))
        f->axes = 0;
    else
        f->what ^= HD_FACT_AVERAGE | HD_FACT_ZERO_SUM;
    return 1;
}

/* A fact of the parameters, where a section of the strategy's own ends. */
static int other_declaration(struct hd_program *p, hd__code *code, uint32_t at)
{
    uint32_t s = 0;
    (void)at;
    while (&p->sections.at[s].code != code)
        s++;
    if (!p->sections.at[s].equal_axes)
        return 0;
    if (conf_faults_pick(2))
        p->sections.at[s].declares = 0;
    else
        p->sections.at[s].equal_axes &= p->sections.at[s].equal_axes - 1;
    return 1;
}

/* The error feedback of the steps before is not read. */
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

/* A strategy's own op. */
static int custom_dropped(struct hd_program *p, hd__code *code, uint32_t at)
{
    return code->at[at].custom && work_dropped(p, code, at);
}

/* It is another op of the strategies, of as many operands. Of sums over all ranks a linear op and a map are alike. */
static int custom_other(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t start = conf_faults_pick(HD__MAX(p->custom_ops.count, 1u));
    for (uint32_t n = 0; n < p->custom_ops.count && i->custom; n++) {
        const struct hd_custom_op *op = p->custom_ops.at[(start + n) % p->custom_ops.count];
        if (op->proof == i->custom->proof || i->custom->proof == HD_CUSTOM_MAP || strlen(op->in) != i->n_in ||
            strlen(op->out) != i->n_out)
            continue;
        i->custom = op;
        return 1;
    }
    return 0;
}

static uint32_t state_of(const struct hd__instr *i)
{
    uint32_t k = 0;
    while (i->custom && k < i->n_out && !(i->custom->state >> k & 1))
        k++;
    return i->custom && k < i->n_out ? k : HD_MAX_OUT;
}

/* Its input and its state are exchanged. */
static int custom_exchanged(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    uint32_t k = state_of(i);
    hd_tensor first = i->in[0];
    if (k == HD_MAX_OUT || !alike(p, first, i->out[k]))
        return 0;
    i->in[0] = i->out[k];
    i->out[k] = first;
    return 1;
}

/* State is cleared before it is read, or is that of another instruction, or is put where nothing keeps it. */
static int state_forgotten(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at], clear = {.op = HD_OP_FILL0, .n_out = 1, .phase = i->phase, .micro = i->micro};
    uint32_t k = state_of(i), start = conf_faults_pick(code->count), how = conf_faults_pick(3);
    if (k == HD_MAX_OUT)
        return 0;
    if (how == 0) {
        clear.id = ++p->next_id;
        clear.out[0] = i->out[k];
        insert(code, at + conf_faults_pick(2), clear);
        return 1;
    }
    for (uint32_t n = 0; n < code->count && how == 1; n++) {
        struct hd__instr *other = &code->at[(start + n) % code->count];
        if (state_of(other) == k && other->out[k] != i->out[k] && alike(p, other->out[k], i->out[k])) {
            i->out[k] = other->out[k];
            return 1;
        }
    }
    if (!alike(p, i->in[0], i->out[k]))
        return 0;
    i->out[k] = i->in[0];
    return 1;
}

/* Codes are joined and not added up, or the other way round; or are of more parts. */
static int other_codes(struct hd_program *p, hd__code *code, uint32_t at)
{
    struct hd__instr *i = &code->at[at];
    struct hd_attrs *attrs;
    if (!i->custom || (i->custom->proof != HD_CUSTOM_ENCODE && i->custom->proof != HD_CUSTOM_DECODE))
        return 0;
    attrs = hd__attrs_new(p, i->attrs);
    if (i->custom->proof == HD_CUSTOM_DECODE && conf_faults_pick(2))
        attrs->flags ^= HD_ATTR_CONCAT;
    else
        attrs->parts *= 2;
    i->attrs = attrs;
    return 1;
}

static const struct fault {
    const char *name;
    int (*plant)(struct hd_program *p, hd__code *code, uint32_t at);
} kinds[CONF_FAULTS] = {
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
    {"custom op dropped", custom_dropped},
    {"other custom op", custom_other},
    {"custom op's operands exchanged", custom_exchanged},
    {"state forgotten", state_forgotten},
    {"other codes", other_codes},
};
/* ---- one mutant */

struct mutant {
    uint32_t kind, section, at;
    int32_t stage, rank; /* rank -1: all of the stage */
};

/* In the next section, and of it the next instruction, that will do, from one picked at random. */
static int plant(struct conf_planted *to, struct mutant *m)
{
    struct hd_program *p;
    uint32_t first;
    m->kind = to->first_kind + conf_faults_pick(CONF_FAULTS - to->first_kind);
    m->stage = (int32_t)conf_faults_pick((uint32_t)to->broken->n_stages);
    p = to->broken->stage[m->stage];
    m->rank = -1;
    if (conf_faults_pick(2)) {
        int32_t per_stage = p->mesh.ranks / p->mesh.size[HD_AXIS_PP];
        m->rank = m->stage * per_stage + (int32_t)conf_faults_pick((uint32_t)per_stage);
    }
    first = conf_faults_pick(p->sections.count);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        m->section = (first + s) % p->sections.count;
        hd__code *code = &p->sections.at[m->section].code;
        uint32_t start = code->count ? conf_faults_pick(code->count) : 0;
        for (uint32_t k = 0; k < code->count && p->sections.at[m->section].kind != HD__SECTION_RESTORE; k++) {
            m->at = (start + k) % code->count; /* all but restore can be emulated */
            if (kinds[m->kind].plant(p, code, m->at))
                return 1;
        }
    }
    return 0;
}

/* The job as a mutant has it: all broken programs, or the fine ones with an odd rank. */
static struct hd__compiled *mutated(const struct conf_planted *to, const struct mutant *m)
{
    return m->rank < 0 ? to->broken : to->fine;
}

static int is_found(const struct conf_planted *to, const struct mutant *m)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = hd__verify(to->broken->stage[m->stage], &err);
    if (rc)
        return 1;
    const struct hd_program **programs = hd__alloc((size_t)to->fine->mesh.ranks * sizeof *programs);
    for (int32_t r = 0; r < to->fine->mesh.ranks; r++)
        programs[r] = hd__compiled_program(mutated(to, m), r);
    struct hd__sim *machine = hd__sim_create(&to->fine->mesh, programs, NULL);
    rc = hd__sim_verify(machine, &err);
    hd__sim_destroy(machine);
    free(programs);
    return rc != HD_OK;
}

/* Does the job still train like one rank? Other orders of events may show what one hides. */
static int keeps_its_meaning(const struct conf_planted *to, const struct mutant *m)
{
    for (uint64_t order = 1; order <= 2; order++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd__numerics result;
        char text[160];
        int32_t rc = hd__numerics(to->one, mutated(to, m), 2, order, &result, &err);
        double worst = HD__MAX(HD__MAX(result.loss, result.norm), HD__MAX(result.gradient, result.parameter));
        worst = to->averages_too ? result.worst : HD__MAX(worst, result.evaluation);
        if (!rc && worst < HD__NUMERICS_LIMIT)
            continue;
        fprintf(
            stderr, "not found, mutant %u of mesh %s: %s, %s, stage %d, rank %d: %s\n", to->planted, to->mesh,
            kinds[m->kind].name,
            hd__instr_text(to->fine->stage[m->stage], &to->fine->stage[m->stage]->sections.at[m->section], m->at, text),
            m->stage, m->rank, rc ? err.message : result.where);
        return 0;
    }
    return 1;
}

static void restore(struct hd_program *to, const struct hd_program *from)
{
    memcpy(to->buffers.at, from->buffers.at, from->buffers.count * sizeof *from->buffers.at);
    to->facts.count = 0;
    hd__append(&to->facts, from->facts.at, from->facts.count);
    for (uint32_t s = 0; s < from->sections.count; s++) {
        to->sections.at[s].repeat = from->sections.at[s].repeat;
        to->sections.at[s].declares = from->sections.at[s].declares;
        to->sections.at[s].equal_axes = from->sections.at[s].equal_axes;
        to->sections.at[s].code.count = 0;
        hd__append(&to->sections.at[s].code, from->sections.at[s].code.at, from->sections.at[s].code.count);
    }
}

void conf_faults_plant(struct conf_planted *to, uint32_t wanted)
{
    for (uint32_t end = to->planted + wanted; to->planted < end;) {
        struct mutant m;
        if (!plant(to, &m))
            continue;
        to->fine->override_program = m.rank < 0 ? NULL : to->broken->stage[m.stage];
        to->fine->override_rank = m.rank;
        if (is_found(to, &m))
            to->found[m.kind]++;
        else if (to->one) {
            to->missed += !keeps_its_meaning(to, &m);
            to->kept[m.kind]++;
        }
        to->fine->override_program = NULL;
        restore(to->broken->stage[m.stage], to->fine->stage[m.stage]);
        to->planted++;
    }
}

const char *conf_faults_name(uint32_t kind)
{
    return kinds[kind].name;
}
