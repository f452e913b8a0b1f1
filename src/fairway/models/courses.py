"""The batch sizes of an adaptive job as regimes, from the tables of its model or a general rule.

A model of the published tables (`models.adaptation`) goes through the epochs of those tables. Any other model follows a
rule in hundredths of its training, since nothing says how many epochs it makes:

* *Accordion* (Agarwal et al., MLSys 2021) keeps the first batch size while training is critical, at the start and
  after each decay of the learning rate, and takes the largest that it can elsewhere.
* *GNS* doubles the batch size whenever the gradient noise scale (McCandlish et al., arXiv 1812.06162) is found to
  exceed it. Here the noise scale starts at the first batch size and grows geometrically, over the range through which
  KungFu (Mai et al., OSDI 2020) takes its batches.

No batch grows beyond what fits in memory; the caller says what fits.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from fairway.core.job import JobSpec, Regime
from fairway.models.adaptation import course_of

GENERAL_EPOCHS = 100
"""If nothing says how many epochs a job makes, its training is counted in hundredths."""
CRITICAL = ((0, 30), (50, 60), (75, 85))
"""Accordion, in hundredths: the first 30, as in the published profile of the known models, and ten after each decay of
the learning rate, at a half and at three quarters (the steps of He et al., CVPR 2016, on CIFAR-10)."""
NOISE_DOUBLINGS = 8
"""GNS: how often the noise scale doubles over the whole training. KungFu's batches go from 16 to 4,096."""
DECISIONS = 10
"""GNS checks the noise scale after each tenth of the training, and doubles the batch once at most."""
LARGEST_GENERAL_BATCH = 4096
"""No general course goes beyond this batch size per GPU."""

Fits = Callable[[int], bool]
"""Whether a job can train at a batch size on every GPU type on which it can begin, and its speed there is known."""
Stretches = list[tuple[int, int]]
"""Batch sizes in their order, and for how many epochs (or hundredths) in a row each is used."""

_WHOLE = (Regime(1.0),)


def accordion_course(batch_size: int, fits: Fits) -> Stretches:
    """Accordion's batch sizes over the hundredths of a training that begins with `batch_size`."""
    large = _largest(batch_size, fits)
    if large == batch_size:
        return [(batch_size, GENERAL_EPOCHS)]
    starts = [*(since for stretch in CRITICAL for since in stretch), GENERAL_EPOCHS]
    return [(large if turn % 2 else batch_size, until - since) for turn, (since, until) in enumerate(pairwise(starts))]


def gns_course(batch_size: int, fits: Fits) -> Stretches:
    """The batch sizes of GNS over the hundredths of a training that begins with `batch_size`.

    After k tenths the noise scale is the first batch size times two to the power 0.8 k. It has to be larger than the
    present batch size, not just as large.
    """
    doublings, starts = 0, [0]
    for decision in range(1, DECISIONS):
        grown = batch_size << (doublings + 1)
        exceeds = NOISE_DOUBLINGS * decision > DECISIONS * doublings
        if exceeds and grown <= LARGEST_GENERAL_BATCH and fits(grown):
            doublings += 1
            starts.append(decision * GENERAL_EPOCHS // DECISIONS)
    ends = [*starts[1:], GENERAL_EPOCHS]
    return [(batch_size << turn, end - start) for turn, (start, end) in enumerate(zip(starts, ends, strict=True))]


def _largest(batch_size: int, fits: Fits) -> int:
    """The largest batch size that is the first one times a power of two and that the job can train at."""
    grown, large = 2 * batch_size, batch_size
    while grown <= LARGEST_GENERAL_BATCH:
        large = grown if fits(grown) else large
        grown *= 2
    return large


def epochs_of(spec: JobSpec) -> float:
    """How many epochs a job makes, the last one maybe in part; hundredths of its training if that is not known."""
    course = None if spec.regimes else course_of(spec)
    if course is None or spec.steps is None:
        return float(GENERAL_EPOCHS)
    return spec.steps / course.steps_per_epoch(course.batch_size)


def laid_down(spec: JobSpec, fits: Fits) -> tuple[Regime, ...]:
    """The regimes of a job that adapts by Accordion or GNS; a single one if it never changes.

    A job must count steps of a batch size that it names: otherwise nothing says what a larger batch gains.
    """
    if spec.adaptation not in ("accordion", "gns") or not spec.steps or not spec.batch_size or not spec.model:
        return _WHOLE
    course, epochs = course_of(spec), epochs_of(spec)
    if course is not None:
        first = course.batch_size
        published = course.stretches(course.epochs(spec.steps))
        stretches = [(_limited(batch_size, first, fits), many) for batch_size, many in published]
    elif spec.adaptation == "accordion":
        stretches = accordion_course(spec.batch_size, fits)
    else:
        stretches = gns_course(spec.batch_size, fits)
    return _regimes(stretches, epochs)


def _limited(batch_size: int, first: int, fits: Fits) -> int:
    """A batch size of the tables, halved until it fits; the first one at least."""
    while batch_size > first and not fits(batch_size):
        batch_size //= 2
    return max(batch_size, first)


def _regimes(stretches: Stretches, epochs: float) -> tuple[Regime, ...]:
    """Regimes at other batch sizes one after the other; the last one ends with the work, in mid-epoch or not."""
    regimes: list[Regime] = []
    done = 0
    for batch_size, many in stretches:
        done += many
        if regimes and regimes[-1].batch_size == batch_size:
            regimes.pop()
        regimes.append(Regime(min(done / epochs, 1.0), batch_size))
    return (*regimes[:-1], Regime(1.0, regimes[-1].batch_size)) if len(regimes) > 1 else _WHOLE
