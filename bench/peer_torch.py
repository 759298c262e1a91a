#!/usr/bin/env python3
"""The peer of bench/train.py: the same three models in PyTorch as a user would write them, trained on random tokens.

One process, or one rank of torchrun's variables (DistributedDataParallel over Gloo). Rank 0 prints one JSON line:
parameters, losses and seconds of every step.
"""
import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

# layers, hidden, heads, kv_heads, ffn, vocab, context, batch of one process
MODELS = {
    "S": ("gpt2", 6, 384, 6, 6, 1536, 256, 256, 8),
    "M": ("gpt2", 12, 768, 12, 12, 3072, 50304, 256, 4),
    "LL": ("llama", 8, 512, 8, 4, 1408, 32000, 256, 4),
}


def attend(q, k, v, heads, kv_heads, turn=None):
    """Causal attention over [batch, seq, heads * head_dim]."""
    batch, seq, width = q.shape
    q, k, v = (x.view(batch, seq, n, width // heads).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    if turn is not None:
        q, k = turn(q).to(v.dtype), turn(k).to(v.dtype)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
    return y.transpose(1, 2).reshape(batch, seq, width)


class GPT2Layer(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(attend(q, k, v, self.heads, self.heads))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, hidden, heads, _, ffn, vocab, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.layers = nn.ModuleList(GPT2Layer(hidden, heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        kv = hidden // heads * kv_heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.q, self.k, self.v, self.out = linear(hidden, hidden), linear(hidden, kv), linear(hidden, kv), linear(hidden, hidden)
        self.gate, self.up, self.down = linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)

    def forward(self, x, turn):
        y = self.norm1(x)
        x = x + self.out(attend(self.q(y), self.k(y), self.v(y), self.heads, self.kv_heads, turn))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers, hidden, heads, kv_heads, ffn, vocab, context):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaLayer(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden, eps=1e-5), nn.Linear(hidden, vocab, bias=False)
        d = hidden // heads
        angles = torch.outer(torch.arange(context).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turn(self, x):
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, self.turn)
        return self.head(self.norm(x))


def make_model(name):
    family, *shape, _ = MODELS[name]
    torch.manual_seed(1337)
    model = {"gpt2": GPT2, "llama": Llama}[family](*shape)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="S")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    *_, vocab, context, batch = MODELS[args.model]

    model = net = make_model(args.model)
    if world > 1:
        dist.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if args.precision == "bf16" else contextlib.nullcontext()
    data = torch.randint(0, vocab, (16, batch, context + 1), generator=torch.Generator().manual_seed(rank))

    losses, seconds = [], []
    for step in range(args.steps):
        tokens = data[step % 16]
        begin = time.perf_counter()
        with cast:
            logits = net(tokens[:, :-1])
            loss = F.cross_entropy(logits.view(-1, vocab).float(), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(dict(parameters=sum(p.numel() for p in model.parameters()), losses=losses, seconds=seconds,
                              torch=torch.__version__)), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
