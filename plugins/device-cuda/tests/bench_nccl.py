#!/usr/bin/env python3
"""heddle bench --comm nccl beside shm: every operation on the emulator's memory, every result right.

    bench_nccl.py HEDDLE FOLDER LIBRARY      FOLDER: of the emulated device and its libcuda.so.1

Not sendrecv: the emulator runs its streams one after another, and messages of two directions wait for each other there."""
import json
import os
import subprocess
import sys

HEDDLE, FOLDER, LIBRARY = map(os.path.abspath, sys.argv[1:4])
NCCL = f"nccl:library={LIBRARY}"
OPS = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all"


def bench(*words, code=0):
    done = subprocess.run([HEDDLE, "bench", "-n", "4", "-w", "1", *words], capture_output=True, text=True, timeout=110,
                          env={**os.environ, "HEDDLE_PLUGIN_PATH": FOLDER})
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done


def refused(says, *words):
    done = bench(*words, code=2)
    assert says in done.stderr, (says, done.stderr)


rows = json.loads(bench("--comm", f"shm,{NCCL}", "--device", "cuda-emulated", "--op", OPS, "-b", "64", "-e", "64K", "-f", "32", "--json").stdout)["rows"]
for comm, memory in (("shm", "host"), (NCCL, "cuda-emulated")):
    mine = [row for row in rows if row["comm"] == comm]
    assert {row["op"] for row in mine} == set(OPS.split(",")), mine
    assert {row["bytes"] for row in mine} >= {64, 2048, 65536}
    assert {row["in_place"] for row in mine} == {True, False}
    assert all(row["memory"] == memory and row["errors"] == 0 and row["time_us"] > 0 for row in mine), mine
three = json.loads(bench("--comm", NCCL, "--device", "cuda-emulated", "--ranks", "3", "-d", "bf16", "-b", "100", "-e", "1K", "--json").stdout)["rows"]
assert three and not any(row["errors"] for row in three), three
bench("--comm", NCCL, "--device", "cuda-emulated", "--op", "barrier")
refused("nccl moves the memory of a device with streams, which cpu is not: --device cuda", "--comm", NCCL, "--device", "cpu")
refused("no --overlap with it", "--comm", NCCL, "--device", "cuda-emulated", "--overlap")
refused("no --tune with it", "--comm", NCCL, "--device", "cuda-emulated", "--tune", os.devnull)
refused("--device wants --peak, --overlap, or a transport of a device's memory", "--device", "cuda-emulated")
missing = bench("--comm", "nccl:library=/nowhere.so", "--device", "cuda-emulated", code=1)
assert "/nowhere.so" in missing.stderr and "install NCCL" in missing.stderr, missing.stderr
