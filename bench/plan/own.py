#!/usr/bin/env python3
"""heddle plan beside heddle train on this machine: how far off planned steps are, and whether the search is right.

    bench/plan/own.py                        # S, M, LL x 1, 2, 4 ranks x ZeRO 0 to 3, tp, pp: half an hour of two cores
    bench/plan/own.py --models S --ranks 1,2
    bench/plan/own.py --search               # 90 plans of S on 2 ranks, trained, beside the search's choice

For each number of ranks `heddle calibrate --ranks N` measures the machine; nothing else may run meanwhile. Measured is
the median step of a run, the first two left out, in one run a row.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))
from train import MODELS, make_tokens  # noqa: E402

STEPS = {"S": 14, "M": 7, "LL": 7}


def layouts(ranks):
    """Names of the ways to use so many ranks, and their words."""
    if ranks == 1:
        return [("alone", ["mesh={dp: 1}"])]
    zero = "strategies=[{use: zero, stage: %d}]"
    cut = "strategies=[{use: 3d}, {use: zero, stage: 0}]"
    return [(f"zero {stage}", [f"mesh={{dp: {ranks}}}", zero % stage]) for stage in range(4)] + [
        ("tp", [f"mesh={{tp: {ranks}}}", cut]), ("pp", [f"mesh={{pp: {ranks}}}", cut, "data.micro_batch=1"])]


def heddle(args, *words):
    return subprocess.run([args.heddle, *map(str, words)], capture_output=True, text=True, cwd=TOP)


def plan(args, job, words, machine, *more):
    done = heddle(args, "plan", job, *words, "--machine", machine, "--json", *more)
    return json.loads(done.stdout) if not done.returncode else done.stderr.strip().splitlines()[-1]


def trained(args, model, job, words):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        done = heddle(args, "train", job, *words, f"job.steps={args.steps or STEPS[model]}", f"metrics.jsonl={metrics}",
                      "metrics.every=1")
        if done.returncode:
            raise SystemExit(f"own.py: {job} {words}: {done.stderr}")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(row["step_s"] for row in rows[2:] if "step_s" in row and "event" not in row)


def calibrated(args, ranks, folder):
    path = pathlib.Path(folder) / f"here-{ranks}.yaml"
    done = heddle(args, "calibrate", "--ranks", ranks)
    if done.returncode:
        raise SystemExit(done.stderr)
    path.write_text(done.stdout)
    return path


def job_of(model, ranks, precision):
    words = [f"data.batch={MODELS[model][2] * ranks}", f"launch.ranks={ranks}", f"precision.compute={precision}"]
    return TOP / "bench" / "jobs" / f"{model.lower()}.yaml", words


def rows(args, folder):
    errors = []
    print("| model | dtype | ranks | | planned | measured | off |\n|---|---|---|---|---|---|---|")
    for ranks in args.ranks:
        machine = calibrated(args, ranks, folder)
        for model in args.models:
            make_tokens(MODELS[model][0])
            for precision in args.precisions:
                job, words = job_of(model, ranks, precision)
                for name, layout in layouts(ranks):
                    planned = plan(args, job, words + layout, machine)
                    if isinstance(planned, str):
                        print(f"| {model} | {precision} | {ranks} | {name} | refused: {planned} | | |", flush=True)
                        continue
                    measured = trained(args, model, job, words + layout)
                    errors.append(planned["step_s"] / measured - 1)
                    print(f"| {model} | {precision} | {ranks} | {name} | {1e3 * planned['step_s']:.0f} ms "
                          f"| {1e3 * measured:.0f} ms | {100 * errors[-1]:+.1f} % |", flush=True)
    off = [abs(e) for e in errors]
    print(f"\n{len(off)} rows: {100 * statistics.median(off):.1f} % off in the median, {100 * max(off):.1f} % at most")


def search(args, folder):
    """Micro-batches, recompute and layouts of S on 2 ranks, each trained."""
    machine = calibrated(args, 2, folder)
    make_tokens(MODELS["S"][0])
    job, words = job_of("S", 2, "fp32")
    best = plan(args, job, words, machine, "--search", "--ranks", 2)["plans"][0]
    ways = []
    for micro in (1, 2, 4, 8, 16):
        for recompute in ("none", "selective", "full"):
            more = [f"data.micro_batch={micro}", f"recompute={recompute}"]
            for name, layout in layouts(2):
                kept = [w for w in layout if "micro" not in w]
                ways.append((f"{name}, micro_batch {micro}, recompute {recompute}", kept + more))
    times = {}
    for name, way in ways:
        if not isinstance(plan(args, job, words + way, machine), str):
            times[name] = trained(args, "S", job, words + way)
            print(f"| {name} | {1e3 * times[name]:.0f} ms |", flush=True)
    ways = dict(ways)
    last = {name: [] for name in sorted(times, key=times.get)[:3]}
    rounds = {**last, "the search's": []}
    for _ in range(3):
        for name, of in rounds.items():
            of.append(trained(args, "S", job, words + (ways[name] if name in ways else best["words"].split("' '"))))
    middle = {name: statistics.median(of) for name, of in rounds.items()}
    chosen, least = middle["the search's"], min(middle.values())
    in_turn = ", ".join(f"{name}: {1e3 * of:.0f} ms" for name, of in middle.items())
    print(f"\n{len(times)} plans; again, in turn: {in_turn}")
    print(f"the search's is {best['words']}: {100 * (chosen / least - 1):+.1f} %")


def main():
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    parser.add_argument("--models", type=words, default=list(MODELS))
    parser.add_argument("--ranks", type=lambda text: [int(x) for x in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--precisions", type=words, default=["fp32"])
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 14, 7 and 7 for S, M and LL")
    parser.add_argument("--search", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (search if args.search else rows)(args, folder)


main()
