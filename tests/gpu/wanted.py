#!/usr/bin/env python3
"""What is wanted of a GPU beside what was measured: a line each, held, MISSED or not measured. tests/gpu/run counts them; one that is
missed is no failure.

    tests/gpu/wanted.py LOG         judges what bench/kernels printed: each kernel against a copy
"""
import re
import sys

# docs/cuda.md has them in brackets. MFU in percent of the datasheet's dense peak, seconds from exec to exit.
SPEED_OF_TORCH, MEMORY_OF_TORCH = 1.10, 0.80
SPEED_OF_LLMC = {"gpt2-124m": 1.15, "gpt2-1.5b": 1.10, "tiny": 1.10}
MFU = {"gpt2-124m": 48, "gpt2-1.5b": 52, "llama-1b": 53}
PRODUCT_OF_CUBLAS, ATTENTION_OF_CUDNN, KERNEL_OF_COPY, FIRST_STEP = 0.98, 0.95, 0.85, 5


def judge(what, value, wanted, most=False):
    """value: None where it was not measured. most: it may be as much as is wanted, else as little."""
    bound = f"at {'most' if most else 'least'} {wanted:g}"
    if value is None:
        said = f"{bound}: not measured"
    else:
        said = f"{value:.3g}, {bound}: {'held' if (value <= wanted if most else value >= wanted) else 'MISSED'}"
    print(f"wanted     {what}: {said}", flush=True)


def judge_kernels(text):
    for name, part in re.findall(r"^(\S.*?)  +[\d.]+ us .* ([\d.]+) of a copy$", text, re.M):
        judge(f"{name}, of a copy's rate", float(part), KERNEL_OF_COPY)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as log:
        judge_kernels(log.read())
