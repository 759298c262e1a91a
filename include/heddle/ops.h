/* heddle/ops.h: every operation that a step program may contain: X(constant, value, name).
 *
 * Operands are listed as  outputs <- inputs, each with its logical dims in brackets: b batch, s sequence,
 * h hidden, k kv heads, g query heads per kv head, d head size, f feed-forward, v vocabulary, p positions,
 * * any dims, # the elements of a flat buffer, () a scalar. All tensors are dense, the last dim is contiguous.
 * What a row means for placement, gradients and cost stands in one table in core/program/ops.c.
 * Fused ops stand for several others. The compiler makes them where hd_device_ops.supports says that the device gains by it:
 * HD_OP_XENT_HEAD, and those that are headed `fused`.
 * With HD_ATTR_ACCUMULATE outputs are added to instead of written. Numbers are never reused. */
#ifndef HEDDLE_OPS_H
#define HEDDLE_OPS_H

#define HD_OPS(X)                                                                                                          \
    /* ---- model: forward and gradients ---- */                                                                           \
    X(HD_OP_EINSUM, 1, "einsum")              /* c[*] <- a[*], b[*]. Dims missing in c are contracted */                   \
    X(HD_OP_ADD, 2, "add")                    /* y[*] <- x0[*], x1[*], ... up to 8 inputs of equal dims */                 \
    X(HD_OP_BIAS, 3, "bias")                  /* y[*] <- x[*], w[dims of x in any subset, same order] */                   \
    X(HD_OP_BIAS_DW, 4, "bias_dw")            /* dw[subset] <- dy[*]: sum over the other dims */                           \
    X(HD_OP_RMSNORM, 5, "rmsnorm")            /* y[*h] <- x[*h], w[h]: y = x w / sqrt(mean(x^2) + eps); also over d \
                                                (the norms of queries and keys) */      \
    X(HD_OP_RMSNORM_DX, 6, "rmsnorm_dx")      /* dx[*h] <- x[*h], w[h], dy[*h] */                                          \
    X(HD_OP_RMSNORM_DW, 7, "rmsnorm_dw")      /* dw[h] <- x[*h], dy[*h] */                                                 \
    X(HD_OP_LAYERNORM, 8, "layernorm")        /* y[*h] <- x[*h], w[h], c[h]: y = (x-mean)/sqrt(var+eps) w + c */           \
    X(HD_OP_LAYERNORM_DX, 9, "layernorm_dx")  /* dx[*h] <- x[*h], w[h], dy[*h] */                                          \
    X(HD_OP_LAYERNORM_DW, 10, "layernorm_dw") /* dw[h], dc[h] <- x[*h], dy[*h] */                                          \
    X(HD_OP_ROPE, 11, "rope")                 /* y[bs*d] <- x[bs*d]. attrs.table: d/2 inverse frequencies; pair   \
                                                (i, i+d/2) turned by sign * position * table[i] (rotate_half);  \
                                                position = index on s. times attrs.scale (0 means 1) */        \
    X(HD_OP_ATTENTION, 12, "attention")       /* o[bskgd], lse[bskg] fp32 <- q[bskgd], k[bskd], v[bskd]. Causal; \
                                                softmax(scale q k) v; lse = log sum exp(scale q k).             \
                                                attrs.window > 0: only the last `window` positions */         \
    X(HD_OP_ATTENTION_GRAD, 13, "attention_grad") /* dq[bskgd], dk[bskd], dv[bskd]                              \
                                                <- q, k, v, o, lse, do[bskgd] */          \
    X(HD_OP_SWIGLU, 14, "swiglu")                 /* y[*] <- g[*], u[*]: y = g sigmoid(g) u */                             \
    X(HD_OP_SWIGLU_GRAD, 15, "swiglu_grad")       /* dg[*], du[*] <- g[*], u[*], dy[*] */                                  \
    X(HD_OP_GELU, 16, "gelu")                     /* y[*] <- x[*]: tanh form, as GPT-2's gelu_new */                       \
    X(HD_OP_GELU_GRAD, 17, "gelu_grad")           /* dx[*] <- x[*], dy[*] */                                               \
    X(HD_OP_EMBED, 18, "embed")                   /* y[bsh] <- ids[bs] int32, w[vh]. Ids outside this rank's rows    \
                                                give zero rows */     \
    X(HD_OP_EMBED_DW, 19, "embed_dw")             /* dw[vh] <- ids[bs], dy[bsh]; summed in order of tokens */              \
    X(HD_OP_POSITION, 20, "position")             /* y[bsh] <- x[bsh], w[ph]: y = x + w[index on s] */                     \
    X(HD_OP_POSITION_DW, 21, "position_dw")       /* dw[ph] <- dy[bsh] */                                                  \
    X(HD_OP_ROWMAX, 22, "rowmax")                 /* m[bs] fp32 <- z[bsv] */                                               \
    X(HD_OP_XENT_LOCAL, 23, "xent_local")         /* l[bs] fp32, c[bs] fp32 <- z[bsv], m[bs], labels[bs]:            \
                                                l = sum_v exp(z-m), c = z[label] or 0 where not in this shard */     \
    X(HD_OP_NLL, 24, "nll")                       /* n[bs] fp32 <- l[bs], m[bs], c[bs]: log(l) + m - c */                  \
    X(HD_OP_NLL_GRAD, 25, "nll_grad")             /* dl[bs], dc[bs] <- l[bs], dn[bs]: dn / l, -dn */                       \
    X(HD_OP_XENT_GRAD, 26, "xent_grad")           /* dz[bsv] <- z, m, labels, dl, dc: exp(z-m) dl + onehot dc.       \
                                                dz may be the same memory as z */     \
    X(HD_OP_TOTAL, 27, "total")                   /* y() fp32, or fp64 of fp64, <- x[*]: scale * sum */                    \
    X(HD_OP_SPREAD, 28, "spread")                 /* y[*] <- nothing, or k() fp64: all elements = scale (times k) */       \
    X(HD_OP_XENT_HEAD, 29, "xent_head") /* n[bs] fp32, dx[bsh], dw[vh] <- x[bsh], w[vh], labels[bs], and    \
                                                perhaps k() fp64, which multiplies scale: with                   \
                                                z = x w^T: n = log(sum_v exp(z)) - z[label], and the gradients of \
                                                attrs.scale * sum n. z is never whole. HD_ATTR_ACCUMULATE holds  \
                                                for dw alone: n and dx are written. With one output, n, there is \
                                                no gradient to make: an evaluation's */              \
    /* ---- products with what stands behind them, fused: made by heddle, never by a model ---- */          \
    X(HD_OP_EINSUM_BIAS, 30, "einsum_bias") /* y[*] <- a[*], b[*], w[last dims of y]: einsum, then bias */                 \
    X(HD_OP_EINSUM_GELU, 31, "einsum_gelu") /* y[*], z[*] <- a[*], b[*], w[last dims of z]: z as einsum_bias,  \
                                                y = gelu(z). With one output z is not kept */           \
    X(HD_OP_EINSUM_GELU_GRAD, 32,                                                                                          \
      "einsum_gelu_grad") /* dz[*] <- a[*], b[*], z[*]: gelu_grad of z and the einsum of a, b */                           \
    X(HD_OP_EINSUM_BIAS_DW, 33,                                                                                            \
      "einsum_bias_dw") /* dw[*], db[those of a's dims that dw has] <- a[*], b[*]: einsum, and \
                                                bias_dw of a */                           \
    /* ---- norms with the sum beside them, fused: made by heddle, never by a model. The sum and what is  \
       added to it are rounded as by two ops ---- */ \
    X(HD_OP_ADD_RMSNORM, 34,                                                                                               \
      "add_rmsnorm") /* t[*h], y[*h] <- x0[*h], x1[*h], w[h]: t = x0 + x1, y = rmsnorm of t. t may \
                                                be the memory of x0 */                       \
    X(HD_OP_ADD_LAYERNORM, 35,                                                                                             \
      "add_layernorm") /* t[*h], y[*h] <- x0[*h], x1[*h], w[h], c[h]: the same with layernorm */                           \
    X(HD_OP_RMSNORM_DX_ADD, 36,                                                                                            \
      "rmsnorm_dx_add") /* dx[*h] <- r[*h], x[*h], w[h], dy[*h]: r + rmsnorm_dx of the others. dx \
                                                may be the memory of r */                        \
    X(HD_OP_LAYERNORM_DX_ADD, 37, "layernorm_dx_add") /* dx[*h] <- r[*h], x[*h], w[h], dy[*h]: r + layernorm_dx */         \
    X(HD_OP_ATTENTION_MERGE, 39,                                                                                           \
      "attention_merge") /* o[bskgd], lse[bskg] <- o1, lse1, o2, lse2: attention over the  \
                                                keys of both, from attention over the keys of each */                               \
    /* ---- local conversions (this rank's piece; no communication) ---- */                                                \
    X(HD_OP_SLICE, 40, "slice") /* y <- x: part `index` of `parts` of dim attrs.to */                                      \
    X(HD_OP_MASK, 41, "mask")   /* y <- x: x where index == 0, else zeros */                                               \
    X(HD_OP_PAD, 42, "pad")     /* y <- x: zeros with x as part `index` of dim attrs.from */                               \
    /* ---- collectives and point to point (executed by a transport) ---- */                                               \
    X(HD_OP_ALL_REDUCE, 50, "all_reduce")                                                                                  \
    X(HD_OP_ALL_GATHER, 51, "all_gather")         /* pieces joined along attrs.from */                                     \
    X(HD_OP_REDUCE_SCATTER, 52, "reduce_scatter") /* the sum split along attrs.to */                                       \
    X(HD_OP_ALL_TO_ALL, 53, "all_to_all")         /* split along attrs.to, joined along attrs.from */                      \
    X(HD_OP_BROADCAST, 54, "broadcast")                                                                                    \
    X(HD_OP_SEND, 55, "send")                                                                                              \
    X(HD_OP_RECV, 56, "recv")                                                                                              \
    X(HD_OP_SHIFT, 57, "shift") /* y <- x of the member before: once around a ring is n of them */                         \
    /* ---- coding: gradients in few bits. See hd_code_bytes in heddle/program.h ---- */                                   \
    X(HD_OP_ENCODE, 100, "encode") /* c[#] uint8, e[#] <- g[#]: codes of g + e inside attrs.ranges, zeros \
                                                elsewhere; e becomes what the codes leave out (it is added \
                                                to: HD_ATTR_ACCUMULATE). attrs.index bits (8 \
                                                or 4), attrs.window elements a block, attrs.parts parts. A block  \
                                                with a number that is not finite decodes to NaN and leaves e */                \
    X(HD_OP_DECODE, 101, "decode") /* y[#] <- c[#] uint8: the sum of the parts, each as long as y; with  \
                                                HD_ATTR_CONCAT one part after another. Attributes as for encode */                 \
    X(HD_OP_ORTHOGONALISE, 102,                                                                                            \
      "orthogonalise") /* q[m r] <- a[m r], m >= r: columns of length 1 at right angles that span \
                                                what a's do (Gram-Schmidt, in order). A column that adds nothing \
                                                becomes hd_direction's, at right angles to those before it; all of q \
                                                is NaN where a has a number that is not finite. q may be a */                        \
    /* ---- structure ---- */                                                                                              \
    X(HD_OP_FEED, 60, "feed")       /* y[*] int32 <- nothing: the next micro-batch; by the executor */                     \
    X(HD_OP_FILL0, 61, "fill0")     /* y[*] <- nothing: zeros */                                                           \
    X(HD_OP_ACCUM, 62, "accum")     /* y[*] += x[*] */                                                                     \
    X(HD_OP_COPY, 63, "copy")       /* y[*] <- x[*], dtypes may differ */                                                  \
    X(HD_OP_BLEND, 66, "blend")     /* y[*] <- x0[*], x1[*], ... up to 4 inputs of equal dims: the sum of    \
                                                attrs.table[i] xi, over attrs.parts where that is not 0: a rank's    \
                                                share of a mean. y may be the memory of any input */             \
    X(HD_OP_RELEASE, 64, "release") /* <- x: its memory may be used again */                                               \
    X(HD_OP_WAIT, 65, "wait")       /* for an asynchronous instruction */                                                  \
    /* ---- update ---- */                                                                                                 \
    X(HD_OP_SUMSQ, 70, "sumsq") /* y() fp64 += sum over ranges of value * x[#]^2; or y[HD_SUM_DIGITS] fp64 += \
                                                the same in parts that no order changes, where values are powers of  \
                                                two or 0: each x^2 is rounded to fp64 and cut to whole times of   \
                                                2^-192, and y[k] has value times its bits from 2^(16 k - 192) to   \
                                                2^(16 k - 177): these add up without rounding, of up to 2^37 x. An \
                                                x^2 of 2^192 and more makes the last infinite, a NaN makes it NaN */            \
    X(HD_OP_ADAMW, 71, "adamw") /* p[#], m[#], v[#] fp32, (q[#] low precision copy)                \
                                                <- g[#], norm2() fp64, hyper[8] fp64. In place. See optimizer.h */                       \
    X(HD_OP_SGD, 72, "sgd")     /* p[#], (m[#] momentum), (q[#]) <- g[#], norm2(), hyper[8] */                             \
    X(HD_OP_OPTIM_STEP, 73, "optim_step") /* a plugin's own step function on host memory; see optimizer.h */               \
    /* ---- mixtures of experts: e experts, # slots: s where every token of a sequence has a slot at every expert     \
       (dropless), else c slots an expert and sequence (capacity). Rows of slots that hold no token are zeros; kernels \
       that multiply skip them ---- */    \
    X(HD_OP_GATE, 80, "gate")           /* g[bse] fp32 <- z[bse]: softmax over the attrs.top_k largest of e, 0 for \
                                                the others; of equal ones the first */       \
    X(HD_OP_GATE_GRAD, 81, "gate_grad") /* dz[bse] <- g[bse], dg[bse]: g (dg - sum_e g dg) */                              \
    X(HD_OP_ROUTE, 82, "route")         /* r[be#] int32 <- g[bse]: 1 + index on s of the token in this slot, or 0. \
                                                # = s: the slot of token i is i; # = c: tokens with g > 0 in order of    \
                                                positions, as   \
                                                many as there are slots, the rest are dropped */       \
    X(HD_OP_DISPATCH, 83, "dispatch")   /* y[be#h] <- x[bsh], r[be#] */                                                    \
    X(HD_OP_DISPATCH_DX, 84, "dispatch_dx") /* dx[bsh] <- dy[be#h], r[be#] */                                              \
    X(HD_OP_GROUPED, 85, "grouped") /* y[be#n] <- x[be#m], w[e, m and n in any order], r[be#]: a matrix product \
                                                an expert, over rows that hold tokens. attrs.share: how many of the   \
                                                rows do, for cost */          \
    X(HD_OP_GROUPED_DW, 86, "grouped_dw")     /* dw[e, m and n in any order] <- dy[be#n], x[be#m], r[be#] */               \
    X(HD_OP_COMBINE, 87, "combine")           /* o[bsh] <- z[be#h], g[bse], r[be#]: sum over e of g z */                   \
    X(HD_OP_COMBINE_DZ, 88, "combine_dz")     /* dz[be#h] <- do[bsh], g[bse], r[be#] */                                    \
    X(HD_OP_COMBINE_DG, 89, "combine_dg")     /* dg[bse] fp32 <- z[be#h], do[bsh], r[be#] */                               \
    X(HD_OP_EXPERT_COUNT, 90, "expert_count") /* n[be] fp32 <- g[bse]: tokens with g > 0 */                                \
    X(HD_OP_ROUTER_LOSS, 91, "router_loss")   /* l[bs] fp32 <- z[bse], n[be]: scale sum_e n softmax(z) +           \
                                                attrs.z_scale (log sum_e exp z)^2 */       \
    X(HD_OP_ROUTER_LOSS_DZ, 92, "router_loss_dz") /* dz[bse] <- z[bse], n[be], dl[bs]; n counts as a constant */

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
