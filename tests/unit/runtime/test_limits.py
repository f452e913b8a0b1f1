"""Limits at every decision: nobody gets more than may be, nothing is idle for it, and nothing that runs is stopped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.action import Launch
from fairway.core.check import check
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision, Reason
from fairway.core.plan import plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.placement import placement
from fairway.placement.at_home import Around
from fairway.policies import make_policy
from fairway.runtime.daemon.config import parse_config
from fairway.runtime.guard.limits import Limits
from fairway.runtime.guard.policy_guard import PolicyGuard
from fairway.runtime.jobs.estimates import speeds_of, submitted
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest

ONE_TYPE = Cluster.of([Node("here", "v100", 8)], [GpuType("v100", 0, 0.0, 1.0)])
TWO_TYPES = Cluster.of(
    [Node("a", "h100", 4), Node("b", "t4", 4)], [GpuType("h100", 0, 0.0, 4.0), GpuType("t4", 0, 0.0, 1.0)]
)


def _state(jobs: Sequence[JobRequest], cluster: Cluster = ONE_TYPE) -> State:
    state = State(cluster)
    for number, request in enumerate(jobs):
        record = JobRecord(number, str(number + 1), request, 0.0)
        state.apply(submitted(record, speeds_of(record.request, cluster), 100.0, 0.0, 10.0))
    return state


def _job(user: str, gpus: int = 1, **about: object) -> JobRequest:
    return JobRequest(command=("true",), user=user, gpus=gpus, **about)  # type: ignore[arg-type]


def _decided(state: State, config: str, policy: str | Policy = "fifo") -> tuple[Snapshot, Decision, PolicyGuard]:
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    guard = PolicyGuard(chosen, Limits(parse_config(config)))
    snapshot = state.snapshot(chosen.knows)
    decision = guard.decide(snapshot)
    check(snapshot, decision)
    assert not guard.problem
    return snapshot, decision, guard


def test_a_user_gets_what_the_limit_allows_and_others_the_rest() -> None:
    state = _state([_job("anna") for _ in range(20)] + [_job("ben") for _ in range(20)])
    snapshot, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 3")
    assert decision.gpus[:20].tolist() == [1] * 3 + [0] * 17
    assert decision.gpus[20:].tolist() == [1] * 5 + [0] * 15
    assert decision.reason(snapshot, 10) == "user anna has 3 of the 3 GPUs that the configuration allows"
    assert "configuration" not in decision.reason(snapshot, 30)


def test_everybody_can_be_limited_at_once() -> None:
    state = _state([_job(f"user{number % 5}") for number in range(50)])
    _, decision, _ = _decided(state, '[users."*"]\nmax_gpus = 1')
    assert [int(decision.gpus[user::5].sum()) for user in range(5)] == [1] * 5


def test_users_at_their_limits_who_came_one_after_the_other_leave_no_gpu_idle() -> None:
    state = _state([_job(f"user{number // 40:02d}") for number in range(800)])
    _, decision, _ = _decided(state, '[users."*"]\nmax_gpus = 1')
    assert int(decision.gpus.sum()) == 8
    assert decision.gpus.nonzero()[0].tolist() == [40 * user for user in range(8)]


def test_a_queue_limits_all_its_users_together_and_each_of_them() -> None:
    jobs = [_job(f"user{number % 2}", queue="night") for number in range(12)] + [_job("carl", queue="day")]
    _, decision, _ = _decided(_state(jobs), "[queues.night]\nmax_gpus = 3\nmax_gpus_per_user = 2")
    assert int(decision.gpus[:12].sum()) == 3
    assert sorted([int(decision.gpus[0:12:2].sum()), int(decision.gpus[1:12:2].sum())]) == [1, 2]
    assert decision.gpus[12] == 1


def test_the_number_of_running_jobs_can_be_limited() -> None:
    state = _state([_job("anna") for _ in range(5)] + [_job("ben")])
    snapshot, decision, _ = _decided(state, "[users.anna]\nmax_running = 2")
    assert decision.gpus.tolist() == [1, 1, 0, 0, 0, 1]
    assert decision.reason(snapshot, 3) == "user anna has 2 jobs running and may have 2"


def test_running_jobs_above_a_new_limit_go_on_and_nobody_joins_them() -> None:
    state = _state([_job("anna", 2) for _ in range(4)] + [_job("ben")])
    state.commit([Launch(0, (0, 1), 0), Launch(1, (2, 3), 0)])
    _, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 2")
    assert decision.gpus.tolist() == [2, 2, 0, 0, 1]


def test_a_policy_may_change_who_runs_within_a_limit() -> None:
    class Backwards:
        name = "backwards"
        knows: frozenset[str] = frozenset()
        round_s = 0.0

        def decide(self, snapshot: Snapshot) -> Decision:
            gpus = np.zeros(len(snapshot), dtype=np.int64)
            for row in reversed(range(len(snapshot))):
                gpus[row] = 1 if int(gpus.sum()) < int(snapshot.capacity.sum()) else 0
            reasons = np.where(gpus > 0, int(Reason.RUNS), int(Reason.NO_FREE_GPUS)).astype(np.int8)
            return Decision(gpus, reasons)

    state = _state([_job("anna") for _ in range(12)])
    state.commit([Launch(0, (0,), 0), Launch(1, (1,), 0)])
    _, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 2", Backwards())
    assert int(decision.gpus.sum()) == 2, "the policy stops the first two for two of the others"


def test_an_elastic_job_grows_up_to_the_limit_only() -> None:
    elastic = _job("anna", 1, gpus_min=1, gpus_max=8, preempt="checkpoint")
    state = _state([elastic, _job("ben")])

    class Greedy:
        name = "greedy"
        knows: frozenset[str] = frozenset()
        round_s = 0.0

        def decide(self, snapshot: Snapshot) -> Decision:
            gpus = np.minimum(snapshot.gpus_max, 7).astype(np.int64)
            return Decision(gpus, np.zeros(len(snapshot), dtype=np.int8))

    _, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 3", Greedy())
    assert decision.gpus.tolist() == [3, 1]
    state.commit([Launch(0, (0, 1), 0)])
    _, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 1", Greedy())
    assert decision.gpus.tolist() == [2, 1], "it keeps what it has"


def test_a_limit_by_type_sends_jobs_to_the_other_type() -> None:
    state = _state([_job("anna") for _ in range(8)], TWO_TYPES)
    _, decision, _ = _decided(state, "[users.anna]\ntypes = { h100 = 1 }")
    assert decision.gpu_types is not None
    kinds = decision.gpu_types[decision.gpus > 0].tolist()
    assert (kinds.count(0), kinds.count(1)) == (1, 4)


def test_a_limit_by_type_leaves_jobs_waiting_that_can_use_no_other() -> None:
    jobs = [_job("anna", gpu_types=("h100",)) for _ in range(4)] + [_job("ben") for _ in range(4)]
    snapshot, decision, _ = _decided(_state(jobs, TWO_TYPES), "[users.anna]\ntypes = { h100 = 1 }")
    assert decision.gpus[:4].tolist() == [1, 0, 0, 0]
    assert decision.gpus[4:].tolist() == [1] * 4
    assert "h100 GPUs that the configuration allows" in decision.reason(snapshot, 2)


def test_every_policy_that_is_asked_again_keeps_the_laws() -> None:
    jobs = [_job(f"user{number % 3}", 1 + number % 2) for number in range(30)]
    for name in ("fifo", "srtf", "las", "tiresias", "max_min_fairness", "finish_time_fairness", "shockwave"):
        state = _state(jobs)
        state.commit([Launch(0, (0,), 0), Launch(3, (1, 2), 0)])
        _, decision, _ = _decided(state, '[users."*"]\nmax_gpus = 2', name)
        for user in range(3):
            # The first user has three GPUs already, and keeps them.
            assert int(decision.gpus[user::3].sum()) <= (3 if user == 0 else 2), name


def test_a_policy_that_breaks_a_law_stops_nobody() -> None:
    class Lawless:
        name = "lawless"
        knows: frozenset[str] = frozenset()
        round_s = 0.0

        def decide(self, snapshot: Snapshot) -> Decision:
            return Decision(np.full(len(snapshot), 99, dtype=np.int64), np.zeros(len(snapshot), dtype=np.int8))

    state = _state([_job("anna"), _job("ben", 8)])
    state.commit([Launch(0, (0,), 0)])
    guard = PolicyGuard(Lawless())
    decision = guard.decide(state.snapshot())
    assert decision.gpus.tolist() == [1, 0]
    assert "lawless failed" in guard.problem


def test_whoever_runs_is_inside_even_if_its_owner_holds_it() -> None:
    state = _state([_job("anna"), _job("ben")])
    state.commit([Launch(0, (0,), 0)])
    guard = PolicyGuard(make_policy("fifo"), outside={0: "held", 1: "held"})
    decision = guard.decide(state.snapshot())
    assert decision.gpus.tolist() == [1, 0]


def test_blocked_gpus_are_counted_by_nobody_and_placed_on_by_nobody() -> None:
    state = _state([_job("anna", 2) for _ in range(4)])
    blocked = {0: "somebody", 2: "somebody", 3: "somebody"}
    guard = PolicyGuard(make_policy("fifo"), blocked=lambda: blocked)
    snapshot = state.snapshot()
    decision = guard.decide(snapshot)
    assert decision.gpus.tolist() == [2, 2, 0, 0], "five GPUs are left for gangs of two"
    planned = plan(snapshot, decision, state.occupancy, Around(placement("packed"), tuple(blocked)))
    placed = {gpu for target in planned.targets for gpu in target.gpus}
    assert len(placed) == 4
    assert not placed & blocked.keys()


def test_a_job_beside_which_somebody_appears_keeps_its_gpu() -> None:
    state = _state([_job("anna", 4), _job("ben", 4)])
    state.commit([Launch(0, (0, 1, 2, 3), 0)])
    guard = PolicyGuard(make_policy("fifo"), blocked=lambda: {0: "somebody", 1: "somebody"})
    decision = guard.decide(state.snapshot())
    assert decision.gpus.tolist() == [4, 4]
    assert not guard.problem


def test_limits_count_shares_of_gpus() -> None:
    state = _state([_job("anna", gpu_share=0.3) for _ in range(20)] + [_job("ben")])
    snapshot, decision, _ = _decided(state, "[users.anna]\nmax_gpus = 1")
    assert decision.gpus.tolist() == [1] * 3 + [0] * 17 + [1]
    assert decision.reason(snapshot, 10) == "user anna has 0.9 of the 1 GPUs that the configuration allows"
