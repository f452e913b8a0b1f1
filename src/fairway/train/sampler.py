"""Which samples are trained in which step, by a rule that depends only on the seed and the step.

A global batch is the same set of samples in the same order for any number of processes, and whether the job was stopped
before it or not. It consists of `shards` equal parts, which do not change either; each process takes an equal number of
whole shards. A process that computes the gradient of each of its shards and adds them up therefore adds the same
numbers at any size, and on one and two processes in an order that gives the same bits.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple


class Position(NamedTuple):
    """A step as an epoch and the number of the batch in it."""

    epoch: int
    batch: int


class Sampler:
    """The samples of each step for one of `world_size` processes.

    `samples` are drawn without replacement within an epoch. What does not fill a batch at its end is left out,
    different samples each time. `shards` must be a multiple of every number of processes that the job may have. By
    default there is one for each process, which gives the same batches at another size, but not the same shards.
    """

    def __init__(
        self, samples: int, *, seed: int = 0, rank: int = 0, world_size: int = 1, shards: int | None = None
    ) -> None:
        shards = world_size if shards is None else shards
        if samples < 1 or not 0 <= rank < world_size:
            raise ValueError(f"need samples >= 1 and 0 <= rank < world_size, not {samples}, {rank} and {world_size}")
        if shards < 1 or shards % world_size:
            raise ValueError(f"{shards} shards cannot be shared evenly by {world_size} processes")
        self.samples = samples
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.shards = shards
        per_process = shards // world_size
        self.mine = range(rank * per_process, (rank + 1) * per_process)
        self._epoch = -1
        self._order = array("q")

    def batches(self, batch_size: int) -> int:
        """Whole batches in an epoch."""
        if batch_size < 1 or batch_size % self.shards:
            raise ValueError(f"a batch of {batch_size} has no {self.shards} equal shards")
        if batch_size > self.samples:
            raise ValueError(f"a batch of {batch_size} is more than all {self.samples} samples")
        return self.samples // batch_size

    def at(self, step: int, batch_size: int) -> Position:
        """Where a step is, if all have the same batch size."""
        return Position(*divmod(step, self.batches(batch_size)))

    def batch(self, where: Position, batch_size: int) -> list[int]:
        """The samples of a whole batch."""
        if not 0 <= where.batch < self.batches(batch_size):
            raise ValueError(f"epoch {where.epoch} has no batch {where.batch} of {batch_size}")
        start = where.batch * batch_size
        return self._shuffled(where.epoch)[start : start + batch_size].tolist()

    def between(self, epoch: int, start: int, count: int) -> list[int]:
        """`count` samples of an epoch, after the first `start` of them."""
        if not 0 <= start <= start + count <= self.samples:
            raise ValueError(f"an epoch of {self.samples} samples has no {count} after the first {start}")
        return self._shuffled(epoch)[start : start + count].tolist()

    def parts(self, where: Position, batch_size: int) -> list[list[int]]:
        """This process's shards of a batch, in their order."""
        rows, size = self.batch(where, batch_size), batch_size // self.shards
        return [rows[shard * size : (shard + 1) * size] for shard in self.mine]

    def rows(self, where: Position, batch_size: int) -> list[int]:
        """This process's samples of a batch."""
        return [row for part in self.parts(where, batch_size) for row in part]

    def rows_from(self, step: int, batch_size: int) -> Iterator[list[int]]:
        """This process's samples step by step, without end: a `batch_sampler` for torch's DataLoader."""
        while True:
            yield self.rows(self.at(step, batch_size), batch_size)
            step += 1

    def seed_of(self, step: int, shard: int = 0) -> int:
        """A seed for what is random in a step (dropout, augmentation), the same at any number of processes."""
        told = f"{self.seed} {step} {shard}".encode()
        return int.from_bytes(sha256(told).digest()[:4], "big")

    def _shuffled(self, epoch: int) -> array[int]:
        if epoch != self._epoch:
            order = array("q", range(self.samples))
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            self._order, self._epoch = order, epoch
        return self._order
