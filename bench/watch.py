#!/usr/bin/env python3
"""What watching costs: a job with the default alarms, comparisons, metrics and sinks beside the same job without.

    bench/watch.py                            # model S, two ranks, what `watch` and `metrics` do by default
    bench/watch.py --set precision.compute=bf16 --with 'watch.rerun={every: 20}' 'watch.replicas={every: 20}'

Two cores run one contestant each at the same time, so that whatever else moves the machine (clock, neighbours) meets
both; they change cores from pair to pair. Both ranks of a contestant share its core: what one does more, the other
waits for. Printed are the ratios, with / without, of the processor time and of the wall time of the whole command: the
mean over pairs of pairs (one for each core), and the interval that holds it by 95 % (bootstrap over these). Nothing
else may run meanwhile.

    bench/watch.py --profile                  # Linux' perf, as root or with kernel.perf_event_paranoid <= 1

One job with everything on, and `perf` looks 800 times a second of processor time where it is: printed is the share of
all samples, the kernel's too, that lie in or below the functions that watch, compare and write, with its 95 %
confidence interval (Wilson). Other work on the machine does not move it. With `--scrapes 100` so many
requests a second go to the Prometheus endpoint, over one connection, as a Prometheus server keeps it; with
`--reconnect` over a connection each.
"""
import argparse
import http.client
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from train import TOP, make_tokens

WITHOUT = ["watch." + rule + "=0" for rule in ("loss_spike", "grad_norm", "straggler", "data_wait", "exposed_comm",
                                               "memory", "descriptors", "replicas", "rerun")]
SINKS = ["metrics.sinks=[jsonl, {use: prometheus, port: 0}, {use: tensorboard, dir: tb}]"]


def job(args):
    return [args.heddle, "train", str(TOP / "bench" / "jobs" / "s.yaml"), f"data.train={TOP}/corpus/random-256.bin",
            f"job.steps={args.steps}", "mesh.dp=2", "device.threads=1", *args.both]


def start(args, folder, core, words):
    """`heddle train` with all of its ranks on one core."""
    return subprocess.Popen(job(args) + words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, {core}))


def finish(child, began):
    """Processor and wall seconds of the command and its ranks."""
    why = child.stderr.read()
    status, used = os.wait4(child.pid, 0)[1:]
    if status:
        sys.exit(f"watch.py: heddle train failed: {why}")
    return used.ru_utime + used.ru_stime, time.monotonic() - began


def pair(args, cores):
    """Ratios of one run with and one without: processor time, wall time."""
    with tempfile.TemporaryDirectory() as with_it, tempfile.TemporaryDirectory() as without:
        began = time.monotonic()
        children = [start(args, with_it, cores[0], SINKS + args.more),
                    start(args, without, cores[1], WITHOUT + [f"metrics.every={args.steps}"])]
        ends = {}
        while len(ends) < 2:  # in the order in which they end
            for i, child in enumerate(children):
                if i not in ends and os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    ends[i] = finish(child, began)
            time.sleep(0.005)
    return [a / b for a, b in zip(ends[0], ends[1])]


# By the functions in a sample's stack; the first that fits.
PARTS = [("replicas and runs again", r"hd__train_(replicas|rerun)"), ("alarms", r"hd__watch_"),
         ("rows, sinks", r"hd__metrics_|hd__loop_log_row|sink|heddle-metrics-"), ("HTTP server", r"microhttpd|MHD_")]
PORT = 9755


def wilson(k, n, z=1.96):
    middle, half = (k + z * z / 2) / (n + z * z), z * ((k * (n - k) / n + z * z / 4) ** 0.5) / (n + z * z)
    return f"{100 * k / n:.2f} % ({100 * (middle - half):.2f} to {100 * (middle + half):.2f})"


def scrape(rate, reconnect, count):
    """Until the process ends: so many a second from the first answer on."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    while True:
        try:
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            count.append(time.monotonic())
            time.sleep(max(0, count[0] + len(count) / rate - time.monotonic()))
            if reconnect:
                connection.close()  # the next request opens it
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.05)


def profile(args):
    if not shutil.which("perf"):
        sys.exit("watch.py: --profile needs perf (Debian: linux-perf)")
    with tempfile.TemporaryDirectory() as folder:
        words, count = job(args) + SINKS + args.more, []
        if args.scrapes:
            words = [word.replace("port: 0", f"port: {PORT}") for word in words]
            threading.Thread(target=scrape, args=(args.scrapes, args.reconnect, count), daemon=True).start()
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "797", "--call-graph", "dwarf,8192", "-o", "samples"]
        subprocess.run(record + words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        script = subprocess.run(["perf", "script", "-i", "samples", "-F", "ip,sym,dso"], cwd=folder, check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stacks = [s for s in script.stdout.split("\n\n") if s.strip()]
    found = [next((name for name, pattern in PARTS if re.search(pattern, s)), None) for s in stacks]
    if not any("hd__exec_run_step" in s for s in stacks):
        sys.exit("watch.py: perf found no step in the stacks: build with debug information (./run-tests does)")
    if count:
        print(f"{len(count) / (count[-1] - count[0]):.0f} scrapes a second")
    for name, _ in PARTS:
        print(f"{name}: {wilson(found.count(name), len(stacks))}")
    print(f"all: {wilson(len(found) - found.count(None), len(stacks))} of {len(stacks)} samples")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    p.add_argument("--pairs", type=int, default=20, help="of pairs: so many times both orders of cores")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--set", dest="both", nargs="*", default=[], help="key=value of both contestants")
    p.add_argument("--with", dest="more", nargs="*", default=[], help="key=value of the one that watches")
    p.add_argument("--profile", action="store_true", help="by samples of perf")
    p.add_argument("--scrapes", type=float, default=0, help="a second, with --profile")
    p.add_argument("--reconnect", action="store_true", help="for each scrape")
    args = p.parse_args()
    make_tokens(256)
    if args.profile:
        return profile(args)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("watch.py: two cores are needed")
    rows = []
    for n in range(args.pairs):
        both = [pair(args, cores), pair(args, cores[::-1])]
        rows.append([statistics.geometric_mean(x) for x in zip(*both)])
        print(f"pair {n + 1}: processor {rows[-1][0]:.4f}, wall {rows[-1][1]:.4f}", file=sys.stderr, flush=True)
    draw = random.Random(1)
    for name, ratios in zip(("processor time", "wall time"), zip(*rows)):
        means = sorted(statistics.mean(draw.choices(ratios, k=len(ratios))) for _ in range(10000))
        print(f"{name}: with / without {statistics.mean(ratios):.4f} ({means[250]:.4f} to {means[9750]:.4f}), "
              f"median {statistics.median(ratios):.4f}, {len(ratios)} pairs of pairs")


if __name__ == "__main__":
    main()
