"""Apps and their finish-time ratio: how late each will be, compared with a private share of the cluster.

rho = T_sh / T_id. T_sh is the time from the app's arrival to its expected end under sharing, T_id the time that its
work would take on a share R/N of the cluster of its own, where N is the number of apps, averaged over its life so far.
Work is counted in GPU-seconds on the GPU type that suits a job best.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.snapshot import Snapshot

AppBy = Literal["job", "queue", "user"]
_SHORT_S = 1e-6


class Apps(NamedTuple):
    """The active apps; `of_row` is the app of each row of the snapshot, the other columns have one entry per app.

    `left_gpu_s` is the work that is left, `longest_s` the least time that its longest job takes, `most` how many GPUs
    it can use, `share` how many it would have for itself, `ideal_s` is T_id.
    """

    of_row: Ints
    keys: Ints
    since_s: Floats
    elapsed_s: Floats
    left_gpu_s: Floats
    longest_s: Floats
    most: Floats
    share: Floats
    ideal_s: Floats

    @property
    def number(self) -> int:
        """How many apps there are."""
        return len(self.keys)

    @property
    def rho(self) -> Floats:
        """The ratio that each app can still reach: with all GPUs that it can use from now on."""
        left_s = np.maximum(self.left_gpu_s / self.most, self.longest_s)
        rho: Floats = (self.elapsed_s + left_s) / self.ideal_s
        return rho


def value_of(elapsed_s: float, left_gpu_s: float, longest_s: float, ideal_s: float, speed: float) -> float:
    """V = 1/rho of an app that gets as much done as `speed` GPUs of its best type from now on."""
    return ideal_s / max(elapsed_s + max(left_gpu_s / speed, longest_s), _SHORT_S)


def relative_speeds(snapshot: Snapshot) -> Floats:
    """Each job's speed by GPU type as a fraction of that on its best one."""
    relative: Floats = snapshot.speeds / np.maximum(snapshot.best_speed, 1e-300)
    return relative


def apps_of(snapshot: Snapshot, by: AppBy, relative: Floats) -> tuple[Apps, dict[str, Any]]:
    """The apps at this instant, and what to remember about them."""
    if by == "job":
        keys, of_row = snapshot.jobs.copy(), np.arange(len(snapshot), dtype=np.int64)
    else:
        keys, of_row = np.unique(snapshot.user if by == "user" else snapshot.queue, return_inverse=True)
    count, oracle = len(keys), snapshot.oracle
    total_gpu_s, left_gpu_s = oracle.total_s * snapshot.gpus, oracle.remaining_s * snapshot.gpus
    since_s, present, past_gpu_s, memory = _lives(snapshot, keys, of_row)
    most = _summed(of_row, snapshot.gpus_max, count)
    reach = np.add.reduce(snapshot.cluster.gpus_by_type[:, None] * relative, axis=0)
    share = _summed(of_row, reach, count) / np.bincount(of_row, minlength=count) / present
    longest_s, longest_total_s = np.zeros(count), np.zeros(count)
    np.maximum.at(longest_s, of_row, left_gpu_s / snapshot.gpus_max)
    np.maximum.at(longest_total_s, of_row, total_gpu_s / snapshot.gpus_max)
    work_gpu_s = _summed(of_row, total_gpu_s, count) + past_gpu_s
    ideal_s = np.maximum(work_gpu_s / np.minimum(share, most), longest_total_s)
    apps = Apps(
        of_row,
        keys,
        since_s,
        np.maximum(snapshot.now_s - since_s, 0.0),
        _summed(of_row, left_gpu_s, count),
        longest_s,
        most,
        share,
        np.maximum(ideal_s, _SHORT_S),
    )
    if by != "job":
        memory |= {"rows": snapshot.jobs.copy(), "row_apps": keys[of_row], "row_gpu_s": total_gpu_s}
    return apps, memory


def _summed(of_row: Ints, values: Floats | Ints, count: int) -> Floats:
    """Sums over the rows of each app."""
    return np.bincount(of_row, values, count).astype(np.float64)


def _lives(snapshot: Snapshot, keys: Ints, of_row: Ints) -> tuple[Floats, Floats, Floats, dict[str, Any]]:
    """When each app came, how many there have been on average since, and the work of its jobs that have ended.

    The number of apps is integrated over time (`area`). The value of the integral when an app came gives its average.
    """
    now_s, count = snapshot.now_s, len(keys)
    known = snapshot.memory if "area" in snapshot.memory else {}
    area = 0.0
    since_s, past_gpu_s = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(since_s, of_row, snapshot.submitted_s)
    if known:
        area = known["area"] + known["apps"] * max(now_s - known["now_s"], 0.0)
    # Of a new app's life before it was first seen, only the present number is known.
    area0 = area - count * (now_s - since_s)
    if known:
        before = np.asarray(known["keys"], dtype=np.int64)
        at = np.minimum(np.searchsorted(before, keys), max(len(before) - 1, 0))
        old = (before[at] == keys) if len(before) else np.zeros(count, dtype=np.bool_)
        for column, name in ((since_s, "since_s"), (area0, "area0"), (past_gpu_s, "past_gpu_s")):
            column[old] = np.asarray(known[name])[at[old]]
        if "rows" in known:
            past_gpu_s += _ended(snapshot, known, keys)
    came = now_s - since_s
    present = np.where(came > _SHORT_S, (area - area0) / np.maximum(came, _SHORT_S), float(count))
    memory = {
        "now_s": now_s,
        "area": float(area),
        "apps": count,
        "keys": keys,
        "since_s": since_s,
        "area0": area0,
        "past_gpu_s": past_gpu_s,
    }
    return since_s, np.maximum(present, 1.0), past_gpu_s, memory


def _ended(snapshot: Snapshot, known: Mapping[str, Any], keys: Ints) -> Floats:
    """The work of jobs that have left since the last decision, by app."""
    ended = snapshot.rows_of(known["rows"]) < 0
    owners = np.asarray(known["row_apps"], dtype=np.int64)[ended]
    work_gpu_s = np.asarray(known["row_gpu_s"], dtype=np.float64)[ended]
    at = np.minimum(np.searchsorted(keys, owners), len(keys) - 1)
    here = keys[at] == owners
    return _summed(at[here], work_gpu_s[here], len(keys))
