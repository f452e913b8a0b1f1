"""The inner loops of a round, each in two forms: NumPy, and a plain loop that Numba compiles.

The NumPy forms always work. `use_compiled()` swaps in the compiled ones where the optional package Numba is installed
(the extra `fast`); results are the same to the bit, which a test checks. Callers go through the module
(`kernels.in_order(...)`). `f` and `i` are the blocks of float and integer columns of the job table (`core.columns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Codes, Floats, Ints, Ranks, frozen

FEWER, MORE, SILENT, NEEDLESS, UNKNOWN, STOPPED, FINE = 1, 2, 3, 4, 5, 6, 7
"""Laws that a grant can break; see `first_breach`."""

LAST_REASON = 7
REACHED = 1 - 1e-9
"""Service that has come this close to a limit has reached it; else rounding would ask for endless tiny steps."""


NEVER_S = 5e9
"""Stands in `queue_keys` for the first start of a job that was never started."""
WAITING = 1e10
QUEUE = 2e10
"""Weights of waiting and of a queue there: more than any instant, and more than all of a queue."""
MOST_RANKS = 64
"""More ranks than this are not told apart inside a queue by `index_keys`."""


def _in_order_numpy(
    order: Ints, f: Floats, i: Ints, now_s: float, free: int, mode: tuple[bool, bool, int], grants: Ints, reasons: Codes
) -> tuple[int, float]:
    preempt, strict, code = mode
    left, wake_s = _walk(order, i[c.GPUS], free, strict, grants), np.inf
    if preempt:
        ideal = grants.copy()
        grants[:] = 0
        spared, ends_s = keep_protected(ideal, f, i, now_s, grants)
        if spared:
            newcomers = order[grants[order] == 0]
            _walk(newcomers, i[c.GPUS], free - int(grants.sum()), strict, grants)
            wake_s = ends_s
        else:
            grants[:] = ideal
    np.multiply(grants == 0, code, out=reasons, casting="unsafe")
    return left, wake_s


def _walk(order: Ints, gpus: Ints, free: int, strict: bool, grants: Ints) -> int:
    """Each pass accepts the longest prefix that fits and drops every gang larger than what is left."""
    needs = gpus[order]
    while free > 0 and len(order):
        ends = needs.cumsum()
        fit = int(ends.searchsorted(free, side="right"))
        if fit:
            grants[order[:fit]] = needs[:fit]
            free -= int(ends[fit - 1])
        if strict:
            break
        order, needs = order[fit + 1 :], needs[fit + 1 :]
        fits = needs <= free
        order, needs = order[fits], needs[fits]
    return free


def keep_protected(ideal: Ints, f: Floats, i: Ints, now_s: float, grants: Ints) -> tuple[int, float]:
    """Write into `grants` who keeps its GPUs: protected jobs that would change, and running jobs that are to go on.

    Returns how many were spared and when the first protection of a job that would be stopped ends.
    """
    running = (i[c.HELD] > 0).nonzero()[0]
    wanted, has, until_s = ideal[running], i[c.HELD, running], f[c.PROTECTED_UNTIL_S, running]
    spared = (until_s > now_s) & (wanted != has)
    stay = spared | (wanted > 0)
    grants[running[stay]] = has[stay]
    displaced = until_s[spared & (wanted == 0)]
    return int(np.count_nonzero(spared)), float(displaced.min()) if len(displaced) else np.inf


def _in_order_loop(
    order: Ints, f: Floats, i: Ints, now_s: float, free: int, mode: tuple[bool, bool, int], grants: Ints, reasons: Codes
) -> tuple[int, float]:
    preempt, strict, code = mode
    left, first_left, wake_s, spared, rows = free, 0, np.inf, 0, len(grants)
    for turn in range(2):
        for row in order:
            if grants[row] == 0:
                need = i[c.GPUS, row]
                if need <= left:
                    grants[row] = need
                    left -= need
                    if left == 0:
                        break
                elif strict:
                    break
        if turn == 0:
            first_left = left
        if turn == 1 or not preempt:
            break
        for row in range(rows):
            held = i[c.HELD, row]
            spared += held > 0 and f[c.PROTECTED_UNTIL_S, row] > now_s and grants[row] != held
        if spared == 0:
            break
        left = free
        for row in range(rows):
            held, guarded = i[c.HELD, row], f[c.PROTECTED_UNTIL_S, row] > now_s
            if held > 0 and guarded and grants[row] == 0:
                wake_s = min(wake_s, f[c.PROTECTED_UNTIL_S, row])
            if held > 0 and (guarded or grants[row] > 0):
                grants[row] = held
                left -= held
            else:
                grants[row] = 0
    for row in range(rows):
        reasons[row] = code if grants[row] == 0 else 0
    return first_left, wake_s


def _remaining_numpy(f: Floats, now_s: float) -> Floats:
    ahead = f[c.READY_S] - now_s
    left: Floats = f[c.LEFT_S] + np.maximum(ahead, 0.0) + f[c.LEFT_RATE] * np.minimum(ahead, 0.0)
    return left


def _remaining_loop(f: Floats, now_s: float) -> Floats:
    out = np.empty(f.shape[1])
    for row in range(len(out)):
        ahead = f[c.READY_S, row] - now_s
        out[row] = f[c.LEFT_S, row] + max(ahead, 0.0) + f[c.LEFT_RATE, row] * min(ahead, 0.0)
    return out


def _attained_numpy(f: Floats, i: Ints, now_s: float) -> Floats:
    attained_gpu_s: Floats = f[c.ATTAINED0_GPU_S] + (now_s - f[c.SINCE_S]) * i[c.HELD]
    return attained_gpu_s


def _attained_loop(f: Floats, i: Ints, now_s: float) -> Floats:
    out = np.empty(f.shape[1])
    for row in range(len(out)):
        out[row] = f[c.ATTAINED0_GPU_S, row] + (now_s - f[c.SINCE_S, row]) * i[c.HELD, row]
    return out


def _level_ranks_numpy(service: Floats, limits: Floats, held: Ints) -> Ranks:
    ranks: Ranks = (held == 0).astype(np.int16)
    for limit in limits:
        np.add(ranks, 2, out=ranks, where=service >= limit * REACHED)
    return ranks


def _level_ranks_loop(service: Floats, limits: Floats, held: Ints) -> Ranks:
    out = np.empty(len(service), dtype=np.int16)
    for row in range(len(service)):
        level = 0
        while level < len(limits) and service[row] >= limits[level] * REACHED:
            level += 1
        out[row] = 2 * level + (held[row] == 0)
    return out


def _queue_keys_numpy(service: Floats, limits: Floats, first_start_s: Floats, held: Ints) -> Floats:
    keys: Floats = np.minimum(first_start_s, NEVER_S)
    np.add(keys, WAITING, out=keys, where=held == 0)
    for limit in limits:
        np.add(keys, QUEUE, out=keys, where=service >= limit * REACHED)
    return keys


def _queue_keys_loop(service: Floats, limits: Floats, first_start_s: Floats, held: Ints) -> Floats:
    out = np.empty(len(service))
    for row in range(len(service)):
        key, level = min(first_start_s[row], NEVER_S), 0
        if held[row] == 0:
            key += WAITING
        while level < len(limits) and service[row] >= limits[level] * REACHED:
            key += QUEUE
            level += 1
        out[row] = key
    return out


def _index_keys_numpy(
    service: Floats, limits: Floats, table: tuple[Floats, Floats], first_start_s: Floats, held: Ints
) -> Floats:
    cells, ranks = table
    keys = _queue_keys_numpy(service, limits[:0], first_start_s, held)
    mine: Floats = ranks[cells.searchsorted(service / REACHED, side="right") - 1]
    if len(limits):
        queue = (limits * REACHED).searchsorted(service, side="right")
        mine = np.where(queue < len(limits), np.minimum(mine, MOST_RANKS - 1.0), 0.0)
        mine += queue * MOST_RANKS
    keys += mine * QUEUE
    return keys


def _index_keys_loop(
    service: Floats, limits: Floats, table: tuple[Floats, Floats], first_start_s: Floats, held: Ints
) -> Floats:
    cells, ranks = table
    out, last = np.empty(len(service)), len(limits)
    for row in range(len(service)):
        key, mine, level = min(first_start_s[row], NEVER_S), 0.0, 0
        if held[row] == 0:
            key += WAITING
        while level < last and service[row] >= limits[level] * REACHED:
            level += 1
        if level < last or last == 0:
            mine = ranks[np.searchsorted(cells, service[row] / REACHED, side="right") - 1]
        if last > 0:
            mine = level * MOST_RANKS + min(mine, MOST_RANKS - 1.0)
        out[row] = key + mine * QUEUE
    return out


def _next_fall_numpy(service: Floats, table: tuple[Floats, Floats], speed: Ints) -> float:
    cells, ranks = table
    rows = speed.nonzero()[0]
    at = cells.searchsorted(service[rows] / REACHED, side="right")
    falls = np.append(ranks[1:] > ranks[:-1], False)[at - 1]
    ahead = np.append(cells, np.inf)[at] - service[rows]
    return float(np.minimum.reduce(ahead[falls] / speed[rows][falls], initial=np.inf))


def _next_fall_loop(service: Floats, table: tuple[Floats, Floats], speed: Ints) -> float:
    cells, ranks = table
    soonest_s = np.inf
    for row in range(len(service)):
        if speed[row] > 0:
            at = np.searchsorted(cells, service[row] / REACHED, side="right")
            if at < len(cells) and ranks[at] > ranks[at - 1]:
                soonest_s = min(soonest_s, (cells[at] - service[row]) / speed[row])
    return soonest_s


def _next_limit_numpy(service: Floats, limits: Floats, speed: Ints) -> float:
    rows = (speed > 0).nonzero()[0]
    mine = service[rows]
    nearest = np.append(limits, np.inf)[(limits * REACHED).searchsorted(mine, side="right")]
    return float(np.minimum.reduce((nearest - mine) / speed[rows], initial=np.inf))


def _next_limit_loop(service: Floats, limits: Floats, speed: Ints) -> float:
    soonest_s = np.inf
    for row in range(len(service)):
        if speed[row] > 0:
            for limit in limits:
                if limit * REACHED > service[row]:
                    soonest_s = min(soonest_s, (limit - service[row]) / speed[row])
                    break
    return soonest_s


def _first_breach_numpy(gpus: Ints, reasons: Codes, f: Floats, i: Ints, now_s: float) -> tuple[int, int, int]:
    waits, held = gpus == 0, i[c.HELD]
    laws = (
        ((gpus < i[c.GPUS_MIN]) & ~waits, FEWER),
        (gpus > i[c.GPUS_MAX], MORE),
        (waits & (reasons == 0), SILENT),
        (~waits & (reasons != 0), NEEDLESS),
        ((reasons < 0) | (reasons > LAST_REASON), UNKNOWN),
        ((f[c.PROTECTED_UNTIL_S] > now_s) & (held > 0) & (gpus != held), STOPPED),
    )
    for broken, law in laws:
        if np.count_nonzero(broken):
            return law, int(broken.argmax()), 0
    return 0, 0, int(np.add.reduce(gpus))


def _first_breach_loop(gpus: Ints, reasons: Codes, f: Floats, i: Ints, now_s: float) -> tuple[int, int, int]:
    worst, at, total = FINE, 0, 0
    for row in range(len(gpus)):
        grant, reason, law = gpus[row], reasons[row], FINE
        total += grant
        if grant != 0 and grant < i[c.GPUS_MIN, row]:
            law = FEWER
        elif grant > i[c.GPUS_MAX, row]:
            law = MORE
        elif grant == 0 and reason == 0:
            law = SILENT
        elif grant != 0 and reason != 0:
            law = NEEDLESS
        elif reason < 0 or reason > LAST_REASON:
            law = UNKNOWN
        elif i[c.HELD, row] > 0 and grant != i[c.HELD, row] and f[c.PROTECTED_UNTIL_S, row] > now_s:
            law = STOPPED
        if law < worst:
            worst, at = law, row
    return (worst, at, 0) if worst < FINE else (0, 0, total)


def _differing_numpy(a: Ints, b: Ints) -> Ints:
    rows: Ints = (a != b).nonzero()[0]
    return rows


def _differing_loop(a: Ints, b: Ints) -> Ints:
    count = 0
    for row in range(len(a)):
        count += a[row] != b[row]
    out = np.empty(count, dtype=np.int64)
    at = 0
    for row in range(len(a)):
        if a[row] != b[row]:
            out[at] = row
            at += 1
    return out


def _settle_loop(f: Floats, i: Ints, at: int, now_s: float) -> int:
    held = i[c.HELD, at]
    held_s = now_s - f[c.SINCE_S, at]
    f[c.ATTAINED0_S, at] += held_s
    f[c.ATTAINED0_GPU_S, at] += held_s * held
    done = f[c.PROGRESS0, at] + f[c.RATE, at] * max(now_s - f[c.READY_S, at], 0.0)
    f[c.PROGRESS0, at] = min(done, f[c.REGIME_END, at])
    f[c.RATE, at] = 0.0
    i[c.HELD, at] = 0
    return int(held)


def _begin_loop(f: Floats, i: Ints, at: int, now_s: float, until_s: float, grant: tuple[int, int, int]) -> int:
    i[c.HELD, at], i[c.GPU_TYPE, at], i[c.HOST, at] = grant
    if i[c.LAUNCHES, at] == 0:
        f[c.FIRST_START_S, at] = now_s
    i[c.LAUNCHES, at] += 1
    f[c.SINCE_S, at] = now_s
    f[c.READY_S, at] = now_s
    f[c.PROTECTED_UNTIL_S, at] = until_s
    return int(i[c.GPUS, at])


def _anchor_loop(f: Floats, i: Ints, at: int, now_s: float) -> None:
    speed = f[c.BEST_SPEED, at]
    left_s = (f[c.REGIME_END, at] - f[c.PROGRESS0, at]) / speed + f[c.TAIL_S, at]
    if i[c.HELD, at] > 0:
        f[c.LEFT_RATE, at] = f[c.RATE, at] / speed
    else:
        f[c.LEFT_RATE, at] = 0.0
        f[c.READY_S, at] = now_s
        if i[c.LAUNCHES, at] > 0:
            left_s += f[c.RESTART_S, at]
    f[c.LEFT_S, at] = left_s


_NUMPY: dict[str, Callable[..., Any]] = {
    "in_order": _in_order_numpy,
    "remaining": _remaining_numpy,
    "attained": _attained_numpy,
    "level_ranks": _level_ranks_numpy,
    "queue_keys": _queue_keys_numpy,
    "index_keys": _index_keys_numpy,
    "next_fall": _next_fall_numpy,
    "next_limit": _next_limit_numpy,
    "first_breach": _first_breach_numpy,
    "differing": _differing_numpy,
    "begin": _begin_loop,
    "settle": _settle_loop,
    "anchor": _anchor_loop,
}
_LOOPS: dict[str, Callable[..., Any]] = {
    "in_order": _in_order_loop,
    "remaining": _remaining_loop,
    "attained": _attained_loop,
    "level_ranks": _level_ranks_loop,
    "queue_keys": _queue_keys_loop,
    "index_keys": _index_keys_loop,
    "next_fall": _next_fall_loop,
    "next_limit": _next_limit_loop,
    "first_breach": _first_breach_loop,
    "differing": _differing_loop,
    "begin": _begin_loop,
    "settle": _settle_loop,
    "anchor": _anchor_loop,
}

InOrder: TypeAlias = Callable[[Ints, Floats, Ints, float, int, tuple[bool, bool, int], Ints, Codes], tuple[int, float]]
in_order: InOrder = _in_order_numpy
"""Go through rows in order and write into `grants` the gangs that fit into `free` GPUs.

`mode` is (preempt, strict, code). With `preempt` a running job that would lose its GPUs while it is protected keeps
them instead, newcomers wait, and no other running job is stopped in its stead. `strict` stops at the first gang that
does not fit. Returns the GPUs that the order by itself leaves over, and when the first protection that kept somebody
waiting ends; `reasons` becomes `code` for all who wait."""

remaining: Callable[[Floats, float], Floats] = _remaining_numpy
"""What is left of each job's run time: `left_s` at `ready_s`, passing at `left_rate` from then on."""

attained: Callable[[Floats, Ints, float], Floats] = _attained_numpy
"""GPU-seconds that each job has held: what it had when it started, and what it holds since."""

level_ranks: Callable[[Floats, Floats, Ints], Ranks] = _level_ranks_numpy
"""Ranks by level, the number of rising limits that service has reached; inside a level, who holds GPUs comes first."""

queue_keys: Callable[[Floats, Floats, Floats, Ints], Floats] = _queue_keys_numpy
"""Keys by queue, the number of rising limits that service has reached; inside a queue who holds GPUs comes first, then
who was started first."""

Table: TypeAlias = tuple[Floats, Floats]
index_keys: Callable[[Floats, Floats, Table, Floats, Ints], Floats] = _index_keys_numpy
"""As `queue_keys`, but inside a queue (all but the last; or without limits, everywhere) by the rank of the service in a
step function, given as where its cells begin and their ranks."""

next_fall: Callable[[Floats, Table, Ints], float] = _next_fall_numpy
"""In how many seconds the first service enters a cell of higher rank, each growing at its speed (0: not at all)."""

next_limit: Callable[[Floats, Floats, Ints], float] = _next_limit_numpy
"""In how many seconds the first service reaches its next limit, each growing at its speed (0: not at all)."""

first_breach: Callable[[Ints, Codes, Floats, Ints, float], tuple[int, int, int]] = _first_breach_numpy
"""The first law that the grants break and the first row that breaks it; 0, 0 and the GPUs granted if all is well."""

differing: Callable[[Ints, Ints], Ints] = _differing_numpy
"""The rows in which two columns differ."""

begin: Callable[[Floats, Ints, int, float, float, tuple[int, int, int]], int] = _begin_loop
"""Note that the job at a position holds (GPUs, type, host) from now on, protected for a while; returns its gang."""

settle: Callable[[Floats, Ints, int, float], int] = _settle_loop
"""Settle the accounts of the job at a position that gives up its GPUs now; returns how many it held."""

anchor: Callable[[Floats, Ints, int, float], None] = _anchor_loop
"""Set what is left of the run time of the job at a position, from its progress, rate and regime."""


def use_numpy() -> None:
    """Use the NumPy forms from now on, as at the start."""
    globals().update(_NUMPY)


def use_compiled() -> bool:
    """Use the compiled loops from now on, if Numba is installed; says whether it is."""
    if in_order is not _in_order_numpy:
        return True
    try:
        from numba import njit
    except ImportError:
        return False
    globals().update({name: njit(cache=True)(loop) for name, loop in _LOOPS.items()})
    return True


def warm_up() -> bool:
    """Compile all loops once; Numba keeps the machine code on disk, so that later runs start at full speed."""
    if not use_compiled():
        return False
    f, i = np.zeros((c.SPEEDS + 1, 4)), np.zeros((len(c.INTS), 4), dtype=np.int64)
    f[c.BEST_SPEED] = 1.0
    seen_f, seen_i = frozen(f.view())[:, :2], frozen(i.view())[:, :2]
    grants, reasons, rows = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int8), np.arange(2)
    for order in (rows, frozen(rows.copy())):
        in_order(order, seen_f, seen_i, 0.0, 1, (True, False, 1), grants, reasons)
    remaining(seen_f, 0.0)
    service = attained(seen_f, seen_i, 0.0)
    level_ranks(service, np.ones(1), seen_i[c.HELD])
    queue_keys(service, np.ones(1), seen_f[c.FIRST_START_S], seen_i[c.HELD])
    index_keys(service, np.ones(1), (np.zeros(1), np.zeros(1)), seen_f[c.FIRST_START_S], seen_i[c.HELD])
    next_fall(service, (np.zeros(1), np.zeros(1)), grants)
    next_limit(service, np.ones(1), grants)
    first_breach(grants, reasons, seen_f, seen_i, 0.0)
    differing(grants, seen_i[c.HELD])
    begin(f, i, 0, 0.0, 1.0, (1, 0, -1))
    settle(f, i, 0, 0.0)
    anchor(f, i, 0, 0.0)
    return True
