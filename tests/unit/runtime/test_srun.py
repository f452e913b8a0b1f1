"""`srun` in a batch script over several nodes: its options, and where tasks go."""

from __future__ import annotations

import socket
import threading

import pytest

from fairway.runtime.processes.srun import StepError, asked_step, counts, hostnames, layout, scontrol, task_variables
from fairway.runtime.processes.srun_options import FLAGS, SHORT, STEPS, TAKEN, parsed, refusal
from fairway.runtime.processes.step_link import Link, TaskOutput, accepted, connected, listen
from fairway.runtime.processes.step_nodes import own_environment

OF_A_GROUP = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
}
JOB = {
    "SLURM_JOB_NODELIST": "10.0.0.1,10.0.0.2,10.0.0.3",
    "FAIRWAY_NODE_NAMES": "a,b,c",
    "SLURM_TASKS_PER_NODE": "8(x2),4",
    "FAIRWAY_NODE_GPUS": "8,8,4",
}


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("-n 4 python -u t.py", {"ntasks": "4"}, "python -u t.py"),
        ("-n4 -l t", {"ntasks": "4", "label": ""}, "t"),
        ("--ntasks=4 --label --cpu-bind=none t -n 2", {"ntasks": "4", "label": "", "cpu-bind": "none"}, "t -n 2"),
        ("-N1 -w a --mpi pmix t", {"nodes": "1", "nodelist": "a", "mpi": "pmix"}, "t"),
        ("-K -u -c 8 -- -t", {"kill-on-bad-exit": "", "unbuffered": "", "cpus-per-task": "8"}, "-t"),
        ("-lu -D /x t", {"label": "", "unbuffered": "", "chdir": "/x"}, "t"),
        ("--kill-on-bad-exit=0 t", {"kill-on-bad-exit": "0"}, "t"),
        ("", {}, ""),
    ],
)
def test_options_end_where_the_command_begins(words: str, options: dict[str, str], command: str) -> None:
    assert parsed(words.split()) == (options, command.split())


@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ("", {0: 8, 1: 8, 2: 4}),
        ("-N 2", {0: 8, 1: 8}),
        ("--ntasks-per-node=1", {0: 1, 1: 1, 2: 1}),
        ("-N 2 --ntasks-per-node 1", {0: 1, 1: 1}),
        ("-n 1", {0: 1}),
        ("-n 3", {0: 1, 1: 1, 2: 1}),
        ("-n 10", {0: 4, 1: 4, 2: 2}),
        ("-N 1 -n 3", {0: 3}),
        ("-N 1 -n 1 -w 10.0.0.2", {1: 1}),
        ("-w b", {1: 8}),
        ("-w a,c -n 2", {0: 1, 2: 1}),
        ("-r 1 -n 2", {1: 1, 2: 1}),
    ],
)
def test_tasks_are_where_they_are_asked_for(words: str, tasks: dict[int, int]) -> None:
    assert {node.number: node.tasks for node in layout(parsed(words.split())[0], JOB)} == tasks


@pytest.mark.parametrize(
    ("words", "why"),
    [("-N 4", "there are 3"), ("-w d", "no node d"), ("-n many", "not a number"), ("-r 3", "there are 0")],
)
def test_what_the_job_does_not_have_is_refused(words: str, why: str) -> None:
    with pytest.raises(StepError, match=why):
        layout(parsed(words.split())[0], JOB)


def test_tasks_are_numbered_over_the_nodes_of_the_step() -> None:
    nodes = layout({"nodelist": "b,c", "ntasks-per-node": "2"}, JOB)
    told = [one for _, tasks in task_variables(nodes, 7, {"MASTER_PORT": "4321"}) for one in tasks]
    names = ("SLURM_PROCID", "RANK", "SLURM_LOCALID", "LOCAL_RANK", "SLURM_NODEID", "SLURMD_NODENAME")
    assert [[one[name] for name in names] for one in told] == [
        ["0", "0", "0", "0", "0", "10.0.0.2"],
        ["1", "1", "1", "1", "0", "10.0.0.2"],
        ["2", "2", "0", "0", "1", "10.0.0.3"],
        ["3", "3", "1", "1", "1", "10.0.0.3"],
    ]
    assert {one["SLURM_NTASKS"] + one["WORLD_SIZE"] + one["SLURM_NNODES"] for one in told} == {"442"}
    assert {one["SLURM_STEP_NODELIST"] for one in told} == {"10.0.0.2,10.0.0.3"}
    assert {one["MASTER_PORT"] for one in told} == {"4321"}
    assert [one["FAIRWAY_RANK"] + one["FAIRWAY_LOCAL_RANK"] for one in told] == ["00", "11", "20", "31"]


def test_the_only_task_of_a_step_is_no_rank() -> None:
    nodes = layout({"ntasks": "1"}, JOB)
    ((_, (only,)),) = task_variables(nodes, 7, {"MASTER_PORT": "4321"})
    assert not OF_A_GROUP & only.keys()
    assert (only["SLURM_PROCID"], only["SLURM_NTASKS"], only["FAIRWAY_WORLD_SIZE"]) == ("0", "1", "1")


def test_lists_of_nodes_as_slurm_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert hostnames("a,n[01-03,7],x[1-2]y") == ["a", "n01", "n02", "n03", "n7", "x1y", "x2y"]
    assert hostnames("10.0.0.1,10.0.0.2") == ["10.0.0.1", "10.0.0.2"]
    assert counts("8(x2),4") == [8, 8, 4]
    assert scontrol(["show", "hostnames", "n[1-2]"]) == 0
    assert capsys.readouterr().out == "n1\nn2\n"
    assert scontrol(["requeue", "7"]) == 1
    assert "there is no Slurm here" in capsys.readouterr().err


def test_what_belongs_to_a_node_is_not_taken_from_the_script() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "GPU-2", "FAIRWAY_NODE_RANK": "1", "GLOO_SOCKET_IFNAME": "ib0"}
    own |= {"NCCL_SOCKET_IFNAME": "ib0", "FAIRWAY_NODE_INTERFACE": "ib0"}
    script = {"CUDA_VISIBLE_DEVICES": "GPU-1", "FAIRWAY_NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "eth0"}
    script |= {"NCCL_SOCKET_IFNAME": "mine", "FAIRWAY_NODE_INTERFACE": "eth0", "EPOCHS": "3"}
    found = own_environment(script, own)
    names = ("CUDA_VISIBLE_DEVICES", "FAIRWAY_NODE_RANK", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "EPOCHS")
    assert [found[name] for name in names] == ["GPU-2", "1", "ib0", "mine", "3"]


def _ends(secret: str, other: str) -> tuple[Link | None, Link | None]:
    with listen("127.0.0.1", 0) as listening:
        made: list[Link | None] = []
        port = listening.getsockname()[1]
        client = threading.Thread(target=lambda: made.append(connected("127.0.0.1", port, other)))
        client.start()
        taken = accepted(listening.accept()[0], secret)
        client.join()
    return taken, made[0]


def test_only_processes_with_the_secret_are_talked_to() -> None:
    assert _ends("one", "other") == (None, None)
    taken, made = _ends("one", "one")
    assert taken is not None
    assert made is not None
    made.tell(node=3, text="ü")
    made.pass_on(TaskOutput(70000, 2, b"\x00\xff"))
    assert taken.heard() == {"node": 3, "text": "ü"}
    assert taken.heard() == TaskOutput(70000, 2, b"\x00\xff")
    made.close()
    assert taken.heard() is None


def test_a_stranger_who_says_nothing_or_nonsense_is_left_alone() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        stranger.shutdown(socket.SHUT_WR)
        assert accepted(listening.accept()[0], "secret") is None


@pytest.mark.parametrize(
    "words", ["--container-image=x", "--container-image x", "--uid 0", "--multi-prog", "--made-up=1"]
)
def test_a_step_that_would_be_another_one_is_refused(words: str) -> None:
    with pytest.raises(StepError, match=f"^{words.split('=')[0].split()[0]}: "):
        asked_step([*words.split(), "true"])


def test_every_option_has_one_fate() -> None:
    sorted_names = [*STEPS.refused, *STEPS.left_out, *TAKEN]
    assert len(set(sorted_names)) == len(sorted_names)
    assert {name for name in (*FLAGS, *SHORT.values()) if refusal(name) and not STEPS.explicit_refusal(name)} == set()
