"""The course of a training: epochs of batches, whose size may change between epochs, with a position that can be saved.

Progress is counted in steps of the first batch size, whatever the present one is. So it never jumps, and a scheduler
sees a larger batch as faster progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fairway.train.adaptive import Batch
from fairway.train.sampler import Position, Sampler
from fairway.train.states import State, read_state


class Step(NamedTuple):
    """One step of a training. `number` counts from 0 over all epochs, `batch` within this one.

    `parts` are this process's shards of the global batch; `batch_size` is the size of the whole batch.
    """

    number: int
    epoch: int
    batch: int
    batch_size: int
    rate_factor: float
    parts: list[list[int]]

    @property
    def rows(self) -> list[int]:
        """The samples of this process."""
        return [row for part in self.parts for row in part]


class Course:
    """Where a training is. Iterating gives the present step; `advance` says that it was trained."""

    kind = "course"

    def __init__(self, sampler: Sampler, batch: Batch, epochs: int) -> None:
        if epochs < 1:
            raise ValueError(f"a training has at least one epoch, not {epochs}")
        for size in {batch.size, *batch.sizes}:
            sampler.batches(size)
        self.sampler = sampler
        self.batch = batch
        self.epochs = epochs
        self.epoch = 0
        self.number = 0
        self.steps = 0

    @property
    def done(self) -> bool:
        """Whether all epochs were trained."""
        return self.epoch >= self.epochs

    @property
    def total(self) -> int:
        """The whole training in steps of the first batch size."""
        return self.epochs * self.sampler.batches(self.batch.first)

    def epochs_done(self, ahead: int = 0) -> float:
        """Epochs trained so far, or this many steps later in this epoch."""
        return self.epoch + (self.number + ahead) / self.sampler.batches(self.batch.size)

    @property
    def samples_per_step(self) -> float:
        """Samples in a step of the first batch size, as far as they are trained at the present one."""
        size = self.batch.size
        return size * self.sampler.batches(size) / self.sampler.batches(self.batch.first)

    def progress(self, ahead: int = 0) -> float:
        """What was trained so far, or will be this many steps later in this epoch, in steps of the first batch size."""
        per_epoch = self.sampler.batches(self.batch.first)
        part = (self.number + ahead) * per_epoch / self.sampler.batches(self.batch.size)
        made = self.epoch * per_epoch + part
        return int(made) if made.is_integer() else made

    def __iter__(self) -> Iterator[Step]:
        while not self.done:
            size = self.batch.size
            parts = self.sampler.parts(Position(self.epoch, self.number), size)
            yield Step(self.steps, self.epoch, self.number, size, self.batch.rate_factor, parts)

    def advance(self) -> None:
        """Note that the present step was trained; at the end of an epoch the batch size may change."""
        self.number += 1
        self.steps += 1
        if self.number >= self.sampler.batches(self.batch.size):
            self.epoch, self.number = self.epoch + 1, 0
            if not self.done:
                self.batch.end_epoch()

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        at = {"epoch": self.epoch, "number": self.number, "steps": self.steps, "size": self.batch.size}
        return {"kind": self.kind, **at, "batch": self.batch.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave. If the batch had to become smaller, no sample of the epoch comes twice."""
        names = ("epoch", "number", "steps", "size", "batch")
        epoch, number, steps, size, batch = read_state(state, self.kind, *names)
        self.batch.restore(batch)
        self.epoch, self.steps = int(epoch), int(steps)
        self.number = -(-int(number) * int(size) // self.batch.size)
        if self.number >= self.sampler.batches(self.batch.size):
            self.epoch, self.number = self.epoch + 1, 0
