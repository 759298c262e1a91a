"""The same sweep as `heddle bench`, on PyTorch's Gloo; one rank of it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
Prints `op bytes microseconds`. Usage: gloo.py FIRST LAST FACTOR"""
import sys, time
import torch, torch.distributed as dist

first, last, factor = (int(x) for x in sys.argv[1:4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
for op in ("all_reduce", "reduce_scatter", "all_gather"):
    size = first
    while size <= last:
        count = size // 4
        if op == "all_reduce" or count >= n:
            a, b = torch.zeros(count), torch.zeros(count // n)
            call = {"all_reduce": lambda: dist.all_reduce(a),
                    "reduce_scatter": lambda: dist.reduce_scatter_tensor(b, a[:count // n * n]),
                    "all_gather": lambda: dist.all_gather_into_tensor(a[:count // n * n], b)}[op]
            calls, times = (20 if size <= 1 << 20 else 1), []
            try:
                for _ in range(2):
                    call()
                for _ in range(7):
                    dist.barrier()
                    t = time.perf_counter()
                    for _ in range(calls):
                        call()
                    d = torch.tensor([(time.perf_counter() - t) / calls], dtype=torch.float64)
                    dist.all_reduce(d, op=dist.ReduceOp.MAX)
                    times.append(d.item() * 1e6)
                if rank == 0:
                    print(op, size, sorted(times)[len(times) // 2], flush=True)
            except RuntimeError as e:  # Gloo of this version lacks the operation
                if rank == 0:
                    print("#", op, str(e).splitlines()[0], flush=True)
                break
        size *= factor
dist.destroy_process_group()
