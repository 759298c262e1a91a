#!/usr/bin/env python3
"""Golden numbers for casts to fp8, from torch: tests/golden/data/fp8.txt.

    python3 fp8.py        # needs torch with float8_e4m3fn and float8_e5m2

A line is a type, a number in bf16 (its value), and that number in the type, to nearest even: what each code stands for, halfway to
the next, and the numbers in bf16 on either side of halfway. Nothing above the largest: torch has its own way there.
"""
import pathlib

import torch

TYPES = {"e4m3": (torch.float8_e4m3fn, 0x7E), "e5m2": (torch.float8_e5m2, 0x7B)}


def around(x):
    """A number and its neighbours in bf16."""
    bits = torch.tensor(x, dtype=torch.bfloat16).view(torch.int16)
    return [(bits + step).view(torch.bfloat16).item() for step in (-1, 0, 1)]


def main():
    lines = [f"# made by tests/golden/fp8.py with torch {torch.__version__.split('+')[0]}"]
    for name, (dtype, last) in TYPES.items():
        value = torch.arange(last + 1, dtype=torch.uint8).view(dtype).float().tolist()
        tried = sorted(set(value) | {x for a, b in zip(value, value[1:]) for x in around((a + b) / 2)})
        tried = [-x if n % 3 == 2 else x for n, x in enumerate(tried)]
        got = torch.tensor(tried, dtype=torch.bfloat16).to(dtype).float().tolist()
        lines += [f"{name} {x!r} {y!r}" for x, y in zip(tried, got)]
    (pathlib.Path(__file__).parent / "data" / "fp8.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
