#!/usr/bin/env python3
"""The peer of bench/fsdp.py: the models of bench/peer_torch.py, sharded by PyTorch FSDP2 or by DeepSpeed's ZeRO.

    --shard fsdp2          fully_shard on every layer and on the root, parameters resharded after the forward pass (ZeRO-3)
    --shard fsdp2-grad     the same, kept until after the backward pass (FSDP's SHARD_GRAD_OP)
    --shard deepspeed2, deepspeed3

A rank of torchrun's variables, over Gloo. In bf16 both compute in bf16 with fp32 master weights and sum gradients in fp32.
Rank 0 prints one JSON line: losses and seconds of every step.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

from peer_torch import MODELS, make_model

ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def loss_of(net, tokens, vocab):
    return F.cross_entropy(net(tokens[:, :-1]).view(-1, vocab).float(), tokens[:, 1:].reshape(-1))


def with_fsdp2(args, model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    dist.init_process_group("gloo")
    low = args.precision == "bf16"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    options = dict(mesh=init_device_mesh("cpu", (world,)), mp_policy=policy, reshard_after_forward=args.shard == "fsdp2")
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)

    def step(tokens, vocab):
        loss = loss_of(model, tokens, vocab)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return step


def with_deepspeed(args, model):
    import deepspeed
    batch = MODELS[args.model][-1]
    deepspeed.init_distributed(dist_backend="gloo")
    config = dict(train_micro_batch_size_per_gpu=batch, gradient_accumulation_steps=1, steps_per_print=10**9,
                  zero_optimization=dict(stage=int(args.shard[-1]), overlap_comm=False, contiguous_gradients=True),
                  bf16=dict(enabled=args.precision == "bf16"), zero_allow_untested_optimizer=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), **ADAMW), config=config)

    def step(tokens, vocab):
        loss = loss_of(engine, tokens, vocab)
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="S")
    parser.add_argument("--shard", choices=["fsdp2", "fsdp2-grad", "deepspeed2", "deepspeed3"], default="fsdp2")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    *_, vocab, context, batch = MODELS[args.model]
    model = make_model(args.model)
    step = with_fsdp2(args, model, world) if args.shard.startswith("fsdp2") else with_deepspeed(args, model)
    data = torch.randint(0, vocab, (16, batch, context + 1), generator=torch.Generator().manual_seed(rank))
    losses, seconds = [], []
    for n in range(args.steps):
        begin = time.perf_counter()
        losses.append(step(data[n % 16], vocab))
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(dict(losses=losses, seconds=seconds, torch=torch.__version__)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
