#!/usr/bin/env python3
"""examples/plans: each job still needs the memory, to the byte, and has the bubble that its first lines say.

    plans.py HEDDLE [--all]      without --all: those that say "quick"; the others take a minute or more"""
import json
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "plans"
EXPECTED = re.compile(r"^# expected on (\S+)( \(quick\))?: ([\d,]+) bytes a rank, a bubble of ([\d.]+) %$", re.M)
failed = planned = 0
for job in sorted(FOLDER.glob("*.yaml")):
    said = EXPECTED.search(job.read_text())
    if not said:
        sys.exit(f"{job}: no line '# expected on MACHINE: N bytes a rank, a bubble of B %'")
    if not said[2] and "--all" not in sys.argv:
        continue
    done = subprocess.run([sys.argv[1], "plan", job, "--machine", said[1], "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{job}: {done.stderr}")
    p = json.loads(done.stdout)
    peak, bubble, planned = p["memory"]["peak"], f"{100 * p['bubble']:.1f}", planned + 1
    if peak != int(said[3].replace(",", "")) or bubble != said[4] or not p["fits"]:
        failed += 1
        print(f"FAILED {job}: {peak:,} bytes a rank, a bubble of {bubble} %")
print(f"{planned} planned, {failed} failed")
sys.exit(failed > 0 or not planned)
