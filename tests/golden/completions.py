#!/usr/bin/env python3
"""Golden numbers of losses that count some tokens alone, from torch: tests/golden/data/completions/.

    python3 completions.py  # needs torch, transformers, safetensors, numpy; made with the versions in expected.json

The model is that of data/llama (transformer.py). Each loss is torch's cross_entropy with ignore_index=-100 and
reduction="sum" over the whole batch, divided by the labels of the batch that are not ignored.

NAME.bin, .idx, .loss   tokens (uint16) and their index as Megatron-LM writes it, a sequence a document; a bit for each
                        token, whether its prediction counts: train, and the sets wiki and code
expected.json           losses and gradient norms (before clipping) of AdamW steps with clipping, fp64; after every EVERY steps
                        the losses of the sets
"""
import json
import struct

import numpy
import torch
import transformers

from transformer import BETAS, CLIP, DATA, DECAY, EPS, LR, VOCAB

STEPS, BATCH, SEQ, EVERY = 10, 16, 16, 5
FOLDER = DATA / "completions"
# Marked tokens of a sequence of a batch: some have none, sequences 8 to 11 are a micro-batch without any.
MARKED = [16, 1, 0, 5, 16, 16, 2, 0, 0, 0, 0, 0, 9, 16, 3, 1]


def make_tokens(name, sequences, marked, random):
    tokens = random.integers(0, VOCAB, sequences * SEQ, dtype=numpy.uint16)
    marks = numpy.zeros(sequences * SEQ, dtype=bool)
    for s in range(sequences):
        # the label of a token is the token after it
        at = s * SEQ + 1 + random.permutation(SEQ)[:marked[s % len(marked)]]
        marks[at[at < len(marks)]] = True
    tokens.tofile(FOLDER / f"{name}.bin")
    with open(FOLDER / f"{name}.idx", "wb") as index:  # megatron/core/datasets/indexed_dataset.py
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, sequences, sequences + 1))
        numpy.full(sequences, SEQ, dtype=numpy.int32).tofile(index)
        numpy.arange(0, 2 * SEQ * sequences, 2 * SEQ, dtype=numpy.int64).tofile(index)
        numpy.arange(sequences + 1, dtype=numpy.int64).tofile(index)
    (FOLDER / f"{name}.loss").write_bytes(b"HDLOSS1\n" + numpy.packbits(marks, bitorder="little").tobytes())
    labels = numpy.full(sequences * SEQ, -100, dtype=numpy.int64)
    labels[:-1] = numpy.where(marks[1:], tokens[1:].astype(numpy.int64), -100)
    shape = (-1, BATCH, SEQ)
    return torch.from_numpy(tokens.astype(numpy.int64)).reshape(shape), torch.from_numpy(labels).reshape(shape)


def loss_of(model, ids, labels):
    logits = model(input_ids=ids, use_cache=False).logits
    total = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100,
                                              reduction="sum")
    return total, int((labels != -100).sum())


def evaluate(model, sets):
    with torch.no_grad():
        sums = {name: loss_of(model, ids[0], labels[0]) for name, (ids, labels) in sets.items()}
    losses = {name: total.item() / count for name, (total, count) in sums.items()}
    losses["all"] = sum(total.item() for total, _ in sums.values()) / sum(count for _, count in sums.values())
    return losses


def main():
    FOLDER.mkdir(exist_ok=True)
    random = numpy.random.default_rng(7)
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "llama", dtype=torch.float64).eval()
    train = make_tokens("train", STEPS * BATCH, MARKED, random)
    sets = {"wiki": make_tokens("wiki", BATCH, [16, 12], random), "code": make_tokens("code", BATCH, [0, 3, 1], random)}
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms, counts, evaluations = [], [], [], []
    for step, (ids, labels) in enumerate(zip(*train), 1):
        optimizer.zero_grad(set_to_none=True)
        total, count = loss_of(model, ids, labels)
        (total / count).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(total.item() / count)
        counts.append(count)
        optimizer.step()
        if step % EVERY == 0:
            evaluations.append(evaluate(model, sets))
    numbers = dict(steps=STEPS, batch=BATCH, seq=SEQ, every=EVERY, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY,
                   clip=CLIP, losses=losses, grad_norms=norms, counts=counts, evaluations=evaluations,
                   torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (FOLDER / "expected.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(losses, norms, counts, evaluations, sep="\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
