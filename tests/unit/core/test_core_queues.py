"""Queues of tasks in a decision: what is refused, and that nothing is lost on the way through JSON."""

from __future__ import annotations

import pytest

from fairway import JobSpec
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.errors import PolicyError
from fairway.core.event import NodeLost, TasksChanged
from fairway.core.plan import Plan, plan
from fairway.core.queue_laws import problem_in
from fairway.core.queues import OpenRound, Queues, RunningTask, Task
from fairway.core.reconcile import reconcile
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.placement import placement
from fairway.testing import state_of

JOBS = [JobSpec("a", 0, gpus=2, duration_s=100), JobSpec("b", 0, gpus=1, duration_s=50)]
A50, A100, B50 = Task(0, 50.0), Task(0, 100.0), Task(1, 50.0)


def state() -> State:
    return state_of(JOBS, "v100:2,k80:2", runs_queues=True)


def queued(queues: Queues) -> Decision:
    return nothing_granted(2, Reason.QUEUED)._replace(queues=queues)


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        ({9: (B50,)}, "there is no GPU 9"),
        ({0: (Task(7, 1.0),)}, "job number 7, which is not active"),
        ({0: (A100,)}, "'a' has 1 tasks of a round in queues, not 2"),
        ({0: (B50, B50)}, "'b' has 2 tasks of a round in queues, not 1"),
        ({0: (Task(1, 0.0),)}, "'b' has a task of a round that is over"),
        ({0: (A100, A50), 1: (A50, A100)}, "wait for each other"),
        ({0: (A100, B50, A50), 1: (A50, A100)}, "wait for each other"),
    ],
)
def test_queues_that_cannot_be_carried_out_are_refused(queues: Queues, why: str) -> None:
    snapshot = state().snapshot()
    with pytest.raises(PolicyError, match=why):
        check(snapshot, queued(queues))


def test_sound_queues_are_accepted_in_any_order_that_ends() -> None:
    snapshot = state().snapshot()
    for queues in (
        {0: (A50, A50, A100, A100), 2: (B50,)},
        {0: (A50, B50, A100), 1: (A50,), 2: (A100,)},
        {0: (B50, A50), 1: (A50, A100, A100)},
    ):
        check(snapshot, queued(queues))
        assert problem_in(queues, snapshot) is None


def test_an_engine_that_runs_gangs_gets_no_queues() -> None:
    snapshot = state_of(JOBS, "v100:2,k80:2").snapshot()
    assert snapshot.queues is None
    with pytest.raises(PolicyError, match="whole gangs only"):
        check(snapshot, queued({0: (B50,)}))


def test_gangs_beside_queues_name_gpus_that_run_no_tasks() -> None:
    snapshot = state().snapshot()
    decision = queued({2: (B50,)})
    gpus, reasons = decision.gpus.copy(), decision.reasons.copy()
    gpus[0], reasons[0] = 2, int(Reason.RUNS)
    decision = decision._replace(gpus=gpus, reasons=reasons)
    with pytest.raises(PolicyError, match="is granted GPUs that run tasks of others"):
        check(snapshot, decision)
    check(snapshot, decision._replace(placements={0: (0, 1)}))


def test_a_gpu_of_a_lost_node_has_no_queue() -> None:
    world = state()
    world.apply(NodeLost(1.0, 1))
    assert problem_in({2: (B50,)}, world.snapshot()) == "GPU 2 has a queue, but cannot be used now"


def test_a_job_that_runs_tasks_is_not_stopped_by_its_own_queues() -> None:
    world, queues = state(), {0: (A50, A50), 2: (B50,)}
    placer = placement("packed")
    first = queued(queues)
    actions = reconcile(world.snapshot(), first, plan(world.snapshot(), first, world.occupancy, placer))
    world.commit(actions)
    assert [type(action).__name__ for action in actions] == ["SetQueues"]
    world.apply(TasksChanged(1.0, 0, (0,), 5.0, 0.5, OpenRound(50.0, 1, (RunningTask(0, 50.0, 51.0),), 0.0)))
    snapshot = world.snapshot()
    assert (snapshot.held[0], snapshot.gpus_held(0), snapshot.rate[0]) == (1, (0,), 0.5)
    assert snapshot.queues is queues
    same = queued(queues)
    check(snapshot, same)
    assert reconcile(snapshot, same, plan(snapshot, same, world.occupancy, placer)) == []


def test_the_tasks_of_an_open_round_that_have_not_begun_stay_in_queues() -> None:
    world = state()
    world.apply(TasksChanged(1.0, 0, (0,), 5.0, 0.5, OpenRound(50.0, 1, (RunningTask(0, 50.0, 51.0),), 0.0)))
    snapshot = world.snapshot()
    assert problem_in({1: (B50,)}, snapshot) is None
    assert problem_in({1: (A50, A100, A100)}, snapshot) is None
    assert problem_in({1: (A50, A50)}, snapshot) == "job 'a' has 2 tasks of a round in queues, not 1"
    missing = "job 'a' has begun a round, but not all of its tasks are in queues"
    assert problem_in({1: (A100, A100)}, snapshot) == missing


def test_queues_and_open_rounds_survive_json() -> None:
    world, queues = state(), {0: (A50, A50), 2: (B50,)}
    world.commit(reconcile(world.snapshot(), queued(queues), plan_of(world, queued(queues))))
    opened = OpenRound(50.0, 2, (RunningTask(0, 50.0, 51.5), RunningTask(1, 40.0, 41.5)), 3.0)
    world.apply(TasksChanged(1.0, 0, (0, 1), 5.0, 0.5, opened))
    snapshot: Snapshot = from_json(to_json(world.snapshot()))
    assert snapshot.queues == queues
    assert snapshot.facts(0).round == opened
    assert snapshot.facts(1).round is None


def plan_of(world: State, decision: Decision) -> Plan:
    return plan(world.snapshot(), decision, world.occupancy, placement("packed"))
