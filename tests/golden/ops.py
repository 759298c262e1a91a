#!/usr/bin/env python3
"""Golden numbers for a device's kernels, from torch and transformers in fp64: tests/golden/data/ops.txt.

    python3 ops.py        # needs torch and transformers

One case a paragraph:

    case NAME, op NAME, attrs KEY=VALUE ..., table VALUES, range FIRST COUNT VALUE,
    in, out, dims         operands as conformance/device/harness.h describes them
    x<i> VALUES           input i
    z<i> VALUES           output i before, where it is changed in place
    y<i> VALUES           output i after
"""
import pathlib

import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
lines = [f"# made by tests/golden/ops.py with torch {torch.__version__.split('+')[0]}, "
         f"transformers {transformers.__version__}"]


def values(t):
    return " ".join(repr(v) for v in torch.as_tensor(t).detach().reshape(-1).tolist())


def case(name, op, ins, outs, dims, x, y, z=(), ranges=(), table=None, **attrs):
    lines.extend(["", f"case {name}", f"op {op}", f"in {ins}", f"out {outs}", f"dims {dims}"])
    if attrs:
        lines.append("attrs " + " ".join(f"{k}={v!r}" for k, v in attrs.items()))
    if table is not None:
        lines.append("table " + values(table))
    lines.extend(f"range {first} {count} {value!r}" for first, count, value in ranges)
    for letter, tensors in (("x", x), ("z", z), ("y", y)):
        lines.extend(f"{letter}{i} {values(t)}" for i, t in enumerate(tensors))


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def einsums():
    sizes = {"b": 2, "s": 3, "h": 5, "k": 2, "g": 2, "d": 3, "f": 4, "v": 7}
    for a, b, c in (("bsh", "fh", "bsf"), ("bsh", "hf", "bsf"), ("bsf", "bsh", "fh"), ("bsh", "kgdh", "bskgd"),
                    ("bskgd", "kgdh", "bsh"), ("bskgd", "bsh", "kgdh"), ("vh", "bsh", "bsv"), ("bkd", "bsk", "bds"),
                    ("sh", "s", "h"), ("f", "h", "hf")):
        x, y = (torch.randn(*(sizes[i] for i in t)) for t in (a, b))
        dims = " ".join(f"{i}={n}" for i, n in sizes.items())
        case(f"einsum {a},{b}->{c}", "einsum", f"{a} {b}", c, dims, [x, y], [torch.einsum(f"{a},{b}->{c}", x, y)])


def norms():
    dims, eps = "b=2 s=3 h=9", 1e-5
    x, w, c, dy = leaf(2, 3, 9), leaf(9), leaf(9), torch.randn(2, 3, 9)
    y = F.rms_norm(x, (9,), w, eps)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    case("rmsnorm", "rmsnorm", "bsh h", "bsh", dims, [x, w], [y], eps=eps)
    case("rmsnorm_dx", "rmsnorm_dx", "bsh h bsh", "bsh", dims, [x, w, dy], [dx], eps=eps)
    case("rmsnorm_dw", "rmsnorm_dw", "bsh bsh", "h", dims, [x, dy], [dw], eps=eps)
    y = F.layer_norm(x, (9,), w, c, eps)
    dx, dw, dc = torch.autograd.grad(y, (x, w, c), dy)
    case("layernorm", "layernorm", "bsh h h", "bsh", dims, [x, w, c], [y], eps=eps)
    case("layernorm_dx", "layernorm_dx", "bsh h bsh", "bsh", dims, [x, w, dy], [dx], eps=eps)
    case("layernorm_dw", "layernorm_dw", "bsh bsh", "h h", dims, [x, dy], [dw, dc], eps=eps)


def gates():
    x, u, dy = (3 * torch.randn(3, 11)).requires_grad_(), leaf(3, 11), torch.randn(3, 11)
    y = F.gelu(x, approximate="tanh")
    case("gelu", "gelu", "bf", "bf", "b=3 f=11", [x], [y])
    case("gelu_grad", "gelu_grad", "bf bf", "bf", "b=3 f=11", [x, dy], torch.autograd.grad(y, x, dy))
    y = F.silu(x) * u
    case("swiglu", "swiglu", "bf bf", "bf", "b=3 f=11", [x, u], [y])
    case("swiglu_grad", "swiglu_grad", "bf bf bf", "bf bf", "b=3 f=11", [x, u, dy], torch.autograd.grad(y, (x, u), dy))


def rope():
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8)
    rotary = LlamaRotaryEmbedding(config)
    rotary.inv_freq = rotary.inv_freq.double()
    x, start = torch.randn(2, 5, 4, 8), 37
    # transformers computes the angles in fp32; here they are formed in fp64 from its frequencies, and turned by it.
    angles = torch.arange(start, start + 5, dtype=torch.float64)[:, None] * rotary.inv_freq
    emb = torch.cat((angles, angles), -1)[None]
    y, _ = apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), emb.cos(), emb.sin())
    y = y.transpose(1, 2)
    dims = f"b=2 s=5@{start} k=4 d=8"
    case("rope", "rope", "bskd", "bskd", dims, [x], [y], table=rotary.inv_freq, sign=1)
    case("rope back", "rope", "bskd", "bskd", dims, [y], [x], table=rotary.inv_freq, sign=-1)


def attention(name, b, s, t, q0, k, g, d, window=0):
    """q [b s k g d] at positions q0.., k and v [b t k d] at positions 0.."""
    q, key, v, do = leaf(b, s, k, g, d), leaf(b, t, k, d), leaf(b, t, k, d), torch.randn(b, s, k, g, d)
    scale = d ** -0.5
    at, to = torch.arange(q0, q0 + s)[:, None], torch.arange(t)[None]
    mask = (to <= at) & ((at - to < window) if window else torch.ones_like(to <= at))
    heads = [x.reshape(b, x.shape[1], -1, d).transpose(1, 2) for x in (q, key, v)]
    o = F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True, scale=scale)
    o = o.transpose(1, 2).reshape(b, s, k, g, d)
    scores = torch.einsum("bskgd,btkd->bskgt", q, key) * scale
    lse = torch.logsumexp(scores.masked_fill(~mask[None, :, None, None], -torch.inf), -1)
    grads = torch.autograd.grad(o, (q, key, v), do)
    dims, at = f"b={b} s={s}@{q0} t={t} k={k} g={g} d={d}", dict(scale=scale, window=window)
    case(name, "attention", "bskgd btkd btkd", "bskgd f:bskg", dims, [q, key, v], [o, lse], **at)
    case(name + ", gradient", "attention_grad", "bskgd btkd btkd bskgd f:bskg bskgd", "bskgd btkd btkd", dims,
         [q, key, v, o, lse, do], grads, **at)


def documents(name, lengths, k, g, d, window=0):
    """Attention that does not cross documents, by torch's flex_attention; the last input is each token's index in its
    own. flex_attention has no gradients on a CPU: these are of scaled_dot_product_attention of each document alone."""
    n = torch.cat([torch.arange(length) for row in lengths for length in row]).reshape(len(lengths), -1)
    which = torch.cumsum(n == 0, -1)
    b, s = n.shape
    q, key, v, do = leaf(b, s, k, g, d), leaf(b, s, k, d), leaf(b, s, k, d), torch.randn(b, s, k, g, d)

    def mask(row, head, at, to):
        return (at >= to) & (which[row, at] == which[row, to]) & ((at - to < window) if window else (at >= 0))

    heads = [x.reshape(b, s, -1, d).transpose(1, 2) for x in (q, key, v)]
    o, lse = flex_attention(*(x.detach() for x in heads), enable_gqa=True, return_lse=True,
                            block_mask=create_block_mask(mask, b, None, s, s, device="cpu"))
    apart = []
    for row, of_row in enumerate(lengths):
        ends = torch.tensor(of_row).cumsum(0)
        for length, end in zip(of_row, ends):
            at, to = torch.arange(length)[:, None], torch.arange(length)[None]
            seen = (to <= at) & ((at - to < window) if window else (to <= at))
            apart.append(F.scaled_dot_product_attention(*(x[row:row + 1, :, end - length:end] for x in heads),
                                                        attn_mask=seen, enable_gqa=True))
    alone = torch.cat(apart, 2).reshape(-1, b, s, d).transpose(0, 1)
    torch.testing.assert_close(o, alone, rtol=1e-12, atol=1e-12)
    o, lse = alone.transpose(1, 2).reshape(b, s, k, g, d), lse.transpose(1, 2)
    grads = torch.autograd.grad(o, (q, key, v), do)
    dims, at = f"b={b} s={s} k={k} g={g} d={d}", dict(scale=d ** -0.5, window=window)
    case(name, "attention", "bskgd bskd bskd n:bs", "bskgd f:bskg", dims, [q, key, v, n], [o, lse], **at)
    case(name + ", gradient", "attention_grad", "bskgd bskd bskd bskgd f:bskg bskgd n:bs", "bskgd bskd bskd", dims,
         [q, key, v, o, lse, do, n], grads, **at)


def tables():
    ids, w, dy = torch.randint(0, 12, (2, 5)), leaf(12, 6), torch.randn(2, 5, 6)
    y = F.embedding(ids, w)
    (dw,) = torch.autograd.grad(y, w, dy)
    case("embed", "embed", "i:bs vh", "bsh", "b=2 s=5 v=12 h=6", [ids, w], [y])
    case("embed_dw", "embed_dw", "i:bs bsh", "vh", "b=2 s=5 v=12 h=6", [ids, dy], [dw])
    x, p = torch.randn(2, 5, 6), leaf(9, 6)
    y = x + p[2:7]
    (dp,) = torch.autograd.grad(y, p, dy)
    case("position", "position", "bsh ph", "bsh", "b=2 s=5@2 p=9 h=6", [x, p], [y])
    case("position_dw", "position_dw", "bsh", "ph", "b=2 s=5@2 p=9 h=6", [dy], [dp])
    x, w, dy = torch.randn(2, 3, 2, 4), leaf(2, 4), torch.randn(2, 3, 2, 4)
    y = x + w
    case("bias", "bias", "bskd kd", "bskd", "b=2 s=3 k=2 d=4", [x, w], [y])
    case("bias_dw", "bias_dw", "bskd", "kd", "b=2 s=3 k=2 d=4", [dy], torch.autograd.grad(y, w, dy))


def cross_entropy():
    z, labels, dn = (4 * torch.randn(2, 3, 13)).requires_grad_(), torch.randint(0, 13, (2, 3)), torch.rand(2, 3) + 0.5
    m = z.detach().amax(-1)
    l = torch.exp(z.detach() - m[..., None]).sum(-1)
    c = z.detach().gather(-1, labels[..., None])[..., 0]
    n = F.cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none").view(2, 3)
    (dz,) = torch.autograd.grad(n, z, dn)
    dims = "b=2 s=3 v=13"
    case("rowmax", "rowmax", "bsv", "f:bs", dims, [z], [m])
    case("xent_local", "xent_local", "bsv f:bs i:bs", "f:bs f:bs", dims, [z, m, labels], [l, c])
    case("nll", "nll", "f:bs f:bs f:bs", "f:bs", dims, [l, m, c], [n])
    case("xent_grad", "xent_grad", "bsv f:bs i:bs f:bs f:bs", "bsv", dims, [z, m, labels, dn / l, -dn], [dz])
    case("total", "total", "f:bs", "f:", dims, [n], [n.sum() / 6], scale=1 / 6)


def updates(name, op, make, states, clip, steps=3, **attrs):
    """Two parameters, the first with decay, as one flat buffer; gradients scaled by 4, as loss scaling does."""
    p = [leaf(7), leaf(5)]
    optimizer = make([{"params": [p[0]], "weight_decay": 0.1}, {"params": [p[1]], "weight_decay": 0.0}])
    flat = lambda ts: torch.cat([t.detach().reshape(-1) for t in ts]).clone()
    state = lambda: [flat([optimizer.state[t].get(s) if t in optimizer.state else torch.zeros_like(t) for t in p])
                     for s in states]
    for step in range(1, steps + 1):
        lr = 0.05 / step
        for group in optimizer.param_groups:
            group["lr"] = lr
        before = [flat(p)] + state()
        for t in p:
            t.grad = torch.randn_like(t)
        grad = 4 * flat([t.grad for t in p])
        norm2 = torch.sum(grad ** 2)
        case(f"{name}, norm of step {step}", "sumsq", "n", "d:", "n=12", [grad], [norm2], z=[torch.zeros(())],
             ranges=[(0, 12, 1.0)])
        if clip:
            torch.nn.utils.clip_grad_norm_(p, clip)
        optimizer.step()
        after = [flat(p)] + state()
        hyper = [lr, step, 0.25, 0, 0, 0, 0, 0]
        case(f"{name}, step {step}", op, "n d: d:y", " ".join(["n"] * len(after)), "n=12 y=8",
             [grad, norm2, torch.tensor(hyper)], after, z=before, ranges=[(0, 7, 0.1)], clip=clip, **attrs)


einsums()
norms()
gates()
rope()
attention("attention", 2, 5, 5, 0, 2, 2, 4)
attention("attention with a window", 1, 7, 7, 0, 1, 3, 4, window=3)
attention("attention of a later shard", 2, 3, 6, 3, 2, 1, 6)
tables()
cross_entropy()
updates("adamw", "adamw", lambda p: torch.optim.AdamW(p, betas=(0.9, 0.95), eps=1e-8), ("exp_avg", "exp_avg_sq"), 1.0,
        beta1=0.9, beta2=0.95, eps=1e-8)
updates("adamw without clipping", "adamw", lambda p: torch.optim.AdamW(p, betas=(0.8, 0.999), eps=1e-6),
        ("exp_avg", "exp_avg_sq"), 0.0, beta1=0.8, beta2=0.999, eps=1e-6)
updates("sgd with momentum", "sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), ("momentum_buffer",), 2.0, beta1=0.9)
updates("sgd", "sgd", lambda p: torch.optim.SGD(p, lr=0.1), (), 0.0)
documents("attention of documents", [[3, 1, 5], [9], [2, 4, 3]], 2, 2, 4)
documents("attention of documents with a window", [[3, 1, 8], [7, 5]], 1, 2, 4, window=3)
path = pathlib.Path(__file__).resolve().parent / "data" / "ops.txt"
path.write_text("\n".join(lines) + "\n")
