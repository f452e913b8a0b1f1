"""How far off the throughput estimator is: kinds of jobs are left out of a full table and estimated from a part.

Each kind in turn is the new one. The others are its references; a random part of its pairs is measured, the rest
estimated and compared with the table. Pairs that do not fit in memory are part of the truth (both keep 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats
from fairway.core.errors import InputError
from fairway.models.completion import Completion, complete
from fairway.models.estimator import estimate_speeds
from fairway.models.fingerprint import PairRow, ReferenceTable, cosines, estimate_row
from fairway.models.gavel_profile import GavelProfile
from fairway.models.names import ProfileKey
from fairway.models.references import builtin_kept

PUBLISHED = Completion(rank=10, penalty=1e-2, turns=100, offsets=None, spread=1.0)
"""As in Gavel's code: bare values, rank 10, mu = 0.01, up to 100 turns from factors of standard deviation 1."""

HoldOut = Literal["type", "model"]
METHODS = ("mixed", "completed", "nearest", "published", "mean", "built-in")
WORTH = 1.1
"""Two jobs that together keep at least this much of their speeds are worth packing: Gavel plans no other pairs."""


class PackScore(NamedTuple):
    """The errors of one way to estimate: of what each of two jobs keeps, and of the verdict whether to pack them.

    `right` is the share of right verdicts, `rash` that of pairs packed though not worth it (or not fitting), `missed`
    that of pairs worth it and not packed. `pairs` counts those for which there is an estimate.
    """

    pairs: int
    mean: float
    median: float
    p90: float
    right: float
    rash: float
    missed: float


def profile_table(profile: GavelProfile) -> ReferenceTable:
    """The measured pairs of a profile on single GPUs.

    Larger gangs are left out: Gavel's file holds zeros for all their pairs, which were never measured.
    """

    def kept(a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        pair = profile.measured_pair(a, b, gpu_type)
        if pair is None:
            return None
        alone = [profile.rate(key.model, key.batch_size, gpu_type, 1) for key in (a, b)]
        if min(alone) <= 0:
            return (0.0, 0.0)
        return (min(1.0, pair[0] / alone[0]), min(1.0, pair[1] / alone[1])) if min(pair) > 0 else (0.0, 0.0)

    kinds = [key for key in profile.job_types if key.gpus == 1]
    types = [name for name in profile.gpu_types if any(_alone(profile, key, name) > 0 for key in kinds)]
    table = ReferenceTable.of(kinds, types, kept)
    told = [index for index in range(len(kinds)) if np.isnan(table.kept[index]).all()]
    table = table.without(told)
    if len(table.kinds) < 3:
        raise InputError("a profile needs pairs of at least 3 job types on one GPU to estimate from", path=profile.name)
    return table


def hold_out(
    table: ReferenceTable, fraction: float, seeds: Sequence[int], by: HoldOut = "type", worth: float = WORTH
) -> dict[str, PackScore]:
    """The score of each method, over all kinds as new ones and all seeds.

    By "model", a new kind has no reference of its own model at another batch size.
    """
    builtin = ReferenceTable.of(table.kinds, table.gpu_types, builtin_kept)
    gathered: dict[str, list[tuple[Floats, Floats]]] = {method: [] for method in METHODS}
    for seed in seeds:
        for new, kind in enumerate(table.kinds):
            alike = [i for i, other in enumerate(table.kinds) if other.model == kind.model]
            same = alike if by == "model" else [new]
            beside = [i for i in range(len(table.kinds)) if i not in same]
            if not beside:
                continue
            truth = table.row(new, beside)
            measured = _part(truth, fraction, np.random.default_rng([seed, new]))
            asked = np.isnan(measured.own) & ~np.isnan(truth.own)
            for method, row in _estimates(table.without(same), measured, builtin.row(new, beside), seed):
                seeing = asked & ~np.isnan(row.own)
                pair = np.stack([row.own[seeing], row.other[seeing]])
                gathered[method].append((pair, np.stack([truth.own[seeing], truth.other[seeing]])))
    return {method: _score(pairs, worth) for method, pairs in gathered.items() if any(p.size for p, _ in pairs)}


def alone_errors(profile: GavelProfile) -> dict[str, float]:
    """By GPU type: the median factor by which the speed of a job alone is missed, if it never ran on that type.

    One entry of the table of job types and GPU types is hidden at a time.
    """
    kinds = [key for key in profile.job_types if key.gpus == 1]
    speeds = np.array([[_alone(profile, key, name) for name in profile.gpu_types] for key in kinds])
    speeds[speeds == 0] = np.nan
    errors: dict[str, float] = {}
    for t, name in enumerate(profile.gpu_types):
        factors = []
        for row in np.flatnonzero(~np.isnan(speeds[:, t])):
            hidden = speeds.copy()
            hidden[row, t] = np.nan
            factors.append(abs(portable.log(float(estimate_speeds(hidden)[row, t] / speeds[row, t]))))
        found = np.array(factors)[np.isfinite(factors)]
        if len(found):
            errors[name] = portable.exp(float(np.median(found)))
    return errors


def _alone(profile: GavelProfile, key: ProfileKey, gpu_type: str) -> float:
    try:
        return profile.rate(key.model, key.batch_size, gpu_type, key.gpus)
    except InputError:
        return 0.0


def _part(truth: PairRow, fraction: float, random: np.random.Generator) -> PairRow:
    """A random part of a row, at least one pair; NaN elsewhere."""
    there = np.flatnonzero(~np.isnan(truth.own.ravel()))
    count = max(1, round(fraction * len(there)))
    taken: Bools = np.zeros(truth.own.size, dtype=bool)
    taken[random.permutation(there)[:count]] = True
    shown = taken.reshape(truth.own.shape)
    return PairRow(np.where(shown, truth.own, np.nan), np.where(shown, truth.other, np.nan))


def _estimates(table: ReferenceTable, measured: PairRow, builtin: PairRow, seed: int) -> Iterator[tuple[str, PairRow]]:
    estimate = estimate_row(table, measured, Completion(seed=seed))
    yield "mixed", estimate.mixed
    yield "completed", estimate.completed
    yield "nearest", estimate.nearest
    yield "published", published_row(table, measured, seed)
    flat = np.full(measured.own.shape, np.nanmean(table.kept))
    yield "mean", PairRow(flat, flat)
    yield "built-in", builtin


def _score(pairs: list[tuple[Floats, Floats]], worth: float) -> PackScore:
    estimate, truth = (np.concatenate([pair[side] for pair in pairs], axis=1) for side in (0, 1))
    error = np.abs(estimate - truth)
    packed, should = estimate.sum(axis=0) >= worth, truth.sum(axis=0) >= worth
    return PackScore(
        pairs=estimate.shape[1],
        mean=float(error.mean()),
        median=float(np.median(error)),
        p90=float(np.quantile(error, 0.9)),
        right=float(np.mean(packed == should)),
        rash=float(np.mean(packed & ~should)),
        missed=float(np.mean(~packed & should)),
    )


def published_row(table: ReferenceTable, measured: PairRow, seed: int = 0) -> PairRow:
    """The estimate of Gavel's code: only what the new job keeps is looked at; the nearest reference gives the rest."""
    own = table.kept.reshape(len(table.kinds), -1)
    values = np.vstack([own, measured.own.reshape(1, -1)])
    filled = np.clip(complete(values, ~np.isnan(values), replace(PUBLISHED, seed=seed)), 0.0, 1.0)
    nearest = int(np.argmax(cosines(filled[:-1], filled[-1])))
    everything = np.clip(complete(table.joined, ~np.isnan(table.joined)), 0.0, 1.0)
    return PairRow.split(everything[nearest], len(table.gpu_types))
