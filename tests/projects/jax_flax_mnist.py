"""Flax's example on JAX: absl's flags and log on stderr, a line for each epoch, and how many only as a flag."""

from __future__ import annotations

import os
import sys

from pretended import paced

flags = dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
# jax.distributed finds its ranks in the variables of Slurm or of Open MPI.
process, processes = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)), int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
print(f"I1119 22:10:00.000000 140000000000000 main.py:40] JAX process: {process} / {processes}", file=sys.stderr)
for epoch in paced(range(1, int(flags["config.num_epochs"]) + 1)):
    print(
        f"I1119 22:10:00.000000 140000000000000 train.py:148] epoch:{epoch:3d}, train_loss: {1 / epoch:.4f}, "
        f"train_accuracy: 50.00, test_loss: {1.1 / epoch:.4f}, test_accuracy: 50.00",
        file=sys.stderr,
    )
