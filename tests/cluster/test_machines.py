"""What the many-machine engine relies on in Ray, and what the tests rely on in their machines."""

from __future__ import annotations

from machines import Machines, ask_ray, kill, lives, read_proc, wait_until

HANDS = """
import os, subprocess, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

@ray.remote(num_cpus=0)
class Hands:
    def pid(self):
        return os.getpid()

    def leave(self, seconds):
        "A grandchild in a session of its own, as keepers are."
        line = f"setsid sleep {seconds} >/dev/null 2>&1 &"
        subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, check=True)

def hands(node):
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = dict(name="hands-" + node, get_if_exists=True, lifetime="detached", max_restarts=-1)
    return Hands.options(**options, scheduling_strategy=strategy).remote()
"""


def sleeper(machines: Machines, number: int, seconds: int) -> int:
    """The process on a machine that sleeps for exactly this long, once it has begun to."""
    name = f"sleep\0{seconds}\0"
    found = wait_until(
        lambda: [pid for pid in machines[number].pids if read_proc(pid, "cmdline") == name and lives(pid)],
        "the process that was left behind",
    )
    (pid,) = found
    return int(pid)


def test_every_machine_has_its_name(machines: Machines) -> None:
    assert sorted(machines.nodes()) == ["n0", "n1", "n2"]
    if machines.apart:
        assert machines[1].enter("hostname").stdout.strip() == "n1"
        assert len({one.address for one in machines}) == 3


def test_a_grandchild_outlives_actor_and_raylet_and_the_node_comes_back_with_another_id(machines: Machines) -> None:
    before = machines.nodes()["n1"]
    ask = f"{HANDS}\none = hands({before!r})\nray.get(one.leave.remote(4321))\nsaid = ray.get(one.pid.remote())"
    ask_ray(machines, ask)
    (worker,) = machines[1].workers
    left = sleeper(machines, 1, 4321)
    kill(worker)
    wait_until(lambda: set(machines[1].workers) - {worker}, "the actor to be started again")
    machines[1].kill_raylet()
    wait_until(lambda: "n1" not in machines.nodes(), "the death of the node to be seen")
    assert lives(left)
    machines[1].restart_ray()
    assert machines.nodes()["n1"] != before
    assert lives(left)
    kill(left)
