#!/usr/bin/env python3
"""The peer of bench/recovery.py, a rank of torchrun: DistributedDataParallel over Gloo that saves in the background by
torch.distributed.checkpoint, and goes on from the newest checkpoint. It trains until it is killed. Rank 0 writes to
--progress: "start", once it has loaded, and the number of every step that is complete.
"""
import argparse
import itertools
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F

from peer_torch import MODELS, make_model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--progress", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    savers = dist.new_group(backend="gloo")  # a save in the background must not meet the gradients of the step
    rank = dist.get_rank()
    *_, vocab, context, _ = MODELS["S"]
    model = make_model("S")
    net = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    data = torch.randint(0, vocab, (16, 2, context + 1), generator=torch.Generator().manual_seed(rank))

    done = [int(f.parent.name) for f in args.checkpoints.glob("*/.metadata")]  # written last
    first = max(done, default=0)
    if done:
        weights, states = get_state_dict(net, optimizer)
        dcp.load({"model": weights, "optim": states}, checkpoint_id=args.checkpoints / str(first))
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=states)
    saving = None
    if rank == 0:
        with open(args.progress, "a") as log:
            log.write("start\n")
    for step in itertools.count(first + 1):
        tokens = data[step % 16]
        logits = net(tokens[:, :-1])
        F.cross_entropy(logits.view(-1, vocab), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            with open(args.progress, "a") as log:
                log.write(f"{step}\n")
        if step % args.every == 0:
            if saving:
                saving.result()
                if rank == 0:
                    shutil.rmtree(args.checkpoints / str(step - 2 * args.every), ignore_errors=True)
            weights, states = get_state_dict(net, optimizer)
            saving = dcp.async_save({"model": weights, "optim": states}, checkpoint_id=args.checkpoints / str(step),
                                    process_group=savers)


if __name__ == "__main__":
    main()
