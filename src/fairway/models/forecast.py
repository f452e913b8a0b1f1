"""How long a training that changes its batch size will go on: a forecast from what is announced and what was seen.

The owner of a job announces its epochs and, in their order, the batch sizes (regimes) that it may go through. A change
is seen only when it happens. Shockwave (Zheng et al., NSDI 2023) treats the parts of the regimes as a draw from a
Dirichlet distribution whose prior splits the epochs evenly. Four rules say what is to come:

* `restatement`, the rule of the paper: a regime that is over has exactly the epochs that were seen, and the prior of
  the others is restated, so that they share evenly what is left;
* `bayes`, the rule of the paper's artifact: the ordinary posterior over batch sizes, whatever their order;
* `reactive`: the rest goes on at the present batch size;
* `agnostic`: the rest goes on at the first batch size, whatever was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, fsum, inf, sqrt
from typing import Literal, NamedTuple

from fairway.core.prospect import Spell, Stage, Training

Method = Literal["restatement", "bayes", "reactive", "agnostic"]
METHODS: tuple[Method, ...] = ("restatement", "bayes", "reactive", "agnostic")

_WHOLE_EPOCH = 1e-9
"""Epochs are sums of fractions of the work; an epoch that falls short of a whole one by this little counts as whole."""


class Forecast(NamedTuple):
    """What is expected of a training, by announced stage and in seconds.

    `epochs` are the expected totals of the stages, `left` the part of them that is to come. `remaining_s` is the
    expected time of that part and `spread_s` one standard deviation of it; `epoch_s` is an epoch's duration at present.
    `longest_s` is the time if all that is left were trained in the slowest of the stages that may still come.
    """

    epochs: tuple[float, ...]
    left: tuple[float, ...]
    remaining_s: float
    spread_s: float
    epoch_s: float
    longest_s: float


class _SeenStages(NamedTuple):
    """The spells of a training as stages: epochs by stage, epochs in all, the present stage, the first open one."""

    epochs: list[float]
    done: float
    present: int
    opened: int


def forecast(training: Training, epoch_s: Sequence[float], method: Method = "restatement") -> Forecast:
    """What is left of a training whose epochs take `epoch_s[k]` seconds in stage k; it has at least one stage.

    `bayes` counts whole epochs as the artifact does: the present one counts as seen, so the rest is up to an epoch too
    short even if a single batch size is announced. Its `left` is what `remaining_s` stands for and need not add up to
    the epochs that are left.
    """
    seen = _matched(training.stages, training.spells)
    if method == "bayes":
        return _bayes(training, seen, epoch_s)
    left = max(0.0, training.epochs - seen.done)
    if method == "agnostic":
        return _all_in(0, seen, left, epoch_s)
    ahead = len(training.stages) - seen.opened
    if method == "reactive" or ahead == 0:
        return _all_in(seen.present, seen, left, epoch_s)
    return _restated(seen, left, epoch_s) if ahead > 1 else _all_in(seen.opened, seen, left, epoch_s)


def _matched(stages: tuple[Stage, ...], spells: tuple[Spell, ...]) -> _SeenStages:
    """Find the spells among the announced stages, in order: each is the first with its batch size from the last on.

    A batch size that is not announced, or no longer due, is no stage: the job then stands between two stages.
    """
    count, ongoing = len(stages), len(spells) - 1
    epochs = [0.0] * count
    done, last, present, opened = 0.0, 0, 0, 0
    known = False
    for number, (batch_size, length) in enumerate(spells):
        if length <= 0.0:
            if number < ongoing:
                continue
            length = 0.0
        done += length
        stage = last
        while stage < count and stages[stage].batch_size != batch_size:
            stage += 1
        if stage < count:
            known = True
            epochs[stage] += length
            last = present = opened = stage
        else:
            opened = last + 1 if known else 0
            alike = [place for place in range(count) if stages[place].batch_size == batch_size]
            present = alike[-1] if alike else count - 1
    return _SeenStages(epochs, done, present, opened)


def _all_in(stage: int, seen: _SeenStages, left: float, epoch_s: Sequence[float]) -> Forecast:
    """All that is left is trained in one stage."""
    epochs, rest = seen.epochs, [0.0] * len(seen.epochs)
    epochs[stage] += left
    rest[stage] = left
    remaining_s = left * epoch_s[stage] if left else 0.0
    return Forecast(tuple(epochs), tuple(rest), remaining_s, 0.0, epoch_s[seen.present], remaining_s)


def _restated(seen: _SeenStages, left: float, epoch_s: Sequence[float]) -> Forecast:
    """Split what is left evenly over the open stages: the ongoing one, and those not yet reached.

    Their parts x of it are Dirichlet with L/m each, for L epochs left in m stages. The time L Σ d x then has the mean
    L d̄ and the variance L² (mean of d² - d̄²) / (L + 1).
    """
    epochs, first = seen.epochs, seen.opened
    many = len(epochs) - first
    each = left / many
    mean_s = square = 0.0
    for stage in range(first, len(epochs)):
        epochs[stage] += each
        duration_s = epoch_s[stage]
        mean_s += duration_s
        square += duration_s * duration_s
    mean_s /= many
    rest = (0.0,) * first + (each,) * many
    remaining_s = left * mean_s if left else 0.0
    spread_s = _deviation_s(left, square / many, mean_s, left)
    longest_s = left * max(epoch_s[first:]) if left else 0.0
    return Forecast(tuple(epochs), rest, remaining_s, spread_s, epoch_s[seen.present], longest_s)


def _bayes(training: Training, seen: _SeenStages, epoch_s: Sequence[float]) -> Forecast:
    """The posterior over batch sizes, from a prior of equal parts that weighs as much as the whole training.

    As in the artifact, the totals are scaled to the epochs of the job, and what was seen is subtracted epoch by epoch
    as long as a whole one is there. The time of the rest is scaled by the epochs left over those of the rest, rounded
    up. Epochs at a batch size that was not announced are known and stand apart from all that.
    """
    places, counts, foreign = _by_batch(training)
    known = max(0.0, training.epochs - foreign)
    done = seen.done - foreign
    whole = floor(done + _WHOLE_EPOCH)
    now = training.spells[-1].batch_size if training.spells else training.stages[0].batch_size
    if now in counts:
        counts[now] += max(0.0, min(known, whole + 1) - done)
    mass, prior = known + fsum(counts.values()), known / len(places)
    totals = [known * (prior + count) / mass if mass else 0.0 for count in counts.values()]
    rest = [
        total - count if count <= total else total % 1.0 for total, count in zip(totals, counts.values(), strict=True)
    ]
    ahead = fsum(rest)
    scale = max(0.0, known - whole) / max(int(ahead + 1.0), known - whole) if done < known else 0.0
    epochs, left = [0.0] * len(epoch_s), [0.0] * len(epoch_s)
    remaining_s = square = 0.0
    for stages, total, more in zip(places.values(), totals, rest, strict=True):
        share = more * scale
        if share:
            duration_s = fsum([epoch_s[stage] for stage in stages]) / len(stages)
            remaining_s += share * duration_s
            square += share * duration_s * duration_s
        for stage in stages:
            epochs[stage] = total / len(stages)
            left[stage] = share / len(stages)
    ahead *= scale
    spread_s = _deviation_s(ahead, square / ahead, remaining_s / ahead, mass) if ahead else 0.0
    longest_s = max(remaining_s, max(0.0, known - done) * max(epoch_s))
    return Forecast(tuple(epochs), tuple(left), remaining_s, spread_s, epoch_s[seen.present], longest_s)


def _by_batch(training: Training) -> tuple[dict[int, list[int]], dict[int, float], float]:
    """The stages of every announced batch size, the epochs seen at it, and those seen at batch sizes not announced."""
    places = dict[int, list[int]]()
    for stage, (batch_size, _) in enumerate(training.stages):
        places.setdefault(batch_size, []).append(stage)
    counts, foreign = dict.fromkeys(places, 0.0), 0.0
    for batch_size, length in training.spells:
        if batch_size in counts:
            counts[batch_size] += max(0.0, length)
        else:
            foreign += max(0.0, length)
    return places, counts, foreign


def _deviation_s(epochs: float, mean_square: float, mean_s: float, concentration: float) -> float:
    """One standard deviation of the time of `epochs` split by a Dirichlet, from the moments of an epoch's duration."""
    if not epochs:
        return 0.0
    if mean_s == inf:
        return inf
    return epochs * sqrt(max(0.0, mean_square - mean_s * mean_s) / (concentration + 1.0))
