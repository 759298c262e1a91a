#!/usr/bin/env python3
"""What a lost rank costs: heddle beside torchrun with torch.distributed.checkpoint.

    bench/recovery.py --python VENV/bin/python       # an interpreter that has torch
    bench/recovery.py --contestants restart,shrink   # heddle alone

All train model S (bench/jobs/s.yaml, bench/peer_torch.py) with 4 data parallel ranks and save in the background every
--every steps. A rank is killed (SIGKILL) after the same steps, at the same part of the next one. In every round each
contestant runs once, so that a busy spell of the machine meets all of them; the first start is not counted.

    restart     heddle train with launch.restarts: all ranks are started again on this machine
    peers       the same with zero stage 1, so that no rank has all of the state, and a copy of it in memory after every
                step (checkpoint.peers: 1)
    shrink      four agents of heddle, one rank each, over TCP (docs/elastic.md): one agent is killed, the others go
                on, and it is started again after that. Node 0 cannot be lost: where it is rank 0's turn, it is rank 1's
    torchrun    DistributedDataParallel over Gloo, torch.distributed.checkpoint's async_save, --max-restarts

next step   seconds from the kill to the next completed step: the others' end, a new start, loading, and that step
caught up   seconds from the kill to the first step that was not trained before
again       steps that are trained again
            each as the median of all kills (least to largest)
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "bench"))
from train import free_port, make_tokens  # noqa: E402

RANKS, STEPS = 4, 1_000_000
LIMIT = 180  # seconds for anything that is waited for


class Contestant:
    """A job of four ranks that goes on by itself when it has lost one."""

    def __init__(self, args, folder, options):
        self.args, self.folder, self.options = args, folder, options
        self.processes, self.stamp, self.now = [], None, (0, [])

    def start(self, words, environment={}):
        with open(self.folder / "out", "ab") as out:
            self.processes.append(subprocess.Popen(words, cwd=TOP, env={**os.environ, **environment}, stdout=out,
                                                   stderr=out, stdin=subprocess.DEVNULL, start_new_session=True))

    def fail(self, why):
        raise SystemExit(f"bench: {type(self).__name__}: {why}:\n{(self.folder / 'out').read_text()[-3000:]}")

    def look(self):
        """The newest round, from 0, and the steps that it has completed."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.rows)
            if (found.st_mtime_ns, found.st_size) != self.stamp:
                self.stamp = found.st_mtime_ns, found.st_size
                self.now = self.parse([line for line in self.rows.read_text().splitlines(True) if line.endswith("\n")])
        return self.now

    def wait(self, what, condition):
        """Waits until round and steps are so, and returns them."""
        until = time.monotonic() + LIMIT
        while not condition(*self.look()):
            if self.processes[0].poll() is not None or time.monotonic() > until:
                self.fail(f"{what} did not come")
            time.sleep(0.005)
        return self.now

    def ranks(self):
        """Their processes: the launcher's children, in the order in which it started them."""
        pid = self.processes[0].pid
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def lose(self, rank):
        """Kills it. Returns which one it was."""
        pids = self.ranks()
        if len(pids) != RANKS:
            self.fail(f"there are {len(pids)} ranks, not {RANKS}")
        os.kill(pids[rank], signal.SIGKILL)
        return rank

    def check(self, rank):
        """Is this the rank that the job says it lost?"""

    def mend(self, round_):
        """Waits until the job has all ranks again."""

    def kill_one(self, rank, step, part):
        """Kills the rank in the step after `step`, when this part of its time is over. What that costs."""
        _, steps = self.wait("a step", lambda _, steps: steps and steps[-1] >= step - 1)
        since, at = time.monotonic(), steps[-1]
        _, steps = self.wait("a step", lambda _, steps: steps and steps[-1] > at)
        time.sleep(part * (time.monotonic() - since))
        before, steps = self.look()
        last, lost, begin = steps[-1], self.lose(rank), time.monotonic()
        round_, steps = self.wait("a step after the kill", lambda now, steps: now > before and steps)
        next_step, first = time.monotonic() - begin, steps[0]
        self.check(lost)
        if first > last + 2:
            self.fail(f"step {first} came after step {last}")
        self.wait("a new step", lambda _, steps: steps[-1] > last)
        caught_up = time.monotonic() - begin
        self.mend(round_)
        return next_step, caught_up, max(last + 1 - first, 0)

    def stop(self):
        for process in self.processes:
            left = self.ranks() if process is self.processes[0] and process.poll() is None else []
            for pid in [-process.pid, *left]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


class Heddle(Contestant):
    """The launcher of all ranks, which starts them again."""
    mesh = RANKS

    def __init__(self, args, folder, options):
        super().__init__(args, folder, options)
        self.rows = folder / "metrics.jsonl"
        self.words = [args.heddle, "train", str(TOP / "bench" / "jobs" / "s.yaml"), f"job.steps={STEPS}",
                      f"mesh.dp={self.mesh}", f"data.batch={2 * RANKS}", "device.threads=1", f"checkpoint.dir={folder}/checkpoints",
                      f"checkpoint.every={args.every}", "checkpoint.keep=2", "launch.restarts=1000", "launch.pause=10ms",
                      "metrics.every=1", f"metrics.jsonl={self.rows}", *options, *args.options]

    def begin(self):
        self.start([*self.words, f"launch.ranks={RANKS}"])

    def parse(self, lines):
        round_, steps, self.event = 0, [], None
        for row in map(json.loads, lines):
            if row.get("event") in ("restart", "shrink", "grow"):
                round_, steps, self.event = row["round"], [], row
            elif "loss" in row:
                steps.append(row["step"])
        return round_, steps

    def check(self, rank):
        if rank not in self.event["lost"]:
            self.fail(f"rank {rank} was killed, and the metrics say {self.event}")


class Agents(Heddle):
    """As many machines as ranks: the others go on."""
    mesh = "auto"

    def agent(self, node):
        self.start([*self.words, "--nodes", f"1:{RANKS}", "--rendezvous", f"127.0.0.1:{self.port}", "--node-rank",
                    str(node), "launch.ranks=1", "comm.use=libfabric", "comm.provider=tcp"], {"HEDDLE_SECRET": self.secret})

    def begin(self):
        self.port, self.secret = free_port(), secrets.token_hex(32)
        for node in range(RANKS):
            self.agent(node)

    def lose(self, rank):
        self.lost = max(rank, 1)  # agents are processes 0 to 3, in their order
        self.processes[self.lost].kill()
        self.processes[self.lost].wait()
        return self.lost

    def mend(self, round_):
        self.agent(self.lost)
        self.processes[self.lost] = self.processes.pop()
        self.wait("the lost machine", lambda now, steps: now > round_ and steps)
        if self.event["event"] != "grow":
            self.fail(f"the lost machine is back, and the metrics say {self.event}")


class Torchrun(Contestant):
    def __init__(self, args, folder, options):
        super().__init__(args, folder, options)
        self.rows = folder / "steps"

    def begin(self):
        # A store that all rounds share has the addresses of ranks that are no more: pytorch/pytorch#135712.
        self.start([self.args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
                    "--max-restarts", "1000", "--monitor-interval", "0.1", str(TOP / "bench" / "peer_recovery.py"),
                    "--checkpoints", str(self.folder / "checkpoints"), "--every", str(self.args.every), "--progress",
                    str(self.rows), *self.options],
                   {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})

    def parse(self, lines):
        round_, steps = -1, []
        for line in lines:
            if line == "start\n":
                round_, steps = round_ + 1, []
            else:
                steps.append(int(line))
        return round_, steps


# name: (class, more of heddle's job, or more words for bench/peer_recovery.py)
CONTESTANTS = {
    "restart": (Heddle, []),
    "peers": (Heddle, ["strategies.zero.stage=1", "checkpoint.peers=1"]),  # no rank has all of the state
    "shrink": (Agents, []),
    "torchrun": (Torchrun, []),
}


def parse_arguments():
    names = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    parser.add_argument("--contestants", type=names, default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=2, help="of a contestant in a round")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write every kill there, one object a line")
    parser.add_argument("--set", nargs="*", default=[], dest="options", metavar="KEY=VALUE", help="for heddle's jobs")
    args = parser.parse_args()
    for name in args.contestants:
        if name not in CONTESTANTS:
            parser.error(f"--contestants: {name} is none of {', '.join(CONTESTANTS)}")
    if min(args.rounds, args.kills) < 1 or args.every < 3:
        parser.error("--rounds and --kills are 1 or more, --every is 3 or more")
    for key, used in ("heddle", set(args.contestants) != {"torchrun"}), ("python", "torchrun" in args.contestants):
        if used and not (found := shutil.which(getattr(args, key))):
            raise SystemExit(f"bench: --{key}: there is no {getattr(args, key)}")
        elif used:
            setattr(args, key, os.path.abspath(found))
    if "torchrun" in args.contestants and subprocess.run([args.python, "-c", "import torch"],
                                                         stderr=subprocess.DEVNULL).returncode:
        print(f"bench: {args.python} has no torch", file=sys.stderr)
        raise SystemExit(77)
    return args


def run(args, name, kills):
    kind, options = CONTESTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        job = kind(args, pathlib.Path(folder), options)
        job.begin()
        try:
            return [job.kill_one(*kill) for kill in kills]
        finally:
            job.stop()


def column(values, form):
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})".rjust(26)


def main():
    args = parse_arguments()
    make_tokens(256)
    draw, costs = random.Random(args.seed), {name: [] for name in args.contestants}
    for _ in range(args.rounds):
        # a save lies between two kills, and has had steps to end in
        kills = [(draw.randrange(RANKS), args.every * (i + 1) + draw.randrange(2, args.every), draw.random())
                 for i in range(args.kills)]
        for name in args.contestants:
            costs[name] += (found := run(args, name, kills))
            if args.json:
                with open(args.json, "a") as file:
                    file.writelines(json.dumps(dict(contestant=name, rank=rank, step=step, part=part, next_step_s=cost[0],
                                                    caught_up_s=cost[1], again=cost[2])) + "\n"
                                    for (rank, step, part), cost in zip(kills, found))
    print("           kills              next step, s              caught up, s                     again")
    for name, rows in costs.items():
        next_step, caught_up, again = zip(*rows)
        seconds = lambda x: f"{x:.2f}"
        print(f"{name:10} {len(rows):5}{column(next_step, seconds)}{column(caught_up, seconds)}{column(again, '{:g}'.format)}")
    medians = {name: [statistics.median(values) for values in zip(*rows)] for name, rows in costs.items()}
    theirs = medians.pop("torchrun", None)
    for name, ours in medians.items() if theirs else ():
        print(f"torchrun takes {theirs[0] / ours[0]:.1f} times as long as {name} to the next step, "
              f"{theirs[1] / ours[1]:.1f} to catch up")


if __name__ == "__main__":
    main()
