"""A site of many machines: real hands and keepers behind a bridge without Ray, and what happens when parts die."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_bridge import PlainBridge
from real_processes import PYTHON, launch, wait_for

from fairway.core.errors import InputError
from fairway.runtime.processes import keeper, ray_site
from fairway.runtime.processes.ray_site import RaySite
from fairway.runtime.processes.remote_attempt import RemoteAttempt
from fairway.runtime.processes.remote_machines import Known
from fairway.runtime.processes.site import NodeChange, NodesJoined, Outcome, Over
from fairway.testing.waiting import WAIT_S

WAITS = [PYTHON, "-I", "-S", "-c", "import time; print('begun', flush=True); time.sleep(600)"]
ENDS = ["/bin/true"]
FAILS = ["/bin/false"]


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[PlainBridge]:
    made = PlainBridge(tmp_path, ["n1", "n2"])
    yield made
    made.close()
    for pid in _keepers(tmp_path):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not _keepers(tmp_path), "all keepers to end")


@pytest.fixture
def site(bridge: PlainBridge) -> Iterator[RaySite]:
    made = bridge.site()
    yield made
    made.close()


def _keepers(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) > 2 and words[-2].startswith(os.fsencode(root)) and keeper.started_at(int(entry.name)) >= 0:
                found.append(int(entry.name))
    return found


def _token(directory: Path) -> str:
    """Processes are known by it, also to tests beside this one."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _launch(directory: Path, node: str, command: list[str], **about: Any) -> dict[str, Any]:
    token = _token(directory)
    told = launch(directory, command, account="", token=token, node=node, gpus=[0], grace_s=5.0, **about)
    told["ranks"][0]["env"]["FAIRWAY_ATTEMPT"] = token
    return told


def _gang(directory: Path, nodes: list[str], commands: list[list[str]]) -> dict[str, Any]:
    token = _token(directory)
    parts = [
        {**_launch(directory / f"node-{rank}", node, command), "token": token}
        for rank, (node, command) in enumerate(zip(nodes, commands, strict=True))
    ]
    return {"parts": parts, "token": token, "account": ""}


def _start(site: RaySite, root: Path, job: str, node: str, command: list[str], **about: Any) -> RemoteAttempt:
    directory = root / "jobs" / job / "attempt-1"
    return site.start(directory, _launch(directory, node, command, **about))


def _until(site: RaySite, true: Any, what: str) -> list[Any]:
    """Let a site work until something is true of its news."""
    news: list[Any] = []
    end_s = time.monotonic() + WAIT_S
    while not true(news):
        assert time.monotonic() < end_s, f"waited {WAIT_S:g} s in vain for {what}; {news}"
        news += site.wait(0.05)
    return news


def _over(site: RaySite, attempt: RemoteAttempt) -> Outcome:
    news = _until(site, lambda news: any(isinstance(one, Over) for one in news), "the end of an attempt")
    over = next(one for one in news if isinstance(one, Over))
    assert over.handle is attempt
    return over.outcome


def _begun(site: RaySite, attempt: RemoteAttempt) -> None:
    logs = [part.directory / "rank-0.log" for part in attempt.parts]
    _until(site, lambda news: all(log.exists() and "begun" in log.read_text() for log in logs), "ranks to begin")
    _until(site, lambda news: all(part.state == "runs" for part in attempt.parts), "machines to say so")


def test_an_attempt_starts_on_its_machine_and_its_end_is_told_once(bridge: PlainBridge, site: RaySite) -> None:
    attempt = _start(site, bridge.root, "1", "n2", ENDS)
    assert _over(site, attempt).codes == (0,)
    assert ("n2", "start") in bridge.calls
    assert ("n1", "start") not in bridge.calls
    assert [one for _ in range(5) for one in site.wait(0.05) if isinstance(one, Over)] == []


def test_a_keeper_is_nobodys_child_and_runs_under_ordinary_terms(bridge: PlainBridge, site: RaySite) -> None:
    _begun(site, _start(site, bridge.root, "1", "n1", WAITS))
    (pid,) = _keepers(bridge.root)
    assert int(keeper.stat_fields(pid)[1]) != os.getpid()
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "0"


def test_ranks_are_suspended_go_on_and_stop(bridge: PlainBridge, site: RaySite) -> None:
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    (pid,) = _keepers(bridge.root)

    def states() -> set[str]:
        return {keeper.stat_fields(one)[0] for one in keeper.descendants(pid)}

    attempt.pause()
    _until(site, lambda news: states() == {"T"}, "ranks to stand still")
    attempt.go_on()
    _until(site, lambda news: states() == {"S"}, "ranks to go on")
    attempt.stop()
    assert attempt.stopping
    assert _over(site, attempt).cause == "request"


def test_a_gang_fails_as_one(bridge: PlainBridge, site: RaySite) -> None:
    directory = bridge.root / "jobs" / "1" / "attempt-1"
    attempt = site.start(directory, _gang(directory, ["n1", "n2"], [WAITS, FAILS]))
    outcome = _over(site, attempt)
    assert outcome.codes[1] == 1
    assert outcome.cause == "gang"


def test_all_parts_of_a_gang_meet_at_the_port_that_was_chosen_for_them(bridge: PlainBridge, site: RaySite) -> None:
    directory = bridge.root / "jobs" / "1" / "attempt-1"
    told = _gang(directory, ["n1", "n2"], [WAITS, WAITS]) | {"master_port": True}
    for part in told["parts"]:
        part["ranks"][0]["env"]["MASTER_PORT"] = "0"
    bridge.slow_s["port"] = 1.0
    attempt = site.start(directory, told)
    attempt.throttle(0.9)
    _begun(site, attempt)
    started = [json.loads((part.directory / "launch.json").read_text()) for part in attempt.parts]
    ports = {part["ranks"][0]["env"]["MASTER_PORT"] for part in started}
    assert len(ports) == 1
    assert int(ports.pop()) > 0
    assert bridge.calls.count(("n1", "port")) == 1
    attempt.stop(hurry=True)
    _over(site, attempt)


def test_what_was_said_while_a_machine_was_silent_is_said_later(bridge: PlainBridge, site: RaySite) -> None:
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    bridge.silent.add("n1")
    silent = NodeChange(0, "unreachable", "it does not answer")
    news = _until(site, lambda news: silent in news, "silence to be noticed")
    assert not any(isinstance(one, Over) for one in news)
    attempt.stop()
    bridge.silent.clear()
    assert _over(site, attempt).cause == "request"


@pytest.mark.parametrize("what", ["bridge", "hands"])
def test_attempts_outlive_the_bridge_and_the_hands(what: str, bridge: PlainBridge, site: RaySite) -> None:
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    before = _keepers(bridge.root)
    if what == "bridge":
        bridge.break_down()
        _until(site, lambda news: bridge.starts == 2, "another bridge")
    else:
        bridge.restart_hands("n1")
    attempt.stop()
    assert _over(site, attempt).cause == "request"
    assert len(before) == 1


def test_another_scheduler_finds_attempts(bridge: PlainBridge) -> None:
    first = bridge.site()
    _begun(first, _start(first, bridge.root, "1", "n1", WAITS))
    ended = _start(first, bridge.root, "2", "n2", ENDS)
    assert _over(first, ended).codes == (0,)
    first.close()
    second = bridge.site()
    jobs = bridge.root / "jobs"
    assert second.find(jobs / "3" / "attempt-1", "none") is None
    found = second.find(jobs / "2" / "attempt-1", _token(jobs / "2" / "attempt-1"))
    assert isinstance(found, Outcome)
    assert found.codes == (0,)
    again = second.find(jobs / "1" / "attempt-1", _token(jobs / "1" / "attempt-1"))
    assert isinstance(again, RemoteAttempt)
    again.stop()
    assert _over(second, again).cause == "request"
    second.close()


def test_an_attempt_that_never_reached_its_machine_never_begins(bridge: PlainBridge) -> None:
    """Its scheduler wrote down what to start, and was killed before it could say so."""
    directory = bridge.root / "jobs" / "1" / "attempt-1"
    directory.mkdir(parents=True)
    keeper.write_over(directory / "launch.json", _launch(directory, "n1", WAITS))
    site = bridge.site()
    found = site.find(directory, _token(directory))
    assert isinstance(found, RemoteAttempt)
    outcome = _over(site, found)
    assert (outcome.cause, outcome.codes) == ("refused", ())
    assert json.loads((directory / "keeper.json").read_text()) == [0, -1]
    site.close()


def test_a_start_that_is_not_answered_is_given_up(
    bridge: PlainBridge, site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wait(0.5)
    monkeypatch.setattr(ray_site, "START_S", 0.3)
    bridge.silent.add("n1")
    attempt = _start(site, bridge.root, "1", "n1", ENDS)
    assert _over(site, attempt).cause == "refused"
    bridge.silent.clear()
    assert not [one for _ in range(10) for one in site.wait(0.05) if isinstance(one, Over)]
    assert _keepers(bridge.root) == []


def test_a_machine_is_lost_if_its_keepers_show_no_sign_of_life(
    bridge: PlainBridge, site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_site, "SIGN_S", 1.0)
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    (pid,) = _keepers(bridge.root)
    os.kill(pid, signal.SIGSTOP)
    bridge.alive.remove("n1")
    news = _until(site, lambda news: any(isinstance(one, Over) for one in news), "the node to be lost")
    lost = next(at for at, one in enumerate(news) if isinstance(one, NodeChange) and one.status == "lost")
    over = next(at for at, one in enumerate(news) if isinstance(one, Over))
    assert lost < over
    assert news[over].outcome.cause == "lost"
    # It comes back as a zombie: its hands end it before it may be used again.
    os.kill(pid, signal.SIGCONT)
    bridge.alive.append("n1")
    news = _until(site, lambda news: NodeChange(0, "up") in news, "the node to come back")
    assert _keepers(bridge.root) == []


def test_a_keeper_that_was_given_up_ends_by_itself(
    bridge: PlainBridge, site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_site, "SIGN_S", 0.5)
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    bridge.alive.remove("n1")
    # Its sign of life changes only every few seconds, which is too slow for half a second.
    _until(site, lambda news: any(isinstance(one, Over) for one in news), "the node to be lost")
    wait_for(lambda: not _keepers(bridge.root), "its keeper to end")


def test_a_machine_whose_keepers_live_is_not_lost(
    bridge: PlainBridge, site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_site, "SIGN_S", 2.0)
    attempt = _start(site, bridge.root, "1", "n1", WAITS)
    _begun(site, attempt)
    (pid,) = _keepers(bridge.root)
    sign = attempt.parts[0].directory / "sign"
    before = sign.read_bytes()
    wait_for(lambda: sign.read_bytes() != before, "its keeper to renew its sign")
    # From now on the test does it, always before the scheduler looks.
    os.kill(pid, signal.SIGSTOP)
    bridge.alive.remove("n1")
    end_s, news = time.monotonic() + 3.0, list[Any]()
    while time.monotonic() < end_s:
        sign.write_text(str(time.monotonic_ns()))
        news += site.wait(0.05)
    os.kill(pid, signal.SIGCONT)
    assert {one.status for one in news if isinstance(one, NodeChange) and one.node == 0} == {"unreachable"}


def test_a_machine_joins(bridge: PlainBridge, site: RaySite) -> None:
    assert [node.name for node in site.cluster.nodes] == ["n1", "n2"]
    bridge.join("a0")
    news = _until(site, lambda news: NodeChange(2, "up") in news, "the new node")
    joined = next(one for one in news if isinstance(one, NodesJoined))
    assert [node.name for node in joined.cluster.nodes] == ["n1", "n2", "a0"]
    attempt = _start(site, bridge.root, "1", "a0", ENDS)
    assert _over(site, attempt).codes == (0,)


def test_known_nodes_keep_their_numbers_whether_they_are_there_or_not(bridge: PlainBridge) -> None:
    site = bridge.site(known=Known([("cpu", 4, "z9"), ("cpu", 2, "n2")]))
    assert [node.name for node in site.cluster.nodes] == ["z9", "n2", "n1"]
    assert site.cluster.gpu_count == 8
    news = _until(site, lambda news: {one.node for one in news} == {0, 1, 2}, "all nodes to be told")
    assert {(one.node, one.status) for one in news} == {(0, "lost"), (1, "up"), (2, "up")}
    site.close()


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"version": "0.0.1"}, "node n2: it has Fairway 0.0.1"),
        ({"not_shared": "no such file"}, "is not shared with it: no such file; `--jobs DIR`"),
        ({"ahead_s": 180.0}, "node n2: its clock is 180 s ahead of this machine's; set it first"),
        ({"ahead_s": -60.0}, "its clock is 60 s behind this machine's"),
        ({"token": False}, "start Ray with RAY_AUTH_MODE=token"),
        ({"user": 12345}, "Ray runs there as user 12345"),
        ({"taken": "other:/state"}, "another scheduler uses this Ray cluster: other:/state"),
    ],
)
def test_a_machine_that_cannot_be_used_keeps_the_scheduler_from_starting(
    lie: dict[str, Any], words: str, bridge: PlainBridge
) -> None:
    bridge.lies["n2"] = lie
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        bridge.site()


def test_two_nodes_of_one_name_are_refused(bridge: PlainBridge) -> None:
    bridge.twice = ["n1"]
    with pytest.raises(InputError, match="two nodes of Ray are called 'n1'"):
        bridge.site()


def test_a_second_scheduler_is_refused_until_the_first_is_silent(
    bridge: PlainBridge, site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wait(0.2)
    with pytest.raises(InputError, match="another scheduler uses this Ray cluster: me"):
        bridge.site(owner="somebody else")
