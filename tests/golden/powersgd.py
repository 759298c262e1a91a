"""Makes run/powersgd.h: what PyTorch's powerSGD_hook (torch.distributed.algorithms.ddp_comm_hooks) makes of given gradients on
two processes over gloo, in double: the gradient that all get and the error that rank 0 keeps, step after step.

Gradients are no numbers to commit but a formula: element i of matrix k in step s on rank r is direction(i, 1000 + 10 s + r, k),
which is hd_direction of heddle/program.h. So are the first Q's columns: direction(row, column, 0).

Needs PyTorch. Run: python3 tests/golden/powersgd.py > tests/golden/run/powersgd.h
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

RANKS, STEPS, WARMUP = 2, 3, 2
SHAPES = [(10, 8), (4, 8), (8, 12)]  # [rows, columns]
THICK = [2, 6]  # the hook takes Gram-Schmidt up to 2 and a QR factorisation beyond; 6 is more than (4, 8) has rows
MASK = (1 << 64) - 1


def direction(row, column, attempt):
    x = (row * 0x9E3779B97F4A7C15 + column * 0xD1B54A32D192ED03 + attempt + 1) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    x ^= x >> 31
    return (x >> 11) * 2.0**-52 - 1


def gradient(matrix, step, rank):
    rows, columns = SHAPES[matrix]
    values = [direction(i, 1000 + 10 * step + rank, matrix) for i in range(rows * columns)]
    return torch.tensor(values, dtype=torch.float64).view(rows, columns)


def one(matrix, thick, rank):
    """One matrix, alone in its bucket: the loss is <w, gradient>. Yields the gradient and the error of each step."""
    rows, columns = SHAPES[matrix]
    r = min(thick, rows, columns)
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))
    module.forward = lambda g: (module.w * g).sum()
    model = DistributedDataParallel(module)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=thick, start_powerSGD_iter=WARMUP, min_compression_rate=1e-9)
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    for step in range(WARMUP + STEPS):
        if step == WARMUP:
            q = [direction(i, j, 0) for i in range(columns) for j in range(r)]
            state.q_memory_dict[0] = torch.tensor(q, dtype=torch.float64)
            state.p_memory_dict[0] = torch.empty(rows * r, dtype=torch.float64)
        module.w.grad = None
        model(gradient(matrix, max(0, step - WARMUP), rank)).backward()
        if step >= WARMUP:
            yield module.w.grad.clone(), state.error_dict[0].clone()


def numbers(tensor):
    return "{" + ", ".join(f"{x:.12g}" for x in tensor.flatten().tolist()) + "}"


def work(rank, store, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    lines = []
    for thick in THICK:
        for matrix, (rows, columns) in enumerate(SHAPES):
            for step, (grad, error) in enumerate(one(matrix, thick, rank)):
                lines.append(f"    {{{thick}, {matrix}, {step}, {rows}, {columns},\n     {numbers(grad)},\n     {numbers(error)}}},")
    if rank == 0:
        with open(out, "w") as f:
            f.write("\n".join(lines))
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        mp.spawn(work, (os.path.join(folder, "store"), out), RANKS)
        body = open(out).read()
    print(f"""/* Made by tests/golden/powersgd.py with PyTorch {torch.__version__.split('+')[0]}: powerSGD_hook on two processes. */
enum {{ GOLDEN_STEPS = {STEPS} }};

static const struct golden {{
    int thick, matrix, step, rows, columns;
    double gradient[96], error[96]; /* the mean of all ranks; of rank 0 */
}} golden[] = {{
{body}
}};""")


if __name__ == "__main__":
    main()
