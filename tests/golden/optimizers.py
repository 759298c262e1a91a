#!/usr/bin/env python3
"""Lion, Adafactor and AdamW with 8-bit states, by other people's code: tests/golden/data/optimizers/.

    python3 tests/golden/optimizers.py        needs torch, transformers, safetensors, lion-pytorch, torchao; versions in expected.json

Lion: lion_pytorch.Lion. Adafactor: torch.optim.Adafactor. AdamW8: torchao.optim.AdamW8bit, not compiled (its arithmetic is fp32), with
blocks of 16 elements and other least sizes of what is quantised, which it has as constants. Model, tokens and steps as in muon.py, in fp64.

expected.json               for each case the loss before every step, and the gradient norm (before clipping)
NAME.safetensors            the parameters behind the last step, in fp32
adamw8_steps.h              of plugins/optim-adamw8/tests: codes, scales and parameters of one matrix after each of 6 steps
plugins/optim-adamw8/dynamic_map.h
"""
import json

from importlib.metadata import version

import lion_pytorch
import numpy
import torch
import torchao
import transformers
from safetensors.torch import save_file
from torchao.optim.quant_utils import create_dynamic_map

from muon import BATCH, DATA, SEQ, STEPS

torch.compile = lambda function, **options: function
PLUGIN = DATA.parent.parent.parent / "plugins" / "optim-adamw8"
BLOCK = 16


class AdamW8(torchao.optim.AdamW8bit):
    """With another least size."""

    def __init__(self, *args, least, **options):
        super().__init__(*args, block_size=BLOCK, **options)
        self.least = least

    def _new_buffer(self, p, signed):
        big = p.dim() == 2 and p.numel() >= self.least and p.numel() % BLOCK == 0
        return self._subclass_zeros(p, signed, BLOCK) if big else torch.zeros_like(p)


CASES = {
    "lion": (lion_pytorch.Lion, dict(lr=2e-3, betas=(0.9, 0.99)), 0.1, 1.0),
    "lion-plain": (lion_pytorch.Lion, dict(lr=1e-3, betas=(0.95, 0.98)), 0.0, 0),
    "adafactor": (torch.optim.Adafactor, dict(lr=2e-2, eps=(1.1920929e-07, 1e-3), foreach=False), 0.1, 0),
    "adafactor-clipped": (torch.optim.Adafactor, dict(lr=1e-2, beta2_decay=-0.5, eps=(1e-6, 1e-2), d=1.5, foreach=False), 0.0, 1.0),
    "adamw8": (AdamW8, dict(lr=2e-3, betas=(0.9, 0.95), eps=1e-8, least=300), 0.1, 1.0),
    "adamw8-heads": (AdamW8, dict(lr=2e-3, betas=(0.9, 0.99), eps=1e-8, least=500), 0.1, 0),
}


def train(name, ids, labels):
    kind, options, decay, clip = CASES[name]
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "llama", dtype=torch.float64, attn_implementation="sdpa").eval()
    params = list(model.parameters())
    groups = [dict(params=[p for p in params if p.dim() > 1], weight_decay=decay),
              dict(params=[p for p in params if p.dim() < 2], weight_decay=0.0)]
    optimizer = kind(groups, **options)
    losses, norms = [], []
    for x, y in zip(ids, labels):
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(params, clip or float("inf")).item())
        losses.append(loss.item())
        optimizer.step()
    file = DATA / "optimizers" / f"{name}.safetensors"
    save_file({n: p.detach().float().contiguous() for n, p in model.named_parameters()}, file)
    file.chmod(0o644)
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return dict(losses=losses, grad_norms=norms)


def number(x):
    text = f"{x:.9g}"
    return (text if "." in text or "e" in text else text + ".0") + "f"


def rows(values, width=6, form=number):
    values = list(values)
    return "".join("    " + ", ".join(form(x) for x in values[i:i + width]) + ",\n" for i in range(0, len(values), width))


def write_map():
    text = ("/* The dynamic maps of torchao.optim.quant_utils.create_dynamic_map (torchao %s), which are those of bitsandbytes:\n"
            " * ascending, in fp32. Made by tests/golden/optimizers.py. */\n"
            "#ifndef HD_OPTIM_ADAMW8_DYNAMIC_MAP_H\n#define HD_OPTIM_ADAMW8_DYNAMIC_MAP_H\n\n/* clang-format off */\n" % VERSION)
    for name, signed in ("signed_map", True), ("unsigned_map", False):
        values = torch.tensor(create_dynamic_map(signed=signed), dtype=torch.float32).tolist()
        text += f"static const float {name}[256] = {{\n{rows(values)}}};\n"
    (PLUGIN / "dynamic_map.h").write_text(text + "/* clang-format on */\n\n#endif\n")


def write_steps():
    torch.manual_seed(5)
    steps, count = 6, 8 * BLOCK
    p = torch.nn.Parameter(torch.randn(8, BLOCK))
    optimizer = AdamW8([p], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, least=0)
    start = p.detach().flatten().tolist()
    arrays = {"gradients": [], "params": [], "scales": []}, {"codes": []}
    for _ in range(steps):
        p.grad = torch.randn(8, BLOCK) * 10.0 ** torch.randint(-4, 1, (8, BLOCK))
        optimizer.step()
        state = optimizer.state[p]
        arrays[0]["gradients"] += p.grad.flatten().tolist()
        arrays[0]["params"] += p.detach().flatten().tolist()
        arrays[0]["scales"] += state["exp_avg"].scale.tolist() + state["exp_avg_sq"].scale.tolist()
        arrays[1]["codes"] += state["exp_avg"].codes.flatten().tolist() + state["exp_avg_sq"].codes.flatten().tolist()
    text = (f"/* torchao.optim.AdamW8bit {VERSION}, one matrix. Made by tests/golden/optimizers.py. */\n/* clang-format off */\n"
            f"enum {{ STEPS = {steps}, ROWS = 8, BLOCK = {BLOCK}, COUNT = {count} }};\n"
            f"static const float start[COUNT] = {{\n{rows(start)}}};\n")
    for name, values in arrays[0].items():
        text += f"static const float {name}[] = {{\n{rows(values)}}};\n"
    for name, values in arrays[1].items():
        text += f"static const unsigned char {name}[] = {{\n{rows(values, 20, str)}}};\n"
    (PLUGIN / "tests").mkdir(exist_ok=True)
    (PLUGIN / "tests" / "adamw8_steps.h").write_text(text + "/* clang-format on */\n")


def main():
    (DATA / "optimizers").mkdir(exist_ok=True)
    tokens = torch.from_numpy(numpy.load(DATA / "localsgd" / "tokens.npy").astype("int64"))
    ids, labels = (t.reshape(STEPS, BATCH, SEQ) for t in (tokens[:-1], tokens[1:]))
    expected = dict(cases={name: train(name, ids, labels) for name in CASES}, torch=torch.__version__.split("+")[0],
                    transformers=transformers.__version__, torchao=VERSION, lion_pytorch=version("lion-pytorch"))
    (DATA / "optimizers" / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    write_map()
    write_steps()


VERSION = torchao.__version__.split("+")[0]
if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
