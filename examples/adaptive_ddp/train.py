"""Training with PyTorch whose GPUs, batch size and learning rate Fairway chooses together, by goodput.

fairway up --policy pollux --gpus 4 --round 10
fairway submit --gpus 1-4 --preempt checkpoint --per-gpu -- python examples/adaptive_ddp/train.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairway import train

options = argparse.ArgumentParser()
options.add_argument("--target", type=float, default=0.1, help="the loss at which the training is done")
options.add_argument("--seed", type=int, default=0)
options.add_argument("--pause", type=float, nargs=2, default=(0.0, 0.0), help="seconds per pass and per sample")
asked = options.parse_args()

torch.set_num_threads(1)
gpus, rank = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
if "RANK" in os.environ:
    # NCCL wants a GPU for each process.
    dist.init_process_group("nccl" if gpus >= int(os.environ["WORLD_SIZE"]) else "gloo")
device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
draw = torch.Generator().manual_seed(asked.seed)
inputs = torch.randn(8192, 16, generator=draw)
targets = torch.tanh(inputs @ torch.randn(16, 1, generator=draw)) + 0.3 * torch.randn(8192, 1, generator=draw)
inputs, targets = inputs.to(device), targets.to(device)

torch.manual_seed(asked.seed)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(net) if dist.is_initialized() else net
optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
seen = {"loss": 1.0}


def save(path: Path) -> None:
    """Write what a new attempt needs."""
    torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict(), "seen": seen}, path)


def load(path: Path) -> None:
    """Go on from there."""
    state = torch.load(path, map_location=device)
    net.load_state_dict(state["net"])
    optimiser.load_state_dict(state["optimiser"])
    seen.update(state["seen"])


session = train.session()
batch = train.TunedBatch(32, 1024, train.NoiseProbe(net), smallest_local=8, largest_local=128)
for step in session.batches(session.sampler(len(inputs)), batch, 200, save, load):
    optimiser.zero_grad()
    mean = 0.0
    for number, rows in enumerate(step.parts, 1):
        last = number == len(step.parts) or not dist.is_initialized()
        with contextlib.nullcontext() if last else model.no_sync():
            loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows]) / len(step.parts)
            loss.backward()
        mean += loss.item()
        time.sleep(asked.pause[0] + asked.pause[1] * len(rows))
    batch.observe(train.gradients_of(net.parameters()), len(step.rows))
    for group in optimiser.param_groups:
        group["lr"] = 0.05 * step.rate_factor
    optimiser.step()
    seen["loss"] += min(step.batch_size / 2048, 1.0) * (session.mean(mean) - seen["loss"])
    session.report(loss=seen["loss"])
    if seen["loss"] < asked.target:
        break
if session.rank == 0:
    print(f"loss {seen['loss']:.4f} after {step.number + 1} steps; the last batch had {step.batch_size} samples")
if dist.is_initialized():
    dist.barrier()  # a process must not lose a peer that it still talks to
    dist.destroy_process_group()
