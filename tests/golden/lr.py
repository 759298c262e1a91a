#!/usr/bin/env python3
"""Learning rates of every step from PyTorch's and transformers' schedulers -> tests/golden/job/lr.h.

  pip install torch transformers     (made with the versions that it prints into the header)

constant, linear, cosine: torch.optim.lr_scheduler, LinearLR for warm-up followed by ConstantLR, LinearLR,
CosineAnnealingLR. wsd: transformers.get_wsd_schedule; its warm-up counts from 0, so those steps are lr step / W here.
"""
import os

import torch
import transformers
from torch.optim import lr_scheduler as S

CASES = [  # kind, shape, warm-up, decay, steps, lr, min_lr
    ("constant", "linear", 0, 0, 5, 1e-3, 0.0),
    ("constant", "linear", 4, 0, 9, 3e-4, 0.0),
    ("linear", "linear", 0, 0, 7, 1e-2, 1e-3),
    ("linear", "linear", 5, 0, 20, 3e-4, 0.0),
    ("cosine", "linear", 0, 0, 10, 6e-4, 6e-5),
    ("cosine", "linear", 10, 0, 40, 3e-4, 3e-5),
    ("cosine", "linear", 2, 0, 30, 1.0, 0.0),
    ("wsd", "linear", 5, 10, 40, 3e-4, 3e-5),
    ("wsd", "cosine", 0, 8, 30, 1e-3, 0.0),
    ("wsd", "sqrt", 3, 12, 30, 2e-3, 2e-4),
    ("wsd", "linear", 4, 3, 30, 1e-3, 1e-5),
]


def torch_schedule(optimizer, kind, warmup, steps, lr, low):
    rest = max(1, steps - warmup)
    after = {"constant": lambda: S.ConstantLR(optimizer, factor=1.0, total_iters=1),
             "linear": lambda: S.LinearLR(optimizer, 1.0, low / lr, rest),
             "cosine": lambda: S.CosineAnnealingLR(optimizer, rest, low)}[kind]
    if not warmup:
        return after()
    ramp = S.LinearLR(optimizer, 1.0 / warmup, 1.0, warmup - 1)
    return S.SequentialLR(optimizer, [ramp, after()], milestones=[warmup])


def wsd_schedule(optimizer, shape, warmup, decay, steps, lr, low):
    return transformers.get_wsd_schedule(
        optimizer, num_warmup_steps=warmup, num_decay_steps=decay, num_stable_steps=steps - warmup - decay,
        decay_type={"linear": "linear", "cosine": "cosine", "sqrt": "1-sqrt"}[shape], min_lr_ratio=low / lr)


def rates(kind, shape, warmup, decay, steps, lr, low):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    if kind == "wsd":
        scheduler = wsd_schedule(optimizer, shape, warmup, decay, steps, lr, low)
    else:
        scheduler = torch_schedule(optimizer, kind, warmup, steps, lr, low)
    out = []
    for step in range(1, steps + 1):
        rate = optimizer.param_groups[0]["lr"]
        out.append(lr * step / warmup if kind == "wsd" and step <= warmup else float(rate))
        optimizer.step()
        scheduler.step()
    return out


path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job", "lr.h")
with open(path, "w") as f:
    print(f"/* Made by tests/golden/lr.py with torch {torch.__version__}, transformers {transformers.__version__}. */", file=f)
    print("static const struct {\n    struct hd__lr_schedule schedule;\n    int64_t steps;\n    double rate[40];\n} golden[] = {", file=f)
    for kind, shape, warmup, decay, steps, lr, low in CASES:
        values = rates(kind, shape, warmup, decay, steps, lr, low)
        print(f"    {{{{HD__SCHEDULE_{kind.upper()}, HD__DECAY_{shape.upper()}, {warmup}, {decay}, {lr!r}, {low!r}}}, {steps},", file=f)
        for i in range(0, steps, 5):
            head, tail = ("     {" if i == 0 else "      "), ("}}," if i + 5 >= steps else ",")
            print(head + ", ".join(repr(v) for v in values[i:i + 5]) + tail, file=f)
    print("};", file=f)
