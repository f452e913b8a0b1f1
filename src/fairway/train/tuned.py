"""A batch size that the scheduler chooses for the best goodput (Pollux, OSDI 2021), and the course of such a training.

A larger batch makes better use of GPUs, but each of its samples is worth less. How much less depends on the noise of
the gradients, which is measured here. Progress is counted by what steps are worth: a step with the gain r of AdaScale
counts like r steps of the first batch size, and the learning rate is multiplied by the same gain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fairway.train.adaptive import Batch
from fairway.train.course import Step
from fairway.train.gradients import Gradient
from fairway.train.learning_rate import adascale_factor
from fairway.train.noise_scale import Noise
from fairway.train.probe import NoiseProbe
from fairway.train.sampler import Sampler
from fairway.train.states import State, read_state

WARM_UP = 3
"""How many steps after a change of the batch are not timed, because memory and caches are being filled."""
PROBE_EVERY = 8
"""One process with one pass makes every so many steps in two passes, because the noise is the difference of two."""
_MEMORY = 0.9


class Wish(NamedTuple):
    """What the scheduler wants: samples per process and pass, passes before the last one, for how many processes."""

    local: int
    accumulation: int
    processes: int


class TunedBatch(Batch):
    """The batch size that the scheduler chooses between `first` and `largest`; `first` while it chooses none.

    Each process makes `accumulation + 1` passes of `local` samples, between `smallest_local` and `largest_local`, which
    is what the memory of a GPU allows. `noise` measures the gradients of the model, by comparing passes: some steps of
    one process with one pass are `probing`, in two passes. For an `adaptive` optimiser like Adam the learning rate
    grows with the square root of the gain.
    """

    kind = "tuned_batch"

    def __init__(
        self,
        first: int,
        largest: int,
        noise: NoiseProbe,
        *,
        smallest_local: int = 1,
        largest_local: int | None = None,
        adaptive: bool = False,
    ) -> None:
        super().__init__(first)
        if not first <= largest:
            raise ValueError(f"the largest batch, {largest}, is below the first, {first}")
        if not 1 <= smallest_local <= (largest_local or smallest_local):
            raise ValueError(f"a process has from {smallest_local} to {largest_local} samples, which makes no sense")
        self.noise = noise
        self._seen: Noise | None = None
        self.limits = (first, largest, smallest_local, largest_local or 0)
        self.adaptive = adaptive
        self.processes, self.local, self.accumulation = 1, first, 0
        self.probing = False
        self.begin(1)

    def begin(self, processes: int) -> None:
        """Train with this many processes from now on, with the first batch size until there is a wish."""
        first, _, smallest, most = self.limits
        share = max(math.ceil(first / processes), smallest)
        passes = math.ceil(share / most) if most else 1
        self._use(Wish(math.ceil(share / passes), passes - 1, processes))

    def take(self, wish: Wish) -> bool:
        """Do what the scheduler wants from the next step on. False if nothing changes, or it makes no sense here."""
        _, largest, smallest, most = self.limits
        size = wish.processes * wish.local * (wish.accumulation + 1)
        fits = wish.processes == self.processes and wish.accumulation >= 0 and size <= largest
        if not fits or not smallest <= wish.local <= (most or wish.local):
            return False
        if wish == (self.local, self.accumulation, self.processes):
            return False
        self._use(wish)
        return True

    def _use(self, wish: Wish) -> None:
        self.local, self.accumulation, self.processes = wish
        self.enter(0)

    def enter(self, number: int) -> list[int]:
        """Begin a step of this number. Returns how many samples each pass of this process has."""
        alone = self.processes == 1 and not self.accumulation and self.local > 1
        self.probing = alone and (number < PROBE_EVERY or number % PROBE_EVERY == 0)
        passes = [-(-self.local // 2), self.local // 2] if self.probing else [self.local] * (self.accumulation + 1)
        self.noise.set_parts(len(passes))
        return passes

    @property
    def size(self) -> int:
        """The present batch size, over all processes."""
        return self.processes * self.local * (self.accumulation + 1)

    @property
    def gain(self) -> float:
        """How many steps of the first batch size the present step is worth."""
        noise = self._last_noise()
        return 1.0 if noise is None else noise.gain(max(self.size / self.first, 1.0), self.first)

    @property
    def rate_factor(self) -> float:
        """By AdaScale."""
        return adascale_factor(self._last_noise(), max(self.size, self.first), self.first, adaptive=self.adaptive)

    @property
    def noise_scale(self) -> float | None:
        """As measured."""
        noise = self._last_noise()
        return None if noise is None else noise.scale

    def _last_noise(self) -> Noise | None:
        """The present estimate, or the last one while the gradient cannot be told from noise."""
        self._seen = self.noise.noise or self._seen
        return self._seen

    def observe(self, gradient: Gradient, batch: float) -> None:
        """Measure the noise of a step; `batch` counts the samples of this process."""
        if self.probing or self.processes > 1 or self.accumulation:
            self.noise.observe(gradient, batch)

    def state(self) -> State:
        """The measurements. The split belongs to the GPUs of an attempt, and is not kept."""
        return {"kind": self.kind, "noise": self.noise.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        (noise,) = read_state(state, self.kind, "noise")
        self.noise.restore(noise)


class TunedCourse:
    """Where a training is whose batch size may change after every step. It ends when its progress is what `epochs`
    epochs of the first batch size are worth."""

    kind = "tuned_course"

    def __init__(self, sampler: Sampler, batch: TunedBatch, epochs: int) -> None:
        if epochs < 1:
            raise ValueError(f"a training has at least one epoch, not {epochs}")
        if batch.limits[1] > sampler.samples:
            raise ValueError(f"a batch of {batch.limits[1]} is more than all {sampler.samples} samples")
        self.sampler = sampler
        self.batch = batch
        self.epochs = epochs
        self.epoch = 0
        self.taken = 0
        self.steps = 0
        self._made = 0.0
        batch.begin(sampler.world_size)
        self.timer = StepTimer()

    @property
    def done(self) -> bool:
        """Whether the training has come to its end."""
        return self._made >= self.total - 1e-9

    @property
    def total(self) -> int:
        """The whole training in steps of the first batch size."""
        return self.epochs * (self.sampler.samples // self.batch.first)

    @property
    def samples_per_step(self) -> float:
        """Samples in what counts as one step of the first batch size."""
        return self.batch.size / self.batch.gain

    def progress(self, ahead: int = 0) -> float:
        """What the steps so far are worth, or will be this many steps later, in steps of the first batch size."""
        return min(self._made + ahead * self.batch.gain, float(self.total))

    def epochs_done(self, ahead: int = 0) -> float:
        """The same in epochs."""
        return self.epochs * self.progress(ahead) / self.total

    def __iter__(self) -> Iterator[Step]:
        while not self.done:
            size, passes = self.batch.size, self.batch.enter(self.steps)
            if self.taken + size > self.sampler.samples:
                self.epoch, self.taken = self.epoch + 1, 0
            rows, ranks, at = self.sampler.between(self.epoch, self.taken, size), self.sampler.world_size, 0
            parts = []
            for samples in passes:
                mine = at + self.sampler.rank * samples
                parts.append(rows[mine : mine + samples])
                at += ranks * samples
            with self.timer.timing(self.batch):
                yield Step(self.steps, self.epoch, self.taken // size, size, self.batch.rate_factor, parts)

    def advance(self) -> None:
        """Note that the present step was trained."""
        self.steps += 1
        self.taken += self.batch.size
        self._made = self.progress(ahead=1)

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        at = {"epoch": self.epoch, "taken": self.taken, "steps": self.steps, "made": self._made}
        return {"kind": self.kind, **at, "batch": self.batch.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        epoch, taken, steps, made, batch = read_state(state, self.kind, "epoch", "taken", "steps", "made", "batch")
        self.batch.restore(batch)
        self.epoch, self.taken, self.steps, self._made = int(epoch), int(taken), int(steps), float(made)


class StepTimer:
    """How long steps take with the present batch, averaged over the latest."""

    def __init__(self) -> None:
        self._of: tuple[int, ...] = ()
        self._count = 0
        self._mean_s = 0.0

    def timing(self, batch: TunedBatch) -> _Timing:
        """Times one step, as a context. Probing steps are not what a step usually takes."""
        present = (batch.processes, batch.local, batch.accumulation)
        if present != self._of:
            self._of, self._count, self._mean_s = present, 0, 0.0
        return _Timing(self, counts=not batch.probing)

    def note(self, step_s: float) -> None:
        """A step has taken this long."""
        self._count += 1
        counted = self._count - WARM_UP
        if counted == 1:
            self._mean_s = step_s
        elif counted > 1:
            self._mean_s += max(1.0 / counted, 1.0 - _MEMORY) * (step_s - self._mean_s)

    @property
    def known(self) -> list[float] | None:
        """Processes, samples per process and pass, passes before the last one, and seconds per step; None: not yet."""
        return [*self._of, self._mean_s] if self._count > WARM_UP and self._mean_s > 0 else None


class _Timing:
    def __init__(self, timer: StepTimer, *, counts: bool) -> None:
        self._timer = timer
        self._counts = counts
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        if kind is None and self._counts:
            self._timer.note(time.monotonic() - self._began_s)
