#!/usr/bin/env python3
"""How much of a slow network's time training hides behind its computing. Needs root, iproute2 and a built heddle.

    bench/overlap.py                                    # stages 0 and 3 at 1 Gbit/s
    bench/overlap.py --rates 500mbit 2gbit --stages 0 1 2 3 --set comm.progress=thread --rounds 5

Two ranks on two network namespaces, joined by a veth pair that sends no faster than RATE (tc tbf), train over comm-libfabric (tcp),
each on a processor of its own. In every round each configuration runs once, overlapped and not (strategies.zero.overlap). Of each configuration
the shortest step and the shortest wait of all rounds, the first two steps of a run left out. Columns, milliseconds a step:
    step, step+      not overlapped, overlapped
    comm, comm+      of these, what the rank waits for communication (comm_s of the metrics)
    pass             the forward and backward pass (stage 0: the backward pass alone), from the profile
    hidden           step - step+: what overlapping saves, its own cost taken off
    part             hidden / min(comm, pass): of what the passes are long enough to hide, how much is hidden
    waits            (comm - comm+) / min(comm, pass): the same of the waits alone, without what moving data costs the passes
"""
import argparse
import ctypes
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
JOB = """job: {name: overlap, steps: %d}
device: {use: cpu, threads: 1}
comm: {use: libfabric, provider: tcp}
strategies: [{use: zero, stage: 0, bucket: 500KB, prefetch_backward: 2}]
optimizer: {use: adamw, lr: 3e-4, clip: 0}
model: {use: transformer, family: gpt2, layers: 12, hidden: 128, heads: 4, vocab: 256, max_seq_len: 128}
data: {train: tokens.bin, format: nanogpt, seq_len: 128, batch: 8, micro_batch: 4, shuffle: false}
metrics: {every: 1, profile: true}
"""


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def machine():
    """A process that keeps a network namespace alive."""
    home = os.readlink("/proc/self/ns/net")
    p = subprocess.Popen(["unshare", "--net", "sleep", "1000000"], preexec_fn=die_with_parent)
    while p.poll() is None and os.readlink(f"/proc/{p.pid}/ns/net") == home:
        time.sleep(0.01)
    if p.poll() is not None:
        sys.exit("overlap: no network namespaces here")
    return p


def inside(p, *words):
    return ["nsenter", f"--net=/proc/{p.pid}/ns/net", *words]


def link(a, b, rate):
    subprocess.run(inside(a, *f"ip link add eth0 type veth peer name eth0 netns {b.pid}".split()), check=True)
    for i, p in enumerate((a, b)):
        for words in (f"ip addr add 10.77.0.{i + 1}/24 dev eth0", "ip link set eth0 up", "ip link set lo up",
                      f"tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms"):
            subprocess.run(inside(p, *words.split()), check=True)
    for p in (a, b):  # an interface is there a moment after it was set up
        while "state UP" not in subprocess.run(inside(p, *"ip -o link show eth0".split()), capture_output=True, text=True, check=True).stdout:
            time.sleep(0.01)


def train(machines, folder, words, limit):
    """Both ranks; the steps of rank 0's metrics, and the table of its profile."""
    ranks, secret = [], secrets.token_hex(32)
    for r, p in enumerate(machines):
        env = {**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1",
               "MASTER_PORT": "29500", "HEDDLE_SECRET": secret}
        ranks.append(subprocess.Popen(inside(p, "taskset", "-c", str(r % os.cpu_count()), str(TOP / "build" / "heddle"), "train", "job.yaml", *words),
                                      cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent))
    text = [p.communicate(timeout=limit)[0] for p in ranks]
    if any(p.returncode for p in ranks):
        sys.exit("overlap: " + "\n".join(text))
    with open(folder / "runs/overlap/metrics.jsonl") as f:
        steps = [json.loads(line) for line in f if '"step"' in line][2:]
    return steps, text[0]


ROW = re.compile(r"\s*[\d.]+%\s+([\d.]+)\s.*\s([FBWRO]) (\S+)")


def share_of(profile, phases):
    """The part of a step's computing that these phases take."""
    rows = [(float(m[1]), m[2]) for m in map(ROW.match, profile.splitlines()) if m and m[3] not in ("wait", "feed")]
    return sum(ms for ms, phase in rows if phase in phases) / sum(ms for ms, _ in rows)


class Best:
    """Of all steps of one configuration in all rounds the shortest; the median of what it waits."""

    def __init__(self):
        self.steps, self.shares = [], []

    def add(self, steps, profile, phases):
        self.steps += [(1e3 * s["step_s"], 1e3 * s["comm_s"]) for s in steps]
        self.shares.append(share_of(profile, phases))

    def step(self):
        return min(step for step, _ in self.steps)

    def comm(self):
        return min(comm for _, comm in self.steps)


def measure(pair, folder, stage, args):
    runs = {"false": Best(), "true": Best()}
    for _ in range(args.rounds):
        for overlap, best in runs.items():
            words = [f"strategies.zero.stage={stage}", f"strategies.zero.overlap={overlap}", *args.set]
            best.add(*train(pair, folder, words, args.limit), "BW" if stage == "0" else "FBW")
    plain, over = runs["false"], runs["true"]
    room = (plain.step() - plain.comm()) * statistics.median(plain.shares)
    hidden, could = plain.step() - over.step(), min(plain.comm(), room)
    return [plain.step(), over.step(), plain.comm(), over.comm(), room, hidden, 100 * hidden / could, 100 * (plain.comm() - over.comm()) / could]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rates", nargs="+", default=["1gbit"])
    p.add_argument("--stages", nargs="+", default=["0", "3"])
    p.add_argument("--set", nargs="*", default=[], help="more key=value for every run")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--limit", type=float, default=300, help="seconds a run may take")
    args = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="heddle-overlap-"))
    (folder / "job.yaml").write_text(JOB % args.steps)
    (folder / "tokens.bin").write_bytes(bytes(b for i in range(400000) for b in ((i * i + i // 7) % 256, 0)))
    print(f"{'rate':>8} {'stage':>5}" + "".join(f"{c:>8}" for c in ("step", "step+", "comm", "comm+", "pass", "hidden", "part %", "waits %")))
    try:
        for rate in args.rates:
            pair = machine(), machine()
            link(*pair, rate)
            for stage in args.stages:
                print(f"{rate:>8} {stage:>5}" + "".join(f"{x:8.1f}" for x in measure(pair, folder, stage, args)), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
