"""Data-parallel training with PyTorch that Fairway can stop and go on with on another number of GPUs.

    torchrun --nproc-per-node 2 examples/pytorch_ddp/train.py --out result.json
    fairway submit --gpus 1-2 --preempt checkpoint --per-gpu -- python examples/pytorch_ddp/train.py --out result.json

The global batch stays what it is: two shards, each on a GPU of its own, or one after the other on one GPU. Their
gradients are the same numbers either way, so the loss curve does not show where the job was interrupted or resized.
With more shards they are added up in another order on another number of GPUs, which changes the last digits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairway import train

SAMPLES, BATCH = 1024, 32


def meet() -> torch.device:
    """Join the other processes of the job, or be alone if there are none; where to compute."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if backend == "gloo":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def data(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth function of two of eight variables, and noise."""
    draw = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 8, generator=draw)
    targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:2] + 0.1 * torch.randn(SAMPLES, 1, generator=draw)
    return inputs.to(device), targets.to(device)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path("result.json"))
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--pause", type=float, default=0.0, help="seconds per step, for the computing of a real model")
    options.add_argument("--shards", type=int, default=2, help="a multiple of every number of GPUs that it may get")
    options.add_argument("--gns", action="store_true", help="let the batch grow with the gradient noise scale")
    asked = options.parse_args()

    device = meet()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(net)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = data(device)
    losses: list[float] = []

    def save(path: Path) -> None:
        torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict(), "losses": losses}, path)

    def load(path: Path) -> None:
        state = torch.load(path, map_location=device)
        net.load_state_dict(state["net"])
        optimiser.load_state_dict(state["optimiser"])
        losses[:] = state["losses"]

    session = train.session()
    sampler = session.sampler(SAMPLES, shards=asked.shards)
    noise = train.NoiseProbe(net, parts=len(sampler.mine))
    batch = train.NoiseScaleBatch(BATCH, 8 * BATCH, noise=noise) if asked.gns else train.Batch(BATCH)
    for step in session.batches(sampler, batch, asked.epochs, save, load, every=50):
        optimiser.zero_grad()
        mean = 0.0
        for number, rows in enumerate(step.parts, 1):
            with contextlib.nullcontext() if number == len(step.parts) else model.no_sync():
                loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows]) / len(step.parts)
                loss.backward()
            mean += loss.item()
        batch.observe(train.gradients_of(net.parameters()), len(step.rows))
        for group in optimiser.param_groups:
            group["lr"] = 0.05 * step.rate_factor
        optimiser.step()
        losses.append(session.mean(mean))
        time.sleep(asked.pause)
        session.report(loss=losses[-1])
    if session.rank == 0:
        weights = {name: values.flatten().tolist() for name, values in net.state_dict().items()}
        asked.out.write_text(json.dumps({"losses": losses, "weights": weights, "batch_size": batch.size}))
        print(f"{len(losses)} steps, last loss {losses[-1]:.4f}, batch {batch.size}, {session.world_size} processes")
    dist.barrier()  # a process must not lose a peer that it still talks to
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
