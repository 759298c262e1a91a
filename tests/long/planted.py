#!/usr/bin/env python3
"""Plants the faults of planted_faults.py into a copy of the source, one at a time, builds it, and runs `heddle check` and
`heddle check --numerics` of its jobs. Run by hand: it rebuilds some 70 times (an hour on two cores); neither CI nor
./run-tests --long has it.

    tests/long/planted.py [--copy DIR] [NAME...]     # these faults, or all; DIR keeps the copy, default build/planted
    tests/long/planted.py --jobs DIR                 # writes the jobs into DIR
    tests/long/planted.py --texts                    # only whether each can still be planted

A fault is found where a job fails; all pass without one. The last lines name the faults that neither finds,
and those that the table of planted_faults.py says otherwise of: with any the exit code is 1.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import planted_faults as table

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PLUGINS = "model-transformer optim-adamw optim-sgd strategy-zero strategy-3d strategy-localsgd strategy-ema device-cpu comm-shm data-tokens"


def write_jobs(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(table.BASE)
    for line in table.JOBS.splitlines():
        name, *overrides = line.split("  ")
        (folder / f"{name}.args").write_text("\n".join(overrides) + "\n")


def mirror(copy):
    """The tracked files of this tree. Only what differs is written, so that little is built again."""
    for name in subprocess.run(["git", "-C", TOP, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0"):
        source, target = TOP / name, copy / name
        if not name or not source.is_file():
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)


def build(copy):
    """What was said, where it does not build."""
    folder = copy / "build"
    if not (folder / "build.ninja").exists():
        subprocess.run(["meson", "setup", folder, copy, "-Dtests=disabled"], check=True, capture_output=True)
    targets = ["heddle"] + [f"plugins/{p}/heddle-{p}.so" for p in PLUGINS.split()]
    done = subprocess.run(["ninja", "-C", folder, *targets], capture_output=True, text=True)
    return done.stdout[-800:] if done.returncode else ""


def check(copy, jobs, job, numerics):
    """Exit code."""
    overrides = (jobs / f"{job}.args").read_text().splitlines()
    run = [copy / "build/heddle", "check", jobs / "base.yaml", *overrides] + ["--numerics"] * numerics
    try:
        return subprocess.run(run, capture_output=True, timeout=600).returncode
    except subprocess.TimeoutExpired:
        return "timeout"


def battery(copy, jobs, numerics):
    """The jobs that fail."""
    names = [line.split("  ")[0] for line in table.JOBS.splitlines()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [n for n, code in zip(names, pool.map(lambda job: check(copy, jobs, job, numerics), names)) if code]


def wanted(name):
    return "check" if name in table.CHECK else "numerics" if name in table.NUMERICS else "neither"


def edited(name, text):
    path, edits, _ = table.FAULTS[name]
    for old, new in edits:
        if text.count(old) != 1:
            sys.exit(f"planted_faults.py: {name}: its text stands {text.count(old)} times in {path}: {old!r}")
        text = text.replace(old, new)
    return text


def plant(copy, jobs, name):
    """Which finds it: `check`, `numerics` (that is, only with --numerics) or `neither`."""
    path, edits, what = table.FAULTS[name]
    file = copy / path
    before = file.read_text()
    file.write_text(edited(name, before))
    try:
        said = build(copy)
        if said:
            return "does not build:\n" + said
        found = [battery(copy, jobs, n) for n in (0, 1)]
    finally:
        file.write_text(before)
    by = "check" if found[0] else "numerics" if found[1] else "neither"
    print(f"{name:22} {by:8} check {len(found[0]):2}, numerics {len(found[1]):2} of {len(table.JOBS.splitlines())} jobs: {what}", flush=True)
    return by


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", type=pathlib.Path, default=TOP / "build/planted")
    parser.add_argument("--jobs", type=pathlib.Path)
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.jobs:
        return write_jobs(args.jobs)
    if args.texts:
        for name, (path, _, _) in table.FAULTS.items():
            edited(name, (TOP / path).read_text())
        return 0
    unknown = [n for n in args.names if n not in table.FAULTS]
    if unknown:
        sys.exit(f"no fault is called {', '.join(unknown)}")
    copy, jobs = args.copy.resolve(), args.copy.resolve() / "jobs"
    mirror(copy)
    write_jobs(jobs)
    said = build(copy)
    if said:
        sys.exit(said)
    failed = battery(copy, jobs, 1)
    if failed:
        sys.exit(f"without a fault these jobs fail: {', '.join(failed)}")
    found = {n: plant(copy, jobs, n) for n in args.names or table.FAULTS}
    print("found by neither:", *[n for n, by in found.items() if by == "neither"])
    other = [f"{n}: {by}; the table says {wanted(n)}" for n, by in found.items() if by != wanted(n)]
    print("\n".join(other) if other else f"{len(found)} faults: as in the table")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
