"""What Optimus remembers of running jobs: a few points of their loss curves, and their speeds on gangs of each size.

The notes are arrays with one row per job that was active when they were taken. They are bounded: when a job's losses
fill its row, every second one is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot
from fairway.models.optimus_fits import LEAST_POINTS, epochs_to_converge, fit_losses, fit_speeds, unit_s
from fairway.policies.optimus.greedy import LeftS

EVERY_S = 30.0
"""Notes are taken at most this often, and of a gang's speed only when it has run for so long."""
POINTS = 12
SIZES = 6
YOUNG_FACTOR = 0.95
"""What the gains of a job count for whose loss curve cannot be fitted yet."""
UNKNOWN_GPU_S = 3600.0
"""What a job is taken to need while no job has ended."""
LEAST_SHARE = 0.1
"""A job that has had as much service as others in all is taken to need this part of it again."""

Notes = Mapping[str, Any]


def take_notes(snapshot: Snapshot, notes: Notes) -> Notes:
    """The notes with what can be seen now, or as they were if that was a moment ago."""
    if notes and snapshot.now_s < notes["noted_s"] + EVERY_S:
        return notes
    mine = aligned(snapshot, notes)
    epochs, loss = snapshot.losses()
    at, running = mine["epochs"], snapshot.running
    last = np.where(np.isfinite(at), at, -1.0).max(axis=1, initial=-1.0)
    rows = (running & np.isfinite(loss) & (epochs > last)).nonzero()[0]
    _append(rows, [(mine["epochs"], epochs), (mine["losses"], loss)])
    mine["done"][rows] = snapshot.progress[rows]
    settled = running & (snapshot.rate > 0) & (snapshot.now_s - snapshot.since_s >= EVERY_S)
    _note_speeds(settled, snapshot, mine["gangs"], mine["rates"])
    return mine | {"noted_s": snapshot.now_s}


def aligned(snapshot: Snapshot, notes: Notes) -> dict[str, Any]:
    """A copy of the notes with one row per row of the snapshot."""
    rows = len(snapshot)
    mine: dict[str, Any] = {
        "jobs": snapshot.jobs.copy(),
        "done": np.zeros(rows),
        "epochs": np.full((rows, POINTS), np.nan),
        "losses": np.full((rows, POINTS), np.nan),
        "gangs": np.zeros((rows, SIZES)),
        "rates": np.zeros((rows, SIZES)),
    }
    if notes and len(notes["jobs"]) and rows:
        before = np.asarray(notes["jobs"], dtype=np.int64)
        where = np.minimum(np.searchsorted(before, snapshot.jobs), len(before) - 1)
        known = before[where] == snapshot.jobs
        for key in ("done", "epochs", "losses", "gangs", "rates"):
            mine[key][known] = np.asarray(notes[key], dtype=np.float64)[where[known]]
    return mine


def _append(rows: Ints, columns: Sequence[tuple[Floats, Floats]]) -> None:
    """Write a value for each row into the first empty place of its row; a full row first forgets every second one."""
    first = columns[0][0]
    full = rows[np.isfinite(first[rows, -1])]
    kept = (POINTS + 1) // 2
    for table, _ in columns:
        table[full, :kept] = table[full, ::2]
        table[full, kept:] = np.nan
    empty = np.isnan(first[rows]).argmax(axis=1)
    for table, values in columns:
        table[rows, empty] = values[rows]


def _note_speeds(settled: Bools, snapshot: Snapshot, gangs: Floats, rates: Floats) -> None:
    """Keep the latest rate for each size of a gang; where there is no place for another size, the oldest goes."""
    rows = settled.nonzero()[0]
    held = snapshot.held[rows].astype(np.float64)
    same, empty = gangs[rows] == held[:, None], gangs[rows] == 0
    full = ~same.any(axis=1) & ~empty.any(axis=1)
    for table in (gangs, rates):
        table[rows[full], :-1] = table[rows[full], 1:]
    place = np.where(same.any(axis=1), same.argmax(axis=1), np.where(full, SIZES - 1, empty.argmax(axis=1)))
    gangs[rows, place] = held
    rates[rows, place] = snapshot.rate[rows]


def learned(snapshot: Snapshot, notes: Notes, rows: Ints) -> tuple[list[LeftS], list[float]]:
    """For some rows: the time left by what has been learned of them, and what their gains count for."""
    mine = aligned(snapshot, notes)
    gangs, rates = mine["gangs"][rows], mine["rates"][rows]
    # What everybody knows of a job is its speed on its own gang: where nothing was seen, it stands in.
    fresh = ~(gangs > 0).any(axis=1)
    gangs[fresh, 0], rates[fresh, 0] = snapshot.gpus[rows][fresh], snapshot.best_speed[rows][fresh]
    terms = fit_speeds(gangs, rates)
    at = mine["epochs"][rows]
    work_left = _work_left(snapshot, rows, at, mine["losses"][rows], mine["done"][rows])
    fitted = np.isfinite(work_left)
    alone_s = np.maximum([unit_s(each, 1) for each in terms], 1e-9)
    scale = np.where(fitted, work_left, _usual_gpu_s(snapshot, rows) / alone_s)
    left = [_left_s(each, work) for each, work in zip(terms, scale.tolist(), strict=True)]
    return left, np.where(fitted, 1.0, YOUNG_FACTOR).tolist()


def _left_s(terms: Floats, work: float) -> LeftS:
    a, t1, t2, t3 = (work * float(term) for term in terms)
    return lambda gpus: a / gpus + t1 + t2 * (gpus - 1) / gpus + t3 * float(np.log2(gpus))


def _work_left(snapshot: Snapshot, rows: Ints, epochs: Floats, losses: Floats, done: Floats) -> Floats:
    """Work until the loss has converged, at least one epoch of it; NaN where too few losses have been seen."""
    last = np.where(np.isfinite(epochs), epochs, 0.0).max(axis=1, initial=0.0)
    enough = (np.isfinite(epochs).sum(axis=1) >= LEAST_POINTS) & (last > 0) & (done > 0)
    left = np.full(len(rows), np.nan)
    some = enough.nonzero()[0]
    if len(some):
        total = epochs_to_converge(fit_losses(epochs[some], losses[some]))
        each = done[some] / last[some]
        left[some] = np.maximum(total - snapshot.progress[rows[some]] / each, 1.0) * each
    return left


def _usual_gpu_s(snapshot: Snapshot, rows: Ints) -> Floats:
    """The service that ended jobs of the same model needed, or all ended jobs, less what the job has had."""
    ended, models = snapshot.finished, len(snapshot.names.models)
    overall = float(ended.gpu_s.mean()) if len(ended.gpu_s) else UNKNOWN_GPU_S
    count = np.bincount(ended.model, minlength=models)
    total = np.bincount(ended.model, ended.gpu_s, minlength=models)
    usual = np.where(count > 0, total / np.maximum(count, 1), overall)[snapshot.model[rows]]
    return np.asarray(np.maximum(usual - snapshot.attained_gpu_s[rows], LEAST_SHARE * usual))
