#!/usr/bin/env python3
"""Data parallel ranks of different speed: equal numbers of micro-batches beside data.micro_batches.

    bench/uneven.py          # rank 1 has half of its core, by a cgroup's quota: 12 micro-batches as 6, 6 and 8, 4
    bench/uneven.py --speed 0.25 --micro-batches 15 --pairs 5

Both jobs run in turn, after `heddle plan --assume speeds=...` has said which numbers are the most even. Root, and a
cgroup file system (version 1 or 2) that can be written, are needed; nothing else may run meanwhile. Printed are the
median steps, the first two of each run left out.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[1]
JOB = """job: {{name: uneven, steps: 8}}
model: {{use: transformer, family: gpt2, layers: 4, hidden: 256, heads: 8, vocab: 4096, max_seq_len: 256}}
optimizer: {{use: adamw, lr: 1e-3}}
data: {{train: {0}/tokens.bin, format: nanogpt, seq_len: 256, micro_batch: 1, batch: {1}}}
mesh: {{dp: 2}}
strategies: [{{use: zero, stage: 1}}]
device: {{threads: 1}}
"""


def quota(share):
    """A cgroup of this share of one core, and the file that takes its processes."""
    period = 20000  # microseconds
    for top in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup"):
        group = pathlib.Path(top) / f"heddle-uneven-{os.getpid()}"
        try:
            group.mkdir()
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(int(share * period)))
                return group, group / "tasks"
            (group / "cpu.max").write_text(f"{int(share * period)} {period}")
            return group, group / "cgroup.procs"
        except OSError:
            if group.exists():
                group.rmdir()
    raise SystemExit("uneven.py: no cgroup with a quota of the processor can be made here")


def step(args, folder, tasks, shares):
    """Median seconds of a step on two ranks, of which the second is in the cgroup."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [args.heddle, "train", f"{folder}/job.yaml", f"data.micro_batches={shares}",
             f"metrics.jsonl={folder}/m.jsonl"]
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen(words, cwd=folder, env=os.environ | meet | {"RANK": str(r)}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True,
                              preexec_fn=(lambda: tasks.write_text(str(os.getpid()))) if r else None) for r in range(2)]
    for r in ranks:
        why = r.communicate(timeout=600)[1]
        if r.returncode:
            raise SystemExit(f"uneven.py: {shares}: {why}")
    rows = [json.loads(line) for line in pathlib.Path(folder, "m.jsonl").read_text().splitlines()]
    pathlib.Path(folder, "m.jsonl").unlink()
    return statistics.median(row["step_s"] for row in rows[2:] if "step_s" in row and "event" not in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    parser.add_argument("--speed", type=float, default=0.5)
    parser.add_argument("--micro-batches", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    group, tasks = quota(args.speed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "job.yaml").write_text(JOB.format(folder, args.micro_batches))
            pathlib.Path(folder, "tokens.bin").write_bytes(bytes(b"\x07\x05" * 300000))
            plan = subprocess.run([args.heddle, "plan", f"{folder}/job.yaml", "--machine", "cpu", "--json", "--assume",
                                   f"speeds=1:{args.speed}"], capture_output=True, text=True, check=False)
            if plan.returncode:
                sys.exit(plan.stderr)
            even, best = [args.micro_batches // 2] * 2, json.loads(plan.stdout)["micro_batches"]
            times = {str(even): [], str(best): []}
            for pair in range(args.pairs):
                for shares in (even, best) if pair % 2 == 0 else (best, even):
                    times[str(shares)].append(step(args, folder, tasks, shares))
            a, b = (statistics.median(t) for t in times.values())
            print(f"rank 1 at {args.speed:g} of its core: {even} {a * 1e3:.0f} ms, {best} {b * 1e3:.0f} ms a step: "
                  f"{a / b:.2f} x as fast")
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
