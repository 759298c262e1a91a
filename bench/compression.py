#!/usr/bin/env python3
"""How gradients that travel in few bits change what a model learns: the quickstart's job (examples/kjv.yaml) once for each
kind, from the same seed. Prints the last losses, their distance from the uncompressed run and the bytes that a rank sends in
a step (after the warm-up); fails where a distance is over the kind's bound.

    bench/compression.py [--heddle build/heddle] [--job examples/kjv.yaml] [--stage 1] [--kinds "none,int8"]
                         [key=value ...]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

KINDS = {  # name: options of strategies.zero.compress, and the bound: of the mean training loss of the last fifth of 200 steps
    "none": (["kind=none"], 0),
    "bf16": (["kind=bf16"], 0.01),
    "fp16": (["kind=fp16"], 0.01),
    "int8": (["kind=int8"], 0.01),
    "int4": (["kind=int4"], 0.04),
    "powersgd 4": (["kind=powersgd", "rank=4"], 0.08),
    "powersgd 16": (["kind=powersgd", "rank=16"], 0.03),
    "powersgd 4 after 50": (["kind=powersgd", "rank=4", "warmup=50"], 0.06),
}


def sent_bytes(heddle, words):
    """Bytes that rank 0 sends in a step: explain adds up what its collectives move."""
    out = subprocess.run([heddle, "explain", *words, "--json"], check=True, capture_output=True, text=True).stdout
    return sum(json.loads(out)["totals"]["sent_bytes"].values())


def train(heddle, words, folder):
    metrics = os.path.join(folder, "metrics.jsonl")
    subprocess.run([heddle, "train", *words, f"metrics.jsonl={metrics}", f"checkpoint.dir={folder}/checkpoints",
                    "checkpoint.resume=never"], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in open(metrics)]
    return [row for row in rows if "step" in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", default="build/heddle")
    parser.add_argument("--job", default="examples/kjv.yaml")
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of these; the first is what the others are compared with")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    base, failed = None, 0
    print(f"{'kind':20} {'sent':>10} {'train loss':>11} {'val loss':>9} {'distance':>9} {'bound':>6}")
    for kind in args.kinds.split(","):
        options, bound = KINDS[kind]
        words = [args.job, f"strategies.zero.stage={args.stage}", *(f"strategies.zero.compress.{x}" for x in options), *args.overrides]
        with tempfile.TemporaryDirectory() as folder:
            rows = train(args.heddle, words, folder)
        tail = rows[-max(1, len(rows) // 5):]
        loss = sum(row["loss"] for row in tail) / len(tail)
        val = [row["val_loss"] for row in rows if "val_loss" in row]
        base = loss if base is None else base
        distance = (loss - base) / base
        failed += abs(distance) > bound
        print(f"{kind:20} {sent_bytes(args.heddle, words) / 1e6:8.2f}MB {loss:11.4f} {val[-1] if val else float('nan'):9.4f} "
              f"{distance:+9.2%} {bound:6.0%}", flush=True)
    if failed:
        sys.exit(f"{failed} kinds are further than their bound from the uncompressed run")


main()
