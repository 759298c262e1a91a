#!/usr/bin/env python3
"""The models of examples/plugin-template on meshes: proved, computed in fp64 as on one rank, and trained by processes to
the losses and gradient norms of torch (tests/golden/data/NAME), then exported as what transformers wrote.

    models.py BUILD NAME
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

BUILD, NAME = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data" / NAME
MODELS = {
    "neox": "use: neox, layers: 2, hidden: 32, heads: 4, ffn: 40, vocab: 32, rotary: 0.5",
    "encoder": "use: encoder, layers: 2, hidden: 16, heads: 4, ffn: 24, vocab: 32, positions: 12",
}
MESHES = {
    "dp 2": ["mesh.dp=2"],
    "tp 2": ["mesh.tp=2"],
    "zero 3": ["mesh.dp=4", "strategies=[{use: 3d}, {use: zero, stage: 3}]"],
    "pp 2": ["mesh.pp=2"],
    "ring": ["mesh.cp=2", "strategies=[{use: 3d, context: ring}, {use: zero}]"],
    "ulysses": ["mesh.cp=2", "strategies=[{use: 3d, context: ulysses}, {use: zero}]"],
    "tp 2, pp 2": ["mesh.tp=2", "mesh.pp=2"],
    "dp 2, cp 2": ["mesh.dp=2", "mesh.cp=2"],
}
FOUR = ["zero 3", "tp 2, pp 2", "dp 2, cp 2"]
TRAINED = ["", "dp 2", *FOUR]


def tensors(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    rows = json.loads(data[8:end])
    rows.pop("__metadata__", None)
    return {name: (r["dtype"], r["shape"], data[end + r["data_offsets"][0]:end + r["data_offsets"][1]])
            for name, r in rows.items()}


def write_npy(path, tensor):
    dtype, shape, data = tensor
    assert dtype == "I32"
    head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() + data)


def heddle(*arguments, cwd=None):
    environment = dict(os.environ, HEDDLE_PLUGIN_PATH=str(BUILD / "tests/plugins"))
    done = subprocess.run([BUILD / "heddle", *arguments], capture_output=True, text=True, env=environment, cwd=cwd)
    if done.returncode:
        sys.exit(f"heddle {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def refused(says, *arguments):
    environment = dict(os.environ, HEDDLE_PLUGIN_PATH=str(BUILD / "tests/plugins"))
    done = subprocess.run([BUILD / "heddle", *arguments], capture_output=True, text=True, env=environment)
    if not done.returncode or says not in done.stderr:
        sys.exit(f"{NAME}: ended with {done.returncode}, not with '{says}': {done.stderr[-500:]}")


def near(what, got, want, tolerance):
    if not abs(got - want) <= tolerance * abs(want):
        sys.exit(f"{NAME}, {what}: {got:.9g}, torch {want:.9g}")


def run(folder, job, mesh, *overrides):
    ranks = 4 if mesh in FOUR else 2 if mesh else 1
    shutil.rmtree(folder / "ckpt", ignore_errors=True)
    heddle("train", job, *MESHES.get(mesh, []), f"launch.ranks={ranks}", *overrides, cwd=folder)


def export(folder, job, mesh):
    """After a step that changes nothing the weights are those that transformers wrote, by name, shape and bit."""
    still = ["job.steps=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0"]
    run(folder, job, mesh, *still)
    heddle("ckpt", "export", job, *MESHES[mesh], *still, "--to", folder / "exported", cwd=folder)
    theirs, ours = tensors(GOLDEN / "model.safetensors"), tensors(folder / "exported/model.safetensors")
    if theirs != ours:
        wrong = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
        sys.exit(f"{NAME}: exported and transformers' tensors differ: {wrong}")


def train(folder, job, mesh, wanted, *overrides):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    run(folder, job, mesh, f"metrics.jsonl={metrics}", *overrides)
    rows = [r for r in map(json.loads, metrics.read_text().splitlines()) if "loss" in r and "grad_norm" in r]
    if len(rows) != wanted["steps"]:
        sys.exit(f"{NAME}, {mesh}: {len(rows)} steps instead of {wanted['steps']}")
    for k, row in enumerate(rows):
        tolerance = 1e-4 if k else 1e-5
        near(f"{mesh or 'one rank'}, loss of step {k + 1}", row["loss"], wanted["losses"][k], tolerance)
        near(f"{mesh or 'one rank'}, gradient norm of step {k + 1}", row["grad_norm"], wanted["grad_norms"][k], tolerance)


def main():
    wanted = json.loads((GOLDEN / "expected.json").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chdir(folder)  # the other model's test has a run of this name too
        expected = tensors(GOLDEN / "expected.safetensors")
        for array in ("ids", "labels"):
            write_npy(folder / f"{array}.npy", expected[array])
        job = folder / "job.yaml"
        job.write_text(f"job: {{name: models, steps: {wanted['steps']}}}\n"
                       f"model: {{{MODELS[NAME]}, from: {GOLDEN}}}\n"
                       f"data: {{use: pairs, train: {folder}, seq_len: {wanted['seq']}, batch: {wanted['batch']}, "
                       f"micro_batch: 1, shuffle: false}}\n"
                       f"strategies: [{{use: 3d}}, {{use: zero}}]\n"
                       f"device: {{use: cpu, threads: 1}}\ncomm: {{use: shm}}\nmetrics: {{every: 1}}\n"
                       f"optimizer: {{use: adamw, lr: {wanted['lr']}, betas: {wanted['betas']}, eps: {wanted['eps']}, "
                       f"weight_decay: {wanted['weight_decay']}, clip: {wanted['clip']}}}\n"
                       f"checkpoint: {{dir: {folder / 'ckpt'}}}\n")
        for mesh in MESHES.values():
            heddle("check", "--numerics", job, *mesh)
        for mesh in TRAINED:
            train(folder, job, mesh, wanted)
        export(folder, job, "tp 2, pp 2")
        shape = expected["labels"][1]
        labels = {label: ("I32", shape, struct.pack("<i", label) * (shape[0] * shape[1] * shape[2])) for label in (-100, 32)}
        write_npy(folder / "labels.npy", labels[32])
        refused("the label of token 0 is 32, outside", "train", job, f"checkpoint.dir={folder / 'none'}")
        write_npy(folder / "labels.npy", labels[-100])
        none = dict(steps=2, losses=[0, 0], grad_norms=[0, 0])  # PyTorch's mean over no label is NaN; a sum over none is 0
        train(folder, job, "dp 2", none, "job.steps=2")
        refused("none of the labels of 1 batches counts", "eval", job, "data.val_fraction=0.5", "eval.batches=1",
                f"checkpoint.dir={folder / 'none'}")
    print(f"{NAME}: proved on {len(MESHES)} meshes, trained on {len(TRAINED)}")


main()
