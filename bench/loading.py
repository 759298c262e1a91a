#!/usr/bin/env python3
"""Loading weights beside the disk: a Hugging Face folder of safetensors read by dd, and loaded by heddle, in turn.

    bench/loading.py --folder FOLDER          # on the disk to measure; 10 GB there, 11 GB of memory
    bench/loading.py --gigabytes 2 --rounds 5

The folder's files are dropped from the page cache before each turn (posix_fadvise). heddle is `heddle eval` of one
short sequence, which loads a Llama of that size in fp32 and computes little; its time is that of the whole command
less that of one with as little to compute from files in the page cache, where that reads memory instead of the disk.
Printed are medians: the disk's rate by dd, the rate of the cold command, their ratio, and the peak resident memory of
the command over the bytes of the files. Nothing else may use the disk meanwhile.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[1]
HIDDEN, FFN, HEADS, VOCAB, SHARD = 2560, 6912, 20, 256, 4
JOB = """job: {{name: loading, steps: 1}}
model: {{use: transformer, from: {0}/model}}
data: {{train: {0}/tokens.bin, val: {0}/tokens.bin, format: nanogpt, seq_len: 16, batch: 1}}
optimizer: {{use: sgd, lr: 0.1}}
eval: {{every: 1, batches: 1}}
"""


def shapes(layers):
    """Names and shapes of Hugging Face's Llama, a list a layer."""
    yield [("model.embed_tokens.weight", (VOCAB, HIDDEN)), ("model.norm.weight", (HIDDEN,)),
           ("lm_head.weight", (VOCAB, HIDDEN))]
    for i in range(layers):
        at = f"model.layers.{i}."
        yield [(at + f"self_attn.{x}_proj.weight", (HIDDEN, HIDDEN)) for x in "qkvo"] + \
              [(at + f"mlp.{x}_proj.weight", (HIDDEN, FFN) if x == "down" else (FFN, HIDDEN))
               for x in ("gate", "up", "down")] + \
              [(at + f"{x}_layernorm.weight", (HIDDEN,)) for x in ("input", "post_attention")]


def write_model(folder, layers):
    """A shard for every few layers; numbers of the size of trained weights. Returns the files and their bytes."""
    folder.mkdir()
    draw, index, files = random.Random(1), {}, []
    block = b"".join(struct.pack("f", draw.uniform(-0.05, 0.05)) for _ in range(1 << 18))
    parts = list(shapes(layers))
    for n in range(0, len(parts), SHARD):
        name, at, header = f"model-{n:05}.safetensors", 0, {}
        for tensor, shape in (t for part in parts[n:n + SHARD] for t in part):
            bytes_ = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes_]}
            index[tensor] = name
            at += bytes_
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for left in range(at, 0, -len(block)):
                f.write(block[:min(left, len(block))])
            os.fsync(f.fileno())
        files.append(folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
         "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCAB,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu"}))
    return files, sum(f.stat().st_size for f in files)


def drop(files):
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def run(words, folder):
    """Seconds and the peak resident bytes of a command."""
    began = time.monotonic()
    child = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    why = child.stderr.read()
    status, used = os.wait4(child.pid, 0)[1:]
    if status:
        sys.exit(f"loading.py: {' '.join(words)}: {why}")
    return time.monotonic() - began, used.ru_maxrss * 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--heddle", default=str(TOP / "build" / "heddle"))
    p.add_argument("--folder", help="on the disk to measure (the system's for temporary files)")
    p.add_argument("--gigabytes", type=float, default=10)
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    layers = max(1, round(args.gigabytes * 1e9 / (4 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN))))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = pathlib.Path(name)
        files, size = write_model(folder / "model", layers)
        (folder / "tokens.bin").write_bytes(bytes(2 * 1000))
        (folder / "job.yaml").write_text(JOB.format(folder))
        evaluate = [args.heddle, "eval", str(folder / "job.yaml")]
        disk, cold, warm, memory = [], [], [], []
        for _ in range(args.rounds):
            drop(files)
            began = time.monotonic()
            for path in files:
                run(["dd", f"if={path}", "of=/dev/null", "bs=4M"], folder)
            disk.append(size / (time.monotonic() - began))
            drop(files)
            seconds, peak = run(evaluate, folder)
            cold.append(size / seconds)
            memory.append(peak / size)
            seconds, peak = run(evaluate, folder)
            warm.append(size / seconds)
            print(f"dd {disk[-1] / 1e9:.2f} GB/s, cold {cold[-1] / 1e9:.2f}, in the page cache {warm[-1] / 1e9:.2f}, "
                  f"memory {memory[-1]:.3f}", file=sys.stderr, flush=True)
        middle = statistics.median
        print(f"{size / 1e9:.1f} GB: disk by dd {middle(disk) / 1e9:.2f} GB/s; loaded {middle(cold) / 1e9:.2f} GB/s, "
              f"{middle(a / b for a, b in zip(cold, disk)):.2f} of the disk; in the page cache {middle(warm) / 1e9:.2f} "
              f"GB/s; memory {middle(memory):.3f} of the files")


if __name__ == "__main__":
    main()
