"""timm's train.py: ranks by WORLD_SIZE or Slurm, everything through logging to stderr, a folder with a summary."""

from __future__ import annotations

import argparse
import csv
import logging
import os
from pathlib import Path

from pretended import meet_by_environment, paced

BATCHES = 60
options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=300)
options.add_argument("--log-interval", type=int, default=5)
options.add_argument("--output", default="output/train")
asked = options.parse_args()
logging.basicConfig(format="%(message)s", level=logging.INFO)
log = logging.getLogger("train")
several = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
several |= "WORLD_SIZE" not in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
rank, world = meet_by_environment() if several else (0, 1)
if several:
    log.info(
        "Training in distributed mode with multiple processes, 1 device per process.Process %d, total %d.", rank, world
    )
else:
    log.info("Training with a single process on 1 device (cpu).")
log.info("Scheduled epochs: %d. LR stepped per epoch.", asked.epochs)
out = Path(asked.output)
out.mkdir(parents=True, exist_ok=True)
for epoch in range(asked.epochs):
    for batch in paced(range(0, BATCHES, asked.log_interval)):
        if rank == 0:
            share = 100.0 * batch / (BATCHES - 1)
            log.info(
                f"Train: {epoch} [{batch:>4d}/{BATCHES} ({share:>3.0f}%)]  Loss: 1.78 (1.67)  Time: 0.250s,   20.00/s  "
                "(0.260s,   19.00/s)  LR: 1.000e-02  Data: 0.001 (0.002)"
            )
    if rank == 0:
        log.info("Test: [   6/6]  Time: 0.100 (0.100)  Loss:  1.5000 (1.5000)  Acc@1: 25.0 (25.0)")
        with (out / "summary.csv").open("a", newline="") as summary:
            csv.writer(summary).writerow([epoch, 1.67, 1.5])
log.info("*** Best metric: 25.0 (epoch 1)")
