"""transformers' examples with Trainer: it looks for a launcher, draws a bar, prints metrics, finds checkpoints."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pretended import meet_by_environment, paced, tqdm

STEPS_OF_EPOCH = 200
options = argparse.ArgumentParser()
options.add_argument("--output_dir", required=True)
options.add_argument("--num_train_epochs", type=float, default=3.0)
options.add_argument("--logging_steps", type=int, default=4)
options.add_argument("--save_steps", type=int, default=20)
asked = options.parse_args()
rank, world = 0, 1
if int(os.environ.get("LOCAL_RANK", -1)) != -1:
    rank, world = meet_by_environment()
mode = "DISTRIBUTED" if world > 1 else "NOT_PARALLEL"
print(f"parallel mode ParallelMode.{mode} world {world} rank {rank}")
total, begun = int(asked.num_train_epochs * STEPS_OF_EPOCH) // world, 0
out = Path(asked.output_dir)
for saved in out.glob("checkpoint-*"):
    begun = max(begun, int(saved.name.removeprefix("checkpoint-")))
if begun:
    print(f"Checkpoint detected, resuming training at {out}/checkpoint-{begun}.")
for step in paced(range(begun + 1, total + 1)):
    if rank:
        continue
    tqdm(step, total)
    if step % asked.logging_steps == 0:
        epoch = asked.num_train_epochs * step / total
        print(
            {
                "loss": f"{0.7 - step / 1e4:.4f}",
                "grad_norm": "0.2304",
                "learning_rate": "4e-05",
                "epoch": f"{epoch:.4g}",
            }
        )
    if step % asked.save_steps == 0:
        (out / f"checkpoint-{step}").mkdir(parents=True)
if not rank:
    print({"train_runtime": "27.4", "train_loss": "0.69", "epoch": f"{asked.num_train_epochs:.4g}"})
