"""The inner loops of a round, which Numba compiles where it is installed.

`@compiled` marks a function that NumPy runs well and that Numba compiles unchanged. `@compiled_as(loop)` marks one that
Numba runs better as a plain loop; the loop is beside it. `use_compiled()` replaces the marked functions in their
modules with compiled ones, if the optional package Numba is installed (the extra `fast`). Results are the same to the
bit; a test checks that. Callers in other modules go through the module (`kernels.in_order(...)`). `f` and `i` are the
blocks of float and integer columns of the job table (`core.columns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Codes, Floats, Ints

FEWER, MORE, SILENT, NEEDLESS, UNKNOWN, STOPPED, FINE = 1, 2, 3, 4, 5, 6, 7
"""Laws that a grant can break; see `first_breach`."""
LAST_REASON = 8

F = TypeVar("F", bound=Callable[..., Any])
_LOOPS: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""Each kernel as it stands in its module, and the function that is compiled in its place."""
_in_use = False


def compiled_as(loop: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator: where Numba is in use, `loop` is compiled and called in place of the function."""

    def mark(kernel: F) -> F:
        _LOOPS.append((kernel, loop))
        return _compiled(loop) if _in_use else kernel

    return mark


def compiled(kernel: F) -> F:
    """Decorator: where Numba is in use, the function is compiled unchanged."""
    return compiled_as(kernel)(kernel)


def _compiled(loop: Callable[..., Any]) -> Any:
    from numba import njit

    return njit(cache=True)(loop)


def use_compiled() -> bool:
    """Use compiled functions from now on, if Numba is installed. Returns whether it is."""
    global _in_use
    if not _in_use:
        try:
            import numba  # noqa: F401 - only whether it is there
        except ImportError:
            return False
        _in_use = True
        for kernel, loop in _LOOPS:
            kernel.__globals__[kernel.__name__] = _compiled(loop)
    return True


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


@compiled_as(_in_order_loop)
def in_order(
    order: Ints, f: Floats, i: Ints, now_s: float, free: int, mode: tuple[bool, bool, int], grants: Ints, reasons: Codes
) -> tuple[int, float]:
    """Go through rows in order and write into `grants` the gangs that fit into `free` GPUs.

    `mode` is (preempt, strict, code). With `preempt`, a running job that would lose its GPUs while it is protected
    keeps them. New jobs then wait, and no other running job is stopped instead. `strict` stops at the first gang that
    does not fit. Returns the GPUs that the order by itself leaves over, and when the first protection that made a job
    wait ends. `reasons` becomes `code` for all jobs that wait.
    """
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
    """Write into `grants` which jobs keep their GPUs: protected jobs that would change, and running jobs that go on.

    Returns how many jobs were spared, and when the first protection of a job that would be stopped ends.
    """
    running = (i[c.HELD] > 0).nonzero()[0]
    wanted, has, until_s = ideal[running], i[c.HELD, running], f[c.PROTECTED_UNTIL_S, running]
    spared = (until_s > now_s) & (wanted != has)
    stay = spared | (wanted > 0)
    grants[running[stay]] = has[stay]
    displaced = until_s[spared & (wanted == 0)]
    return int(np.count_nonzero(spared)), float(displaced.min()) if len(displaced) else np.inf


@compiled
def remaining(f: Floats, now_s: float) -> Floats:
    """What is left of each job's run time: `left_s` at `ready_s`, passing at `left_rate` from then on."""
    ahead = f[c.READY_S] - now_s
    left: Floats = f[c.LEFT_S] + np.maximum(ahead, 0.0) + f[c.LEFT_RATE] * np.minimum(ahead, 0.0)
    return left


@compiled
def attained(f: Floats, i: Ints, now_s: float) -> Floats:
    """GPU-seconds that each job has held: what it had when it started, and what it has held since then."""
    attained_gpu_s: Floats = f[c.ATTAINED0_GPU_S] + (now_s - f[c.SINCE_S]) * (i[c.HELD] * f[c.SHARE])
    return attained_gpu_s


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


@compiled_as(_first_breach_loop)
def first_breach(gpus: Ints, reasons: Codes, f: Floats, i: Ints, now_s: float) -> tuple[int, int, int]:
    """The first law that the grants break and the first row that breaks it; or 0, 0 and the GPUs granted."""
    if _lawful(gpus, reasons, f, i, now_s):
        return 0, 0, int(np.add.reduce(gpus))
    waits, held = gpus == 0, i[c.HELD]
    laws = (
        ((gpus < i[c.GPUS_MIN]) & ~waits, FEWER),
        (gpus > i[c.GPUS_MAX], MORE),
        (waits & (reasons == 0), SILENT),
        (~waits & (reasons != 0), NEEDLESS),
        ((reasons < 0) | (reasons > LAST_REASON), UNKNOWN),
        ((f[c.PROTECTED_UNTIL_S] > now_s) & (held > 0) & (gpus != held), STOPPED),
    )
    return next((law, int(broken.argmax()), 0) for broken, law in laws if broken.any())


def _lawful(gpus: Ints, reasons: Codes, f: Floats, i: Ints, now_s: float) -> bool:
    """Whether the grants keep all laws, in as few steps as can tell: every decision is checked."""
    count, waits = np.count_nonzero, gpus == 0
    if count((gpus < i[c.GPUS_MIN]) > waits) or count(gpus > i[c.GPUS_MAX]):
        return False
    if count(reasons) and (count(reasons < 0) or count(reasons > LAST_REASON)):
        return False
    if count(waits == (reasons == 0)):
        return False
    protected = f[c.PROTECTED_UNTIL_S] > now_s
    return not (count(protected) and count(protected & (i[c.HELD] > 0) & (gpus != i[c.HELD])))


@compiled
def differing(a: Ints, b: Ints) -> Ints:
    """The rows in which two columns differ."""
    rows: Ints = (a != b).nonzero()[0]
    return rows


@compiled
def begin(f: Floats, i: Ints, at: int, now_s: float, until_s: float, grant: tuple[int, int, int]) -> int:
    """Note that the job at a position holds (GPUs, type, host) from now on, and is protected. Returns its gang."""
    i[c.HELD, at], i[c.GPU_TYPE, at], i[c.HOST, at] = grant
    if i[c.LAUNCHES, at] == 0:
        f[c.FIRST_START_S, at] = now_s
    i[c.LAUNCHES, at] += 1
    f[c.SINCE_S, at] = now_s
    f[c.READY_S, at] = now_s
    f[c.PROTECTED_UNTIL_S, at] = until_s
    return int(i[c.GPUS, at])


@compiled
def settle(f: Floats, i: Ints, at: int, now_s: float) -> int:
    """Settle the accounts of the job at a position that gives up its GPUs now. Returns how many it held."""
    held = i[c.HELD, at]
    held_s = now_s - f[c.SINCE_S, at]
    f[c.ATTAINED0_S, at] += held_s
    f[c.ATTAINED0_GPU_S, at] += held_s * (held * f[c.SHARE, at])
    done = f[c.PROGRESS0, at] + f[c.RATE, at] * max(now_s - f[c.READY_S, at], 0.0)
    f[c.PROGRESS0, at] = min(done, f[c.REGIME_END, at])
    f[c.RATE, at] = 0.0
    i[c.HELD, at] = 0
    return int(held)


@compiled
def anchor(f: Floats, i: Ints, at: int, now_s: float) -> None:
    """Set what is left of the run time of the job at a position, from its progress, rate and regime."""
    speed = f[c.BEST_SPEED, at]
    if speed == 0.0:
        # There are no GPUs on which it could run, as when its gang is larger than a machine that has lost some.
        f[c.LEFT_S, at], f[c.LEFT_RATE, at], f[c.READY_S, at] = np.inf, 0.0, now_s
        return
    left_s = (f[c.REGIME_END, at] - f[c.PROGRESS0, at]) / speed + f[c.TAIL_S, at]
    if i[c.HELD, at] > 0:
        f[c.LEFT_RATE, at] = f[c.RATE, at] / speed
    else:
        f[c.LEFT_RATE, at] = 0.0
        f[c.READY_S, at] = now_s
        if i[c.LAUNCHES, at] > 0:
            left_s += f[c.RESTART_S, at]
    f[c.LEFT_S, at] = left_s
