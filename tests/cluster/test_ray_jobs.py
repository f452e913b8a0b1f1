"""Jobs over several machines: quick ones, gangs, and what a machine that stands still does to the others."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster_cli import GPUS, ClusterCli, check_spells, cluster_cli
from machines import Machines, rss_bytes

QUICK = 30
ANSWERS, MOST_S = 30, 30.0
"""So many commands are answered within this time beside a machine that stands still. It is not the time that they take,
which is milliseconds: if every step waited a second for that machine, it would not be enough."""
ABOUT_RANK = (
    'echo "at $(hostname) $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT";'
    'echo "terms $(nice) $(cat /proc/self/oom_score_adj)";'
    'echo "network $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME";'
    'echo "ray $(env | grep -c ^RAY_) ${OMP_NUM_THREADS-unset}"'
)


@pytest.fixture(scope="module")
def cli(_machines: Machines) -> Iterator[ClusterCli]:
    """One scheduler for all tests of this file; they leave the machines as they are."""
    _machines.repair()
    with cluster_cli(_machines, "--placement", "spread") as made:
        yield made


def quick_jobs(cli: ClusterCli, count: int) -> list[float]:
    """The times from submission to completion of jobs that do nothing, one after the other, in ascending order."""
    client, times_s = cli.client, []
    for _ in range(count):
        (row,) = client.submit({"command": ["/bin/true"], "cwd": "/"})
        while not (shown := client.show(row["id"]))["ended_s"]:
            time.sleep(0.005)
        assert shown["state"] == "COMPLETED", cli.told(row["id"])
        times_s.append(shown["ended_s"] - shown["submitted_s"])
    return sorted(times_s)


def test_quick_jobs_complete_one_after_the_other(cli: ClusterCli) -> None:
    """How quick they are is measured by `benchmarks/cluster.py`."""
    assert len(quick_jobs(cli, QUICK)) == QUICK


def test_a_gang_over_machines_knows_itself(cli: ClusterCli) -> None:
    size = 2 * GPUS
    # Our own shell has variables for Ray; what the machines have for it is another matter.
    job = cli.submit("--gpus", str(size), "--per-gpu", "--export", "NONE", "--", "sh", "-c", ABOUT_RANK)
    cli.ended([job])
    said = [line.split() for line in cli("logs", job).out.splitlines()]
    at = sorted((words[2:] for words in said if words[1] == "at"), key=lambda words: int(words[1]))
    assert [int(words[1]) for words in at] == list(range(size))
    parts = [[words for words in at if int(words[3]) == part] for part in range(3)]
    assert [words for part in parts for words in part] == at, "the ranks of a machine follow each other"
    for part in filter(None, parts):
        assert len({words[0] for words in part}) == 1
        assert [int(words[2]) for words in part] == list(range(len(part)))
        assert {(int(words[4]), int(words[5])) for words in part} == {(size, len(part))}
    assert len({(words[6], words[7]) for words in at}) == 1, "all ranks meet at one place"
    if cli.machines.apart:
        assert len({words[0] for words in at}) == len(list(filter(None, parts))) >= 2
        assert at[0][6] in {one.address for one in cli.machines}
    assert {tuple(words[2:]) for words in said if words[1] == "terms"} == {("0", "0")}, "nice and oom_score_adj"
    assert {tuple(words[2:]) for words in said if words[1] == "ray"} == {("0", "unset")}, "Ray's variables are its own"
    for words in (words for words in said if words[1] == "network"):
        assert len(words) == 4
        assert words[2] == words[3]


def test_a_gang_that_no_machines_can_hold_is_refused(cli: ClusterCli) -> None:
    call = cli("submit", "--gpus", str(3 * GPUS + 1), "--", "/bin/true")
    assert call.code == 2
    assert len(call.err.splitlines()) == 1
    assert "GPUs" in call.err


def test_every_machine_is_shown_with_its_gpus(cli: ClusterCli) -> None:
    job = cli.work(400, "--gpus", "1")
    cli.begun(job)
    rows = cli.client.nodes()
    assert [row["name"] for row in rows] == ["n0", "n1", "n2"]
    assert [len(row["gpus"]) for row in rows] == [GPUS] * 3
    assert [gpu["jobs"] for row in rows for gpu in row["gpus"] if gpu["jobs"]] == [[job]]
    shown = cli("nodes").out
    assert all(name in shown for name in ("n0", "n1", "n2"))
    cli("cancel", job)
    cli.wait_for(job, "CANCELLED")
    check_spells(cli)


def test_nothing_starts_on_a_drained_machine_and_what_runs_there_goes_on(cli: ClusterCli) -> None:
    before = [cli.work(100_000) for _ in range(3)]
    cli.begun(*before)
    assert cli("node", "drain", "n1", "--reason", "new disks").code == 0
    assert cli.up_nodes() == {"n0", "n2"}
    waits = cli.submit("--gpus", str(2 * GPUS - 1), "--", "/bin/true")
    runs = [cli.work(100_000) for _ in range(2 * GPUS - 2)]
    (drained,) = (row for row in cli.client.nodes() if row["name"] == "n1")
    assert "new disks" in drained["reason"]
    assert {job for gpu in drained["gpus"] for job in gpu["jobs"]} < set(before)
    assert cli.state_of(waits) == "PENDING"
    assert {cli.state_of(job) for job in before} == {"RUNNING"}
    assert cli("node", "undrain", "n1").code == 0
    for job in (waits, *runs, *before):
        cli("cancel", job)
    for job in (waits, *runs, *before):
        cli.wait_for(job, "CANCELLED", "COMPLETED")
    assert cli.up_nodes() == {"n0", "n1", "n2"}


def test_the_bridge_and_the_hands_are_small(cli: ClusterCli) -> None:
    (bridge,) = cli.bridges
    hands = [pid for one in cli.machines for pid, name in one.workers.items() if "Hands" in name]
    assert len(hands) == 3
    print(f"bridge {rss_bytes(bridge) / 1e6:.0f} MB, hands {[round(rss_bytes(pid) / 1e6) for pid in hands]} MB")
    assert rss_bytes(bridge) <= 150e6
    assert max(map(rss_bytes, hands)) <= 120e6


def test_a_machine_that_stands_still_delays_no_step(cli: ClusterCli) -> None:
    """The last test of this file: the machine is not as it was. Each command waits for a step of the loop."""
    machines = cli.machines
    running = [cli.work(100_000, "--gpus", "1") for _ in range(6)]
    cli.begun(*running)
    waits = cli.submit("--gpus", str(3 * GPUS), "--", "/bin/true")
    machines[2].freeze(all_of_it=True)
    asked_s = time.monotonic()
    for number in range(ANSWERS):
        cli.client.update(waits, priority=number % 7)
    took_s = time.monotonic() - asked_s
    machines[2].thaw()
    assert took_s < MOST_S
