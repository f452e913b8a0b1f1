"""Speeds that nobody profiled: of pairs, learned while they run, and of jobs on GPU types that they never ran on.

After the throughput estimator of Gavel (Narayanan et al., OSDI 2020, section 6). `LearnedPairs` begins with the
built-in estimates, or those of the model that a job resembles. Measurements of running pairs replace them by
exponential averaging, and correct the estimates of the pairs that were not measured: the deviations of measurements
from estimates are a table with gaps, which is completed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core import portable
from fairway.core.arrays import Bools, Floats
from fairway.core.pairing import Factors
from fairway.core.snapshot import Snapshot
from fairway.models.completion import Completion, complete
from fairway.models.fingerprint import PairRow, estimate_row
from fairway.models.references import (
    Reference,
    builtin_table,
    catalogue_name,
    known_reference,
    prior,
    resembling,
)

ALPHA = 0.5
"""The weight of a new measurement, as in Gavel's scheduler."""
SETTLED = 0.005
"""An average that is this near to the measurement takes its value, so that a steady pair stops changing anything."""
FINGERPRINT = 3
"""From this many measured pairs on, a job of an unknown model is matched by them to a known model."""
CORRECTED_KINDS = 32
"""At most this many kinds, those measured most often, take part in the completion, which bounds its time."""
KEPT_MIN = 0.01
"""Corrections leave at least this much: 0 means that a pair does not fit, and only a failure to start shows that."""
CORRECTIONS = Completion(rank=5, penalty=0.3, turns=10, offsets=3.0)
LIKENESS = Completion(rank=5, turns=5)
"""Quick, because one decision may need it for several models, and the table of references is small."""

Pair = tuple[float, float]
_Deviation = tuple[str, str, str, float, float]


def blend(before: Pair, measured: Pair, alpha: float = ALPHA) -> Pair:
    """An estimate after a measurement: the exponential average; a pair that does not run is known at once."""
    if min(measured) <= 0 or min(before) <= 0:
        return measured
    first, second = (
        new if abs(new - old) < SETTLED else alpha * new + (1 - alpha) * old
        for old, new in zip(before, measured, strict=True)
    )
    return (first, second)


def estimate_speeds(speeds: Floats) -> Floats:
    """Speeds of job types (rows) on GPU types (columns): NaN is filled in, 0 (does not fit) and the rest stay.

    Speeds multiply: one job is a factor faster than another, and so is one GPU. So the logarithms are completed. A row
    or a column without any speed is left NaN.
    """
    how = Completion(rank=1, penalty=0.1, offsets=0.01)
    known: Bools = np.isfinite(speeds) & (speeds > 0)
    logs = portable.log(np.where(known, speeds, 1.0))
    shift = logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    filled = portable.exp(complete(logs - shift[:, None], known, how) + shift[:, None])
    told = np.logical_and.outer(known.any(axis=1), known.any(axis=0))
    estimated: Floats = np.where(np.isnan(speeds), np.where(told, filled, np.nan), speeds)
    return estimated


class Kind(NamedTuple):
    """What the speeds of a job beside others depend on. Jobs with the same `label` are assumed to behave alike."""

    label: str
    memory_bytes: int
    usable: tuple[bool, ...]


class LearnedPairs:
    """A `Pairing` that trusts no profile: the estimates of `models.references`, and what has been measured since.

    It belongs to one decision: `recall` it from the policy's memory, let it `observe` the snapshot, ask it for
    `factors`, tell it with `expect` which pairs the decision starts, and keep its `memory()` in the decision. The
    answers depend only on memory and snapshot.
    """

    def __init__(self, references: dict[str, Reference], kept: dict[str, dict[str, dict[str, Pair]]]) -> None:
        self._references = references
        self._kept = kept
        self._asked: list[tuple[int, int]] = []
        self._snapshot: Snapshot | None = None
        self._types: tuple[str, ...] = ()
        self._rows: dict[int, int] = {}
        self._kinds: dict[int, Kind] = {}
        self._looks: list[tuple[Any, ...]] = []
        self._usable: list[float] = []
        self._kind_by_looks: dict[tuple[Any, ...], Kind] = {}
        self._known: dict[tuple[Kind, Kind], Factors] = {}
        self._names: tuple[str, ...] = ()
        self._corrected: tuple[dict[str, int], Floats] | None = None

    @staticmethod
    def recall(memory: Mapping[str, Any] | None = None) -> LearnedPairs:
        """What an earlier decision left with `memory()`; without it, nothing has been measured."""
        plain = memory or {}
        references = {label: Reference(str(model), int(size)) for label, (model, size) in plain.get("like", {}).items()}
        kept = {
            gpu: {a: {b: (float(x), float(y)) for b, (x, y) in row.items()} for a, row in rows.items()}
            for gpu, rows in plain.get("kept", {}).items()
        }
        pairs = LearnedPairs(references, kept)
        pairs._asked = [(int(host), int(guest)) for host, guest in plain.get("asked", ())]
        return pairs

    def memory(self) -> dict[str, Any]:
        """All of this as plain values under string keys, for `Decision.memory`."""
        return {
            "like": {label: list(reference) for label, reference in self._references.items()},
            "kept": {
                gpu: {a: {b: list(pair) for b, pair in row.items()} for a, row in rows.items()}
                for gpu, rows in self._kept.items()
            },
            "asked": [list(pair) for pair in self._asked],
        }

    @property
    def measured(self) -> int:
        """How many pairs of kinds have been measured, over all GPU types."""
        return sum(len(row) for rows in self._kept.values() for row in rows.values())

    def observe(self, snapshot: Snapshot) -> LearnedPairs:
        """Look at the jobs of a snapshot: learn from the pairs that run, and from those that were refused."""
        self._snapshot = snapshot
        self._types = tuple(gpu.name for gpu in snapshot.cluster.types)
        self._names = tuple(catalogue_name(gpu) for gpu in snapshot.cluster.types)
        self._rows = {job: row for row, job in enumerate(snapshot.jobs.tolist())}
        self._kinds, self._known, self._corrected = {}, {}, None
        columns = (snapshot.model, snapshot.batch_size, snapshot.gpus)
        self._looks = list(zip(*(column.tolist() for column in columns), strict=True))
        marks = np.ldexp(1.0, np.arange(len(self._types)))
        self._usable = np.add.reduce((snapshot.speeds > 0) * marks[:, None], axis=0).tolist()
        self._kind_by_looks = {}
        seen: dict[tuple[str, str, str], list[Pair]] = {}
        for gpu, host, guest, pair in (*self._running_pairs(snapshot), *self._refused(snapshot)):
            a, b = self._kind_of(host).label, self._kind_of(guest).label
            where, values = ((gpu, a, b), pair) if a <= b else ((gpu, b, a), pair[::-1])
            seen.setdefault(where, []).append(values)
        before = {where: self._estimate(*where) for where in seen}
        changed: set[str] = set()
        for (gpu, a, b), pairs in sorted(seen.items()):
            first, second = np.mean(pairs, axis=0).tolist()
            if a == b:
                first = second = (first + second) / 2
            row = self._kept.setdefault(gpu, {}).setdefault(a, {})
            known, row[b] = row.get(b), blend(before[gpu, a, b], (first, second))
            if row[b] != known:
                changed.update((a, b))
        self._asked, self._corrected = [], None
        for label in sorted(changed):
            self._liken(label)
        return self

    def expect(self, snapshot: Snapshot, partners: Mapping[int, int]) -> None:
        """Note the pairs (guest row -> host row) that a decision starts: one that does not come up is learned not to
        fit.
        """
        jobs, host = snapshot.jobs, snapshot.host
        new = [(int(jobs[at]), int(jobs[guest])) for guest, at in partners.items() if host[guest] != jobs[at]]
        self._asked = sorted(new)

    def kind(self, job: int) -> Hashable:
        """What the speeds of a job beside others depend on, as of now."""
        return self._kind_of(job)

    def factors(self, a: int, b: int) -> Factors:
        """What two jobs of the observed snapshot keep of their speeds on each GPU type."""
        one, other = self._kind_of(a), self._kind_of(b)
        found = self._known.get((one, other))
        if found is None:
            found = self._known[one, other] = self._factors(one, other)
        return found

    def _factors(self, one: Kind, other: Kind) -> Factors:
        if one.label > other.label:
            return tuple((y, x) for x, y in self._factors(other, one))
        assert self._snapshot is not None
        memory = one.memory_bytes + other.memory_bytes if one.memory_bytes and other.memory_bytes else 0
        return tuple(
            self._estimate(gpu.name, one.label, other.label)
            if one.usable[t] and other.usable[t] and not memory > gpu.memory_bytes > 0
            else (0.0, 0.0)
            for t, gpu in enumerate(self._snapshot.cluster.types)
        )

    def _kind_of(self, job: int) -> Kind:
        found = self._kinds.get(job)
        if found is None:
            found = self._kinds[job] = self._looked_at(job)
        return found

    def _looked_at(self, job: int) -> Kind:
        snapshot, row = self._snapshot, self._rows.get(job)
        if snapshot is None or row is None:
            raise ValueError(f"job {job} is not in the snapshot that was observed last")
        told = snapshot.frame.facts.get(job)
        looks = (self._looks[row], self._usable[row], told.memory_bytes if told is not None else 0)
        kind = self._kind_by_looks.get(looks)
        if kind is None:
            kind = self._kind_by_looks[looks] = self._new_kind(snapshot, row, looks[2])
        return kind

    def _new_kind(self, snapshot: Snapshot, row: int, memory: int) -> Kind:
        model, size = snapshot.names.models[snapshot.model[row]], int(snapshot.batch_size[row])
        label, speeds = f"{snapshot.gpus[row]}x{size}:{model}", tuple(snapshot.speeds[:, row].tolist())
        if label not in self._references:
            like = known_reference(model, size) or resembling(speeds if model else (), memory, self._names)
            self._references[label] = like
        return Kind(label, memory, tuple(speed > 0 for speed in speeds))

    def _running_pairs(self, snapshot: Snapshot) -> Iterator[tuple[str, int, int, Pair]]:
        """GPU type, host, guest and what they keep, of the jobs that run in pairs and show what a pair does.

        Not of three on one GPU, of throttled guests, of unequal, resized or spread gangs, or before both are up.
        """
        guests = np.flatnonzero((snapshot.host >= 0) & snapshot.running)
        hosts = np.searchsorted(snapshot.jobs, snapshot.host[guests])
        own = (snapshot.held == snapshot.gpus) & (snapshot.floats[c.READY_S] <= snapshot.now_s) & (snapshot.rate > 0)
        alone = np.bincount(hosts, minlength=len(snapshot))[hosts] == 1
        fair = own[guests] & own[hosts] & (snapshot.throttle[guests] == 1.0) & alone
        fair &= snapshot.held[guests] == snapshot.held[hosts]
        for guest, host in zip(guests[fair].tolist(), hosts[fair].tolist(), strict=True):
            t = int(snapshot.gpu_type[host])
            first, second = (snapshot.rate[row] / max(snapshot.speeds[t, row], 1e-300) for row in (host, guest))
            if max(first, second) <= 1.0 + 1e-9 and not _spread(snapshot, host, t):
                pair = (min(1.0, float(first)), min(1.0, float(second)))
                yield self._types[t], int(snapshot.jobs[host]), int(snapshot.jobs[guest]), pair

    def _refused(self, snapshot: Snapshot) -> Iterator[tuple[str, int, int, Pair]]:
        """The pairs that the last decision asked for, if the guest waits although its host runs."""
        for host, guest in self._asked:
            at, row = self._rows.get(host), self._rows.get(guest)
            if at is not None and row is not None and snapshot.held[at] and not snapshot.held[row]:
                yield self._types[snapshot.gpu_type[at]], host, guest, (0.0, 0.0)

    def _estimate(self, gpu: str, a: str, b: str) -> Pair:
        """What two kinds keep: as measured, or as estimated and corrected. `a` is not behind `b`."""
        measured = self._kept.get(gpu, {}).get(a, {}).get(b)
        if measured is not None:
            return measured
        before = self._prior(gpu, a, b)
        if min(before) <= 0:
            return (0.0, 0.0)
        labels, table = self._corrections()
        if a not in labels or b not in labels:
            return before
        t, i, j = self._types.index(gpu), labels[a], labels[b]
        # For two jobs of one kind both read the same cell, so they come out equal to the last bit.
        first, second = before[0] + float(table[i, t, j]), before[1] + float(table[j, t, i])
        return (min(1.0, max(KEPT_MIN, first)), min(1.0, max(KEPT_MIN, second)))

    def _prior(self, gpu: str, a: str, b: str) -> Pair:
        """The estimate of two kinds before any measurement."""
        name = self._names[self._types.index(gpu)]
        gangs = {label.partition("x")[0] for label in (a, b)}
        pair = prior(self._references[a], self._references[b], name, int(gangs.pop()) if len(gangs) == 1 else 1)
        return (pair[0], pair[0]) if a == b else pair

    def _corrections(self) -> tuple[dict[str, int], Floats]:
        """How far to move the estimates of unmeasured pairs: kinds, and a table [kind, type, kind]."""
        if self._corrected is None:
            self._corrected = _completed(tuple(self._deviations()), self._types)
        return self._corrected

    def _deviations(self) -> Iterator[_Deviation]:
        """The deviations of measured pairs from their estimates, if both say that the pair fits."""
        for gpu in self._types:
            for a, row in self._kept.get(gpu, {}).items():
                for b, (x, y) in row.items():
                    before = self._prior(gpu, a, b)
                    if min(before) > 0 and min(x, y) > 0:
                        yield gpu, a, b, x - before[0], y - before[1]

    def _liken(self, label: str) -> None:
        """Choose the reference of an unknown model again, by its measured pairs."""
        if known_reference(label.partition(":")[2], 0) is not None:
            return
        table = builtin_table(self._names)
        place = {key.model: index for index, key in enumerate(table.kinds)}
        own, other = np.full((2, len(self._types), len(place)), np.nan)
        for t, gpu in enumerate(self._types):
            for a, row in self._kept.get(gpu, {}).items():
                for b, (x, y) in row.items():
                    if label not in (a, b):
                        continue
                    mine, theirs, partner = (x, y, b) if a == label else (y, x, a)
                    at = place.get(self._references[partner].model)
                    if at is not None and partner != label:
                        own[t, at], other[t, at] = mine, theirs
        if np.count_nonzero(~np.isnan(own)) >= FINGERPRINT:
            found = estimate_row(table, PairRow(own, other), LIKENESS).reference
            self._references[label] = Reference(table.kinds[found].model, 0)
            self._corrected = None


def _spread(snapshot: Snapshot, row: int, kind: int) -> bool:
    """Whether a gang sits on more nodes than it needs, which slows it down by itself."""
    gpus, cluster = snapshot.gpus_held(row), snapshot.cluster
    return len({cluster.node_of_gpu[gpu] for gpu in gpus}) > cluster.nodes_needed(kind, len(gpus))


@lru_cache(maxsize=64)
def _completed(lines: tuple[_Deviation, ...], types: tuple[str, ...]) -> tuple[dict[str, int], Floats]:
    """The deviations as a table, completed. Remembered, since decisions between two measurements need the same."""
    counts: dict[str, int] = {}
    for _, a, b, _, _ in lines:
        for label in {a, b}:
            counts[label] = counts.get(label, 0) + 1
    most = sorted(counts, key=lambda label: (-counts[label], label))[:CORRECTED_KINDS]
    labels = {label: index for index, label in enumerate(most)}
    size = len(labels)
    table = np.full((size, len(types), size), np.nan)
    for gpu, a, b, x, y in lines:
        if a in labels and b in labels:
            t = types.index(gpu)
            table[labels[a], t, labels[b]], table[labels[b], t, labels[a]] = x, y
    if not lines:
        return labels, table
    joined = np.hstack([table.reshape(size, -1), table.transpose(2, 1, 0).reshape(size, -1)])
    filled = complete(joined, ~np.isnan(joined), CORRECTIONS).reshape(size, 2, len(types), size)
    return labels, (filled[:, 0] + filled[:, 1].transpose(2, 1, 0)) / 2
