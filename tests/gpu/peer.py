#!/usr/bin/env python3
"""The peer of tests/gpu/bench: the models of bench/peer_torch.py on one GPU, compiled, bf16, fused AdamW. Prints one JSON line.

With --ceilings instead: the best matrix product and copy that torch reaches here, for the shapes that matter.
"""
import argparse
import json
import pathlib
import sys
import time

import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
import peer_torch  # noqa: E402

# layers, hidden, heads, kv_heads, ffn, vocab, context, batch
MODELS = {
    "gpt2-124m": ("gpt2", 12, 768, 12, 12, 3072, 50304, 1024, 32),
    "gpt2-1.5b": ("gpt2", 48, 1600, 25, 25, 6400, 50304, 1024, 16),
    "llama-1b": ("llama", 16, 2048, 32, 8, 8192, 32000, 4096, 4),
}
peer_torch.MODELS.update(MODELS)


def timed(run, rounds=10):
    """Milliseconds of a run: the median."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def ceilings():
    result = {}
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        result[f"matmul {n} bf16, TFLOP/s"] = 2 * n**3 / timed(lambda: a @ b) / 1e9
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    result["copy, GB/s read and written"] = 2 * 4 * x.numel() / timed(lambda: y.copy_(x)) / 1e6
    q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    result["attention forward 4x16x4096x128 causal, TFLOP/s"] = 2 * 4 * 16 * 4096**2 * 128 / timed(attend) / 1e9
    return result


def train(args):
    family, *shape, vocab, context, batch = MODELS[args.model]
    batch = args.batch or batch
    model = peer_torch.make_model(args.model).cuda()
    net = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.set_float32_matmul_precision("high")
    data = torch.randint(0, vocab, (4, batch, context + 1), generator=torch.Generator().manual_seed(0)).cuda()
    losses, seconds = [], []
    for step in range(args.steps):
        tokens = data[step % 4]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(tokens[:, :-1])
            loss = F.cross_entropy(logits.view(-1, vocab).float(), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return dict(losses=losses, seconds=seconds, bytes=torch.cuda.max_memory_reserved(), torch=torch.__version__)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="gpt2-124m")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ceilings", action="store_true")
    args = parser.parse_args()
    print(json.dumps(ceilings() if args.ceilings else train(args)), flush=True)


if __name__ == "__main__":
    main()
