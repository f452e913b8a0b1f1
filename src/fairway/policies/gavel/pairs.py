"""Which jobs may share GPUs, and what each then keeps of its speed (space sharing; Gavel, OSDI 2020).

How two jobs slow each other down depends on their kinds, so the pairing is asked about kinds, not about each pair of
jobs. Pairs that hardly gain are left out. The solver finds which of the others a plan needs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.solvers.paired import Start

WORTHWHILE = 1.0
"""Two jobs that together keep no more than this of their speeds, on every GPU type, do better by taking turns."""
WORTH_NOTING = 160
"""From this many columns in use on (one for each job unlike all others) a plan starts where the last one ended."""
STAGES = ("start", "rest")
"""What is noted about a plan: where its first and its second stage ended."""
FIFO_WORTHWHILE = 1.5
"""What a waiting and a running job must keep together for first come, first served to put them together."""


def paired(situation: Situation, rates: Floats, worthwhile: float = WORTHWHILE) -> Throughputs:
    """Speeds alone and beside others. Jobs of unequal gangs, or that do not fit in memory together, never share."""
    pairing, gangs = situation.pairing, situation.snapshot.gpus.tolist()
    codes: dict[tuple[Hashable, int], int] = {}
    first: list[int] = []
    kinds: list[int] = []
    for job, gang in zip(situation.snapshot.jobs.tolist(), gangs, strict=True):
        code = codes.setdefault((pairing.kind(job), gang), len(first))
        if code == len(first):
            first.append(job)
        kinds.append(code)
    types = len(situation.capacity)
    factors = np.zeros((len(first), len(first), types, 2))
    sizes = [gang for _, gang in codes]
    for b, second in enumerate(first):
        for a in range(b + 1):
            if sizes[a] != sizes[b]:
                continue
            both = np.array(pairing.factors(first[a], second)).reshape(-1, 2)
            if len(both) == types and both.sum(axis=1).max() > worthwhile + 1e-9:
                factors[a, b], factors[b, a] = both, both[:, ::-1]
    _even_inside(factors)
    names, kind_of = situation.snapshot.jobs.copy(), np.array(kinds, dtype=np.int64)
    noted = (situation.notes.get(stage) for stage in STAGES)
    start, rest = (Start.from_plain(plain, names, types) if plain else None for plain in noted)
    return Throughputs(
        rates, situation.gangs, situation.capacity, kind_of, factors, start=start, rest=rest, names=names
    )


def noted_start(throughputs: Throughputs, outcome: PlanOutcome) -> dict[str, Any]:
    """What to note about an outcome so that the next plan finds its pairs sooner; nothing if that is quick anyway."""
    starts = zip(STAGES, (outcome.start, outcome.rest), strict=True)
    return {
        stage: start.plain(throughputs.names)
        for stage, start in starts
        if start is not None and len(start.basic) >= WORTH_NOTING
    }


def _even_inside(factors: Floats) -> None:
    """Two jobs of one kind keep the mean of what the two seats keep, whichever job has which seat."""
    diagonal = np.arange(len(factors))
    factors[diagonal, diagonal] = factors[diagonal, diagonal].mean(axis=-1, keepdims=True)


def fifo_partners(
    throughputs: Throughputs, x: Floats, order: Ints, together: Ints | None = None, worthwhile: float = FIFO_WORTHWHILE
) -> Shares:
    """Put waiting jobs beside jobs that have GPUs, in order, as long as each finds a worthwhile partner.

    `x` is the type that each job has alone, `together` the pairs (first row, second row, type) that share already. The
    next job in order joins the one with which it keeps most; no job is placed behind one that finds no partner.
    """
    x = x.copy()
    types = x.shape[1]
    pairs = [] if together is None else [tuple(pair) for pair in together.tolist()]
    busy = {row for a, b, _ in pairs for row in (a, b)}
    kinds, factors = throughputs.kinds, throughputs.factors
    for row in order.tolist():
        if row in busy or x[row].any():
            continue
        hosts = (x.any(axis=1) & (throughputs.gangs == throughputs.gangs[row])).nonzero()[0]
        on = x[hosts].argmax(axis=1)
        keeps = factors[kinds[hosts], kinds[row], on]
        sums = np.where((keeps.min(axis=1) > 0) & (throughputs.rates[row, on] > 0), keeps.sum(axis=1), 0.0)
        if not len(hosts) or sums.max() <= worthwhile:
            break
        best = int(np.argmax(sums))
        host, kind = int(hosts[best]), int(on[best])
        x[host] = 0.0
        pairs.append((min(host, row), max(host, row), kind))
        busy |= {host, row}
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    pair_x = np.zeros((len(pairs), types))
    pair_x[np.arange(len(pairs)), columns[:, 2]] = 1.0
    return Shares(x, columns[:, :2], pair_x)
