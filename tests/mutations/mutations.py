"""Thirty small mistakes, by name, in the core, in what runs jobs, and in policies. Tests have to notice each of them.

They were chosen by reading the code, not the tests: what somebody gets wrong in a change that looks harmless.
`mutate.py` makes each mistake in a copy of the code and runs the tests that are named here. Those of `fifo` are the
contract alone, which has a law of order.
"""

from __future__ import annotations

from typing import NamedTuple

CORE = ("tests/unit/core",)
KEEPER = ("tests/unit/runtime/test_keeper.py", "tests/unit/runtime/test_parts.py")
CONTRACT = "tests/contract/test_contract_policies.py::test_every_registered_policy_keeps_the_contract"


def _of(policy: str, page: str) -> tuple[str, ...]:
    """The tests of a policy: the contract, and a page of its own."""
    return f"{CONTRACT}[{policy}]", f"tests/unit/policies/test_{page}.py"


class Mutation(NamedTuple):
    """One mistake: `old`, which `file` has exactly once, becomes `new`; `tests` have to fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "a gang that needs all free GPUs waits",
        "core/kernels.py",
        'fit = int(ends.searchsorted(free, side="right"))',
        'fit = int(ends.searchsorted(free, side="left"))',
        CORE,
    ),
    Mutation(
        "the largest key goes first",
        "core/admission.py",
        'return rows[key[rows].argsort(kind="stable")]',
        'return rows[(-key[rows]).argsort(kind="stable")]',
        CORE,
    ),
    Mutation(
        "the shortest run before preemption is ignored",
        "core/state.py",
        "else self.now_s + spared_s - _EARLY_S",
        "else self.now_s - _EARLY_S",
        CORE,
    ),
    Mutation(
        "one GPU too many is granted lawfully",
        "core/check.py",
        "if total > available:",
        "if total > available + 1:",
        CORE,
    ),
    Mutation(
        "a protected job is stopped lawfully",
        "core/kernels.py",
        "return not (count(protected) and count(protected & (i[c.HELD] > 0) & (gpus != i[c.HELD])))",
        "return True",
        CORE,
    ),
    Mutation(
        "the GPUs of a lost node become free",
        "core/occupancy.py",
        "if node not in self.down:\n                self._set_free(node, self.free_mask[node] | mask)",
        "self._set_free(node, self.free_mask[node] | mask)",
        CORE,
    ),
    Mutation(
        "a share of a GPU is charged as a whole one",
        "core/kernels.py",
        "f[c.ATTAINED0_GPU_S, at] += held_s * (held * f[c.SHARE, at])",
        "f[c.ATTAINED0_GPU_S, at] += held_s * held",
        CORE,
    ),
    Mutation(
        "a running job that finds no new place is not stopped",
        "core/plan.py",
        "stops += [Target(row, (), -1) for row in refused if held[row]]",
        "stops += [Target(row, (), -1) for row in refused if not held[row]]",
        CORE,
    ),
    Mutation(
        "a start that the engine refuses is not tried again",
        "core/round.py",
        "self._wake_s = min(self._wake_s, event.time_s + RETRY_S)",
        "self._wake_s = min(self._wake_s, math.inf)",
        CORE,
    ),
    Mutation(
        "a restart costs nothing",
        "core/kernels.py",
        "left_s += f[c.RESTART_S, at]",
        "left_s += 0.0",
        CORE,
    ),
    Mutation(
        "76 says that a job has saved its state",
        "runtime/processes/ranks.py",
        "CHECKPOINTED = 75",
        "CHECKPOINTED = 76",
        KEEPER,
    ),
    Mutation(
        "a signal to suspend lets a job go on",
        "runtime/processes/keeper.py",
        "return signo == signal.SIGUSR1",
        "return signo == signal.SIGUSR2",
        KEEPER,
    ),
    Mutation(
        "the grace period is ignored",
        "runtime/processes/keeper.py",
        'self._stop("request", self._grace_s())',
        'self._stop("request", 0.0)',
        KEEPER,
    ),
    Mutation(
        "a suspended job computes on before it is asked to stop",
        "runtime/processes/keeper.py",
        "self.signal_all(signal.SIGTERM)\n        self.signal_all(signal.SIGCONT)",
        "self.signal_all(signal.SIGCONT)\n        self.signal_all(signal.SIGTERM)",
        KEEPER,
    ),
    Mutation(
        "the time limit counts while a job is suspended",
        "runtime/processes/keeper.py",
        "if not self.stopped:\n            self.ran_s += seconds",
        "self.ran_s += seconds",
        KEEPER,
    ),
    Mutation(
        "a part that cannot start leaves the others their time",
        "runtime/processes/siblings.py",
        'for code in codes) and cause != "start"',
        'for code in codes) and cause == "start"',
        KEEPER,
    ),
    Mutation(
        "the loss of a machine costs a retry",
        "runtime/jobs/live_jobs.py",
        "record.failures += not lost",
        "record.failures += 1",
        ("tests/unit/runtime/test_live_jobs.py",),
    ),
    Mutation(
        "a job that has failed waits twice as long",
        "runtime/jobs/live_jobs.py",
        "min(BACK_OFF_S * 2 ** (tries - 1), MOST_BACK_OFF_S)",
        "min(BACK_OFF_S * 2**tries, MOST_BACK_OFF_S)",
        ("tests/unit/runtime/test_live_jobs.py",),
    ),
    Mutation(
        "a job of which no rank has ended is completed",
        "runtime/jobs/life.py",
        "if codes and not any(codes):",
        "if not any(codes):",
        ("tests/unit/runtime/test_verdict.py",),
    ),
    Mutation(
        "one job more than the limit runs",
        "runtime/guard/limits.py",
        "if starts and self.jobs >= self.most_jobs:",
        "if starts and self.jobs > self.most_jobs:",
        ("tests/unit/runtime/test_limits.py",),
    ),
    Mutation(
        "fifo lets later jobs pass the head of the queue",
        "policies/fifo.py",
        "return admit(snapshot, preempt=False, strict=True)",
        "return admit(snapshot, preempt=False, strict=False)",
        (f"{CONTRACT}[fifo]",),
    ),
    Mutation(
        "smallest serves the largest gang first",
        "policies/shortest.py",
        "return admit(snapshot, snapshot.gpus, preempt=True)",
        "return admit(snapshot, -snapshot.gpus, preempt=True)",
        _of("smallest", "policies_baselines"),
    ),
    Mutation(
        "srtf never preempts",
        "policies/shortest.py",
        "return admit(snapshot, lambda: snapshot.oracle.before(MOMENT_S), preempt=True)",
        "return admit(snapshot, lambda: snapshot.oracle.before(MOMENT_S), preempt=False)",
        _of("srtf", "policies_baselines"),
    ),
    Mutation(
        "srsf does not count GPUs",
        "policies/shortest.py",
        "snapshot.oracle.before(MOMENT_S, snapshot.gpus)",
        "snapshot.oracle.before(MOMENT_S, 1 + 0 * snapshot.gpus)",
        _of("srsf", "policies_baselines"),
    ),
    Mutation(
        "las stops running jobs for others of their level",
        "policies/service_levels.py",
        "ranks: Ranks = (held == 0).astype(np.int16)",
        "ranks: Ranks = (held > 0).astype(np.int16)",
        _of("las", "policies_baselines"),
    ),
    Mutation(
        "las sleeps when a job reaches the next level",
        "policies/las.py",
        "decision = decision.waking(snapshot.now_s + max(seconds, 1e-6))",
        "decision = decision.waking(snapshot.now_s + max(2.0 * seconds, 1e-6))",
        _of("las", "policies_baselines"),
    ),
    Mutation(
        "proportional ignores weights",
        "policies/proportional.py",
        "share: Floats = snapshot.attained_gpu_s / (age_s * snapshot.weight)",
        "share: Floats = snapshot.attained_gpu_s / age_s",
        _of("proportional", "policies_baselines"),
    ),
    Mutation(
        "capacity ignores what queues are entitled to",
        "policies/capacity.py",
        "used[code] / parts[code], heads[code]",
        "used[code], heads[code]",
        _of("capacity", "policies_capacity"),
    ),
    Mutation(
        "the lowest priority goes first",
        "policies/priorities.py",
        'order = np.argsort(-groups.rank, kind="stable")',
        'order = np.argsort(groups.rank, kind="stable")',
        _of("fifo", "priorities"),
    ),
    Mutation(
        "tiresias forgets the last promotion",
        "policies/tiresias/__init__.py",
        "return service if promotions is None else service - promotions.base_service",
        "return service",
        _of("tiresias", "policies_tiresias"),
    ),
)
