"""What the processes of a gang over several nodes are started with."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.environment import launch_over, with_port
from fairway.runtime.processes.gang import GangNode, counts_text, shared_out
from fairway.runtime.processes.local import said_no_memory
from fairway.runtime.processes.site import Member

OF_A_GROUP = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
}
ONE = GangNode(Member("one", "10.0.0.1", "eth1"), (2, 3), ["GPU-a", "GPU-b"])
TWO = GangNode(Member("two", "10.0.0.2", "ib0"), (0,), ["GPU-c"])


def launch(folder: Path, *places: GangNode, **fields: Any) -> dict[str, Any]:
    gpus = sum(len(place.gpus) for place in places)
    about = {"account": "ann"} | fields
    request = JobRequest(command=("train",), user="ann", cwd="/home", gpus=gpus, **about)
    attempt = Attempt(2, list(range(4, 4 + gpus)), "t", 1.0)
    return launch_over(JobRecord(0, "12", request, 1.0), attempt, folder, places)


def told(part: dict[str, Any], *names: str) -> list[list[str]]:
    return [[rank["env"][name] for name in names] for rank in part["ranks"]]


def test_ranks_go_on_from_node_to_node(tmp_path: Path) -> None:
    whole = launch(tmp_path, ONE, TWO, processes="per_gpu")
    first, second = whole["parts"]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR")
    assert told(first, *names) == [
        ["0", "0", "3", "2", "0", "0", "10.0.0.1"],
        ["1", "1", "3", "2", "0", "0", "10.0.0.1"],
    ]
    assert told(second, *names) == [["2", "0", "3", "1", "1", "1", "10.0.0.1"]]
    assert [first["node"], second["node"]] == ["one", "two"]
    assert [first["gpus"], second["gpus"]] == [[2, 3], [0]]
    assert [first["devices"], second["devices"]] == [["GPU-a", "GPU-b"], ["GPU-c"]]
    assert told(first, "CUDA_VISIBLE_DEVICES")[0] == ["GPU-a,GPU-b"]
    assert told(second, "CUDA_VISIBLE_DEVICES")[0] == ["GPU-c"]


def test_a_program_that_is_started_once_is_no_rank(tmp_path: Path) -> None:
    # nanoGPT takes itself for a rank of DDP if it finds RANK; Lightning waits for others if it finds WORLD_SIZE.
    for fields in ({}, {"gpus_max": 4, "preempt": "checkpoint"}, {"slurm_env": True}):
        ((env,),) = [[rank["env"] for rank in launch(tmp_path, ONE, **fields)["ranks"]]]
        assert not OF_A_GROUP & env.keys()
        assert [env[name] for name in ("FAIRWAY_RANK", "FAIRWAY_LOCAL_RANK", "FAIRWAY_WORLD_SIZE")] == ["0", "0", "1"]
        assert env["FAIRWAY_RESTART_COUNT"] == "1"
    assert told(launch(tmp_path, ONE, env={"RANK": "7"}), "RANK") == [["7"]]
    assert told(launch(tmp_path, ONE, slurm_env=True), "SLURM_PROCID", "SLURM_LOCALID") == [["0", "0"]]


def test_a_batch_script_over_nodes_is_no_rank(tmp_path: Path) -> None:
    for part in launch(tmp_path, ONE, TWO, slurm_env=True)["parts"]:
        assert not OF_A_GROUP & part["ranks"][0]["env"].keys()
        assert told(part, "FAIRWAY_WORLD_SIZE") == [["1"]]


def test_ranks_find_what_torchrun_sets(tmp_path: Path) -> None:
    (one,) = launch(tmp_path, TWO, processes="per_gpu")["ranks"]
    assert one["env"].keys() >= OF_A_GROUP
    assert one["env"]["TORCHELASTIC_RESTART_COUNT"] == "1"
    for part in launch(tmp_path, ONE, TWO)["parts"]:
        assert part["ranks"][0]["env"].keys() >= OF_A_GROUP


def test_python_writes_lines_at_once_unless_the_owner_says_otherwise(tmp_path: Path) -> None:
    told_of = [launch(tmp_path, ONE, env=env) for env in ({}, {"PYTHONUNBUFFERED": ""}, {"PYTHONUNBUFFERED": "0"})]
    assert [told(one, "PYTHONUNBUFFERED") for one in told_of] == [[["1"]], [[""]], [["0"]]]


def test_a_terminal_is_one_that_can_draw(tmp_path: Path) -> None:
    plain = launch(tmp_path, ONE)
    assert not plain["tty"]
    assert "TERM" not in plain["ranks"][0]["env"]
    for own, meant in ({}, "xterm-256color"), ({"TERM": "dumb"}, "xterm-256color"), ({"TERM": "vt100"}, "vt100"):
        drawing = launch(tmp_path, ONE, TWO, tty=True, env=own)
        assert [(part["tty"], *told(part, "TERM")) for part in drawing["parts"]] == [(True, [meant])] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's scheduler has jobs of others")
def test_a_job_of_another_account_finds_nothing_of_roots_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATH": "/root/bin:/bin", "LANG": "C", "TMPDIR": "/root/tmp", "HOME": "/root"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/root/lib")
    (env,) = [rank["env"] for rank in launch(tmp_path, ONE, account="nobody")["ranks"]]
    assert (env["PATH"], env["LANG"]) == ("/usr/local/bin:/usr/bin:/bin", "C")
    assert (env["USER"], env["LOGNAME"], env["HOME"]) == ("nobody", "nobody", pwd.getpwnam("nobody").pw_dir)
    assert not {"TMPDIR", "LD_LIBRARY_PATH"} & env.keys()
    given = {"PATH": "/home/ann/bin:/bin", "TMPDIR": "/scratch", "USER": "ann"}
    assert told(launch(tmp_path, ONE, account="nobody", env=given), *given) == [list(given.values())]


def test_each_part_has_a_folder_and_all_logs_are_in_one(tmp_path: Path) -> None:
    first, second = launch(tmp_path, ONE, TWO, processes="per_gpu")["parts"]
    attempt = tmp_path / "attempt-2"
    assert [first["directory"], second["directory"]] == [str(attempt / "node-0"), str(attempt / "node-1")]
    assert [(one["part"], one["of_parts"]) for one in (first, second)] == [(0, 2), (1, 2)]
    assert [rank["log"] for rank in second["ranks"]] == [str(attempt / "rank-2.log")]
    assert told(second, "FAIRWAY_LOG", "FAIRWAY_NODE_DIR") == [[str(attempt / "rank-2.log"), str(attempt / "node-1")]]
    assert (
        told(second, "FAIRWAY_CHECKPOINT_DIR", "FAIRWAY_REPORT")
        == told(first, "FAIRWAY_CHECKPOINT_DIR", "FAIRWAY_REPORT")[:1]
    )


def test_words_about_memory_are_looked_for_in_the_logs_of_the_part(tmp_path: Path) -> None:
    parts = launch(tmp_path, ONE, TWO, processes="per_gpu")["parts"]
    for part in parts:
        Path(part["directory"]).mkdir(parents=True)
        (Path(part["directory"]) / "launch.json").write_text(json.dumps(part))
        (Path(part["directory"]) / "launch.json").chmod(0o600)
    (tmp_path / "attempt-2" / "rank-2.log").write_text("CUDA out of memory\n")
    assert [said_no_memory(Path(part["directory"]), len(part["ranks"])) for part in parts] == [False, True]


def test_the_site_chooses_the_port_of_ranks_on_other_machines(tmp_path: Path) -> None:
    whole = launch(tmp_path, ONE, TWO, processes="per_gpu")
    assert whole["master_port"]
    assert {port for part in whole["parts"] for (port,) in told(part, "MASTER_PORT")} == {"0"}
    chosen = with_port(whole, 4321)
    assert "master_port" not in chosen
    assert {port for part in chosen["parts"] for (port,) in told(part, "MASTER_PORT")} == {"4321"}
    alone = launch(tmp_path, TWO, processes="per_gpu")
    assert alone["master_port"]
    assert told(alone, "MASTER_PORT", "MASTER_ADDR") == [["0", "127.0.0.1"]]
    assert told(with_port(alone, 4321), "MASTER_PORT") == [["4321"]]
    script = launch(tmp_path, TWO, slurm_env=True)
    assert told(with_port(script, 4321), "FAIRWAY_TASKS_PORT") == [["4321"]]
    assert "master_port" not in launch(tmp_path, TWO)


def test_on_this_machine_the_port_is_chosen_at_once(tmp_path: Path) -> None:
    here = GangNode(Member("here"), (0, 1), None)
    only = launch(tmp_path, here, processes="per_gpu")
    assert "master_port" not in only
    assert "directory" not in only
    assert "FAIRWAY_NODE_DIR" not in only["ranks"][0]["env"]
    assert int(only["ranks"][0]["env"]["MASTER_PORT"]) > 1024
    assert (only["node"], only["gpus"]) == ("here", [0, 1])
    two = launch(tmp_path, here, GangNode(Member("beside"), (0,), None))
    assert len({port for part in two["parts"] for (port,) in told(part, "MASTER_PORT")} - {"0"}) == 1


def test_networks_are_named_unless_the_owner_names_them(tmp_path: Path) -> None:
    first, second = launch(tmp_path, ONE, TWO, env={"NCCL_SOCKET_IFNAME": "mine"})["parts"]
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert told(first, *names) + told(second, *names) == [["eth1", "mine"], ["ib0", "mine"]]
    assert "GLOO_SOCKET_IFNAME" not in launch(tmp_path, ONE)["ranks"][0]["env"]


def test_a_command_that_is_started_once_is_started_once_per_node(tmp_path: Path) -> None:
    first, second = launch(tmp_path, ONE, TWO)["parts"]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "FAIRWAY_NODES", "FAIRWAY_NODE_RANK")
    assert told(first, *names) + told(second, *names) == [
        ["0", "0", "2", "0", "2", "0"],
        ["1", "0", "2", "1", "2", "1"],
    ]
    about = ("FAIRWAY_NODE_NAMES", "FAIRWAY_NODE_ADDRESSES", "FAIRWAY_NODE_GPUS")
    assert told(second, *about) == [["one,two", "10.0.0.1,10.0.0.2", "2,1"]]


def test_skypilot_tasks_learn_their_nodes(tmp_path: Path) -> None:
    first, second = launch(tmp_path, ONE, TWO, env={"SKYPILOT_NODE_RANK": "0"})["parts"]
    names = ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_GPUS_PER_NODE")
    assert told(first, *names) == [["0", "2", "10.0.0.1\n10.0.0.2", "2"]]
    assert told(second, *names) == [["1", "2", "10.0.0.1\n10.0.0.2", "1"]]
    assert "SKYPILOT_NODE_RANK" not in launch(tmp_path, ONE)["ranks"][0]["env"]


def test_slurm_variables_of_several_nodes(tmp_path: Path) -> None:
    first, second = launch(tmp_path, ONE, TWO, slurm_env=True, processes="per_gpu")["parts"]
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE")
    assert told(first, *names)[1] == ["1", "1", "0", "2", "3", "2,1"]
    assert told(second, *names)[0] == ["2", "0", "1", "2", "3", "2,1"]
    hosts = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_GPUS_ON_NODE", "SLURM_GPUS")
    assert told(second, *hosts)[0] == ["10.0.0.1,10.0.0.2", "10.0.0.1,10.0.0.2", "10.0.0.2", "1", "3"]
    assert "SLURM_NTASKS_PER_NODE" not in second["ranks"][0]["env"]


@pytest.mark.parametrize(
    ("tasks", "gpus", "each"),
    [(16, (8, 8), [8, 8]), (2, (8, 8), [1, 1]), (3, (8, 8), [2, 1]), (4, (2, 1, 1), [2, 1, 1]), (1, (4, 4), [1, 0])],
)
def test_tasks_go_where_the_gpus_are(tasks: int, gpus: tuple[int, ...], each: list[int]) -> None:
    assert shared_out(tasks, [GangNode(Member("m"), tuple(range(count)), None) for count in gpus]) == each


def test_counts_are_written_as_slurm_does() -> None:
    assert [counts_text(one) for one in ([8, 8], [8], [8, 8, 4], [1, 2, 2])] == ["8(x2)", "8", "8(x2),4", "1,2(x2)"]


def test_a_job_has_a_log_for_each_of_its_processes() -> None:
    attempt = Attempt(1, [0, 1, 2], "t", 1.0, nodes=["one", "two"])
    asked: list[dict[str, Any]] = [{"processes": "per_gpu"}, {}, {"slurm_env": True}]
    records = [JobRecord(0, "1", JobRequest(command=("train",), gpus=3, **one), 1.0) for one in asked]
    assert [record.ranks_of(attempt) for record in records] == [3, 2, 1]
