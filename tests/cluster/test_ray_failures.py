"""Parts of a cluster die, and jobs go on: the scheduler, the bridge, hands, raylets, the control store, whole machines.

FAIRWAY_TEST_KILLS says how often each part is killed, FAIRWAY_TEST_SEED when. How long it takes until all is well again
is measured by `benchmarks/cluster.py`, which kills ten times.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from cluster_cli import GPUS, ClusterCli, check_spells, cluster_cli
from machines import Machines, kill, lives, read_proc, wait_until

KILLS = int(os.environ.get("FAIRWAY_TEST_KILLS", "1"))
SEED = int(os.environ.get("FAIRWAY_TEST_SEED", "19"))


class Parts:
    """How each part of a cluster is killed, and brought back if it does not come back by itself."""

    def __init__(self, cli: ClusterCli, dice: random.Random) -> None:
        self.cli, self.machines, self.dice = cli, cli.machines, dice

    def daemon(self) -> None:
        self.cli.daemon.kill()
        self.cli.daemon.wait()
        time.sleep(self.dice.uniform(0.0, 1.0))
        self.cli.start()

    def bridge(self) -> None:
        for pid in self.cli.bridges:
            kill(pid)

    def hands(self) -> None:
        one = self.dice.choice(list(self.machines))
        for pid in one.workers:
            kill(pid)

    def raylet(self) -> None:
        # The first machine's raylet and its control store are started as one; see below.
        one = self.dice.choice(list(self.machines)[1:])
        one.kill_raylet()
        time.sleep(self.dice.uniform(0.0, 2.0))
        one.restart_ray()

    def control_store(self) -> None:
        kill(self.machines[0].control_store)
        wait_until(lambda: not any(one.raylet for one in self.machines), "Ray to be gone")
        self.machines.stop_ray()
        self.machines.start_ray()


def all_run(cli: ClusterCli, jobs: list[str]) -> bool:
    """Whether the scheduler has all machines and these jobs."""
    try:
        return cli.up_nodes() == {"n0", "n1", "n2"} and all(cli.state_of(job) == "RUNNING" for job in jobs)
    except OSError:
        return False


def kill_again_and_again(cli: ClusterCli, parts: list[str], seed: int) -> dict[str, list[float]]:
    """Kill parts at random instants, beside long jobs, a gang and short jobs; the seconds until all was adopted.

    All is adopted when the long jobs run and a gang on all GPUs that they leave, on every machine, has come and gone.
    """
    dice = random.Random(seed)
    kills, took_s = Parts(cli, dice), dict[str, list[float]]()
    long = [cli.work(100_000, "--gpus", "1") for _ in range(3)]
    long.append(cli.work(100_000, "--gpus", str(GPUS + 1), "--per-gpu"))
    cli.begun(*long)
    short = []
    for part in parts:
        short.append(cli.work(dice.randrange(5, 30)))
        time.sleep(dice.uniform(0.0, 1.0))
        how: Callable[[], None] = getattr(kills, part)
        how()
        back_s = time.monotonic()
        short.append(cli.work(1, "--gpus", str(3 * GPUS - 3 - (GPUS + 1)), "--per-gpu"))
        cli.ended(short[-1:])
        wait_until(lambda: all_run(cli, long), "all machines and long jobs to be back", about=cli.about)
        took_s.setdefault(part, []).append(time.monotonic() - back_s)
        print(f"{part}: {took_s[part][-1]:.1f} s", flush=True)
    cli.ended(short)
    cli.enough()
    cli.ended(long)
    return took_s


def check_all_ran_once(cli: ClusterCli) -> None:
    """Nothing was lost and nothing doubled."""
    check_spells(cli)
    unfinished = {rank: words for rank, words in cli.last_lines().items() if words[0] != "end"}
    assert not unfinished, f"ranks that were lost: {unfinished}"
    for record in cli.records().values():
        began = {path.name.split("-")[1] for path in cli.diaries.glob(f"{record.id}-*")}
        assert len(began) == 1, f"job {record.id} began {len(began)} times"
        assert record.attempts[-1].number == int(began.pop())


def test_killed_parts_cost_no_attempt(machines: Machines) -> None:
    parts = ["daemon", "bridge", "hands", "raylet", "control_store"] * KILLS
    random.Random(SEED).shuffle(parts)
    print(f"repeat with FAIRWAY_TEST_KILLS={KILLS} FAIRWAY_TEST_SEED={SEED}")
    with cluster_cli(machines, "--placement", "spread") as cli:
        kill_again_and_again(cli, parts, SEED)
        check_all_ran_once(cli)


def test_what_machines_ran_goes_on_elsewhere_if_they_are_lost_and_only_then(machines: Machines) -> None:
    """A fourth machine joins. Then one loses its power, one stands still, and the cable of one is cut, all at once.

    The jobs of the first two go on elsewhere, from their checkpoints. Behind the cable the keeper still shows signs of
    life in the shared directory, and its job goes on there.
    """
    with cluster_cli(machines, "--placement", "spread") as cli:
        machines.add()
        cli.wait_nodes("n0", "n1", "n2", "n3")
        jobs = [cli.work(100_000, "--gpus", "1", "--retries", "0") for _ in range(4)]
        cli.begun(*jobs)
        time.sleep(1.0)
        ((off,), (frozen,), (behind,)) = (on_machine(cli, number) for number in (1, 2, 3))
        zombies = [pid for pid in machines[2].pids if "worker.py" in read_proc(pid, "cmdline")]
        assert zombies
        machines[1].power_off()
        machines[2].freeze(all_of_it=True)
        if machines.apart:
            machines[3].cut()
        for job in (off, frozen):
            wait_until(lambda job=job: has_begun(cli, job, 2), "the job to run elsewhere", about=cli.about)  # type: ignore[misc]
            assert first_step(cli, job, 2) > 0, "it did not go on from its checkpoint"
        assert cli.up_nodes() == ({"n0"} if machines.apart else {"n0", "n3"})
        assert cli.state_of(behind) == "RUNNING"

        assert all(map(lives, zombies))
        machines[2].thaw()
        wait_until(lambda: not any(map(lives, zombies)), "the ranks that came back from the dead to end")
        if machines.apart:
            # Ray on it has been given up. It ends itself sooner or later, and is started again.
            machines[3].mend()
            machines[3].restart_ray()
        machines[2].restart_ray()
        machines[1].power_on()
        cli.wait_nodes("n0", "n1", "n2", "n3")
        jobs += (everywhere := [cli.work(5, "--gpus", str(3 * GPUS), "--per-gpu")])
        cli.ended(everywhere)
        cli.enough()
        cli.ended(jobs)
        check_spells(cli)
        attempts = {job: len(record.attempts) for job, record in cli.records().items()}
        assert attempts == {job: 2 if job in (off, frozen) else 1 for job in jobs}


def on_machine(cli: ClusterCli, number: int) -> list[str]:
    """The jobs that hold GPUs of a machine."""
    (row,) = (row for row in cli.client.nodes() if row["name"] == f"n{number}")
    return sorted({str(job) for gpu in row["gpus"] for job in gpu["jobs"]})


def has_begun(cli: ClusterCli, job: str, attempt: int) -> bool:
    """Whether the first rank of an attempt has written its first line."""
    return any("\n" in path.read_text() for path in cli.diaries.glob(f"{job}-{attempt}-0-*"))


def first_step(cli: ClusterCli, job: str, attempt: int) -> int:
    """The step from which an attempt went on."""
    (path,) = cli.diaries.glob(f"{job}-{attempt}-0-*")
    return int(path.read_text().splitlines()[0].split()[2])
