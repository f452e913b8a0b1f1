"""transformers' examples without Trainer: Accelerate says who is the main process, and one bar counts all steps."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from pretended import meet_by_environment, paced, tqdm

STEPS_OF_EPOCH = 100
options = argparse.ArgumentParser()
options.add_argument("--num_train_epochs", type=int, default=3)
asked = options.parse_args()
rank, world, kind = 0, 1, "NO"
if int(os.environ.get("LOCAL_RANK", -1)) != -1:
    rank, world = meet_by_environment()
    kind = "MULTI_CPU"
logging.basicConfig(
    format="%(asctime)s - %(levelname)s - %(name)s - %(message)s",
    datefmt="%m/%d/%Y %H:%M:%S",
    level=logging.INFO if rank == 0 else logging.ERROR,
)
log = logging.getLogger("__main__")
log.info("Distributed environment: DistributedType.%s\nNum processes: %d\nProcess index: %d", kind, world, rank)
total = asked.num_train_epochs * STEPS_OF_EPOCH // world
log.info("***** Running training *****")
log.info("  Num examples = %d", 8 * STEPS_OF_EPOCH)
log.info("  Num Epochs = %d", asked.num_train_epochs)
log.info("  Total optimization steps = %d", total)
for step in paced(range(1, total + 1)):
    if rank == 0:
        tqdm(step, total)
    if step % (total // asked.num_train_epochs) == 0:
        log.info("epoch %d: {'accuracy': 0.5}", asked.num_train_epochs * step // total - 1)
sys.stderr.write("\n")
print(f"processes {world} rank {rank}")
