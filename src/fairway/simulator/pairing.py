"""The speeds of pairs of active jobs in a simulated engine, for policies that may know them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from fairway.core.job import JobSpec
from fairway.core.pairing import Factors
from fairway.simulator.rates import Rates


class PairedJob(Protocol):
    """What must be known of a job: its spec, and its batch size now."""

    spec: JobSpec

    @property
    def batch_size(self) -> int | None: ...


class SimulatedPairing:
    """The pair rates of a profile for active jobs, cached by kind."""

    def __init__(self, rates: Rates, active: Mapping[int, PairedJob]) -> None:
        self._rates = rates
        self._active = active
        self._known: dict[tuple[Hashable, Hashable], Factors] = {}

    def kind(self, job: int) -> Hashable:
        """A job's model, batch size, gang and memory."""
        one = self._active[job]
        spec = one.spec
        return (spec.steps is None, spec.model, one.batch_size or 0, spec.gpus, spec.memory_bytes, spec.gpu_types)

    def factors(self, a: int, b: int) -> Factors:
        """What two jobs keep of their speeds on each GPU type that both can use."""
        key = (self.kind(a), self.kind(b))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._factors(self._active[a], self._active[b])
        return found

    def _factors(self, a: PairedJob, b: PairedJob) -> Factors:
        rates, batches = self._rates, (a.batch_size, b.batch_size)
        usable = [all(pair) for pair in zip(*(rates.speeds(job.spec, job.batch_size) for job in (a, b)), strict=True)]
        return tuple(
            rates.pair_factors(a.spec, b.spec, batches, kind) if fits else (0.0, 0.0)
            for kind, fits in enumerate(usable)
        )
