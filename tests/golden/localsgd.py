#!/usr/bin/env python3
"""DiLoCo (arXiv 2311.08105, algorithm 1) with torch's own optimizers: tests/golden/data/localsgd/.

    python3 tests/golden/localsgd.py        needs torch, transformers, safetensors; made with the versions in expected.json

Two workers train the model of data/llama, each on its half of every batch, with AdamW and clipping for itself. Every H steps torch.optim.SGD takes an outer step on the parameters at the last
meeting; its gradient is the mean of what the workers moved. Computed in fp64.

tokens.npy                  batch b of step s is sequences 4 s to 4 s + 3; sequence i is tokens 8 i to 8 i + 8
expected.json               for each outer optimizer the mean loss of the workers before every step, and the first worker's
                            gradient norm (before clipping)
NAME.safetensors            the outer parameters behind the last step, in fp32
"""
import copy
import json
import pathlib

import numpy
import torch
import transformers
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).resolve().parent / "data"
STEPS, H, WORKERS, BATCH, SEQ, VOCAB = 20, 5, 2, 4, 8, 32
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
OUTER = {"nesterov": dict(lr=0.7, momentum=0.9, nesterov=True), "heavy-ball": dict(lr=0.5, momentum=0.8, nesterov=False),
         "mean": dict(lr=1.0, momentum=0.0, nesterov=False)}


def inner_optimizer(model):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)


def inner_step(model, optimizer, ids, labels):
    optimizer.zero_grad(set_to_none=True)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
    optimizer.step()
    return loss.item(), norm


def meet(outer, outer_optimizer, workers):
    for parameters in zip(outer.parameters(), *(w.parameters() for w in workers)):
        o, mine = parameters[0], parameters[1:]
        o.grad = sum(o.detach() - p.detach() for p in mine) / len(mine)
    outer_optimizer.step()
    with torch.no_grad():
        for w in workers:
            for p, o in zip(w.parameters(), outer.parameters()):
                p.copy_(o)


def train(name, ids, labels):
    outer = transformers.AutoModelForCausalLM.from_pretrained(DATA / "llama", dtype=torch.float64, attn_implementation="sdpa").eval()
    workers = [copy.deepcopy(outer) for _ in range(WORKERS)]
    optimizers = [inner_optimizer(w) for w in workers]
    outer_optimizer = torch.optim.SGD(outer.parameters(), **OUTER[name])
    losses, norms, part = [], [], ids.shape[1] // WORKERS
    for step in range(STEPS):
        results = [inner_step(w, optimizers[k], ids[step, k * part:(k + 1) * part], labels[step, k * part:(k + 1) * part])
                   for k, w in enumerate(workers)]
        losses.append(sum(r[0] for r in results) / WORKERS)
        norms.append(results[0][1])
        if (step + 1) % H == 0:
            meet(outer, outer_optimizer, workers)
    file = DATA / "localsgd" / f"{name}.safetensors"
    save_file({n: p.detach().float().contiguous() for n, p in outer.named_parameters()}, file)
    file.chmod(0o644)
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return dict(**OUTER[name], losses=losses, grad_norms=norms)


def main():
    (DATA / "localsgd").mkdir(exist_ok=True)
    tokens = torch.randint(0, VOCAB, (STEPS * BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(7))
    numpy.save(DATA / "localsgd" / "tokens.npy", tokens.numpy().astype("uint16"))
    ids, labels = (t.reshape(STEPS, BATCH, SEQ) for t in (tokens[:-1], tokens[1:]))
    expected = dict(steps=STEPS, batch=BATCH, seq=SEQ, every=H, workers=WORKERS, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, clip=CLIP,
                    outer={name: train(name, ids, labels) for name in OUTER},
                    torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (DATA / "localsgd" / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
