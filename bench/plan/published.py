#!/usr/bin/env python3
"""`heddle plan` beside published times of steps (published.csv): what it predicts, and how far off it is.

    published.py [HEDDLE]        default: build/heddle
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HEDDLE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "build" / "heddle").resolve()
JOB = """job: {{name: published, steps: 1}}
model: {{use: transformer, family: gpt2, layers: {layers}, hidden: {hidden}, heads: {heads}, vocab: {vocab}, max_seq_len: {sequence}}}
data: {{train: none, seq_len: {sequence}, batch: {batch}, micro_batch: {micro_batch}}}
mesh: {{tp: {tp}, pp: {pp}, dp: {dp}}}
precision: {{compute: {dtype}}}
optimizer: {{use: adamw, lr: 1e-4}}
recompute: {recompute}
strategies: [{{use: 3d{schedule}}}, {{use: zero, stage: {zero}}}]
"""


def plan(row, folder):
    schedule = f", schedule: interleaved, virtual: {row['virtual']}" if int(row["virtual"]) > 1 else ""
    (folder / "job.yaml").write_text(JOB.format(schedule=schedule, **row))
    done = subprocess.run([HEDDLE, "plan", "job.yaml", "--machine", row["machine"], "--json"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{row['source']} {row['model']}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    errors = {}
    rows = csv.DictReader(line for line in (HERE / "published.csv").read_text().splitlines() if not line.startswith("#"))
    print(f"{'':12} {'':8} {'recompute':10} {'ranks':>6} {'published':>10} {'planned':>9} {'error':>8} {'bubble':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            p, seconds = plan(row, pathlib.Path(folder)), float(row["seconds"])
            error = p["step_s"] / seconds - 1
            errors.setdefault(row["source"], []).append(error)
            print(f"{row['source']:12} {row['model']:8} {row['recompute']:10} {p['ranks']:6} {seconds:8.2f} s {p['step_s']:7.2f} s "
                  f"{100 * error:+7.1f}% {100 * p['bubble']:6.1f}%")
    for source, all_of in errors.items():
        print(f"{source}: mean error {100 * sum(map(abs, all_of)) / len(all_of):.1f} %, largest {100 * max(map(abs, all_of)):.1f} %")


main()
