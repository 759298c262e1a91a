#!/usr/bin/env python3
"""Compressed gradients with error feedback, in torch: tests/golden/data/compress.json.

    python3 tests/golden/compress.py        needs torch, transformers; made with the versions in compress.json

Ranks train the model of data/llama on the tokens of data/localsgd, each on its part of every batch, with torch.optim.SGD. Computed in fp64; what travels is rounded as the strategies of
tests/plugins round it:

onebit      signs and the mean magnitude of each member's part (1-bit Adam, arXiv 2102.02888, section 3): all_to_all, then with stage 0 the sums once more, with an error of their own
topk        the k largest elements of g + e (Aji and Heafield, arXiv 1704.05021)

A bucket has the parameters in the reverse order of the model, each at a multiple of 16 elements; with stage 1 it is padded to a multiple of 16 elements a rank. Padding does not count.
"""
import json
import pathlib

import numpy
import torch
import transformers

DATA = pathlib.Path(__file__).resolve().parent / "data"
STEPS, BATCH, SEQ, KEEP, LR, MOMENTUM = 20, 4, 8, 0.05, 0.1, 0.5
LAYER = ["mlp.down_proj", "mlp.up_proj", "mlp.gate_proj", "post_attention_layernorm", "self_attn.o_proj", "self_attn.v_proj",
         "self_attn.k_proj", "self_attn.q_proj", "input_layernorm"]


def bucket_names(model):
    layers = [f"model.layers.{n}.{w}.weight" for n in reversed(range(model.config.num_hidden_layers)) for w in LAYER]
    return ["lm_head.weight", "model.norm.weight", *layers, "model.embed_tokens.weight"]


class Bucket:
    def __init__(self, model, ranks, stage):
        named, at = dict(model.named_parameters()), 0
        self.places = []
        for name in bucket_names(model):
            self.places.append((named[name], at))
            at = (at + named[name].numel() + 15) // 16 * 16
        assert len(self.places) == len(named)
        self.count = at if stage == 0 else (at + 16 * ranks - 1) // (16 * ranks) * 16 * ranks
        self.used = torch.zeros(self.count, dtype=torch.bool)
        for p, first in self.places:
            self.used[first:first + p.numel()] = True

    def gradient(self):
        flat = torch.zeros(self.count, dtype=torch.float64)
        for p, first in self.places:
            flat[first:first + p.numel()] = p.grad.flatten()
        return flat

    def put(self, flat):
        for p, first in self.places:
            p.grad = flat[first:first + p.numel()].view_as(p).clone()


def signs(x, used):
    """What a part's codes stand for."""
    n = used.sum().item()
    scale = (x.abs().sum() / n).float().double() if n else 0.0
    return torch.where(x < 0, -scale, scale) * used


def onebit(bucket, ranks, stage):
    parts = [range(bucket.count)[k:k + -(-bucket.count // ranks)] for k in range(0, bucket.count, -(-bucket.count // ranks))]
    parts = [slice(p.start, p.stop) for p in parts]
    errors, sum_error = [torch.zeros(bucket.count, dtype=torch.float64) for _ in range(ranks)], torch.zeros(bucket.count, dtype=torch.float64)

    def reduce(gradients):
        total = torch.zeros(bucket.count, dtype=torch.float64)
        for e, g in zip(errors, gradients):
            for p in parts:
                x = g[p] + e[p]
                sent = signs(x, bucket.used[p])
                e[p] = x - sent
                total[p] += sent
        if stage == 0:
            for p in parts:
                x = total[p] + sum_error[p]
                total[p] = signs(x, bucket.used[p])
                sum_error[p] = x - total[p]
        return total

    return reduce


def topk(bucket, ranks, stage):
    errors, k = [torch.zeros(bucket.count, dtype=torch.float64) for _ in range(ranks)], int(bucket.count * KEEP)

    def reduce(gradients):
        total = torch.zeros(bucket.count, dtype=torch.float64)
        for e, g in zip(errors, gradients):
            e += g
            chosen = torch.topk(e.abs(), k).indices
            total[chosen] += e[chosen]
            e[chosen] = 0
        return total

    return reduce


def train(ids, labels, ranks, stage, method):
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "llama", dtype=torch.float64, attn_implementation="sdpa").eval()
    optimizer, losses, part = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), [], BATCH // ranks
    bucket = Bucket(model, ranks, stage)
    reduce = method(bucket, ranks, stage) if method else sum
    for step in range(STEPS):
        gradients, loss = [], 0.0
        for r in range(ranks):
            optimizer.zero_grad(set_to_none=True)
            rows = slice(r * part, (r + 1) * part)
            logits = model(input_ids=ids[step, rows], use_cache=False).logits
            mine = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[step, rows].reshape(-1)) / ranks
            mine.backward()
            gradients.append(bucket.gradient())
            loss += mine.item()
        losses.append(loss)
        bucket.put(reduce(gradients))
        optimizer.step()
    return losses


def main():
    tokens = torch.from_numpy(numpy.load(DATA / "localsgd" / "tokens.npy").astype("int64"))
    ids, labels = (t.reshape(STEPS, BATCH, SEQ) for t in (tokens[:-1], tokens[1:]))
    whole = train(ids, labels, 1, 0, None)
    runs = []
    for method in (onebit, topk):
        for ranks in (2, 4):
            for stage in (0, 1):
                losses = train(ids, labels, ranks, stage, method)
                runs.append(dict(method=method.__name__, ranks=ranks, stage=stage, losses=losses))
                print(f"{method.__name__} {ranks} ranks, stage {stage}: {losses[0]:.4f} -> {losses[-1]:.6f}, uncompressed {whole[-1]:.6f}; "
                      f"mean of the last 5 steps {sum(losses[-5:]) / 5:.4f}, uncompressed {sum(whole[-5:]) / 5:.4f}")
    expected = dict(steps=STEPS, lr=LR, momentum=MOMENTUM, keep=KEEP, uncompressed=whole, runs=runs, torch=torch.__version__.split("+")[0],
                    transformers=transformers.__version__)
    (DATA / "compress.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
