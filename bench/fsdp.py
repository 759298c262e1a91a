#!/usr/bin/env python3
"""Sharded training side by side: ZeRO stages against PyTorch FSDP2 and DeepSpeed, on 2 processes with 1 thread each.

    bench/fsdp.py --python VENV/bin/python           # an interpreter that has torch; DeepSpeed where it has that too
    bench/fsdp.py --python ... --models S --precisions fp32 --rounds 5

In every round each contestant runs once, so that a busy spell of the machine meets all of them:
    fsdp2        fully_shard on every layer, resharded after the forward pass: what stage 3 is
    fsdp2-grad   the same without resharding (SHARD_GRAD_OP)
    fsdp2+tc     fsdp2 with tcmalloc preloaded: the fairer peer
    deepspeed2, deepspeed3
    zero0, zero2, zero3    build/heddle with strategies.zero.stage

Columns are those of bench/train.py: tokens/s of a run = tokens of a step over the median seconds of its steps, the first two
left out; medians over rounds; memory = the largest peak resident set of a process; others = the largest share of the
machine's processors that other work took. Ratios: zero2 and zero3 to fsdp2 (speed, memory), zero3 to zero0 (what sharding
costs on one machine).
"""
import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys

import train

CONTESTANTS = ("fsdp2", "fsdp2-grad", "fsdp2+tc", "deepspeed2", "deepspeed3", "zero0", "zero2", "zero3")


def run_peer(args, who, model, precision):
    shard, tcmalloc = who.removesuffix("+tc"), who.endswith("+tc")
    words = [args.python, str(train.TOP / "bench" / "peer_fsdp.py"), "--model", model, "--shard", shard, "--precision", precision,
             "--threads", str(args.threads // 2), "--steps", str(args.steps or train.MODELS[model][3])]
    port = train.free_port()
    env = {"OMP_NUM_THREADS": str(args.threads // 2), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
    if tcmalloc:
        env["LD_PRELOAD"] = args.tcmalloc
    text, peak, others = train.run([(words, {**env, "RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(2)], args.limit)
    result = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    return result["seconds"], result["losses"], peak, others


def run_heddle(args, who, model, precision):
    args.options = [f"strategies.zero.stage={who[-1]}"]
    return train.run_heddle(args, model, precision, 2)[:4]


def run_one(args, who, model, precision):
    seconds, losses, peak, others = (run_heddle if who.startswith("zero") else run_peer)(args, who, model, precision)
    vocab, context, batch, _ = train.MODELS[model]
    if not abs(losses[0] - math.log(vocab)) < 0.6 or not all(map(math.isfinite, losses)):
        raise SystemExit(f"bench: {who} on {model} {precision}: first loss {losses[0]}, a guess has {math.log(vocab):.3f}")
    steps = seconds[train.WARMUP:] or seconds
    return dict(who=who, model=model, precision=precision, others=others, peak_bytes=peak,
                tokens_per_s=context * batch * 2 / statistics.median(steps), seconds=seconds, losses=losses)


def print_rows(args, runs, model, precision):
    mine = [r for r in runs if (r["model"], r["precision"]) == (model, precision)]
    median = lambda who, what: statistics.median([r[what] for r in mine if r["who"] == who] or [0])
    for who in args.contestants:
        speed, memory = median(who, "tokens_per_s"), median(who, "peak_bytes")
        cells = [train.ratio(speed, median(peer, "tokens_per_s")) for peer in ("fsdp2", "fsdp2+tc", "deepspeed3", "zero0")]
        print(f"{model:3} {precision:5} {who:11} {speed:10.1f} " + " ".join(cells) + f" {memory / 2**20:8.0f} " +
              train.ratio(memory, median("fsdp2", "peak_bytes")) + f" {max(r['others'] for r in mine if r['who'] == who):7.3f}", flush=True)


def usable(args):
    """Contestants that this machine has, and why not the others."""
    def has(module):
        return subprocess.run([args.python, "-c", f"import {module}"], capture_output=True, env={"DS_ACCELERATOR": "cpu"}).returncode == 0
    missing = {}
    if not has("torch.distributed.fsdp"):
        missing["fsdp2"] = missing["deepspeed"] = f"{args.python} has no torch"
    elif not has("deepspeed"):
        missing["deepspeed"] = f"{args.python} has no deepspeed"
    if not args.tcmalloc:
        missing["fsdp2+tc"] = "libtcmalloc_minimal.so.4 is not installed"
    if not shutil.which(args.heddle):
        missing["zero"] = f"{args.heddle} is not built"
    for name, why in missing.items():
        print(f"bench: without {name}: {why}", file=sys.stderr)
    return [who for who in args.contestants if not any(who == name or who.rstrip("0123456789").split("-")[0] == name for name in missing)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    train.common_arguments(parser)
    parser.add_argument("--contestants", type=lambda text: text.split(","), default=list(CONTESTANTS))
    args = parser.parse_args()
    args.contestants = usable(args)
    return args


def main():
    args = parse_arguments()
    runs = []
    print("                        tokens/s    fsdp2 fsdp2+tc  deepsp3    zero0 peak MiB    fsdp2  others")
    for model in args.models:
        train.make_tokens(train.MODELS[model][0])
        for precision in args.precisions:
            for _ in range(args.rounds):
                for who in args.contestants:
                    runs.append(run_one(args, who, model, precision))
                    if args.json:
                        with open(args.json, "a") as file:
                            file.write(json.dumps(runs[-1]) + "\n")
            print_rows(args, runs, model, precision)


if __name__ == "__main__":
    main()
