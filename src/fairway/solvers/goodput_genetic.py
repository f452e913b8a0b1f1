"""The genetic search of Pollux (Qiao et al., OSDI 2021) for placements, on whole populations at a time.

A population of placements is crossed (rows before a cut come from one parent, the others from the second), mutated
(rows go back to what is held, lose GPUs, or take free ones), and repaired so that the laws hold. The fittest survive.
Draws come from a seed and all arithmetic is on whole numbers, so the result is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.solvers.goodput_placement import Placing, distributed

POPULATION, GENERATIONS = 100, 100
CROSSED = 0.9
MUTATED = 0.1


def genetic_search(
    placing: Placing, seed: int | Sequence[int], population: Ints | None = None, generations: int = GENERATIONS
) -> tuple[Ints, Ints]:
    """The fittest placement found, and the last population, from which the search can go on."""
    if not placing.held.size:
        return placing.held, placing.held[None]
    random = np.random.default_rng(seed)
    start = placing.held[None]
    members = _repaired(placing, start if population is None else np.concatenate([start, population]), random)
    fitness = placing.fitness(members)
    for _ in range(generations):
        children = _crossed(members, _parents(fitness, random), random)
        children = _repaired(placing, _mutated(placing, children, random), random)
        members = np.concatenate([members, children])
        fitness = np.concatenate([fitness, placing.fitness(children)])
        kept = _survivors(members, fitness)
        members, fitness = members[kept], fitness[kept]
    return members[0], members


def _parents(fitness: Floats, random: np.random.Generator) -> Ints:
    """Pairs of parents: each is the fitter of two members."""
    rivals = random.integers(0, len(fitness), (2, POPULATION, 2))
    first, second = fitness[rivals[..., 0]], fitness[rivals[..., 1]]
    return np.where(first >= second, rivals[..., 0], rivals[..., 1])


def _crossed(members: Ints, parents: Ints, random: np.random.Generator) -> Ints:
    """Children that have the rows before a cut from one parent and the rest from the other."""
    jobs = members.shape[1]
    cut = random.integers(0, jobs + 1, POPULATION)
    cut = np.where(random.random(POPULATION) < CROSSED, cut, jobs)
    before = np.arange(jobs) < cut[:, None]
    return np.asarray(np.where(before[..., None], members[parents[0]], members[parents[1]]))


def _mutated(placing: Placing, members: Ints, random: np.random.Generator) -> Ints:
    """Members of which some rows are held again, some lose GPUs, and some take what is free."""
    size, jobs, nodes = members.shape
    back = random.random((size, jobs)) < MUTATED
    members = np.where(back[..., None], placing.held, members)
    losing = random.random((size, jobs)) < MUTATED
    lost = losing[..., None] & (random.random((size, jobs, nodes)) < MUTATED)
    members = np.where(lost, 0, members)
    free = placing.capacity - members.sum(axis=1)
    there: Bools = members > 0
    # A node with free GPUs is tried by about one of all jobs and about one of those that are there.
    own = there / np.maximum(there.sum(axis=1, keepdims=True), 1)
    chance = 1.0 / jobs + own - own / jobs
    taking = (free > 0)[:, None, :] & (random.random((size, jobs, nodes)) < chance)
    span = placing.capacity - members + 1
    raised = members + (random.random((size, jobs, nodes)) * span).astype(np.int64)
    return np.where(taking, np.minimum(raised, placing.capacity), members)


def _repaired(placing: Placing, members: Ints, random: np.random.Generator) -> Ints:
    """Members made to keep the laws: what is too much is taken from later jobs, and from nodes in a random order."""
    apart = distributed(members)
    members = np.where(np.cumsum(apart, axis=1) > ~placing.closed, 0, members)
    order = np.argsort(random.random((len(members), 1, members.shape[2])), axis=2, kind="stable")
    shuffled = np.take_along_axis(members, order, axis=2)
    before = np.cumsum(shuffled, axis=2) - shuffled
    shuffled = np.minimum(shuffled, np.maximum(placing.most[:, None] - before, 0))
    back = np.argsort(order, axis=2, kind="stable")
    members = np.take_along_axis(shuffled, back, axis=2)
    before = np.cumsum(members, axis=1) - members
    return np.minimum(members, np.maximum(placing.capacity - before, 0))


def _survivors(members: Ints, fitness: Floats) -> Ints:
    """The fittest members, each once; the older of equals."""
    order = np.argsort(-fitness, kind="stable")
    seen: set[bytes] = set()
    kept: list[int] = []
    for at in order.tolist():
        name = members[at].tobytes()
        if name not in seen:
            seen.add(name)
            kept.append(at)
            if len(kept) == POPULATION:
                break
    return np.array(kept)
