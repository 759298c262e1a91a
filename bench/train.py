#!/usr/bin/env python3
"""Training side by side with PyTorch: tokens/s and peak memory of a process.

    bench/train.py --python VENV/bin/python          # an interpreter that has torch
    bench/train.py --python ... --models S --precisions fp32 --processes 1 --rounds 5

In every round each contestant runs once, so that a busy spell of the machine meets all of them:
    torch       as installed
    tcmalloc    torch with tcmalloc preloaded (Debian: libtcmalloc-minimal4): the fairer peer
    heddle      build/heddle train bench/jobs/MODEL.yaml
as one process with 2 threads and as 2 processes with 1 thread each (torch: DistributedDataParallel over Gloo).

tokens/s    of a run: tokens of a step over the median seconds of its steps, the first ones left out
table       medians over rounds, the ratio of heddle to each peer, and
roofline    of heddle: a step over the least time that the machine's rates allow, metrics.roofline
others      the largest share of the machine's processors that other work took during any run of the row: repeat the
            row where it is above 0.05
memory      the largest peak resident set of any process of a run (wait4)
"""
import argparse
import array
import glob
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
# model: vocabulary, context, batch of a process, steps of a run
MODELS = {"S": (256, 256, 8, 14), "M": (50304, 256, 4, 7), "LL": (32000, 256, 4, 12)}
WARMUP = 2
CONTESTANTS = ("torch", "tcmalloc", "heddle")


def make_tokens(vocab):
    """Random tokens in nanoGPT's format: uint16. The same file every time."""
    path = TOP / "corpus" / f"random-{vocab}.bin"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        generator = random.Random(vocab)
        path.write_bytes(array.array("H", (generator.randrange(vocab) for _ in range(1 << 19))).tobytes())


def processor_seconds():
    """Seconds of all processors that were used by anyone since boot."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run(commands, limit):
    """Runs the commands side by side, each (words, environment). Returns the first one's stdout and what they used."""
    begin, used = time.monotonic(), processor_seconds()
    outs = [tempfile.TemporaryFile() for _ in commands]
    children = [subprocess.Popen(words, env={**os.environ, **env}, stdout=out,
                                 cwd=TOP, start_new_session=True) for (words, env), out in zip(commands, outs)]
    signal.signal(signal.SIGALRM, lambda *_: [os.killpg(c.pid, signal.SIGKILL) for c in children])
    signal.alarm(limit)
    own, peak, failed = 0.0, 0, False
    for child in children:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        own += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss * 1024)
        failed |= child.returncode != 0
    signal.alarm(0)
    wall = time.monotonic() - begin
    outs[0].seek(0)
    text = outs[0].read().decode()
    if failed:
        raise SystemExit(f"bench: {' '.join(map(str, commands[0][0]))} failed:\n{text[-2000:]}")
    return text, peak, (processor_seconds() - used - own) / (wall * os.cpu_count())


def run_torch(args, model, precision, processes, preload):
    words = [args.python, str(TOP / "bench" / "peer_torch.py"), "--model", model, "--precision", precision, "--threads",
             str(args.threads // processes), "--steps", str(args.steps or MODELS[model][3])]
    env = {"OMP_NUM_THREADS": str(args.threads // processes)}
    if preload:
        env["LD_PRELOAD"] = preload
    port = free_port()
    ranks = [{"RANK": str(i), "LOCAL_RANK": str(i), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"} for i in range(processes)]
    text, peak, others = run([(words, {**env, **(rank if processes > 1 else {})}) for rank in ranks], args.limit)
    result = json.loads(text.strip().splitlines()[-1])
    return result["seconds"], result["losses"], peak, others


def run_heddle(args, model, precision, processes):
    batch = MODELS[model][2] * processes
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        words = [args.heddle, "train", str(TOP / "bench" / "jobs" / f"{model.lower()}.yaml"),
                 f"job.steps={args.steps or MODELS[model][3]}", f"data.batch={batch}", f"launch.ranks={processes}",
                 f"device.threads={args.threads // processes}", f"precision.compute={precision}", "metrics.every=1", "metrics.roofline=true",
                 f"metrics.jsonl={metrics}", *args.options]
        _, peak, others = run([(words, {})], args.limit)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    roofline = next((row for row in rows if row.get("event") == "roofline"), {})
    rows = [row for row in rows if "step" in row and "event" not in row]
    return [row["step_s"] for row in rows], [row["loss"] for row in rows], peak, others, roofline


def run_one(args, who, model, precision, processes):
    roofline = {}
    if who == "heddle":
        seconds, losses, peak, others, roofline = run_heddle(args, model, precision, processes)
    else:
        seconds, losses, peak, others = run_torch(args, model, precision, processes, args.tcmalloc if who == "tcmalloc" else "")
    vocab, context, batch, _ = MODELS[model]
    # Random tokens: the first loss is that of a guess, or the contestant computes something else.
    if not abs(losses[0] - math.log(vocab)) < 0.6 or not all(map(math.isfinite, losses)):
        raise SystemExit(f"bench: {who} on {model} {precision}: first loss {losses[0]}, a guess has {math.log(vocab):.3f}")
    steps = seconds[WARMUP:] or seconds
    return dict(who=who, model=model, precision=precision, processes=processes, others=others, peak_bytes=peak,
                roofline_s=roofline.get("roofline_s"), roofline_ratio=roofline.get("roofline_ratio"),
                tokens_per_s=context * batch * processes / statistics.median(steps), seconds=seconds, losses=losses)


def ratio(ours, theirs):
    return f"{ours / theirs:8.2f}" if ours and theirs else "       -"


def print_row(args, runs, model, precision, processes):
    mine = [r for r in runs if (r["model"], r["precision"], r["processes"]) == (model, precision, processes)]
    speed = {w: statistics.median([r["tokens_per_s"] for r in mine if r["who"] == w] or [0]) for w in CONTESTANTS}
    memory = {w: statistics.median([r["peak_bytes"] for r in mine if r["who"] == w] or [0]) for w in CONTESTANTS}
    roofline = statistics.median([r["roofline_ratio"] for r in mine if r["roofline_ratio"]] or [0])
    print(f"{model:3} {precision:5} {processes}x{max(1, args.threads // processes)} " +
          " ".join(f"{speed[w]:9.1f}" for w in CONTESTANTS) + " " +
          ratio(speed["heddle"], speed["torch"]) + " " + ratio(speed["heddle"], speed["tcmalloc"]) + " " +
          " ".join(f"{memory[w] / 2**20:8.0f}" for w in CONTESTANTS) + " " +
          ratio(memory["heddle"], memory["torch"]) + ratio(roofline, 1) + f" {max(r['others'] for r in mine):7.3f}", flush=True)


def common_arguments(parser):
    words = lambda text: text.split(",")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    parser.add_argument("--tcmalloc", default=next(iter(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4")), ""),
                        help="the library to preload; left out where it is not installed")
    parser.add_argument("--models", type=words, default=list(MODELS))
    parser.add_argument("--precisions", type=words, default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 14, 7 and 12 for S, M and LL")
    parser.add_argument("--threads", type=int, default=2, help="of all processes together")
    parser.add_argument("--limit", type=int, default=600, help="seconds for a run")
    parser.add_argument("--json", help="write every run there, one object a line")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_arguments(parser)
    parser.add_argument("--processes", type=lambda text: [int(x) for x in text.split(",")], default=[1, 2])
    parser.add_argument("--set", nargs="*", default=[], dest="options", metavar="KEY=VALUE", help="for heddle's runs")
    parser.add_argument("--contestants", type=lambda text: text.split(","), default=list(CONTESTANTS))
    args = parser.parse_args()
    if not args.tcmalloc and "tcmalloc" in args.contestants:
        print("bench: libtcmalloc_minimal.so.4 is not installed: without it", file=sys.stderr)
        args.contestants.remove("tcmalloc")
    if "heddle" in args.contestants and not shutil.which(args.heddle):
        raise SystemExit(f"bench: {args.heddle} is not built")
    return args


def main():
    args = parse_arguments()
    runs = []
    print("                     tokens/s                    heddle to       peak MiB of a process  heddle to     of the")
    print("                torch  tcmalloc    heddle    torch tcmalloc    torch tcmalloc   heddle    torch roofline others")
    for model in args.models:
        make_tokens(MODELS[model][0])
        for precision in args.precisions:
            for processes in args.processes:
                for _ in range(args.rounds):
                    for who in args.contestants:
                        runs.append(run_one(args, who, model, precision, processes))
                        if args.json:
                            with open(args.json, "a") as file:
                                file.write(json.dumps(runs[-1]) + "\n")
                print_row(args, runs, model, precision, processes)


if __name__ == "__main__":
    main()
