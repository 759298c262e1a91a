#!/usr/bin/env python3
"""What torch.amp.GradScaler makes of overflows -> tests/golden/run/scaler.h.

  pip install torch     (made with the version that it prints into the header)

A parameter is trained with AdamW on gradients that are given, some of them infinite. Recorded: the scale after each step
where it changed, and the parameter after the first steps, which shows that a skipped step does not count in the bias
correction."""
import os

import torch

OVERFLOWS = [3, 4, 7, 2500, 2501, 2502, 7001]
STEPS = 11500


def main():
    p = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float32))
    optimizer = torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))  # makes the scale
    changes, values, before = [], [], scaler.get_scale()
    first = before
    for step in range(1, STEPS + 1):
        gradient = 0.3 + 0.1 * (step % 5)
        p.grad = torch.tensor([float("inf") if step in OVERFLOWS else gradient * scaler.get_scale()])
        scaler.step(optimizer)
        scaler.update()
        if step <= 12:
            values.append(p.item())
        if scaler.get_scale() != before:
            before = scaler.get_scale()
            changes.append((step, before))
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run", "scaler.h")
    with open(out, "w") as f:
        f.write(f"/* Made by tests/golden/scaler.py with torch {torch.__version__}. */\n")
        f.write(f"#define SCALER_FIRST {first!r}\n#define SCALER_STEPS {STEPS}\n")
        f.write("static const int64_t scaler_overflows[] = {" + ", ".join(map(str, OVERFLOWS)) + "};\n")
        f.write("static const struct {\n    int64_t step;\n    double scale;\n} scaler_changes[] = {\n")
        f.writelines(f"    {{{s}, {v!r}}},\n" for s, v in changes)
        f.write("};\nstatic const double scaler_values[] = {\n")
        f.writelines(f"    {v!r},\n" for v in values)
        f.write("};\n")


main()
