"""The same sweep as `heddle bench`, on PyTorch's Gloo; one rank of it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
Prints `op bytes microseconds`. sendrecv: to the next rank, from the one before. Usage: gloo.py FIRST LAST FACTOR [OP,...]"""
import sys, time
import torch, torch.distributed as dist

first, last, factor = (int(x) for x in sys.argv[1:4])
ops = sys.argv[4].split(",") if len(sys.argv) > 4 else [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "sendrecv", "barrier"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
CUT = ("reduce_scatter", "all_gather", "all_to_all")  # into one piece a rank


def sendrecv(a, b):
    requests = [dist.isend(a, (rank + 1) % n), dist.irecv(b, (rank + n - 1) % n)]
    for r in requests:
        r.wait()


def call_of(op, count):
    a, b, part = torch.ones(count), torch.ones(count), torch.ones(count // n)
    return {"all_reduce": lambda: dist.all_reduce(a),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, a[:count // n * n]),
            "all_gather": lambda: dist.all_gather_into_tensor(a[:count // n * n], part),
            "broadcast": lambda: dist.broadcast(a, 0),
            "reduce": lambda: dist.reduce(a, 0),
            "all_to_all": lambda: dist.all_to_all_single(b[:count // n * n], a[:count // n * n]),
            "sendrecv": lambda: sendrecv(a, b),
            "barrier": lambda: dist.barrier()}[op]


def measure(op, size):
    call, calls, times = call_of(op, size // 4), 20 if size <= 1 << 20 else 1, []
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
    return sorted(times)[len(times) // 2]


for op in ops:
    size = 0 if op == "barrier" else first
    while size <= last:
        try:
            us = measure(op, size) if op not in CUT or size // 4 >= n else None
        except RuntimeError as e:  # Gloo of this version lacks the operation
            if rank == 0:
                print("#", op, str(e).splitlines()[0], flush=True)
            break
        if rank == 0 and us is not None:
            print(op, size, us, flush=True)
        if op == "barrier":
            break
        size *= factor
dist.destroy_process_group()
