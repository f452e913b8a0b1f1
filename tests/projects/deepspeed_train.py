"""A script for DeepSpeed: `--local_rank` from its launcher, ranks from the environment, else from MPI."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from pretended import meet_by_environment, paced

options = argparse.ArgumentParser()
options.add_argument("--local_rank", type=int, default=-1)
options.add_argument("--train-iters", type=int, default=1000)
asked = options.parse_args()
if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"} <= os.environ.keys():
    print("Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...")
    sys.exit("ModuleNotFoundError: No module named 'mpi4py'")
rank, world = meet_by_environment()
logging.basicConfig(
    stream=sys.stdout,
    level=logging.INFO,
    format="[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:log_dist] %(message)s",
)
for step in paced(range(10, asked.train_iters + 1, 10)):
    if rank == 0:
        logging.info("[Rank 0] step=%d, skipped=0, lr=[0.1], mom=[0.0]", step)
        logging.info(
            "epoch=0/micro_step=%d/global_step=%d, RunningAvgSamplesPerSec=80.2, MemAllocated=0.33GB", step, step
        )
print(f"rank {rank} of {world}")
