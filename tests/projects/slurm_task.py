"""A task of `srun`: its rank, and how many there are, are Slurm's; the first one prints."""

from __future__ import annotations

import argparse
import os
import socket

from pretended import meet, paced

STEPS = 5
options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, required=True)
asked = options.parse_args()
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
local = int(os.environ["SLURM_LOCALID"])
print(f"host {socket.gethostname()} of {os.environ['SLURM_JOB_NODELIST']}")
meet(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
for epoch in range(1, asked.epochs + 1):
    for step in paced(range(1, STEPS + 1)):
        if rank == 0:
            print(f"Epoch [{epoch}/{asked.epochs}], Step [{step}/{STEPS}], Loss: {2 / epoch:.4f}")
print(f"rank {rank} of {world} local {local}")
