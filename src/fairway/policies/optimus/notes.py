"""What Optimus remembers about running jobs: some points of their loss curves, and their speeds on gangs of each size.

The notes are arrays with one row per job that was active when they were taken. They are bounded: when a job's losses
fill its row, every second one is forgotten. Fits are kept as well. They are only computed again if there is something
new, and for a bounded number of jobs at a time.
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
"""Notes are taken at most this often, and of a gang's speed only after it has run for this long."""
POINTS = 12
SIZES = 6
MOST_FITS = 256
"""The most jobs that are fitted in one decision. Those with the oldest fit come first."""
YOUNG_FACTOR = 0.95
"""The factor on the gains of a job whose loss curve cannot be fitted yet."""
UNKNOWN_GPU_S = 3600.0
"""What a job is assumed to need while no job has ended."""
LEAST_SHARE = 0.1
"""A job that has had as much service as others in all is assumed to need this part of it again."""

Notes = Mapping[str, Any]


def take_notes(snapshot: Snapshot, notes: Notes) -> Notes:
    """The notes with what can be seen now, or unchanged if that was a moment ago."""
    if notes and snapshot.now_s < notes["noted_s"] + EVERY_S:
        return notes
    mine = aligned(snapshot, notes)
    epochs, loss = snapshot.losses()
    at, running = mine["epochs"], snapshot.running
    last = np.where(np.isfinite(at), at, -1.0).max(axis=1, initial=-1.0)
    rows = (running & np.isfinite(loss) & (epochs > last)).nonzero()[0]
    _append(rows, [(mine["epochs"], epochs), (mine["losses"], loss)])
    mine["done"][rows] = snapshot.progress[rows]
    mine["news"][rows] = 1.0
    settled = running & (snapshot.rate > 0) & (snapshot.now_s - snapshot.since_s >= EVERY_S)
    mine["news"][_note_speeds(settled, snapshot, mine["gangs"], mine["rates"])] = 1.0
    return mine | {"noted_s": snapshot.now_s}


def aligned(snapshot: Snapshot, notes: Notes) -> dict[str, Any]:
    """A copy of the notes with one row per row of the snapshot."""
    rows = len(snapshot)
    new: dict[str, Any] = {
        "done": 0.0,
        "epochs": np.full((rows, POINTS), np.nan),
        "losses": np.full((rows, POINTS), np.nan),
        "gangs": np.zeros((rows, SIZES)),
        "rates": np.zeros((rows, SIZES)),
        "news": 0.0,
        "fitted_s": -1.0,
        "total": np.nan,
        "terms": np.zeros((rows, 4)),
    }
    known = {name: snapshot.recall(name, default, notes) for name, default in new.items()}
    return {"jobs": snapshot.jobs.copy(), **known}


def _append(rows: Ints, columns: Sequence[tuple[Floats, Floats]]) -> None:
    """Write a value for each row into the first empty place of its row. A full row first forgets every second value."""
    first = columns[0][0]
    full = rows[np.isfinite(first[rows, -1])]
    kept = (POINTS + 1) // 2
    for table, _ in columns:
        table[full, :kept] = table[full, ::2]
        table[full, kept:] = np.nan
    empty = np.isnan(first[rows]).argmax(axis=1)
    for table, values in columns:
        table[rows, empty] = values[rows]


def _note_speeds(settled: Bools, snapshot: Snapshot, gangs: Floats, rates: Floats) -> Ints:
    """Keep the latest rate for each size of a gang. If there is no place for another size, the oldest goes.

    Returns the rows in which something has changed.
    """
    rows = settled.nonzero()[0]
    held = snapshot.held[rows].astype(np.float64)
    same, empty = gangs[rows] == held[:, None], gangs[rows] == 0
    full = ~same.any(axis=1) & ~empty.any(axis=1)
    for table in (gangs, rates):
        table[rows[full], :-1] = table[rows[full], 1:]
    place = np.where(same.any(axis=1), same.argmax(axis=1), np.where(full, SIZES - 1, empty.argmax(axis=1)))
    other = (gangs[rows, place] != held) | (rates[rows, place] != snapshot.rate[rows])
    gangs[rows, place] = held
    rates[rows, place] = snapshot.rate[rows]
    changed: Ints = rows[other]
    return changed


def refitted(snapshot: Snapshot, notes: Notes, rows: Ints) -> Notes:
    """The notes, one row per row of the snapshot, with new fits for those of these rows that have waited longest."""
    mine = aligned(snapshot, notes)
    due = rows[mine["news"][rows] > 0]
    if len(due) > MOST_FITS:
        due = due[mine["fitted_s"][due].argsort(kind="stable")[:MOST_FITS]]
    if len(due):
        epochs = mine["epochs"][due]
        enough = due[np.isfinite(epochs).sum(axis=1) >= LEAST_POINTS]
        mine["total"][enough] = epochs_to_converge(fit_losses(mine["epochs"][enough], mine["losses"][enough]))
        mine["terms"][due] = fit_speeds(mine["gangs"][due], mine["rates"][due])
        mine["news"][due], mine["fitted_s"][due] = 0.0, snapshot.now_s
    return mine | {"noted_s": notes.get("noted_s", snapshot.now_s)}


def learned(snapshot: Snapshot, notes: Notes, rows: Ints) -> tuple[LeftS, list[float]]:
    """For some rows: the time left by the fits in the notes of this snapshot, and the factors on their gains."""
    terms = notes["terms"][rows]
    # The speed of a job on its own gang is always known. It stands in where nothing was seen.
    fresh = ~terms.any(axis=1)
    terms[fresh, 0] = (snapshot.gpus[rows] / snapshot.best_speed[rows])[fresh]
    work_left = _work_left(snapshot, notes, rows)
    fitted = np.isfinite(work_left)
    alone_s = np.maximum(unit_s(terms, 1), 1e-9)
    terms *= np.where(fitted, work_left, _usual_gpu_s(snapshot, rows) / alone_s)[:, None]

    def left_s(jobs: Ints, gpus: Ints) -> Floats:
        return unit_s(terms[jobs, None, :], gpus)

    return left_s, np.where(fitted, 1.0, YOUNG_FACTOR).tolist()


def _work_left(snapshot: Snapshot, notes: Notes, rows: Ints) -> Floats:
    """Work until the loss has converged, at least one epoch; NaN if too few losses have been seen."""
    epochs, done = notes["epochs"][rows], notes["done"][rows]
    last = np.where(np.isfinite(epochs), epochs, 0.0).max(axis=1, initial=0.0)
    each = np.divide(done, last, out=np.full(len(rows), np.nan), where=(last > 0) & (done > 0))
    left: Floats = np.maximum(notes["total"][rows] - snapshot.progress[rows] / each, 1.0) * each
    return left


def _usual_gpu_s(snapshot: Snapshot, rows: Ints) -> Floats:
    """The service that ended jobs of the same model needed, or all ended jobs, less what the job has had."""
    ended, models = snapshot.finished, len(snapshot.names.models)
    overall = float(ended.gpu_s.mean()) if len(ended.gpu_s) else UNKNOWN_GPU_S
    count = np.bincount(ended.model, minlength=models)
    total = np.bincount(ended.model, ended.gpu_s, minlength=models)
    usual = np.where(count > 0, total / np.maximum(count, 1), overall)[snapshot.model[rows]]
    return np.asarray(np.maximum(usual - snapshot.attained_gpu_s[rows], LEAST_SHARE * usual))
