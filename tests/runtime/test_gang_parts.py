"""Gangs over several nodes: two keepers, each with the ranks of its node. Both nodes are this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from real_processes import end_of, wait_for
from training import ENVIRONMENT, example

from fairway.runtime.jobs.life import verdict
from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.environment import launch_over, own_account
from fairway.runtime.processes.gang import GangNode
from fairway.runtime.processes.local import Running, make_folder, start_keeper
from fairway.runtime.processes.parts import joined
from fairway.runtime.processes.site import Member, Outcome
from fairway.submission.shell import run_script_text
from fairway.testing.waiting import at_rest

TORCH = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
NODES = [GangNode(Member("one", interface="lo"), (0,), None), GangNode(Member("two", interface="lo"), (0,), None)]


def begin(
    folder: Path,
    *command: str,
    number: int = 1,
    resume: bool = False,
    nodes: list[GangNode] = NODES,
    starts: slice = slice(None),
    **about: Any,
) -> list[Running]:
    """Start an attempt of a gang over these nodes, with a rank for each GPU. `starts` are the parts to start."""
    gpus = sum(len(node.gpus) for node in nodes)
    about = {"env": ENVIRONMENT, "processes": "per_gpu", "grace_s": 30.0} | about
    request = JobRequest(command=command, account=own_account(), cwd=str(folder), gpus=gpus, **about)
    attempt = Attempt(number, list(range(gpus)), f"token-{number}", time.time(), resume=resume)
    for one in (folder, folder / f"attempt-{number}", folder / "checkpoints"):
        make_folder(one)
    whole = launch_over(JobRecord(0, "1", request, 1.0), attempt, folder, nodes)
    return [start_keeper(Path(part["directory"]), {**part, "token": attempt.token}) for part in whole["parts"][starts]]


def ends(parts: list[Running]) -> Outcome:
    return joined([end_of(part) for part in parts])


def log(folder: Path, rank: int, number: int = 1) -> str:
    path = folder / f"attempt-{number}" / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def steps(folder: Path) -> float:
    """The last step that was reported."""
    path = folder / "reports.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return max((line.get("step", 0) for line in lines), default=0)


def test_a_rank_that_fails_stops_the_ranks_on_other_nodes(tmp_path: Path) -> None:
    script = "echo begun; if [ $RANK = 2 ]; then sleep 0.3; exit 3; fi; exec sleep 600"
    nodes = [*NODES, GangNode(Member("three"), (0, 1), None)]
    outcome = ends(begin(tmp_path / "job", "sh", "-c", script, nodes=nodes))
    assert outcome.codes == (143, 143, 3, 143)
    assert (outcome.cause, outcome.killed) == ("gang", False)
    assert verdict(outcome, asked=False).code == 3
    assert "begun" in log(tmp_path / "job", 3)


def test_ranks_on_other_nodes_have_time_to_save_if_one_has_saved(tmp_path: Path) -> None:
    script = "trap 'sleep 12; exit 75' TERM; if [ $RANK = 0 ]; then exit 75; fi; while :; do sleep 0.1; done"
    outcome = ends(begin(tmp_path / "job", "bash", "-c", script))
    assert outcome.codes == (75, 75)
    assert verdict(outcome, asked=False).next == "again"


def test_a_node_that_cannot_start_its_rank_ends_the_gang(tmp_path: Path) -> None:
    make_folder(tmp_path / "job")
    program = tmp_path / "job" / "train"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    first = begin(tmp_path / "job", str(program), starts=slice(1))
    wait_for((first[0].directory / "ranks.json").exists, "the first part to start")
    program.unlink()
    outcome = ends([*first, *begin(tmp_path / "job", str(program), starts=slice(1, None))])
    assert outcome.codes == (143, 127)
    assert verdict(outcome, asked=False).why.endswith("No such file or directory")


def test_parts_that_end_well_do_not_wait_for_one_another(tmp_path: Path) -> None:
    parts = begin(tmp_path / "job", "sh", "-c", f"while [ $RANK = 1 -a ! -e {tmp_path}/go ]; do sleep 0.05; done")
    assert end_of(parts[0]).codes == (0,)
    assert not parts[1].ended
    (tmp_path / "go").touch()
    whole = ends(parts[1:])
    assert (whole.codes, whole.cause) == ((0,), "")
    assert not (tmp_path / "job" / "attempt-1" / "ending").exists()


@pytest.mark.slow
@pytest.mark.skipif(not TORCH, reason="needs torch")
def test_a_training_over_nodes_is_suspended_resumed_and_preempted_without_a_trace(tmp_path: Path) -> None:
    command = example("pytorch_ddp", TORCH)
    whole = tmp_path / "whole"
    assert ends(begin(whole, *command, "--out", str(tmp_path / "whole.json"))).codes == (0, 0)
    folder, cut = tmp_path / "cut", (*command, "--out", str(tmp_path / "cut.json"), "--pause", "0.05")
    parts = begin(folder, *cut)
    wait_for(lambda: steps(folder) >= 10, "step 10")
    for part in parts:
        part.pause()
    before = at_rest(lambda: steps(folder))
    for part in parts:
        part.go_on()
    wait_for(lambda: steps(folder) >= before + 5, "more steps")
    for part in parts:
        part.throttle(0.5)
    wait_for(lambda: all((part.directory / "eased-0").exists() for part in parts), "ranks that keep the throttle")
    for part in parts:
        part.throttle(1.0)
    # The nodes learn of a preemption at different times.
    parts[1].stop()
    time.sleep(0.3)
    parts[0].stop()
    stopped = ends(parts)
    assert (stopped.codes, stopped.cause) == ((75, 75), "request")
    again = ends(begin(folder, *cut, number=2, resume=True))
    assert again.codes == (0, 0), log(folder, 0, 2) + log(folder, 1, 2)
    expected, found = (json.loads((tmp_path / name).read_text()) for name in ("whole.json", "cut.json"))
    assert len(found["losses"]) == 96
    assert found["losses"] == expected["losses"]
    assert found["weights"] == expected["weights"]


def script(folder: Path, text: str, **about: Any) -> list[Running]:
    """Start a batch script over two nodes, one of them with two GPUs."""
    nodes = [NODES[0], GangNode(Member("two"), (0, 1), None)]
    command = run_script_text(text, "sbatch", ())
    env = ENVIRONMENT | {"FAIRWAY_TASKS": "3"}
    return begin(folder, *command, nodes=nodes, env=env, processes="one", slurm_env=True, **about)


def test_a_batch_script_runs_once_and_srun_on_all_nodes(tmp_path: Path) -> None:
    outcome = ends(
        script(
            tmp_path / "job",
            """
            echo "script on $SLURM_NODEID of $SLURM_NNODES, $SLURM_NTASKS tasks, $SLURM_TASKS_PER_NODE"
            export FROM_SCRIPT=set
            scontrol show hostnames "$SLURM_JOB_NODELIST"
            export WORDS='$SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID $FROM_SCRIPT ${FAIRWAY_NODE_DIR##*/}'
            srun -l sh -c 'eval echo "$WORDS"'
            alone=$(srun -N1 -n1 -w two sh -c 'echo $SLURMD_NODENAME $RANK$FAIRWAY_RANK; echo err >&2' 2>/dev/null)
            echo "alone: $alone, script $RANK$WORLD_SIZE$MASTER_PORT$FAIRWAY_RANK"
            echo "met" $(srun sh -c 'echo $RANK/$WORLD_SIZE,$LOCAL_RANK,${MASTER_PORT:+at-a-port}' | sort)
            echo "met" $(MASTER_PORT=7 srun -w two -n 2 sh -c 'echo $MASTER_PORT')
            srun sh -c 'exit $((SLURM_PROCID + 4))'
            echo "code $?"
            srun no-such-program; echo "code $?"
            srun -w three true; echo "code $?"
            exit 5
            """,
        )
    )
    assert outcome.codes == (5, 0)
    lines = log(tmp_path / "job", 0).splitlines()
    assert lines[:3] == ["script on 0 of 2, 3 tasks, 1,2", "one", "two"]
    assert sorted(lines[3:6]) == ["0: 0/3 0 0 set node-0", "1: 1/3 0 1 set node-1", "2: 2/3 1 1 set node-1"]
    assert lines[6:9] == [
        "alone: two 0, script 0",
        "met 0/3,0,at-a-port 1/3,0,at-a-port 2/3,1,at-a-port",
        "met 7 7",
    ]
    assert lines[9] == "code 6"
    assert lines.count("srun: error: no-such-program: No such file or directory") == 3
    assert [line for line in lines[10:] if line.startswith("code")] == ["code 127", "code 1"]
    assert "srun: error: the job has no node three; its nodes are one,two" in lines
    assert log(tmp_path / "job", 1) == ""


def test_a_request_to_stop_reaches_the_tasks_of_all_nodes_and_their_code_comes_back(tmp_path: Path) -> None:
    task = "trap 'echo saved $SLURM_PROCID; exit 75' TERM; echo begun $SLURM_PROCID; while :; do sleep 0.05; done"
    parts = script(tmp_path / "job", f"srun bash -c {shlex.quote(task)}\n")
    wait_for(lambda: log(tmp_path / "job", 0).count("begun") == 3, "three tasks")
    for part in parts:
        part.stop()
    outcome = ends(parts)
    assert (outcome.codes, outcome.cause, outcome.killed) == ((75, 0), "request", False)
    said = log(tmp_path / "job", 0).splitlines()
    assert sorted(line for line in said if line.startswith("saved")) == ["saved 0", "saved 1", "saved 2"]
    assert verdict(outcome, asked=True).next == "again"


def test_a_signal_for_srun_goes_to_all_tasks_and_an_srun_that_is_killed_takes_them_along(tmp_path: Path) -> None:
    outcome = ends(
        script(
            tmp_path / "job",
            """
            srun bash -c 'trap "exit 9" USR1; echo begun; while :; do sleep 0.05; done' > one & one=$!
            until [ "$(grep -c begun one)" = 3 ]; do sleep 0.05; done
            kill -USR1 $one; wait $one; echo "code $?"
            srun -N1 -w two sh -c 'echo $$ > pid; echo begun; exec sleep 600' > two & two=$!
            until grep -q begun two; do sleep 0.05; done
            kill -9 $two
            while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done
            echo gone
            """,
        )
    )
    assert outcome.codes == (0, 0)
    assert "code 9" in log(tmp_path / "job", 0)
    assert "gone" in log(tmp_path / "job", 0)


def test_a_node_that_dies_ends_the_step_and_the_job(tmp_path: Path) -> None:
    parts = script(tmp_path / "job", "srun sh -c 'echo begun; exec sleep 600'; echo \"code $?\"; exit 7\n")
    wait_for(lambda: log(tmp_path / "job", 0).count("begun") == 3, "three tasks")
    (rank, _), *_ = json.loads((parts[1].directory / "ranks.json").read_text())
    os.kill(rank, signal.SIGKILL)
    outcome = ends(parts)
    assert outcome.codes[1] == 137
    assert "node 1 of the job is gone" in log(tmp_path / "job", 0)
    assert verdict(outcome, asked=False).next == "retry"
