#!/usr/bin/env python3
"""The exact figures and the printed examples of the pages, computed anew by `heddle explain` and `heddle check`.
usage: figures.py HEDDLE            compares; exit code 1 and a line for each that differs
       figures.py HEDDLE --write    puts today's figures into the pages

A comment in a page names what stands below it. `<!-- figures: NAME -->`: a table that a function here makes whole.
`<!-- figures: output -->`: a fenced block that begins with a command of heddle's and goes on with what that prints; a line of
dots stands for lines left out, dots at the end of a line for its rest, lines over 130 columns are wrapped, and times that were
measured ("compiled in 0.010 s") may differ."""
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
heddle = os.path.abspath(sys.argv[1])
MIB = 2 ** 20


def run(*words):
    done = subprocess.run([heddle, *words], capture_output=True, text=True, cwd=top, timeout=300)
    if done.returncode:
        sys.exit(f"figures: heddle {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout, done.stderr


def totals(*words):
    return json.loads(run("explain", *words, "--json")[0])


def arena(*words):
    return totals(*words)["totals"]["memory"]["arena_bytes"] / MIB


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"] + ["| " + " | ".join(r) + " |" for r in rows]


# ---- GPT-2 124M on 8 ranks: docs/strategies.md has the command

M8 = ["bench/jobs/m.yaml", "launch.ranks=8", "data.batch=64", "data.micro_batch=4", "data.train=none"]
GROUPS = "mesh.dp={replicate: 2, shard: 4}"  # 2 x 4
RATES = "flops=5e12,memory=3e11,link=1e10"


def step_of(words):
    """Arena in MiB, calls by operation, MB sent by axes, estimated ms and share hidden in percent."""
    job = totals(*M8, *words)
    calls = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0}
    for group in job["groups"]:
        for op in group["operations"]:
            if op["bytes"] > 8:  # the loss and the norm aside
                calls[op["op"]] += round(op["calls"])
    text = run("explain", *M8, *words, "--timeline", "--rates", RATES)[0]
    time = float(re.search(r"^step ([\d.]+) ms", text, re.M)[1])
    hidden = float(re.search(r"([\d.]+) % of it hidden", text)[1])
    return job["totals"]["memory"]["arena_bytes"] / MIB, calls, job["totals"]["sent_bytes"], time, hidden


def sent_of(by_axes):
    """MB inside groups, and with 2 x 4 also those across groups."""
    across = by_axes.get("dp_replicate", 0) / 1e6
    inside = sum(by_axes.values()) / 1e6 - across
    text = f"{inside:.0f}" if inside >= 100 else f"{inside:.1f}"
    return f"{text} + {across:.3g}" if across else text


def step_row(label, *words):
    memory, calls, sent, time, hidden = step_of(words)
    return [label, f"{memory:.0f}", *(str(n) if n else "" for n in calls.values()), sent_of(sent), f"{time:.0f}", f"{hidden:.0f}"]


def zero_options():
    alone = ["mesh.dp=8"]
    rows = [("`stage: 0`", alone), ("`stage: 1`", alone), ("`stage: 1, gather_in_forward: false`", alone), ("`stage: 2`", alone),
            ("`stage: 2, gather_in_forward: false`", alone), ("`stage: 3`", alone), ("`stage: SHARD_GRAD_OP`", alone),
            ("`stage: HYBRID_SHARD`, 2 x 4", [GROUPS]), ("`stage: 1`, 2 x 4", [GROUPS]),
            ("`stage: 3, axes: [dp_replicate, dp_shard]`, 2 x 4", [GROUPS]), ("`stage: 0, bucket: 0`", alone),
            ("`stage: 0, bucket: 100MB`", alone), ("`stage: 0, bucket: 1GB`", alone), ("`stage: 2, bucket: 1GB`", alone),
            ("`stage: 3, gather_bucket: 100MB`", alone), ("`stage: 3, prefetch: 0, prefetch_backward: 0`", alone),
            ("`stage: 3, prefetch_backward: 3`", alone), ("`stage: 3, prefetch: 3, prefetch_backward: 3`", alone),
            ("`stage: 3, prefetch: 3, prefetch_backward: 3, max_inflight: 2`", alone),
            ("`stage: 3, prefetch_size: 30000000`", alone), ("`stage: 3, persist_below: 1000`", alone),
            ("`stage: 3, max_live: 40000000`", alone), ("`stage: 3, reshard_after_forward: false, max_live: 80000000`", alone),
            ("`stage: 0, overlap: false`", alone), ("`stage: 3, overlap: false`", alone),
            ("`stage: 3`, compute bf16", alone + ["precision.compute=bf16"])]
    return table(["options", "arena, MiB", "all_reduce", "reduce_scatter", "all_gather", "sent, MB", "step, ms", "hidden, %"],
                 [step_row(label, *words, "strategies=[{use: zero, " + label.split("`")[1] + "}]") for label, words in rows])


def zero_micro():
    """One micro-batch a step: what lives shorter."""
    job = ["bench/jobs/m.yaml", "launch.ranks=2", "data.batch=8", "data.train=none"]
    return table(["stage", "0", "1", "2", "3"],
                 [["arena, MiB", *(f"{arena(*job, f'strategies=[{{use: zero, stage: {s}}}]'):.0f}" for s in range(4))]])


def offload():
    def row(options):
        job = totals(*M8, "mesh.dp=8", "strategies=[{use: zero, " + options + "}]")["totals"]
        sizes = [job["memory"][k] for k in ("persistent_bytes", "host_bytes", "file_bytes")]
        copied = [job["copied_bytes"][k] for k in ("host", "file")]
        return ["`" + options + "`", *(f"{n / MIB:.0f}" if n else "" for n in sizes + copied)]
    return table(["options, MiB", "arena, persistent", "host", "file", "copied to and from host", "and file, a step"],
                 [row("stage: 3"), row("stage: 3, offload: {optimizer: host}"),
                  row("stage: 3, offload: {optimizer: host, params: host}"),
                  row("stage: 3, offload: {optimizer: file, path: /tmp, params: host}")])


def localsgd():
    rows = [("`[{use: zero}]`", "", ["mesh.dp=8"]), ("`[{use: zero}, {use: localsgd, every: 100}]`", "", ["mesh.dp=8"]),
            ("`[{use: zero}, {use: localsgd, every: 100, momentum: 0}]`", "", ["mesh.dp=8"]),
            ("`[{use: zero, stage: 3}]`", ", 2 x 4", [GROUPS]),
            ("`[{use: zero, stage: 3}, {use: localsgd, every: 100, axes: [dp_replicate]}]`", ", 2 x 4", [GROUPS])]
    made = []
    for label, more, words in rows:
        memory, _, sent, time, _ = step_of(words + ["strategies=" + label.strip("`")])
        made.append([label + more, f"{memory:.0f}", sent_of(sent), f"{time:.0f}"])
    return table(["strategies", "arena, MiB", "sent, MB a step", "step, ms"], made)


# ---- pipelines: examples/pipeline.yaml on four stages

def pipeline():
    made = []
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"):
        strategies = f"strategies=[{{use: 3d, schedule: {schedule}}}, {{use: zero, stage: 0}}]"
        job = ["examples/pipeline.yaml", "mesh.pp=4", "launch.ranks=4", strategies]
        text = run("explain", *job, "--timeline")[0]
        first, last = totals(*job), totals(*job, "--rank", "3")
        made.append([f"`{schedule}`", f"{float(re.search(r'^step ([0-9.]+) ms', text, re.M)[1]):.1f}",
                     f"{float(re.search(r'idle ([0-9.]+) % of the work', text)[1]):.1f}",
                     f"{first['totals']['sent_bytes']['pp'] / MIB:.0f}",
                     *(f"{j['totals']['memory']['arena_bytes'] / MIB:.1f}" for j in (first, last))])
    return table(["`schedule`", "step, ms", "bubble over ideal, %", "stage 0 sends, MiB", "arena of stage 0, MiB", "of stage 3"], made)


# ---- recomputation, exact sums

def recompute():
    jobs = [[f"bench/jobs/{name}.yaml", "data.batch=8", "data.micro_batch=4", "data.train=none", "precision.compute=bf16"]
            for name in ("m", "ll")]
    made = []
    for setting in ("none", "selective", "full", "{every: 4}"):
        row = [f"`{setting}`"]
        for job in jobs:
            t = totals(*job, f"recompute={setting}", "--section", "micro_last")["totals"]
            row += [f"{t['memory']['temporary_bytes'] / MIB:.1f}", f"{t['flops']:.3e}".replace("e+", "e")]
        made.append(row)
    return table(["`recompute`", "M: temporary, MiB", "M: FLOPs", "LL: temporary, MiB", "LL: FLOPs"], made)


def exact():
    job = ["bench/jobs/m.yaml", "data.micro_batch=1", "data.train=none"]
    return table(["`job.deterministic`", "`normal`", "`exact`"],
                 [["arena, GiB", *(f"{arena(*job, f'job.deterministic={d}') / 1024:.1f}" for d in ("normal", "exact"))]])


def published():
    """Times of steps beside published ones, of pipelines that compile at once. Those machines' programs have the fusions
    of device-cuda: None where it was not built."""
    if not any(p["kind"] == "device" and p["name"] == "cuda" and p["path"] for p in json.loads(run("plugins", "--json")[0])["plugins"]):
        return None
    return subprocess.run([sys.executable, os.path.join(top, "bench/plan/published.py"), heddle, "--quick", "--table"], capture_output=True,
                          text=True, timeout=300).stdout.splitlines()


TABLES = {"published": published, "zero-options": zero_options, "zero-micro": zero_micro, "offload": offload, "localsgd": localsgd, "pipeline": pipeline,
          "recompute": recompute, "exact": exact}


# ---- the pages

def printed(block):
    """How many lines the command of a block takes, and what it prints now."""
    end = 0
    while block[end].endswith("\\"):
        end += 1
    words = shlex.split(" ".join(row.strip().rstrip("\\") for row in block[:end + 1]).removeprefix("$ "))
    out, err = run(*words[1:])
    rows = (err + out).rstrip("\n").split("\n")
    return end + 1, [r for row in rows for r in (textwrap.wrap(row, 112, subsequent_indent="  ") if len(row) > 130 else [row])]


def like(row):
    return re.sub(r"(compiled|proved) in [\d.]+ s", r"\1 in T s", row.rstrip())


def agrees(shown, now):
    """Lines of a block against those printed; dots (a line of them, or the end of a line) stand for anything."""
    at = 0
    for k, row in enumerate(shown):
        dots = row.strip() == "..."
        if dots:
            continue
        wanted = like(row)
        fits = (lambda r: like(r).startswith(wanted[:-3])) if wanted.endswith("...") else (lambda r: like(r) == wanted)
        skips = k > 0 and shown[k - 1].strip() == "..."
        while at < len(now) and skips and not fits(now[at]):
            at += 1
        if at >= len(now) or not fits(now[at]):
            return row
        at += 1
    return None if at == len(now) or shown[-1].strip() == "..." else "(the end: more is printed)"


def check(page, write):
    """Faults of a page, the names of its figures, and its rows with today's."""
    rows, out, faults, names, k = open(os.path.join(top, page), encoding="utf-8").read().split("\n"), [], [], [], 0
    while k < len(rows):
        out.append(rows[k])
        mark = re.fullmatch(r"<!-- figures: ([a-z0-9-]+) -->", rows[k])
        k += 1
        if not mark:
            continue
        names.append(mark[1])
        while not rows[k].strip():
            out.append(rows[k])
            k += 1
        end = k
        if mark[1] == "output":
            out.append(rows[k])
            k = end = k + 1
            while rows[end] != "```":
                end += 1
            n, now = printed(rows[k:end])
            wrong = agrees(rows[k + n:end], now)
            whole = not any(r.strip() == "..." or r.endswith("...") for r in rows[k:end])
            today = rows[k:k + n] + now if wrong and whole else rows[k:end]
            if wrong and not (write and whole):
                faults.append(f"{page}:{k + 1}: is printed otherwise now: {wrong.strip()}")
        else:
            while end < len(rows) and rows[end].startswith("|"):
                end += 1
            today = TABLES[mark[1]]() or rows[k:end]
            if not write:
                shown = rows[k:end] + [""] * (len(today) - (end - k))
                faults += [f"{page}:{k + 1 + n}: the page has {a!r}, heddle {b!r}" for n, (a, b) in enumerate(zip(shown, today)) if a != b]
                faults += [f"{page}:{end}: a row too many"] if end - k > len(today) else []
        out += today
        k = end
    return faults, names, out


def main():
    write = "--write" in sys.argv[2:]
    faults, names = [], []
    for page in ("README.md", "docs/glossary.md", "docs/strategies.md", "docs/transports.md", "docs/running.md", "docs/planning.md"):
        found, n, rows = check(page, write)
        faults, names = faults + found, names + n
        if write:
            with open(os.path.join(top, page), "w", encoding="utf-8") as f:
                f.write("\n".join(rows))
    faults += [f"figures: no page has the table {name}" for name in TABLES if name not in names]
    faults += [] if "output" in names else ["figures: no page has a printed example"]
    print(f"{len(names)} tables and printed examples, {len(faults)} differ")
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
