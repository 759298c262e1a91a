#!/usr/bin/env python3
"""Golden numbers for the example model-encoder, from transformers and torch: tests/golden/data/encoder/.

    python3 encoder.py  # needs torch, transformers, safetensors; made with the versions in expected.json

The files are those of transformer.py. Labels are -100 but for some tokens of each sequence, which are masked; the loss is
the mean over the labels of a batch that count, whose number differs from batch to batch.
"""
import json
import shutil

import torch
import transformers
from safetensors.torch import save_file

from transformer import BATCH, BETAS, CLIP, DATA, DECAY, EPS, LR, SEQ, STEPS, VOCAB

MASK = 3
CONFIG = transformers.DistilBertConfig(vocab_size=VOCAB, max_position_embeddings=12, n_layers=2, n_heads=4, dim=16,
                                       hidden_dim=24, dropout=0.0, attention_dropout=0.0, activation="gelu",
                                       tie_word_embeddings=False)


def batches(generator):
    ids = torch.randint(4, VOCAB, (STEPS, BATCH, SEQ), generator=generator)
    masked = torch.rand(ids.shape, generator=generator) < 0.3
    masked[:, 0, 0] = True
    return ids.masked_fill(masked, MASK), ids.masked_fill(~masked, -100)


def loss_of(model, ids, labels):
    logits = model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1)), logits


def main():
    folder = DATA / "encoder"
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(200)
    model = transformers.DistilBertForMaskedLM(CONFIG)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.25 if p.dim() > 1 else 0.1, generator=generator)
            if p.dim() == 1 and name.endswith("norm.weight") or name.endswith("LayerNorm.weight"):
                p += 1
    model.eval().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    ids, labels = batches(generator)
    loss, logits = loss_of(model, ids[0], labels[0])
    loss.backward()
    expected = {"grad." + n: p.grad.float().contiguous() for n, p in model.named_parameters()}
    expected |= {"logits": logits.detach().float().contiguous(), "ids": ids.int(), "labels": labels.int()}
    save_file(expected, folder / "expected.safetensors")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)

    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss, _ = loss_of(model, ids[step], labels[step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    numbers = dict(steps=STEPS, batch=BATCH, seq=SEQ, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, clip=CLIP,
                   parameters=sum(p.numel() for p in model.parameters()), losses=losses, grad_norms=norms,
                   torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (folder / "expected.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"encoder: loss {losses[0]:.4f} -> {losses[-1]:.4f}, grad norm {norms[0]:.3f} -> {norms[-1]:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    main()
