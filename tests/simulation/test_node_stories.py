"""Short stories of the real scheduler on a simulated site with several nodes, which freeze, are lost and join."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.event import Event, JobEvicted, NodeLost, NodeRestored
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.explain import explain
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.draining import Drain, UnknownNodeError
from fairway.runtime.jobs.life import NODE_LOST
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedJournal, SimulatedSite, SimulatedTime

FAST, SLOW = GpuType("fast", 0, 0.0, 1.0), GpuType("slow", 0, 0.0, 0.5)
LONG = Behaviour(work_s=50.0, stop_s=0.5)


class NodeStory:
    """A scheduler over nodes of two GPUs in simulated time, where nothing happens unless a test says so."""

    def __init__(self, folder: Path, nodes: int = 2, *, virtual: bool = False, policy: str = "fifo") -> None:
        self.folder = folder
        self.time = SimulatedTime()
        cluster = Cluster.of([Node(f"n{number}", "fast", 2) for number in range(nodes)], [FAST])
        devices = None if virtual else [f"gpu-{number}" for number in range(cluster.gpu_count)]
        self.site = SimulatedSite(self.time, lambda name: None, cluster, devices)
        self.policy = policy
        self.events: list[Event] = []
        self.scheduler = self._made()

    def _made(self) -> Scheduler:
        assert self.site.cluster is not None
        self.site.greet()
        scheduler = Scheduler(
            self.folder,
            self.site.cluster,
            make_policy(self.policy),
            placement("packed"),
            devices=self.site.devices,
            min_run_s=0.0,
            policy_text=self.policy,
            journal=SimulatedJournal(self.folder / "journal.db", lambda name: None, lambda: False),
            site=self.site,
            time=self.time,
        )
        scheduler.listeners.append(self.events.extend)
        scheduler.begin()
        return scheduler

    def restart(self, away_s: float = 0.0) -> None:
        """The scheduler is killed; another one follows it after a while."""
        self.scheduler.journal.close()
        self.scheduler.archive.close()
        self.site.let_pass(away_s)
        self.scheduler = self._made()

    def answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer."""
        self.until(asked.done)
        return asked.result()

    def job(self, behaviour: Behaviour = LONG, **about: Any) -> str:
        """Submit a job; returns its id."""
        request = JobRequest(command=behaviour.command(), **{"user": "ann", "preempt": "checkpoint", **about})
        records: list[JobRecord] = self.answer(self.scheduler.submission([request]))
        return records[0].id

    def do(self, verb: str, name: str) -> None:
        """Do something to a job."""
        act = getattr(self.scheduler.commands, verb)
        self.answer(self.scheduler.engine.ask(self.scheduler.commands.each(name, act)))

    def record(self, name: str) -> JobRecord:
        """The present record of a job."""
        found = self.scheduler.store.get(name)
        assert found is not None
        return found

    def why(self, name: str) -> str:
        """Why a job waits."""
        return str(self._explained(name)["reason"])

    def _explained(self, name: str) -> dict[str, Any]:
        """What `fairway why` says. It asks in the scheduler's thread, which is ours."""
        real = self.scheduler.ask
        self.scheduler.ask = lambda command: command(self.scheduler.clock.now_s())[1]  # type: ignore[method-assign]
        try:
            return explain(self.scheduler, name)
        finally:
            self.scheduler.ask = real  # type: ignore[method-assign]

    def held(self, name: str) -> tuple[int, ...]:
        """The GPUs of a job."""
        return self.scheduler.state.held_gpus.get(self.record(name).number, ())

    def until(self, holds: Callable[[], bool], most_s: float = 600.0) -> None:
        """Let time pass until something is so."""
        deadline_s = self.time.monotonic() + most_s
        while not holds():
            assert self.time.monotonic() < deadline_s, f"not within {most_s:g} s"
            assert self.scheduler.loop.step()

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.time.monotonic() + seconds
        self.site.at(end_s, lambda: None)
        self.until(lambda: self.time.monotonic() >= end_s)

    def runs(self, *names: str) -> bool:
        """Whether jobs run."""
        return all(self.record(name).state is JobState.RUNNING for name in names)


def test_a_job_on_a_lost_node_runs_elsewhere_at_once_and_keeps_its_retries(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    name = story.job(gpus=2)
    story.until(lambda: story.runs(name))
    assert story.held(name) == (0, 1)
    for _ in range(3):
        lost = story.record(name).attempts[-1].gpus[0] // 2
        story.site.lose(lost, zombie=True)
        story.pass_s(0.1)
        assert story.runs(name)
        assert story.site.nodes_of(story.held(name)) == {1 - lost}
        story.site.return_(lost)
        story.pass_s(1.0)
    record = story.record(name)
    assert [one.cause for one in record.attempts] == [NODE_LOST] * 3 + [""]
    assert [one.nodes for one in record.attempts] == [["n0"], ["n1"], ["n0"], ["n1"]]
    assert (record.failures, record.preemptions) == (0, 0)
    story.until(lambda: story.record(name).state.ended)
    assert story.record(name).state is JobState.COMPLETED
    kinds = [type(event) for event in story.events if isinstance(event, NodeLost | JobEvicted | NodeRestored)]
    assert kinds[:2] == [NodeLost, JobEvicted]
    assert not story.site.misplaced


def test_a_gang_that_loses_a_node_is_stopped_on_the_others_and_keeps_a_new_grant(tmp_path: Path) -> None:
    story = NodeStory(tmp_path, nodes=4)
    name = story.job(Behaviour(work_s=50.0, on_term="ignores"), gpus=4, grace_s=10.0)
    story.until(lambda: story.runs(name))
    assert story.held(name) == (0, 1, 2, 3)
    story.site.lose(1, zombie=False)
    story.pass_s(1.0)
    granted = story.held(name)
    assert len(granted) == 4
    assert 1 not in story.site.nodes_of(granted)
    # Its ranks on the first node are still there, and it waits for them.
    assert story.record(name).state is JobState.PREEMPTED
    assert story.record(name).reason == "its node n1 is lost"
    story.until(lambda: story.runs(name), most_s=10.0)
    assert story.held(name) == granted
    assert [one.cause for one in story.record(name).attempts] == [NODE_LOST, ""]


def test_nothing_is_started_on_a_node_that_does_not_answer_and_what_runs_goes_on(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    first = story.job(gpus=2)
    story.until(lambda: story.runs(first))
    story.site.freeze(1)
    second = story.job(gpus=2)
    story.pass_s(5.0)
    assert not story.held(second)
    assert "node n1 does not answer" in story.why(second)
    story.site.freeze(0)
    story.pass_s(60.0)
    # It has done its work, but nobody can say so.
    assert story.runs(first)
    story.site.return_(0)
    story.until(lambda: story.record(first).state.ended, most_s=1.0)
    assert story.record(first).state is JobState.COMPLETED
    story.until(lambda: story.runs(second), most_s=1.0)
    assert story.held(second) == (0, 1)


def test_a_node_that_answers_again_is_used_at_once(tmp_path: Path) -> None:
    story = NodeStory(tmp_path, nodes=1)
    story.site.freeze(0)
    name = story.job()
    story.pass_s(5.0)
    assert not story.held(name)
    story.site.return_(0)
    story.until(lambda: story.runs(name), most_s=0.1)


@pytest.mark.parametrize("virtual", [False, True])
def test_a_job_that_is_suspended_on_a_lost_node_begins_elsewhere(tmp_path: Path, virtual: bool) -> None:
    story = NodeStory(tmp_path, virtual=virtual)
    name = story.job(gpus=2, preempt="suspend")
    story.until(lambda: story.runs(name))
    story.do("suspend", name)
    story.site.freeze(0)
    story.do("release", name)
    story.pass_s(1.0)
    assert story.why(name).startswith("its memory is on GPUs 0, 1, and node n0 does not answer")
    story.site.lose(0, zombie=True)
    story.until(lambda: story.runs(name), most_s=1.0)
    assert story.held(name) == (2, 3)


def test_a_scheduler_that_starts_again_knows_which_nodes_are_lost(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    name = story.job(gpus=2)
    story.until(lambda: story.runs(name))
    story.site.lose(1, zombie=False)
    story.pass_s(1.0)
    assert story.scheduler.state.occupancy.down == {1}
    story.events.clear()
    story.restart(5.0)
    assert story.scheduler.state.occupancy.down == {1}
    assert not [event for event in story.events if isinstance(event, NodeLost)]
    story.site.at(story.time.monotonic() + 1.0, lambda: story.site.lose(0, zombie=True))
    story.scheduler.journal.close()
    story.site.let_pass(5.0)
    story.site.return_(1)
    # It is lost and the other one is back while no scheduler runs.
    story.scheduler = story._made()
    story.until(lambda: story.runs(name), most_s=1.0)
    assert story.held(name) == (2, 3)
    assert story.record(name).attempts[0].cause == NODE_LOST
    story.restart()
    assert story.scheduler.state.occupancy.down == {0}


def test_losses_of_nodes_that_are_back_leave_the_log(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    name = story.job(Behaviour(work_s=500.0), gpus=2)
    story.until(lambda: story.runs(name))
    for _ in range(20):
        story.site.lose(1, zombie=False)
        story.pass_s(1.0)
        story.site.return_(1)
        story.pass_s(1.0)
    before = story.scheduler.journal.size()
    story.scheduler.journal.compact()
    assert story.scheduler.journal.size() <= before - 40
    story.site.lose(1, zombie=False)
    story.pass_s(1.0)
    story.scheduler.journal.compact()
    story.restart()
    assert story.scheduler.state.occupancy.down == {1}


def test_nodes_that_join_are_used_and_known_to_the_next_scheduler(tmp_path: Path) -> None:
    story = NodeStory(tmp_path, nodes=1)
    first, second = story.job(gpus=2), story.job(gpus=2)
    story.until(lambda: story.runs(first))
    assert not story.held(second)
    story.site.join(Node("n1", "slow", 2), SLOW)
    story.until(lambda: story.runs(second), most_s=0.1)
    assert story.held(second) == (2, 3)
    assert story.scheduler.journal.facts(("machine",))["machine"] == [
        [["fast", 2, "n0"], ["slow", 2, "n1"]],
        ["gpu-0", "gpu-1", "n1-0", "n1-1"],
    ]
    speeds = story.scheduler.state.speeds()
    assert set(map(tuple, speeds.values())) == {(1.0, 0.5)}
    # A larger gang is possible from now on.
    story.site.join(Node("n2", "slow", 2), SLOW)
    story.pass_s(1.0)
    large = story.job(gpus=4)
    story.until(lambda: story.runs(large))
    assert story.held(large) == (2, 3, 4, 5)
    story.restart()
    assert story.runs(large)
    assert story.scheduler.state.speeds() == {2: [0.0, 1.0]}


def test_a_node_that_joins_while_no_scheduler_runs_stops_no_job(tmp_path: Path) -> None:
    story = NodeStory(tmp_path, virtual=True)
    name = story.job(gpus=2)
    story.until(lambda: story.runs(name))
    story.site.join(Node("n2", "slow", 4), SLOW)
    story.restart()
    story.pass_s(1.0)
    assert story.runs(name)
    assert len(story.record(name).attempts) == 1
    assert story.scheduler.cluster.gpu_count == 8


def drained(story: NodeStory, name: str, *, move: bool = False) -> list[str]:
    """Drain a node; returns the jobs that leave it."""
    command = story.scheduler.draining.drain(name, Drain("opera", "new disks"), move=move)
    return [record.id for record in story.answer(story.scheduler.engine.ask(command))]


def test_jobs_on_a_drained_node_end_there_and_nothing_new_starts(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    first = story.job(gpus=2)
    story.until(lambda: story.runs(first))
    assert not drained(story, "n1")
    assert not drained(story, "n0")
    second = story.job(gpus=1)
    story.restart(1.0)
    story.pass_s(1.0)
    assert not story.held(second)
    assert "2 GPUs are blocked: node n1 is drained by opera: new disks" in story.why(second)
    assert story.runs(first)
    story.until(lambda: story.record(first).state.ended)
    story.pass_s(10.0)
    assert not story.held(second)
    assert len(story.record(first).attempts) == 1
    story.answer(story.scheduler.engine.ask(story.scheduler.draining.undrain("n1")))
    story.until(lambda: story.runs(second), most_s=1.0)
    assert story.held(second) == (2,)
    assert not story.site.misplaced


def test_jobs_that_can_go_on_from_a_checkpoint_leave_a_drained_node_if_wanted(tmp_path: Path) -> None:
    story = NodeStory(tmp_path, nodes=3)
    moves, stays = story.job(), story.job(preempt="never")
    story.until(lambda: story.runs(moves, stays))
    assert {story.held(moves), story.held(stays)} == {(0,), (1,)}
    assert drained(story, "n0", move=True) == [moves]
    story.pass_s(5.0)
    assert story.runs(moves, stays)
    assert story.site.nodes_of(story.held(moves)).isdisjoint({0})
    assert story.site.nodes_of(story.held(stays)) == {0}
    record = story.record(moves)
    assert [one.cause for one in record.attempts] == ["request", ""]
    assert record.failures == 0


def test_a_job_that_stands_still_on_a_drained_node_leaves_it_if_it_has_a_checkpoint(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    name = story.job(gpus=2, preempt="checkpoint")
    story.until(lambda: story.runs(name))
    story.do("requeue", name)
    story.until(lambda: story.runs(name))
    assert story.record(name).progress.checkpoint
    story.record(name).request = replace(story.record(name).request, preempt="suspend")
    story.do("suspend", name)
    story.do("release", name)
    node = story.record(name).attempts[-1].nodes[0]
    assert drained(story, node, move=True) == [name]
    story.until(lambda: story.runs(name), most_s=5.0)
    assert story.record(name).attempts[-1].nodes != [node]


def test_nobody_drains_a_node_that_is_not_there(tmp_path: Path) -> None:
    story = NodeStory(tmp_path)
    for command in (
        story.scheduler.draining.undrain("n7"),
        story.scheduler.draining.drain("n7", Drain("a", ""), move=False),
    ):
        with pytest.raises(UnknownNodeError, match="there is no node 'n7'; there are n0, n1"):
            story.answer(story.scheduler.engine.ask(command))
    assert not story.scheduler.draining.nodes
