#!/usr/bin/env python3
"""One training job on two machines, struck again and again until its steps are done, held against the same job
undisturbed. Run by hand, as root (network namespaces, a tmpfs): neither CI nor ./run-tests --long has it.

    tests/long/endurance.py                              # 2,000 faults, 50 steps apart in the mean
    tests/long/endurance.py --failures 80 --limit 20     # as many, or 20 minutes of them
    tests/long/endurance.py --step-ms 500 --seed 7       # longer steps: what goodput depends on

The machines are network namespaces joined by a bridge, each with an agent (`heddle train --nodes 2 --node-rank I`), one
rank each, and copies of the state in memory after every 10 steps (checkpoint.peers). SEED draws the faults: each one's
kind, the steps since the one before (an exponential distribution of mean --mean), and the rank.

    kill, segv, stop   the signal, to a rank
    machine            the agent of node 1 is killed, and started again: what its memory had is gone
    disk               the file system of checkpoint.dir is full when the next save comes, until that has failed
    link-2s, link-10s  the link of node 1 is down for so long
    link-lost          the link goes down, the agent of node 1 is killed, then both come up again

Node 0's agent is spared: it decides, and nothing trains without it (docs/elastic.md). A fault has been recovered from
if the log names what was struck and a step is done afterwards. The run has passed if each was, nothing was started
again without a fault, both agents ended with 0, metrics.jsonl has each step once and with the bits of the undisturbed
job, and `heddle ckpt diff` finds no difference between both last checkpoints. A step that the job went on from may lack
its row (docs/running.md).

When --limit is over, the job is stopped by SIGTERM, and compared with an undisturbed one of as many steps. Goodput is
the seconds of the undisturbed job, per step, over those of this one.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import recover
from recover import FULL, SIGNALS, TOP, Disk, libc

EVERY_SAVE, EVERY_COPY = 200, 10
OUTAGE = 3  # seconds that the link is down before the agent is killed
RECOVER_SECONDS = 120
WEIGHTS = {"kill": 4, "segv": 3, "stop": 3, "machine": 3, "disk": 1, "link-2s": 2, "link-10s": 1, "link-lost": 1}
LOST = re.compile(r"node 1 is gone|rank [01] died")
JOB = f"""
job:        {{name: NAME, seed: 1337, deterministic: exact}}
launch:     {{restarts: 1000000, pause: 10ms}}
device:     {{use: cpu, threads: 1}}
comm:       {{use: libfabric, provider: tcp, interface: eth0, timeout: 100s}}
liveness:   {{dead_after: 1s}}
mesh:       {{dp: 2}}
strategies: [{{use: zero, stage: 1}}]
optimizer:  {{use: adamw, lr: 1e-3, clip: 1.0}}
model:      {{use: transformer, family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}}
data:       {{train: corpus.txt, seq_len: 64, micro_batch: 1}}
checkpoint: {{every: {EVERY_SAVE}, keep: 2, peers: {{every: {EVERY_COPY}}}}}
"""


class Fault:
    moment = "middle"  # for recover.names_of_the_fault

    def __init__(self, kind, step, rank):
        self.fault, self.step, self.rank = kind, step, rank
        self.last = 0  # step that was done before it was noticed
        self.outcome, self.seconds, self.lost, self.source = None, 0, 0, None


def drawn(args):
    """The faults, in the order of their steps. A full disk is noticed by a save, so at a step that has one."""
    chance, step, faults = random.Random(args.seed), EVERY_COPY, []
    for _ in range(args.failures):
        kind = chance.choices(list(WEIGHTS), WEIGHTS.values())[0]
        step += max(1, round(chance.expovariate(1 / args.mean)))
        step = -(-step // EVERY_SAVE) * EVERY_SAVE if kind == "disk" else step
        faults.append(Fault(kind, step, 1 if kind.startswith(("machine", "link")) else chance.randrange(2)))
    return faults


# ---- machines


class Machines:
    """Two network namespaces, and a third with the bridge between them. They go with the processes that hold them."""

    def __init__(self):
        self.holders = [subprocess.Popen(["sleep", "infinity"], preexec_fn=self.leave) for _ in range(3)]
        switch = self.holders[2]
        self.run(2, "ip link add br0 type bridge")
        self.run(2, "ip link set br0 up")
        for i in range(2):
            self.run(2, f"ip link add port{i} type veth peer name eth0 netns {self.holders[i].pid}")
            self.run(2, f"ip link set port{i} master br0 up")
            self.run(i, f"ip addr add 10.77.0.{i + 1}/24 dev eth0")
            self.run(i, "ip link set lo up")
            self.link(i, "up")

    @staticmethod
    def leave():
        recover.die_with_this_script()
        CLONE_NEWNET = 0x40000000
        libc("unshare", CLONE_NEWNET)

    def run(self, i, words):
        done = subprocess.run(["nsenter", f"--net=/proc/{self.holders[i].pid}/ns/net", *words.split()],
                              capture_output=True, text=True,
                              env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
        if done.returncode:
            sys.exit(f"{words}: {done.stderr.strip()}: root, and `ip` and `nsenter` (iproute2, util-linux) are needed")
        return done.stdout

    def link(self, i, way):
        self.run(i, f"ip link set eth0 {way}")
        while way == "up" and "state UP" not in self.run(i, "ip -o link show eth0"):  # libfabric overlooks it before
            time.sleep(0.01)

    def enter(self, i):
        """For a child of this script, before it becomes something else."""
        recover.die_with_this_script()
        there = os.open(f"/proc/{self.holders[i].pid}/ns/net", os.O_RDONLY)
        libc("setns", there, 0)
        os.close(there)

    def end(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


# ---- a job on both


class Job:
    def __init__(self, args, machines, folder, name, words):
        self.machines, self.folder, self.name = machines, folder, name
        self.metrics = folder / "runs" / name / "metrics.jsonl"
        self.saves = folder / "saves" / name
        self.logs = [folder / f"{name}-{i}.log" for i in range(2)]
        self.seen = {}  # processes, with what tells them from later ones of the same number
        self.environment = {**recover.clean_environment(), "HEDDLE_SECRET": args.secret}
        self.command = [args.heddle, "train", "job.yaml", f"job.name={name}", f"checkpoint.dir={self.saves}", *words,
                        "--nodes", "2", "--rendezvous", "10.77.0.1:29400"]
        self.began = time.monotonic()
        self.agents = [None, None]
        for i in range(2):
            self.start(i)

    def start(self, i):
        with open(self.logs[i], "ab") as log:
            self.agents[i] = subprocess.Popen([*self.command, "--node-rank", str(i)], cwd=self.folder,
                                              env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                              preexec_fn=lambda: self.machines.enter(i))
        self.remember()

    def remember(self):
        for agent in self.agents:
            for pid in [] if agent is None else [agent.pid, *recover.descendants_of(agent.pid)]:
                state = recover.process_state(pid)
                if state:
                    self.seen.setdefault(pid, state[1])

    def ranks(self):
        """Their process numbers, where they are there."""
        pids = [recover.children_of(agent.pid) for agent in self.agents]
        return [of_one[0] if of_one else None for of_one in pids]

    def said(self, since=(0, 0)):
        text = ""
        for log, offset in zip(self.logs, since):
            with open(log, errors="replace") as file:
                file.seek(offset)
                text += file.read()
        return text

    def lengths(self):
        return [log.stat().st_size for log in self.logs]

    def rows(self, newest=None):
        """Of the metrics; of the last so many bytes only."""
        try:
            with open(self.metrics, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - newest) if newest else 0)
                lines = file.read().split(b"\n")
        except OSError:
            return []
        return [json.loads(line) for line in lines[bool(newest and size > newest):-1]]

    def now(self):
        """Last step that is done, newest restart in sight, and whether a step was done after it."""
        step, restart, after = 0, None, False
        for row in self.rows(newest=1 << 14):
            if row.get("event") in ("restart", "shrink", "grow"):
                restart, after = row, False
            elif "loss" in row:
                step, after = row["step"], True
        return step, restart, after

    def wait_for_step(self, step, until):
        """False: the job ended, or it is too late."""
        while self.now()[0] < step:
            if any(agent.poll() is not None for agent in self.agents) or time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def stop(self):
        self.agents[0].terminate()

    def wait(self, seconds):
        """Exit codes of both agents."""
        until = time.monotonic() + seconds
        while any(agent.poll() is None for agent in self.agents) and time.monotonic() < until:
            time.sleep(0.02)
        self.seconds = time.monotonic() - self.began
        return [agent.poll() for agent in self.agents]

    def end(self):
        """Whatever still runs of it; returns what an orderly end would not have left."""
        self.remember()
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        until = time.monotonic() + 10
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    def left(self):
        return [pid for pid, born in self.seen.items() if recover.is_alive(pid, born)]

    def newest(self):
        """Step of the last checkpoint; 0: there is none."""
        return max((int(name[5:]) for name in os.listdir(self.saves) if name.startswith("step-")), default=0)


# ---- faults


def strike(job, fault, disk, before):
    """Does it, and ends it where it ends. Returns when, and expressions of which the log has to have one."""
    began = time.monotonic()
    if fault.fault in SIGNALS:
        pid = job.ranks()[fault.rank]
        os.kill(pid, SIGNALS[fault.fault])
        return began, recover.names_of_the_fault(fault, fault.rank, pid)
    if fault.fault == "disk":
        disk.fill()
        until = began + RECOVER_SECONDS
        while FULL not in job.said(before) and time.monotonic() < until:
            time.sleep(0.01)
        disk.free()
        return time.monotonic(), [FULL]
    if fault.fault.startswith("link"):
        job.machines.link(1, "down")
        time.sleep({"link-2s": 2, "link-10s": 10, "link-lost": OUTAGE}[fault.fault])
    if fault.fault in ("machine", "link-lost"):
        job.agents[1].kill()
        job.agents[1].wait()
    if fault.fault.startswith("link"):
        job.machines.link(1, "up")
    if fault.fault in ("machine", "link-lost"):
        job.start(1)
    return began, [LOST.pattern]


def is_over(job, fault, rounds):
    """Whether a step was done since: in a later round, or, where a link came back soon enough, in the same."""
    step, restart, after = job.now()
    if restart and restart["round"] > rounds:
        fault.lost, fault.source = max(0, fault.last - restart["step"]), restart.get("from")
        return after
    before, fault.last = fault.last, max(fault.last, step)
    return fault.fault.startswith("link") and step > before


def suffer(job, fault, disk, rounds):
    """Strikes, and waits until a step is done; the outcome is in the fault."""
    job.remember()
    logged, fault.step = job.lengths(), job.now()[0]
    fault.last = fault.step
    began, names = strike(job, fault, disk, logged)
    fault.last = max(fault.last, job.now()[0])
    until = time.monotonic() + RECOVER_SECONDS
    fault.outcome = "recovered"
    while not is_over(job, fault, rounds):
        if any(agent.poll() is not None for agent in job.agents):
            fault.outcome = f"the agents ended with {[agent.poll() for agent in job.agents]}"
            return
        if time.monotonic() > until:
            fault.outcome = f"no step was done within {RECOVER_SECONDS} s"
            return
        time.sleep(0.005)
    fault.seconds = time.monotonic() - began
    if not any(re.search(name, job.said(logged)) for name in names):
        fault.outcome = f"the log has none of {names}"


def endure(job, faults, disk, chance, until):
    """How many faults there were, and complaints."""
    rounds, wrong, done = 0, [], 0
    for fault in faults:
        ahead = EVERY_COPY if fault.fault == "disk" else 0
        if not job.wait_for_step(fault.step - ahead, until):
            break
        _, restart, _ = job.now()
        if restart and restart["round"] > rounds:
            wrong.append(f"round {restart['round']}, from step {restart['step']}, began without a fault")
            rounds = restart["round"]
        if not ahead:
            time.sleep(job.step_seconds * chance.random())
        suffer(job, fault, disk, rounds)
        done += 1
        print(f"{done:4}  {fault.fault:9}  rank {fault.rank}  step {fault.step:6}  {fault.seconds:6.2f} s  "
              f"{fault.lost:3} steps lost  {fault.source or '-':6}  {fault.outcome}", flush=True)
        if fault.outcome != "recovered":
            return done, [*wrong, f"{fault.fault} at step {fault.step}: {fault.outcome}"]
        _, restart, _ = job.now()
        rounds = restart["round"] if restart else rounds
    return done, wrong


# ---- the end


def losses_differ(job, whole):
    """Complaints about the metrics, and how many steps lack their row."""
    rows, want, wrong = job.rows(), {row["step"]: row for row in whole.rows() if "loss" in row}, []
    have = {row["step"]: row for row in rows if "loss" in row}
    may_lack = {row["step"] for row in rows if row.get("event") == "restart"}
    if len(have) != sum("loss" in row for row in rows):
        wrong.append("the metrics have a step twice")
    for step in range(1, max(have) + 1):
        if step not in have:
            if step not in may_lack:
                wrong.append(f"the metrics have no step {step}")
        elif (have[step]["loss"], have[step]["grad_norm"]) != (want[step]["loss"], want[step]["grad_norm"]):
            wrong.append(f"loss of step {step} is {have[step]['loss']!r}, undisturbed {want[step]['loss']!r}")
    return wrong[:5], max(have) - len(have)


def weights_differ(args, job, whole):
    """Complaints about the last checkpoint of both."""
    names = [max(of.saves / name for name in os.listdir(of.saves) if name.startswith("step-")) for of in (whole, job)]
    done = subprocess.run([args.heddle, "ckpt", "diff", *names], capture_output=True, text=True,
                          env=recover.clean_environment())
    return [f"ckpt diff: {(done.stdout + done.stderr).strip()[-300:]}"] if done.returncode else []


def print_table(faults):
    kinds = collections.defaultdict(list)
    for fault in faults:
        kinds[fault.fault].append(fault)
        kinds["all"].append(fault)
    print("\n| kind | count | recovered | seconds to the next step, mean | longest | steps lost, mean |")
    print("|---|---|---|---|---|---|")
    for kind in [*WEIGHTS, "all"]:
        of_it = kinds[kind]
        if of_it:
            recovered = sum(f.outcome == "recovered" for f in of_it)
            print(f"| {kind} | {len(of_it)} | {recovered} | {statistics.mean(f.seconds for f in of_it):.2f} | "
                  f"{max(f.seconds for f in of_it):.2f} | {statistics.mean(f.lost for f in of_it):.1f} |")


# ---- all of it


def trained(args, machines, folder, name, words):
    """A job that nobody disturbs."""
    job = Job(args, machines, folder, name, words)
    try:
        codes = job.wait(args.limit * 60)
        if None in codes:
            sys.exit(f"undisturbed, the job does not end within {args.limit:g} minutes: raise --limit, or lower "
                     "--failures or --step-ms")
        if codes != [0, 0]:
            sys.exit(f"undisturbed, the job ends with {codes}: {job.said()[-1000:]}")
    finally:
        job.end()
    return job


def choose_batch(args, machines, folder):
    """Sequences of a step that takes --step-ms: a micro-batch is one, so a step's length is proportional to them."""
    job = trained(args, machines, folder, "probe", ["data.batch=16", "job.steps=100"])
    seconds = statistics.median(row["step_s"] for row in job.rows()[10:] if "loss" in row)
    batch = 16
    while batch < 1 << 14 and seconds * batch / 16 * 1.4 < args.step_ms / 1000:
        batch *= 2
    return batch


def run(args, folder, machines):
    faults = drawn(args)
    batch = choose_batch(args, machines, folder)
    steps = -(-(faults[-1].step + 2 * EVERY_COPY) // EVERY_SAVE) * EVERY_SAVE
    words = [f"data.batch={batch}", f"job.steps={steps}"]
    whole = trained(args, machines, folder, "whole", words)
    step_seconds = statistics.median(row["step_s"] for row in whole.rows() if "loss" in row)
    print(f"undisturbed: {steps} steps of {batch} sequences in {whole.seconds:.1f} s, "
          f"{step_seconds * 1000:.1f} ms each (median)", flush=True)
    disk = Disk(folder / "saves" / "struck")
    try:
        job = Job(args, machines, folder, "struck", words)
        job.step_seconds = step_seconds
        try:
            done, wrong = endure(job, faults, disk, random.Random(args.seed), job.began + args.limit * 60)
            ended_early = done < len(faults)
            if ended_early:
                job.stop()
            codes = job.wait(RECOVER_SECONDS + 10 * step_seconds * EVERY_SAVE)
        finally:
            left = job.end()
        same = whole
        if 0 < job.newest() < steps:
            same = trained(args, machines, folder, "same", [*words, f"job.steps={job.newest()}"])
        return report(args, job, whole, same, steps, faults[:done], wrong, codes, ended_early, left)
    finally:
        disk.unmount()


def report(args, job, whole, same, steps, faults, wrong, codes, ended_early, left):
    """Exit code."""
    failed = sum(fault.outcome != "recovered" for fault in faults)
    print_table(faults)
    if codes != ([3, 3] if ended_early else [0, 0]):
        wrong.append(f"the agents ended with {codes}")
    if left:
        wrong.append(f"process {left[0]} was left")
    losses, lacking = losses_differ(job, whole)
    weights = weights_differ(args, job, same) if job.newest() else ["no checkpoint to compare"]
    reached = job.now()[0]
    undisturbed = whole.seconds / steps * reached
    print(f"\n{reached} steps in {job.seconds:.1f} s, undisturbed {undisturbed:.1f} s: "
          f"goodput {100 * undisturbed / job.seconds:.1f} %")
    print(f"losses: {'differ' if losses else 'the same bits'} in {reached - lacking} rows; {lacking} rows are missing")
    print(f"weights: {'differ' if weights else 'equal'} at step {job.newest()}")
    print(f"{len(faults)} of {args.failures} faults, seed {args.seed}")
    wrong += losses + weights
    for line in wrong:
        print(f"wrong: {line}")
    passed = len(faults) - failed
    print(f"{passed} passed, {max(failed, int(bool(wrong)))} failed")
    return 1 if wrong or failed or not faults else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", type=pathlib.Path, default=TOP / "build/heddle", metavar="PATH",
                        help="default build/heddle")
    parser.add_argument("--failures", type=int, default=2000, metavar="N", help="how many faults (2000)")
    parser.add_argument("--mean", type=float, default=50, metavar="STEPS",
                        help="steps between two of them, in the mean (50)")
    parser.add_argument("--step-ms", type=float, default=20, metavar="MS", help="about how long a step takes (20)")
    parser.add_argument("--limit", type=float, default=600, metavar="MINUTES",
                        help="of each run, undisturbed and struck (600)")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults (1)")
    args = parser.parse_args()
    args.heddle = args.heddle.resolve()
    args.secret = secrets.token_hex(32)
    if not os.access(args.heddle, os.X_OK):
        parser.error(f"{args.heddle} cannot be run: --heddle says which to take")
    if min(args.failures, args.mean, args.limit, args.step_ms) <= 0:
        parser.error("--failures, --mean, --limit and --step-ms have to be more than 0")
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        recover.enter_mount_namespace()
    except OSError as why:
        sys.exit(f"no mount namespace: {why}: root is needed")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="heddle-endurance-"))
    code = 1
    try:
        recover.write_files(folder, JOB)
        machines = Machines()
        try:
            code = run(args, folder, machines)
        finally:
            machines.end()
    finally:
        if code:
            print(f"files: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
