/* The table of ops against the kernels: where placement has a rule (core/program/ops.c, core/passes/place.c), an op on
 * the pieces of its operands gives the pieces of its result. Two ranks; every dim sharded, and every way in which
 * inputs may be partial sums: a sharded output joins, a partial one adds up, a replicated one is the same on both.
 * Every op of a model must have a case here, and every dim a rule, unless the row or the case says that it has none. */
#include "conformance/device/op_table.h"

#include <stdlib.h>

#include "conformance/check.h"
#include "core/passes/place.h"

enum { RANKS = 2, AXIS = HD_AXIS_TP };

static const double frequencies[] = {1, 0.3, 0.1};

#define NORM        \
    {               \
        .eps = 1e-5 \
    }
#define ROUTED 1 /* inputs that are gates, "f:bse", and slots, "i:be#", are those of a router */

const struct op_row op_table[] = {
    {"projection", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=2 s=4 h=6 k=2 g=2 d=4"},
    {"output projection", HD_OP_EINSUM, "bskgd hkgd", "bsh", "b=2 s=4 h=6 k=2 g=2 d=4"},
    {"product of elements", HD_OP_EINSUM, "bsf bsf", "bsf", "b=2 s=4 f=150"},
    {"gradient of a weight", HD_OP_EINSUM, "bskgd bsh", "kgdh", "b=2 s=4 h=6 k=2 g=2 d=4"},
    {"add", HD_OP_ADD, "bsh bsh bsh", "bsh", "b=2 s=4 h=6"},
    {"bias", HD_OP_BIAS, "bskgd kgd", "bskgd", "b=2 s=4 k=2 g=2 d=4"},
    {"bias_dw", HD_OP_BIAS_DW, "bskgd", "kgd", "b=2 s=4 k=2 g=2 d=4"},
    {"rmsnorm", HD_OP_RMSNORM, "bsh h", "bsh", "b=2 s=4 h=6", NORM},
    {"rmsnorm of heads", HD_OP_RMSNORM, "bskgd d", "bskgd", "b=2 s=4 k=2 g=2 d=4", NORM},
    {"rmsnorm_dx", HD_OP_RMSNORM_DX, "bsh h bsh", "bsh", "b=2 s=4 h=6", NORM},
    {"rmsnorm_dw", HD_OP_RMSNORM_DW, "bsh bsh", "h", "b=2 s=4 h=6", NORM},
    {"rmsnorm_dw of heads", HD_OP_RMSNORM_DW, "bskgd bskgd", "d", "b=2 s=4 k=2 g=2 d=4", NORM},
    {"layernorm", HD_OP_LAYERNORM, "bsh h h", "bsh", "b=2 s=4 h=6", NORM},
    {"layernorm of another width", HD_OP_LAYERNORM, "bsf f f", "bsf", "b=2 s=4 f=6", NORM},
    {"layernorm_dx", HD_OP_LAYERNORM_DX, "bsh h bsh", "bsh", "b=2 s=4 h=6", NORM},
    {"layernorm_dw", HD_OP_LAYERNORM_DW, "bsh bsh", "h h", "b=2 s=4 h=6", NORM},
    {"rope", HD_OP_ROPE, "bskgd", "bskgd", "b=2 s=4 k=2 g=2 d=6", {.sign = 1, .table = frequencies, .n_table = 3}},
    {"attention", HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bskg", "b=2 s=6 k=2 g=2 d=4", {.scale = 0.5}},
    {"attention_grad",
     HD_OP_ATTENTION_GRAD,
     "bskgd bskd bskd bskgd f:bskg bskgd",
     "bskgd bskd bskd",
     "b=2 s=6 k=2 g=2 d=4",
     {.scale = 0.5}},
    {"attention_merge", HD_OP_ATTENTION_MERGE, "bskgd f:bskg bskgd f:bskg", "bskgd f:bskg", "b=2 s=4 k=2 g=2 d=4"},
    {"rope_at",
     HD_OP_ROPE_AT,
     "btkgd i:bt",
     "btkgd",
     "b=2 t=4 k=2 g=2 d=6 p=9",
     {.sign = 1, .table = frequencies, .n_table = 3}},
    {"attention_cached",
     HD_OP_ATTENTION_CACHED,
     "btkgd btkd btkd bskd bskd i:bt",
     "btkgd bskd bskd",
     "b=2 t=2 s=6 k=2 g=2 d=4 p=6",
     {.scale = 0.5},
     0,
     "t"},
    {"swiglu", HD_OP_SWIGLU, "bsf bsf", "bsf", "b=2 s=4 f=6"},
    {"swiglu_grad", HD_OP_SWIGLU_GRAD, "bsf bsf bsf", "bsf bsf", "b=2 s=4 f=6"},
    {"gelu", HD_OP_GELU, "bsf", "bsf", "b=2 s=4 f=6"},
    {"gelu_grad", HD_OP_GELU_GRAD, "bsf bsf", "bsf", "b=2 s=4 f=6"},
    {"gelu_erf", HD_OP_GELU_ERF, "bsf", "bsf", "b=2 s=4 f=6"},
    {"gelu_erf_grad", HD_OP_GELU_ERF_GRAD, "bsf bsf", "bsf", "b=2 s=4 f=6"},
    {"relu2", HD_OP_RELU2, "bsf", "bsf", "b=2 s=4 f=6"},
    {"relu2_grad", HD_OP_RELU2_GRAD, "bsf bsf", "bsf", "b=2 s=4 f=6"},
    {"softcap", HD_OP_SOFTCAP, "bsv", "bsv", "b=2 s=4 v=8", {.scale = 1.5}},
    {"softcap_grad", HD_OP_SOFTCAP_GRAD, "bsv bsv", "bsv", "b=2 s=4 v=8", {.scale = 1.5}},
    {"scale", HD_OP_SCALE, "bsh", "bsh", "b=2 s=4 h=6", {.scale = -0.4}},
    {"rope, partial",
     HD_OP_ROPE,
     "bskgd",
     "bskgd",
     "b=2 s=4 k=2 g=2 d=8",
     {.sign = 1, .scale = 0.7, .table = frequencies, .n_table = 3}},
    {"rope, interleaved",
     HD_OP_ROPE,
     "bskd",
     "bskd",
     "b=2 s=4 k=2 d=8",
     {.sign = 1, .table = frequencies, .n_table = 3, .flags = HD_ATTR_INTERLEAVED}},
    {"attention without a mask",
     HD_OP_ATTENTION,
     "bskgd bskd bskd",
     "bskgd f:bskg",
     "b=2 s=6 k=2 g=2 d=4",
     {.scale = 0.5, .flags = HD_ATTR_NOT_CAUSAL, .clip = 2}},
    {"attention_grad with a prefix",
     HD_OP_ATTENTION_GRAD,
     "bskgd bskd bskd bskgd f:bskg bskgd",
     "bskgd bskd bskd",
     "b=2 s=6 k=2 g=2 d=4",
     {.scale = 0.5, .top_k = 3}},
    {"attention of documents",
     HD_OP_ATTENTION,
     "bskgd bskd bskd n:bs",
     "bskgd f:bskg",
     "b=2 s=6 k=2 g=2 d=4",
     {.scale = 0.5}},
    {"attention_grad of documents",
     HD_OP_ATTENTION_GRAD,
     "bskgd bskd bskd bskgd f:bskg bskgd n:bs",
     "bskgd bskd bskd",
     "b=2 s=6 k=2 g=2 d=4",
     {.scale = 0.5, .window = 3}},
    {"einsum_bias", HD_OP_EINSUM_BIAS, "bsh kgdh kgd", "bskgd", "b=2 s=4 h=6 k=2 g=2 d=4", {0}, 0, "h"},
    {"einsum_gelu", HD_OP_EINSUM_GELU, "bsh fh f", "bsf bsf", "b=2 s=4 h=6 f=4", {0}, 0, "h"},
    {"einsum_gelu, y alone", HD_OP_EINSUM_GELU, "bsh fh f", "bsf", "b=2 s=4 h=6 f=4", {0}, 0, "h"},
    {"einsum_gelu_grad", HD_OP_EINSUM_GELU_GRAD, "bsh hf bsf", "bsf", "b=2 s=4 h=6 f=4", {0}, 0, "h"},
    {"einsum_bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "fh f", "b=2 s=4 h=6 f=4"},
    {"add_rmsnorm", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", "b=2 s=4 h=6", NORM},
    {"add_layernorm", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=4 h=6", NORM},
    {"rmsnorm_dx_add", HD_OP_RMSNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=4 h=6", NORM},
    {"layernorm_dx_add", HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=4 h=6", NORM},
    {"rmsnorm_grad_add", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h", "b=2 s=4 h=6", NORM},
    {"layernorm_grad_add", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h h", "b=2 s=4 h=6", NORM},
    {"embed", HD_OP_EMBED, "i:bs vh", "bsh", "b=2 s=4 v=8 h=6"},
    {"embed_dw", HD_OP_EMBED_DW, "i:bs bsh", "vh", "b=2 s=4 v=8 h=6"},
    {"position", HD_OP_POSITION, "bsh ph", "bsh", "b=2 s=4 p=8 h=6"},
    {"position_dw", HD_OP_POSITION_DW, "bsh", "ph", "b=2 s=4 p=8 h=6"},
    {"rowmax", HD_OP_ROWMAX, "bsv", "f:bs", "b=2 s=4 v=8"},
    {"xent_local", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=4 v=8"},
    {"nll", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=2 s=4"},
    {"nll_grad", HD_OP_NLL_GRAD, "+:bs f:bs", "f:bs f:bs", "b=2 s=4"},
    {"xent_grad", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=4 v=8"},
    {"total", HD_OP_TOTAL, "bs", "f:", "b=2 s=4", {.scale = 0.25}},
    {"spread", HD_OP_SPREAD, NULL, "bs", "b=2 s=4", {.scale = 0.3}},
    {"spread, scaled", HD_OP_SPREAD, "d:", "bs", "b=2 s=4", {.scale = 0.3}},
    {"xent_head", HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh vh", "b=2 s=4 h=6 v=8", {.scale = 0.3}},
    {"gate", HD_OP_GATE, "bse", "f:bse", "b=2 s=6 e=4", {.top_k = 2}},
    {"gate_grad", HD_OP_GATE_GRAD, "f:bse f:bse", "bse", "b=2 s=6 e=4", {.top_k = 2}, ROUTED},
    {"route", HD_OP_ROUTE, "f:bse", "i:bes", "b=2 s=6 e=4 v=1", {0}, ROUTED},
    {"route, capacity", HD_OP_ROUTE, "f:bse", "i:bec", "b=2 s=6 e=4 c=2 v=1", {0}, ROUTED, "s"},
    {"dispatch", HD_OP_DISPATCH, "bsh i:bes", "besh", "b=2 s=6 e=4 h=6 v=1", {0}, ROUTED},
    {"dispatch, capacity", HD_OP_DISPATCH, "bsh i:bec", "bech", "b=2 s=6 e=4 c=2 h=6 v=1", {0}, ROUTED, "s"},
    {"dispatch_dx", HD_OP_DISPATCH_DX, "besh i:bes", "bsh", "b=2 s=6 e=4 h=6 v=1", {0}, ROUTED},
    {"dispatch_dx, capacity", HD_OP_DISPATCH_DX, "bech i:bec", "bsh", "b=2 s=6 e=4 c=2 h=6 v=1", {0}, ROUTED},
    {"grouped", HD_OP_GROUPED, "besh efh i:bes", "besf", "b=2 s=6 e=4 h=6 f=4 v=1", {0}, ROUTED},
    {"grouped, capacity", HD_OP_GROUPED, "bech efh i:bec", "becf", "b=2 s=6 e=4 c=2 h=6 f=4 v=1", {0}, ROUTED},
    {"grouped_dw", HD_OP_GROUPED_DW, "besf besh i:bes", "efh", "b=2 s=6 e=4 h=6 f=4 v=1", {0}, ROUTED},
    {"grouped_dw, capacity", HD_OP_GROUPED_DW, "becf bech i:bec", "efh", "b=2 s=6 e=4 c=2 h=6 f=4 v=1", {0}, ROUTED},
    {"combine", HD_OP_COMBINE, "besh f:bse i:bes", "bsh", "b=2 s=6 e=4 h=6 v=1", {0}, ROUTED},
    {"combine, capacity", HD_OP_COMBINE, "bech f:bse i:bec", "bsh", "b=2 s=6 e=4 c=2 h=6 v=1", {0}, ROUTED},
    {"combine_dz", HD_OP_COMBINE_DZ, "bsh f:bse i:bes", "besh", "b=2 s=6 e=4 h=6 v=1", {0}, ROUTED},
    {"combine_dz, capacity", HD_OP_COMBINE_DZ, "bsh f:bse i:bec", "bech", "b=2 s=6 e=4 c=2 h=6 v=1", {0}, ROUTED, "s"},
    {"combine_dg", HD_OP_COMBINE_DG, "besh bsh i:bes", "f:bse", "b=2 s=6 e=4 h=6 v=1", {0}, ROUTED},
    {"combine_dg, capacity", HD_OP_COMBINE_DG, "bech bsh i:bec", "f:bse", "b=2 s=6 e=4 c=2 h=6 v=1", {0}, ROUTED},
    {"expert_count", HD_OP_EXPERT_COUNT, "f:bse", "f:be", "b=2 s=6 e=4", {0}, ROUTED},
    {"router_loss", HD_OP_ROUTER_LOSS, "bse +:be", "f:bs", "b=2 s=6 e=4", {.scale = 0.3, .z_scale = 0.07}},
    {"router_loss_dz", HD_OP_ROUTER_LOSS_DZ, "bse +:be f:bs", "bse", "b=2 s=6 e=4", {.scale = 0.3, .z_scale = 0.07}},
};

const int op_table_count = (int)HD__COUNT(op_table);

/* ---- an instruction, whole */

static int is_slots(const struct hd_operand *o)
{
    return o->dtype == HD_I32 && o->ndim == 3 && o->dim[1] == 'e';
}

static int is_gates(const struct hd_operand *o)
{
    return o->ndim == 3 && o->dim[0] == 'b' && o->dim[1] == 's' && o->dim[2] == 'e';
}

void op_table_route(struct h_device *d, const char *dims, struct h_instr *i)
{
    const struct h_case gate = {"gate", HD_OP_GATE, "bse", "f:bse", dims, {.top_k = 2}},
                        slots = {"route", HD_OP_ROUTE, "f:bse", strchr(dims, 'c') ? "i:bec" : "i:bes", dims, {0}};
    struct h_instr *g = h_make(&gate, HD_F64, 5), *s = strchr(dims, 'v') ? h_make(&slots, HD_F64, 5) : NULL;
    h_run(d, g);
    if (s) {
        h_copy(&s->in[0], &g->out[0]);
        h_run(d, s);
    }
    for (uint32_t n = 0; n < i->d.n_in; n++)
        if (is_slots(&i->in[n]))
            h_copy(&i->in[n], &s->out[0]);
        else if (is_gates(&i->in[n]))
            h_copy(&i->in[n], &g->out[0]);
    h_free(g);
    if (s)
        h_free(s);
}

static struct h_instr *whole_of(struct h_device *d, const struct op_row *r)
{
    const struct h_case c = {r->name, r->op, r->in, r->out, r->dims, r->attrs};
    struct h_instr *i = h_make(&c, HD_F64, 3);
    if (r->routed)
        op_table_route(d, r->dims, i);
    h_run(d, i);
    return i;
}

/* ---- placements: of an operand HD__REPLICATED, HD__PARTIAL, or the letter of the dim that is sharded */

struct placed {
    uint16_t in[HD_MAX_IN], out[HD_MAX_OUT];
};

static hd_tensor tensor_of(struct hd_program *p, const struct hd_operand *o, uint16_t at)
{
    struct hd__tensor t = {.name = "t", .dtype = HD_F64, .placement.redop = HD_SUM};
    for (uint32_t k = 0; k < o->ndim; k++) {
        char name[2] = {(char)o->dim[k], 0};
        if (!p->letter[o->dim[k]])
            p->letter[o->dim[k]] = hd__dim_new(p, hd__arena_strdup(&p->arena, name), o->extent[k]);
        t.placement.shard[t.ndim] = at == o->dim[k] ? hd__shard_push(0, AXIS) : 0;
        t.dim[t.ndim++] = p->letter[o->dim[k]];
    }
    t.placement.partial = at == HD__PARTIAL ? HD_AXIS_BIT(AXIS) : 0;
    return hd__tensor_new(p, &t);
}

/* Does a rule of the table place the operands like this? */
static int allowed(const struct h_instr *whole, const struct placed *at)
{
    int32_t size[HD_AXIS_COUNT];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = a == AXIS ? RANKS : 1;
    const struct hd__mesh mesh = hd__mesh_make(size);
    struct hd_program *p = hd__program_new(&mesh, 0);
    struct hd__instr i = hd__instr_new(p, (uint16_t)whole->d.op);
    const struct hd__tensor *outs[HD_MAX_OUT];
    int yes;
    for (uint32_t n = 0; n < whole->d.n_in; n++)
        i.in[i.n_in++] = tensor_of(p, &whole->in[n], at->in[n]);
    for (uint32_t n = 0; n < whole->d.n_out; n++)
        i.out[i.n_out++] = tensor_of(p, &whole->out[n], at->out[n]);
    for (uint32_t n = 0; n < i.n_out; n++)
        outs[n] = hd__tensor_const(p, i.out[n]);
    yes = hd__place_allows(p, &i, outs, AXIS);
    hd__program_free(p);
    return yes;
}

/* ---- pieces */

/* By element of a piece: that of the whole. */
static int64_t element_of(const struct hd_operand *whole, const struct hd_operand *piece, int64_t at)
{
    int64_t index = 0, step = 1;
    for (int32_t k = piece->ndim; k-- > 0; at /= piece->extent[k], step *= whole->extent[k])
        index += (at % piece->extent[k] + piece->start[k] - whole->start[k]) * step;
    return index;
}

/* One rank's piece of an operand: the other's part of a sum is what is missing. */
static struct hd_operand piece_of(const struct hd_operand *whole, uint16_t at, int32_t rank)
{
    struct hd_operand o = *whole;
    uint64_t seed = 77;
    for (uint32_t k = 0; k < o.ndim; k++)
        if (o.dim[k] == at) {
            o.extent[k] /= RANKS;
            o.start[k] += rank * o.extent[k];
        }
    o.data = calloc((size_t)hd_operand_count(&o) + 1, hd_dtype_size(o.dtype));
    for (int64_t n = 0; n < hd_operand_count(&o); n++) {
        double x = h_get(whole, element_of(whole, &o, n)), part = h_random(&seed);
        h_set(&o, n, at != HD__PARTIAL ? x : rank ? x - part : part);
    }
    return o;
}

static struct h_instr *run_piece(struct h_device *d, const struct h_instr *whole, const struct placed *at, int32_t rank)
{
    struct h_instr borrowed = {.d = whole->d}, *made;
    for (uint32_t n = 0; n < whole->d.n_in; n++)
        borrowed.in[n] = piece_of(&whole->in[n], at->in[n], rank);
    for (uint32_t n = 0; n < whole->d.n_out; n++)
        borrowed.out[n] = piece_of(&whole->out[n], at->out[n], rank);
    made = h_as(&borrowed, HD_F64);
    for (uint32_t n = 0; n < whole->d.n_in; n++)
        free(borrowed.in[n].data);
    for (uint32_t n = 0; n < whole->d.n_out; n++)
        free(borrowed.out[n].data);
    h_run(d, made);
    return made;
}

static void check_output(const struct op_row *r, const struct h_instr *whole, struct h_instr *const piece[RANKS],
                         const struct placed *at, uint32_t n, const char *what)
{
    const struct hd_operand *want = &whole->out[n];
    struct hd_operand got = *want;
    int most = hd__op((uint16_t)r->op)->redop == HD_MAX;
    got.data = calloc((size_t)hd_operand_count(want) + 1, sizeof(double));
    for (int32_t rank = 0; rank < RANKS; rank++)
        for (int64_t k = 0; k < hd_operand_count(&piece[rank]->out[n]); k++) {
            int64_t e = element_of(want, &piece[rank]->out[n], k);
            double x = h_get(&piece[rank]->out[n], k), before = h_get(&got, e);
            if (at->out[n] == HD__PARTIAL && rank)
                x = most ? (x > before ? x : before) : before + x;
            h_set(&got, e, x);
        }
    ck_assert_msg(h_distance(&got, want) < 1e-12, "%s, %s: output %u %s", r->name, what, n,
                  at->out[n] == HD__PARTIAL      ? "does not add up"
                  : at->out[n] == HD__REPLICATED ? "is not the whole on rank 1"
                                                 : "does not join");
    for (int64_t k = 0; at->out[n] == HD__REPLICATED && k < hd_operand_count(want); k++)
        h_set(&got, k, h_get(&piece[0]->out[n], k));
    ck_assert_msg(h_distance(&got, want) < 1e-12, "%s, %s: output %u is not the whole on rank 0", r->name, what, n);
    free(got.data);
}

static void check_pieces(struct h_device *d, const struct op_row *r, const struct h_instr *whole,
                         const struct placed *at, const char *what)
{
    struct h_instr *piece[RANKS];
    for (int32_t rank = 0; rank < RANKS; rank++)
        piece[rank] = run_piece(d, whole, at, rank);
    for (uint32_t n = 0; n < whole->d.n_out; n++)
        check_output(r, whole, piece, at, n, what);
    for (int32_t rank = 0; rank < RANKS; rank++)
        h_free(piece[rank]);
}

/* ---- every placement */

static int has_dim(const struct hd_operand *o, char letter)
{
    for (uint32_t k = 0; k < o->ndim; k++)
        if (o->dim[k] == (uint8_t)letter)
            return 1;
    return 0;
}

static int used(const struct h_instr *i, char letter)
{
    for (uint32_t n = 0; n < i->d.n_in + i->d.n_out; n++)
        if (has_dim(n < i->d.n_in ? &i->in[n] : &i->out[n - i->d.n_in], letter))
            return 1;
    return 0;
}

/* Inputs and outputs that have the dim are sharded; the outputs that lack it may lie in any way that a rule has. */
static void shard(struct h_device *d, const struct op_row *r, const struct h_instr *whole, char letter)
{
    const char *unsharded = hd__op((uint16_t)r->op)->unsharded;
    uint8_t last = whole->d.n_in && whole->in[0].ndim ? whole->in[0].dim[whole->in[0].ndim - 1] : 0;
    int rules = 0, none = (r->cannot && strchr(r->cannot, letter)) || (unsharded && strchr(unsharded, letter)) ||
                          (unsharded && *unsharded == '$' && last == (uint8_t)letter);
    char what[32];
    snprintf(what, sizeof what, "%c sharded", letter);
    for (uint32_t partial = 0; partial < 1u << whole->d.n_out; partial++) {
        struct placed at = {{0}, {0}};
        int twice = 0; /* partial where it is sharded: the same again */
        for (uint32_t n = 0; n < whole->d.n_in; n++)
            at.in[n] = has_dim(&whole->in[n], letter) ? (uint16_t)letter : HD__REPLICATED;
        for (uint32_t n = 0; n < whole->d.n_out; n++) {
            at.out[n] = has_dim(&whole->out[n], letter) ? (uint16_t)letter
                        : partial >> n & 1              ? HD__PARTIAL
                                                        : HD__REPLICATED;
            twice |= has_dim(&whole->out[n], letter) && partial >> n & 1;
        }
        if (twice || !allowed(whole, &at))
            continue;
        check_pieces(d, r, whole, &at, what);
        rules++;
    }
    ck_assert_msg((rules > 0) != none, "%s: %d rules shard %c, which %s", r->name, rules, letter,
                  none ? "is said to have none" : "the row does not exclude");
}

/* Any inputs may be parts of a sum. Returns how many rules there are. */
static int sum_parts(struct h_device *d, const struct op_row *r, const struct h_instr *whole)
{
    uint32_t operands = whole->d.n_in + whole->d.n_out;
    int rules = 0;
    for (uint32_t partial = 1; partial < 1u << operands; partial++) {
        struct placed at = {{0}, {0}};
        for (uint32_t n = 0; n < operands; n++)
            *(n < whole->d.n_in ? &at.in[n] : &at.out[n - whole->d.n_in]) = partial >> n & 1 ? HD__PARTIAL : 0;
        if (!allowed(whole, &at))
            continue;
        check_pieces(d, r, whole, &at, "partial sums");
        rules++;
    }
    return rules;
}

START_TEST(pieces_are_pieces_of_the_result)
{
    const struct op_row *r = &op_table[_i];
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *whole = whole_of(d, r);
    int rules = sum_parts(d, r, whole);
    ck_assert_msg((rules > 0) == (hd__op((uint16_t)r->op)->linear != HD__LINEAR_NONE), "%s: %d rules for partial sums",
                  r->name, rules);
    for (int letter = 'a'; letter <= 'z'; letter++)
        if (used(whole, (char)letter))
            shard(d, r, whole, (char)letter);
    h_free(whole);
    h_close(d);
}
END_TEST

START_TEST(every_op_of_a_model_is_here)
{
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++) {
        int found = !hd__op((uint16_t)op)->name || hd__op((uint16_t)op)->class != HD__CLASS_MODEL;
        for (size_t n = 0; n < HD__COUNT(op_table); n++)
            found |= op_table[n].op == op;
        ck_assert_msg(found, "%s has no case", hd__op((uint16_t)op)->name);
    }
}
END_TEST

void op_table_run(void)
{
    char label[96];
    for (int n = 0; n < op_table_count; n++) {
        snprintf(label, sizeof label, "pieces of %s", op_table[n].name);
        conf_run(label, pieces_are_pieces_of_the_result, n, n + 1, NULL);
    }
    RUN_TEST(every_op_of_a_model_is_here);
}
