#!/usr/bin/env python3
"""Muon with torch.optim.Muon, AdamW for the rest with torch.optim.AdamW: tests/golden/data/muon/.

    python3 tests/golden/muon.py        needs torch 2.9 or newer, transformers, safetensors; made with the versions in expected.json

Trains the model of data/llama on data/localsgd/tokens.npy, batch b of step s being sequences 4 s to 4 s + 3, in fp64. PyTorch makes its Newton-Schulz
iterations in bf16 alone: but for the case "bf16" its own function runs with another meaning of the name torch.bfloat16.

expected.json               for each case the loss before every step, and the gradient norm (before clipping)
NAME.safetensors            the parameters behind the last step, in fp32
"""
import json
import pathlib

import numpy
import torch
import transformers
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).resolve().parent / "data"
STEPS, BATCH, SEQ = 20, 4, 8
LR, ADAMW_LR, BETAS, EPS, DECAY = 2e-2, 1e-2, (0.9, 0.95), 1e-8, 0.1
CASES = {
    "original": dict(momentum=0.95, nesterov=True, ns_steps=5, adjust_lr_fn="original", clip=0),
    "match_rms_adamw": dict(momentum=0.9, nesterov=True, ns_steps=5, adjust_lr_fn="match_rms_adamw", clip=1.0),
    "heavy-ball": dict(momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="original", clip=1.0),
    "bf16": dict(momentum=0.95, nesterov=True, ns_steps=5, adjust_lr_fn="original", clip=0),
}


class InDouble:
    """torch, but for what bfloat16 means."""
    bfloat16 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def optimizers(model, case):
    named = list(model.named_parameters())
    hidden = [p for n, p in named if p.dim() == 2 and "embed_tokens" not in n and "lm_head" not in n]
    rest = [p for n, p in named if p.dim() == 2 and ("embed_tokens" in n or "lm_head" in n)]
    vectors = [p for n, p in named if p.dim() < 2]
    options = {k: v for k, v in case.items() if k != "clip"}
    return (torch.optim.Muon(hidden, lr=LR, weight_decay=DECAY, **options),
            torch.optim.AdamW([dict(params=rest, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)], lr=ADAMW_LR, betas=BETAS,
                              eps=EPS))


def train(name, ids, labels):
    case = CASES[name]
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "llama", dtype=torch.float64, attn_implementation="sdpa").eval()
    module = __import__("torch.optim._muon", fromlist=["_muon"])
    module.torch = torch if name == "bf16" else InDouble()
    both = optimizers(model, case)
    losses, norms = [], []
    for x, y in zip(ids, labels):
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"] or float("inf")).item())
        losses.append(loss.item())
        for optimizer in both:
            optimizer.step()
    file = DATA / "muon" / f"{name}.safetensors"
    save_file({n: p.detach().float().contiguous() for n, p in model.named_parameters()}, file)
    file.chmod(0o644)
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return dict(**case, losses=losses, grad_norms=norms)


def main():
    (DATA / "muon").mkdir(exist_ok=True)
    tokens = torch.from_numpy(numpy.load(DATA / "localsgd" / "tokens.npy").astype("int64"))
    ids, labels = (t.reshape(STEPS, BATCH, SEQ) for t in (tokens[:-1], tokens[1:]))
    expected = dict(steps=STEPS, batch=BATCH, seq=SEQ, lr=LR, adamw_lr=ADAMW_LR, betas=BETAS, eps=EPS, weight_decay=DECAY,
                    cases={name: train(name, ids, labels) for name in CASES},
                    torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (DATA / "muon" / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
