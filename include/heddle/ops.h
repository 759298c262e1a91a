/* heddle/ops.h: the operations of a step program.
 *
 * Operands are listed as  outputs <- inputs, each with its logical dims in brackets: b batch, s sequence,
 * h hidden, k kv heads, g query heads per kv head, d head size, f feed-forward, v vocabulary, p positions,
 * * any dims, # the elements of a flat buffer, () a scalar. All tensors are dense, the last dim is contiguous.
 * What a row means for placement, gradients and cost stands in one table in core/program/ops.c.
 * With HD_ATTR_ACCUMULATE outputs are added to instead of written. Numbers are never reused.
 *
 * ---- model: forward and gradients
 * einsum            c[*] <- a[*], b[*]. Dims missing in c are contracted
 * add               y[*] <- x0[*], x1[*], ... up to 8 inputs of equal dims
 * bias              y[*] <- x[*], w[dims of x in any subset, same order]
 * bias_dw           dw[subset] <- dy[*]: sum over the other dims
 * rmsnorm           y[*h] <- x[*h], w[h]: y = x w / sqrt(mean(x^2) + eps); also over d (the norms of queries and
 *                   keys)
 * rmsnorm_dx        dx[*h] <- x[*h], w[h], dy[*h]
 * rmsnorm_dw        dw[h] <- x[*h], dy[*h]
 * layernorm         y[*h] <- x[*h], w[h], c[h]: y = (x-mean)/sqrt(var+eps) w + c
 * layernorm_dx      dx[*h] <- x[*h], w[h], dy[*h]
 * layernorm_dw      dw[h], dc[h] <- x[*h], dy[*h]
 * rope              y[bs*d] <- x[bs*d]. attrs.table: n inverse frequencies, 2 n <= d; the pair (i, i + n) is rotated
 *                   by sign * position * table[i] (rotate_half, GPT-NeoX), or with HD_ATTR_INTERLEAVED the pair (2 i,
 *                   2 i + 1) (GPT-J), times attrs.scale (0 means 1); position = index on s. Elements from 2 n on stay
 *                   as they are (partial rotary)
 * attention         o[bskgd], lse[bskg] fp32 <- q[bskgd], k[bskd], v[bskd]: softmax(z) v, lse = log sum exp z, z =
 *                   scale q k, over the keys that hd_attends says: causal, or all with HD_ATTR_NOT_CAUSAL;
 *                   attrs.window > 0: those less than `window` positions away; attrs.top_k = n: keys of the first n
 *                   positions too (prefix LM). attrs.clip = c > 0: z = c tanh(scale q k / c), a soft cap.
 *                   Optionally n[bs] int32: each query's index in its document, so that a causal query sees no key
 *                   more than n positions back; position - n never falls along a sequence
 * rope_at           y[bt*d] <- x[bt*d], n[bt] int32: rope at positions n in place of the index on s; never by a model
 * attention_cached  o[btkgd], kc[bskd], vc[bskd] <- q[btkgd], k[btkd], v[btkd], kc, vc, n[bt] int32: a step of
 *                   decoding. k and v become rows n of the caches kc and vc, whose row j is position j; then o =
 *                   softmax(z) v over the rows that a query at position n sees, as for attention (causal, without a
 *                   prefix). n below 0: nothing is written, and o is 0. A program has the caches in one memory, as
 *                   input and as output
 * attention_grad    dq[bskgd], dk[bskd], dv[bskd] <- q, k, v, o, lse, do[bskgd], optionally n[bs]
 * swiglu            y[*] <- g[*], u[*]: y = g sigmoid(g) u
 * swiglu_grad       dg[*], du[*] <- g[*], u[*], dy[*]
 * gelu              y[*] <- x[*]: tanh form, as GPT-2's gelu_new
 * gelu_grad         dx[*] <- x[*], dy[*]
 * gelu_erf          y[*] <- x[*]: x/2 (1 + erf(x / sqrt 2)), the exact GELU
 * gelu_erf_grad     dx[*] <- x[*], dy[*]
 * relu2             y[*] <- x[*]: max(x, 0)^2 (Primer, arXiv 2109.08668)
 * relu2_grad        dx[*] <- x[*], dy[*]
 * softcap           y[*] <- x[*]: scale tanh(x / scale), scale > 0 (Gemma 2's logits)
 * softcap_grad      dx[*] <- y[*], dy[*]: dy (1 - (y / scale)^2)
 * scale             y[*] <- x[*]: scale x. A product of two tensors element by element is an einsum
 * embed             y[bsh] <- ids[bs] int32, w[vh]. Ids outside this rank's rows give zero rows
 * embed_dw          dw[vh] <- ids[bs], dy[bsh]; summed in order of tokens
 * position          y[bsh] <- x[bsh], w[ph]: y = x + w[index on s]
 * position_dw       dw[ph] <- dy[bsh]
 * rowmax            m[bs] fp32 <- z[bsv]. Here and in xent_local and xent_grad: attrs.window > 0: entries of the
 *                   vocabulary from window on are padding: they do not count, and their dz is 0. hd_vocabulary
 * xent_local        l[bs] fp32, c[bs] fp32 <- z[bsv], m[bs], labels[bs]: l = sum_v exp(z-m), c = z[label] or 0 where
 *                   not in this shard. Here, in xent_grad and xent_head a label below 0 is ignored: n and dz are 0
 * nll               n[bs] fp32 <- l[bs], m[bs], c[bs]: log(l) + (m - c)
 * nll_grad          dl[bs], dc[bs] <- l[bs], dn[bs]: dn / l, -dn
 * xent_grad         dz[bsv] <- z, m, labels, dl, dc: exp(z-m) dl + onehot dc. dz may be the same memory as z
 * total             y() fp32, or fp64 of fp64, <- x[*]: scale * sum
 * spread            y[*] <- nothing, or k() fp64: all elements = scale (times k)
 * xent_head         n[bs] fp32, dx[bsh], dw[vh] <- x[bsh], w[vh], labels[bs], optionally k() fp64, which multiplies
 *                   scale. With z = x w^T: n = log(sum_v exp(z)) - z[label], and the gradients of attrs.scale * sum
 *                   n; z is never materialised. HD_ATTR_ACCUMULATE holds for dw alone. With one output, n, no
 *                   gradient is computed: evaluation
 *
 * ---- products with fused epilogues: emitted by fusion, never by a model
 * einsum_bias       y[*] <- a[*], b[*], w[last dims of y]: einsum, then bias
 * einsum_gelu       y[*], z[*] <- a[*], b[*], w[last dims of z]: z as einsum_bias, y = gelu(z). With one output z is
 *                   not stored
 * einsum_gelu_grad  dz[*] <- a[*], b[*], z[*]: gelu_grad of z and the einsum of a, b
 * einsum_bias_dw    dw[*], db[the dims that dw shares with a] <- a[*], b[*]: einsum, and bias_dw of a
 *
 * ---- norms fused with the residual add: emitted by fusion, never by a model; rounded as by two ops
 * add_rmsnorm       t[*h], y[*h] <- x0[*h], x1[*h], w[h]: t = x0 + x1, y = rmsnorm of t. t may be the memory of x0
 * add_layernorm     t[*h], y[*h] <- x0[*h], x1[*h], w[h], c[h]: the same with layernorm
 * rmsnorm_dx_add    dx[*h] <- r[*h], x[*h], w[h], dy[*h]: r + rmsnorm_dx of the others. dx may be the memory of r
 * layernorm_dx_add  dx[*h] <- r[*h], x[*h], w[h], dy[*h]: r + layernorm_dx
 * rmsnorm_grad_add  dx[*h], dw[h] <- r[*h], x[*h], w[h], dy[*h]: rmsnorm_dx_add, and rmsnorm_dw of x, dy.
 *                   HD_ATTR_ACCUMULATE holds for dw alone; dx may be the memory of r
 * layernorm_grad_add dx[*h], dw[h], dc[h] <- r[*h], x[*h], w[h], dy[*h]: the same with layernorm
 * attention_merge   o[bskgd], lse[bskg] <- o1, lse1, o2, lse2: attention over two sets of keys, from attention over
 *                   each
 *
 * ---- local conversions (this rank's shard; no communication)
 * slice             y <- x: part `index` of `parts` of dim attrs.to
 * mask              y <- x: x where index == 0, else zeros
 * pad               y <- x: zeros with x as part `index` of dim attrs.from
 *
 * ---- collectives and point to point (run by a transport)
 * all_reduce        attrs.redop over the members
 * all_gather        shards concatenated along attrs.from
 * reduce_scatter    the reduction, split along attrs.to
 * all_to_all        split along attrs.to, concatenated along attrs.from
 * broadcast         of member 0
 * send              to attrs.peer
 * recv              from attrs.peer
 * shift             y <- x of the member of the ring that is attrs.index back (0: 1). Keys and values of ring
 *                   attention; parameters of ranks that are apart (heddle/strategy.h)
 *
 * ---- quantised gradients: hd_code_bytes in heddle/reference.h
 * encode            c[#] uint8, e[#] <- g[#]: codes of g + e inside attrs.ranges, zeros elsewhere; e becomes the
 *                   quantisation error (error feedback; HD_ATTR_ACCUMULATE adds it). attrs.index bits (8 or 4),
 *                   attrs.window elements a block, attrs.parts parts. A block with a non-finite number decodes to NaN
 *                   and leaves e
 * decode            y[#] <- c[#] uint8: the sum of the parts, each as long as y; with HD_ATTR_CONCAT one part after
 *                   another. Attributes as for encode
 * orthogonalise     q[m r] <- a[m r], m >= r: orthonormal columns with the span of a's (Gram-Schmidt, in order). A
 *                   column that is linearly dependent becomes hd_direction's, orthogonalised likewise; all of q is
 *                   NaN where a has a non-finite number. q may be a
 * custom            a strategy's own function: struct hd_custom_op in heddle/program.h
 *
 * ---- structure
 * feed              y[*] int32 <- nothing: the next micro-batch; by the executor
 * fill0             y[*] <- nothing: zeros
 * accum             y[*] += x[*]
 * copy              y[*] <- x[*]; dtypes may differ
 * blend             y[*] <- x0[*], x1[*], ... up to 4 inputs of equal dims: the weighted sum of attrs.table[i] xi,
 *                   divided by attrs.parts where that is not 0 (a rank's term of a mean). y may be the memory of any
 *                   input
 * release           <- x: its memory may be reused
 * wait              completion of an asynchronous instruction
 *
 * ---- update
 * sumsq             y() fp64 += sum over ranges of value * x[#]^2. Or y[HD_SUM_DIGITS] fp64 += the same as partial
 *                   sums that no order changes, where values are powers of two or 0: each x^2 is rounded to fp64 and
 *                   truncated to a multiple of 2^-192, and y[k] gets value times its bits from 2^(16 k - 192) to
 *                   2^(16 k - 177); these add up without rounding for up to 2^37 x. An x^2 of 2^192 or more makes the
 *                   last infinite, a NaN makes it NaN
 * adamw             p[#], m[#], v[#] fp32, (q[#] low precision copy) <- g[#], norm2() fp64, hyper[8] fp64. In place.
 *                   See optimizer.h
 * sgd               p[#], (m[#] momentum), (q[#]) <- g[#], norm2(), hyper[8]
 * optim_step        a plug-in's own step function on host memory: heddle/optimizer.h
 *
 * ---- mixture of experts: e experts, # slots per expert and sequence: s (dropless) or c (capacity). Rows of empty
 *      slots are zeros; products skip them
 * gate              g[bse] fp32 <- z[bse]: softmax over the attrs.top_k largest of e, 0 elsewhere; of equal ones the
 *                   first
 * gate_grad         dz[bse] <- g[bse], dg[bse]: g (dg - sum_e g dg)
 * route             r[be#] int32 <- g[bse]: 1 + index on s of the token in this slot, or 0. # = s: the slot of token
 *                   i is i; # = c: tokens with g > 0 in order of positions, as many as there are slots, the rest are
 *                   dropped
 * dispatch          y[be#h] <- x[bsh], r[be#]
 * dispatch_dx       dx[bsh] <- dy[be#h], r[be#]
 * grouped           y[be#n] <- x[be#m], w[e, m and n in any order], r[be#]: one matrix product per expert, over the
 *                   rows that hold tokens. attrs.share: their fraction, for the cost model
 * grouped_dw        dw[e, m and n in any order] <- dy[be#n], x[be#m], r[be#]
 * combine           o[bsh] <- z[be#h], g[bse], r[be#]: sum over e of g z
 * combine_dz        dz[be#h] <- do[bsh], g[bse], r[be#]
 * combine_dg        dg[bse] fp32 <- z[be#h], do[bsh], r[be#]
 * expert_count      n[be] fp32 <- g[bse]: tokens with g > 0
 * router_loss       l[bs] fp32 <- z[bse], n[be]: scale sum_e n softmax(z) + attrs.z_scale (log sum_e exp z)^2
 * router_loss_dz    dz[bse] <- z[bse], n[be], dl[bs]; n is a constant */
#ifndef HEDDLE_OPS_H
#define HEDDLE_OPS_H

/* clang-format off */
#define HD_OPS(X) /* X(constant, value, name) */ \
    X(HD_OP_EINSUM, 1, "einsum")                      \
    X(HD_OP_ADD, 2, "add")                            \
    X(HD_OP_BIAS, 3, "bias")                          \
    X(HD_OP_BIAS_DW, 4, "bias_dw")                    \
    X(HD_OP_RMSNORM, 5, "rmsnorm")                    \
    X(HD_OP_RMSNORM_DX, 6, "rmsnorm_dx")              \
    X(HD_OP_RMSNORM_DW, 7, "rmsnorm_dw")              \
    X(HD_OP_LAYERNORM, 8, "layernorm")                \
    X(HD_OP_LAYERNORM_DX, 9, "layernorm_dx")          \
    X(HD_OP_LAYERNORM_DW, 10, "layernorm_dw")         \
    X(HD_OP_ROPE, 11, "rope")                         \
    X(HD_OP_ATTENTION, 12, "attention")               \
    X(HD_OP_ATTENTION_GRAD, 13, "attention_grad")     \
    X(HD_OP_SWIGLU, 14, "swiglu")                     \
    X(HD_OP_SWIGLU_GRAD, 15, "swiglu_grad")           \
    X(HD_OP_GELU, 16, "gelu")                         \
    X(HD_OP_GELU_GRAD, 17, "gelu_grad")               \
    X(HD_OP_EMBED, 18, "embed")                       \
    X(HD_OP_EMBED_DW, 19, "embed_dw")                 \
    X(HD_OP_POSITION, 20, "position")                 \
    X(HD_OP_POSITION_DW, 21, "position_dw")           \
    X(HD_OP_ROWMAX, 22, "rowmax")                     \
    X(HD_OP_XENT_LOCAL, 23, "xent_local")             \
    X(HD_OP_NLL, 24, "nll")                           \
    X(HD_OP_NLL_GRAD, 25, "nll_grad")                 \
    X(HD_OP_XENT_GRAD, 26, "xent_grad")               \
    X(HD_OP_TOTAL, 27, "total")                       \
    X(HD_OP_SPREAD, 28, "spread")                     \
    X(HD_OP_XENT_HEAD, 29, "xent_head")               \
    X(HD_OP_EINSUM_BIAS, 30, "einsum_bias")           \
    X(HD_OP_EINSUM_GELU, 31, "einsum_gelu")           \
    X(HD_OP_EINSUM_GELU_GRAD, 32, "einsum_gelu_grad") \
    X(HD_OP_EINSUM_BIAS_DW, 33, "einsum_bias_dw")     \
    X(HD_OP_ADD_RMSNORM, 34, "add_rmsnorm")           \
    X(HD_OP_ADD_LAYERNORM, 35, "add_layernorm")       \
    X(HD_OP_RMSNORM_DX_ADD, 36, "rmsnorm_dx_add")     \
    X(HD_OP_LAYERNORM_DX_ADD, 37, "layernorm_dx_add") \
    X(HD_OP_RMSNORM_GRAD_ADD, 38, "rmsnorm_grad_add") \
    X(HD_OP_LAYERNORM_GRAD_ADD, 43, "layernorm_grad_add") \
    X(HD_OP_ATTENTION_MERGE, 39, "attention_merge")   \
    X(HD_OP_SLICE, 40, "slice")                       \
    X(HD_OP_MASK, 41, "mask")                         \
    X(HD_OP_PAD, 42, "pad")                           \
    X(HD_OP_ALL_REDUCE, 50, "all_reduce")             \
    X(HD_OP_ALL_GATHER, 51, "all_gather")             \
    X(HD_OP_REDUCE_SCATTER, 52, "reduce_scatter")     \
    X(HD_OP_ALL_TO_ALL, 53, "all_to_all")             \
    X(HD_OP_BROADCAST, 54, "broadcast")               \
    X(HD_OP_SEND, 55, "send")                         \
    X(HD_OP_RECV, 56, "recv")                         \
    X(HD_OP_SHIFT, 57, "shift")                       \
    X(HD_OP_ENCODE, 100, "encode")                    \
    X(HD_OP_DECODE, 101, "decode")                    \
    X(HD_OP_ORTHOGONALISE, 102, "orthogonalise")      \
    X(HD_OP_CUSTOM, 110, "custom")                    \
    X(HD_OP_FEED, 60, "feed")                         \
    X(HD_OP_FILL0, 61, "fill0")                       \
    X(HD_OP_ACCUM, 62, "accum")                       \
    X(HD_OP_COPY, 63, "copy")                         \
    X(HD_OP_BLEND, 66, "blend")                       \
    X(HD_OP_RELEASE, 64, "release")                   \
    X(HD_OP_WAIT, 65, "wait")                         \
    X(HD_OP_SUMSQ, 70, "sumsq")                       \
    X(HD_OP_ADAMW, 71, "adamw")                       \
    X(HD_OP_SGD, 72, "sgd")                           \
    X(HD_OP_OPTIM_STEP, 73, "optim_step")             \
    X(HD_OP_GATE, 80, "gate")                         \
    X(HD_OP_GATE_GRAD, 81, "gate_grad")               \
    X(HD_OP_ROUTE, 82, "route")                       \
    X(HD_OP_DISPATCH, 83, "dispatch")                 \
    X(HD_OP_DISPATCH_DX, 84, "dispatch_dx")           \
    X(HD_OP_GROUPED, 85, "grouped")                   \
    X(HD_OP_GROUPED_DW, 86, "grouped_dw")             \
    X(HD_OP_COMBINE, 87, "combine")                   \
    X(HD_OP_COMBINE_DZ, 88, "combine_dz")             \
    X(HD_OP_COMBINE_DG, 89, "combine_dg")             \
    X(HD_OP_EXPERT_COUNT, 90, "expert_count")         \
    X(HD_OP_ROUTER_LOSS, 91, "router_loss")           \
    X(HD_OP_ROUTER_LOSS_DZ, 92, "router_loss_dz")     \
    X(HD_OP_GELU_ERF, 103, "gelu_erf")                \
    X(HD_OP_GELU_ERF_GRAD, 104, "gelu_erf_grad")      \
    X(HD_OP_RELU2, 105, "relu2")                      \
    X(HD_OP_RELU2_GRAD, 106, "relu2_grad")            \
    X(HD_OP_SOFTCAP, 107, "softcap")                  \
    X(HD_OP_SOFTCAP_GRAD, 108, "softcap_grad")        \
    X(HD_OP_SCALE, 109, "scale")                      \
    X(HD_OP_ROPE_AT, 111, "rope_at")                  \
    X(HD_OP_ATTENTION_CACHED, 112, "attention_cached")
/* clang-format on */

/* Elements of a sum of squares that no order changes; element k has the bits from 2^(16 k - HD_SUM_SHIFT) on. */
#define HD_SUM_DIGITS 24
#define HD_SUM_SHIFT 192

enum {
#define HD_OP_ENUM(constant, value, name) constant = value,
    HD_OPS(HD_OP_ENUM)
#undef HD_OP_ENUM
        HD_OP_LIMIT = 128 /* every value lies below */
};

#endif
