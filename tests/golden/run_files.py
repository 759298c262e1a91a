#!/usr/bin/env python3
"""Makes tests/golden/run/: small files written by the software that heddle must read after.

  pip install numpy torch safetensors    (made with the versions that it prints)

- model.safetensors: by the safetensors library, one tensor a dtype; values.txt has the float32 bits of each element.
- sharded/: two files and an index, as transformers writes them.
- tokens-*.npy: by NumPy.
"""
import json
import os

import numpy
import safetensors
import torch
from safetensors.torch import save_file

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
os.makedirs(os.path.join(here, "sharded"), exist_ok=True)
print("numpy", numpy.__version__, "torch", torch.__version__, "safetensors", safetensors.__version__)

torch.manual_seed(1337)
# Values that rounding, subnormal numbers and specials make interesting in every dtype.
values = torch.cat([torch.randn(20), torch.tensor([0.0, -0.0, 1e-7, 6.1e-5, 65504.0, 65519.0, 65520.0, 3.4e38,
                                                   float("inf"), float("-inf"), 1.0009765625, 1.00146484375])])
tensors = {
    "b.f32": values.reshape(4, 8),
    "a.bf16": values.to(torch.bfloat16).reshape(2, 2, 8),
    "c.f16": values.to(torch.float16),
    "d.f64": values.double().reshape(32, 1),
    "e.i64": torch.arange(5),
    "f.empty": torch.zeros(0, 3),
    "g.scalar": torch.tensor(2.5),
}
save_file(tensors, os.path.join(here, "model.safetensors"), metadata={"format": "pt"})
with open(os.path.join(here, "values.txt"), "w") as f:
    for name, t in tensors.items():
        if t.is_floating_point():
            bits = t.float().contiguous().numpy().view(numpy.uint32).reshape(-1)
            print(name, *(f"{b:08x}" for b in bits), file=f)

one = {"x": torch.arange(6, dtype=torch.float32).reshape(2, 3)}
two = {"y": torch.arange(4, dtype=torch.float32) + 10, "z": torch.ones(2, 2)}
names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
for name, part in zip(names, (one, two)):
    save_file(part, os.path.join(here, "sharded", name), metadata={"format": "pt"})
with open(os.path.join(here, "sharded", "model.safetensors.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": 56}, "weight_map": {"x": names[0], "y": names[1], "z": names[1]}}, f, indent=2)

for dtype in ("uint8", "uint16", "uint32", "int32", "int64"):
    numpy.save(os.path.join(here, f"tokens-{dtype}.npy"), (numpy.arange(50) * 5).astype(dtype))
