"""sbatch scripts: every option that counts, those that do not, and how the script is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import Dependency
from fairway.submission import sbatch
from fairway.submission.draft import Draft
from fairway.submission.exported import EVERYTHING
from fairway.submission.sbatch import from_sbatch, from_sbatch_text, is_sbatch
from fairway.submission.sbatch_names import SBATCH
from fairway.testing.waiting import WAIT_S

NOW = datetime(2026, 3, 4, 12, 0, 0).astimezone()


class Scripts:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, *options: str, body: str = "python train.py\n", first: str = "#!/bin/bash") -> Draft:
        path = self.folder / "train.sbatch"
        path.write_text("\n".join([first, *(f"#SBATCH {one}" for one in options), body]))
        return from_sbatch(path, (), NOW)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def test_a_usual_script(scripts: Scripts) -> None:
    draft = scripts.read(
        "--job-name=resnet   # a name",
        "--nodes=1",
        "--gpus-per-node=a100:4",
        "--time=1-12:00:00",
        "--array=0-9%3",
        "--requeue",
        "--signal=B:TERM@120",
        "--dependency=afterok:12",
        "--output=logs/%x-%j.out",
        "--export=ALL,SEED=3",
    )
    fields = draft.fields
    assert fields["name"] == "resnet"
    assert (fields["gpus"], fields["gpu_types"]) == (4, ("a100",))
    assert fields["limit_s"] + fields["grace_s"] == 36 * 3600
    assert fields["grace_s"] == 120
    assert fields["preempt"] == "checkpoint"
    assert fields["depends"] == (Dependency("afterok", "12"),)
    assert fields["env"] == {"FAIRWAY_OUTPUT": "logs/%x-%j.out", "SEED": "3"}
    assert fields["slurm_env"] is True
    assert draft.export == EVERYTHING
    assert draft.array == (tuple(range(10)), 3)
    assert draft.remarks == ()


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        (["--gpus=4"], 4, 4),
        (["-G 4"], 4, 4),
        (["-G4"], 4, 4),
        (["--gpus v100:2"], 2, 2),
        (["--gres=gpu:2"], 2, 2),
        (["--gres=gpu:a100:2,shard:1"], 2, 2),
        (["--gres=gpu"], 1, 1),
        (["--gres=gpu:a100"], 1, 1),
        (["--gres=gpu:tesla:2(S:0-1)"], 2, 2),
        (["--nodes=2", "--gres=gpu:4"], 8, 8),
        (["-N 2", "--gpus-per-node=4"], 8, 8),
        (["-N2", "--gpus=4"], 4, 4),
        (["--nodes=1-4", "--gpus-per-node=8"], 8, 32),
        (["--ntasks=4", "--gpus-per-task=1"], 4, 4),
        (["-N2", "--ntasks-per-node=4", "--gpus-per-task=1"], 8, 8),
        ([], 1, 1),
    ],
)
def test_gpus_of_the_whole_job(scripts: Scripts, options: list[str], least: int, most: int) -> None:
    fields = scripts.read(*options).fields
    assert (fields["gpus_min"], fields["gpus_max"]) == (least, most)


@pytest.mark.parametrize(("text", "limit_s"), [("90", 5400), ("2:00:00", 7200), ("30:00", 1800), ("1-0", 86400)])
def test_time_limits_are_in_slurms_units(scripts: Scripts, text: str, limit_s: float) -> None:
    assert scripts.read(f"--time={text}", "--gpus=1").fields["limit_s"] == limit_s
    assert scripts.read(f"-t {text}", "--gpus=1").fields["limit_s"] == limit_s


def test_no_time_limit(scripts: Scripts) -> None:
    assert "limit_s" not in scripts.read("--time=UNLIMITED").fields


@pytest.mark.parametrize(("text", "mib"), [("16G", 16384), ("4000", 4000), ("512M", 512), ("0", 0)])
def test_memory_of_the_machine(scripts: Scripts, text: str, mib: int) -> None:
    assert scripts.read(f"--mem={text}").fields["host_memory_bytes"] == mib << 20


def test_cpus_are_those_of_all_tasks(scripts: Scripts) -> None:
    assert scripts.read("--cpus-per-task=4", "--ntasks=3").fields["cpus"] == 12.0
    assert "cpus" not in scripts.read("--gpus=1").fields


@pytest.mark.parametrize(
    "option",
    [
        "--partition=gpu",
        "-p gpu",
        "--mail-type=ALL",
        "--exclusive",
        "-A me",
        "--constraint=fast&ib",
    ],
)
def test_what_only_concerns_another_site_is_remarked_upon_and_left_out(scripts: Scripts, option: str) -> None:
    (remark,) = scripts.read("--gpus=1", option).remarks
    assert "left out" in remark
    assert "train.sbatch:3" in remark


@pytest.mark.parametrize(
    "option",
    [
        "--container-image=nvcr.io/nvidia/pytorch:24.01-py3",
        "--container-mounts=/data:/data",
        "--container=/images/bundle",
        "--no-container-mount-home",
        "--uid=root",
        "--gid=staff",
        "--wrap='python train.py'",
        "--input=data.txt",
        "-i data.txt",
        "--licenses=matlab:1",
        "--dependency=singleton",
        "--bbf=stage.txt",
        "--export-file=env.txt",
        "--tres-per-task=gres/gpu:2",
        "--test-only",
        "hetjob",
        "--made-up=1",
    ],
)
def test_what_would_run_something_else_is_refused(scripts: Scripts, option: str) -> None:
    with pytest.raises(InputError, match=r"train\.sbatch:3: ") as caught:
        scripts.read("--gpus=1", option)
    assert "\n" not in str(caught.value)


def test_a_misspelled_option_gets_a_suggestion(scripts: Scripts) -> None:
    with pytest.raises(InputError, match=r"--ntask: .*did you mean ntasks\?"):
        scripts.read("--gpus=1", "--ntask=4")


def test_every_option_has_one_fate() -> None:
    names = [*SBATCH.refused, *SBATCH.left_out, *sbatch.OPTIONS]
    assert len(set(names)) == len(names)
    known = {*sbatch._SHORT.values(), *sbatch._FLAGS} - sbatch.OPTIONS
    assert {name for name in known if SBATCH.refusal(name, ()) and not SBATCH.explicit_refusal(name)} == set()


@pytest.mark.parametrize(
    ("options", "cpus", "gib"),
    [
        (["--mem-per-cpu=2G", "-c 4", "-n 2"], 8.0, 16),
        (["--mem-per-cpu=2G", "-n 2"], 0.0, 4),
        (["--gpus=2", "--mem-per-gpu=8G", "--cpus-per-gpu=3"], 6.0, 16),
    ],
)
def test_limits_of_each_cpu_or_gpu_are_added_up(scripts: Scripts, options: list[str], cpus: float, gib: int) -> None:
    fields = scripts.read(*options).fields
    assert (fields.get("cpus", 0.0), fields["host_memory_bytes"]) == (cpus, gib << 30)


def test_tasks_of_each_gpu_are_added_up(scripts: Scripts) -> None:
    assert scripts.read("--gpus=4", "--ntasks-per-gpu=2").fields["env"]["FAIRWAY_TASKS"] == "8"


def test_a_constraint_may_name_a_gpu_type(scripts: Scripts) -> None:
    draft = scripts.read("--gpus=1", "--constraint='a100|v100'")
    assert (draft.fields["gpu_types"], draft.remarks) == (("a100", "v100"), ())


STEP_IN_CONTAINER = "srun --container-image=pytorch.sqsh --mpi=pmix python train.py\n"


@pytest.mark.parametrize(
    "body", [STEP_IN_CONTAINER, f"cd here\n  {STEP_IN_CONTAINER}", "srun -n 2 \\\n  --multi-prog tasks.conf\n"]
)
def test_steps_that_would_be_others_are_refused_with_the_script(scripts: Scripts, body: str) -> None:
    with pytest.raises(InputError, match=r"train\.sbatch:[34]: srun --"):
        scripts.read("--gpus=1", body=body)


def test_an_option_of_a_step_that_is_made_up_while_the_script_runs_is_refused_then(
    scripts: Scripts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draft = scripts.read("--gpus=1", body="set -e\nsrun $HOW touch ran\n")
    assert _run(draft.fields["command"], tmp_path, HOW="--container-image x").wait(30) == 1
    assert "srun: error: --container-image" in capfd.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "body",
    [
        "srun -D sub --export=ALL,LR=0.1,B=2 bash -c 'echo $LR $B $(basename $PWD)'\n",
        "srun --chdir=sub --export ALL,LR=0.1,B=2 -o ../%t.txt bash -c 'echo $LR $B $(basename $PWD)'; cat 0.txt\n",
    ],
)
def test_options_of_a_step_on_one_node_count(scripts: Scripts, tmp_path: Path, body: str) -> None:
    (tmp_path / "sub").mkdir()
    draft = scripts.read("--gpus=1", body=body)
    assert _run(draft.fields["command"], tmp_path).wait(30) == 0
    assert (tmp_path / "rank-0.log").read_text() == "0.1 2 sub\n"


@pytest.mark.parametrize(
    "option",
    [
        "--gpus=x",
        "--gpus=0",
        "--nodes=4-1",
        "--time=soon",
        "--array=9-1",
        "--dependency=afterok:x",
        "--signal=@",
        "--gpus",
        "stray",
        "--job-name='x",
        "--begin=never",
        "--export=1=2",
    ],
)
def test_malformed_options_name_the_line(scripts: Scripts, option: str) -> None:
    with pytest.raises(InputError, match=r"train\.sbatch:2: "):
        scripts.read(option)


def test_lines_after_the_first_command_do_not_count(scripts: Scripts) -> None:
    draft = scripts.read("--gpus=1", body="\n# a comment\n#SBATCH --hold\ncd here\n#SBATCH --gpus=8\n")
    assert draft.fields["gpus"] == 1
    assert draft.fields["hold"] is True


@pytest.mark.parametrize(
    ("text", "export", "env"),
    [
        ("ALL", "ALL", {}),
        ("ALL,SEED=3,RANK", "ALL,RANK", {"SEED": "3"}),
        ("NONE", "NONE", {}),
        ("A,B", "A,B", {}),
        ("A,B=2", "A", {"B": "2"}),
        ("NIL,B=2", "NONE", {"B": "2"}),
    ],
)
def test_what_is_exported(scripts: Scripts, text: str, export: str, env: dict[str, str]) -> None:
    draft = scripts.read("--gpus=1", f"--export={text}")
    assert (str(draft.export), draft.fields.get("env", {})) == (export, env)


def test_other_interpreters_are_kept(scripts: Scripts) -> None:
    draft = scripts.read("--gpus=1", first="#!/usr/bin/env python3")
    assert draft.fields["command"][:2] == ("/usr/bin/env", "python3")


def test_what_is_shown_is_what_was_written_and_not_the_wrapper(scripts: Scripts, tmp_path: Path) -> None:
    scripts.read("--gpus=1")
    path = tmp_path / "train.sbatch"
    draft = from_sbatch(path, ("--lr", "a b"), NOW)
    assert draft.fields["shown"] == f"{path} --lr 'a b'"
    assert "standard input" in from_sbatch_text("true", (), NOW).fields["shown"]
    assert "shown" not in scripts.read("--gpus=1", first="#!/usr/bin/env python3").fields


def test_cores_are_told_to_the_script(scripts: Scripts) -> None:
    draft = scripts.read("--gpus=1", "-c 4")
    assert (draft.fields["env"], draft.remarks) == ({"SLURM_CPUS_PER_TASK": "4"}, ())


def test_tasks_of_an_array_know_how_many_they_are(scripts: Scripts) -> None:
    env = scripts.read("--gpus=1", "--array=2-8:3").request({}).env
    assert [env[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX")] == ["3", "2", "8"]


def test_the_names_of_the_nodes_can_be_asked_for(scripts: Scripts, tmp_path: Path) -> None:
    body = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1\nscontrol requeue 1 || echo no\n'
    draft = scripts.read("--gpus=1", body=body)
    assert _run(draft.fields["command"], tmp_path, SLURM_JOB_NODELIST="here").wait(30) == 0
    assert (tmp_path / "rank-0.log").read_text() == "here\nno\n"


def test_sbatch_lines_are_recognised() -> None:
    assert is_sbatch("#!/bin/sh\n#SBATCH --gpus=1\n")
    assert not is_sbatch("#!/bin/sh\n# SBATCH\necho '#SBATCHED'\n")


def _run(command: tuple[str, ...], folder: Path, **env: str) -> subprocess.Popen[str]:
    log_file = folder / "rank-0.log"
    own = {"FAIRWAY_JOB_ID": "12_3", "FAIRWAY_ARRAY_TASK_ID": "3", "FAIRWAY_LOG": str(log_file)}
    told = {"PATH": os.environ["PATH"], **own, **env}
    with log_file.open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=told, stdout=log, start_new_session=True, text=True)


def test_the_script_runs_with_its_arguments_and_its_code(scripts: Scripts, tmp_path: Path) -> None:
    scripts.read("--gpus=1", body='echo "$0|$1|$2|${BASH_SOURCE[0]}"\nexit 7\n')
    draft = from_sbatch(tmp_path / "train.sbatch", ("a b", "$x;"), NOW)
    assert _run(draft.fields["command"], tmp_path).wait(30) == 7
    path = tmp_path / "train.sbatch"
    assert (tmp_path / "rank-0.log").read_text() == f"{path}|a b|$x;|{path}\n"


def test_output_becomes_a_link_to_the_log(scripts: Scripts, tmp_path: Path) -> None:
    draft = scripts.read("--gpus=1", "--output='out-%A-%a-%j-$(touch nope).txt'", body="echo hello")
    assert _run(draft.fields["command"], tmp_path, **draft.fields["env"]).wait(30) == 0
    assert (tmp_path / "out-12-3-12_3-$(touch nope).txt").read_text() == "hello\n"
    assert not (tmp_path / "nope").exists()


def test_a_file_that_is_there_is_not_replaced_by_a_link(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    draft = scripts.read("--gpus=1", "--output=mine.txt", body="echo hello")
    assert _run(draft.fields["command"], tmp_path, **draft.fields["env"]).wait(30) == 0
    assert (tmp_path / "mine.txt").read_text() == "precious"


SAVES = f"""{sys.executable} -c '
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    open("saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(60)
'
touch went-on
"""


@pytest.mark.parametrize("piped", [False, True])
def test_a_script_that_is_stopped_waits_for_its_training_and_ends_with_its_code(
    scripts: Scripts, tmp_path: Path, piped: bool
) -> None:
    draft = from_sbatch_text(SAVES, (), NOW) if piped else scripts.read("--gpus=1", body=SAVES)
    process = _run(draft.fields["command"], tmp_path)
    until_s = time.monotonic() + WAIT_S
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 75
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "went-on").exists()


TASK = """bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS $0; exit $SLURM_PROCID'"""

RANKED = """bash -c 'echo $RANK/$WORLD_SIZE $FAIRWAY_RANK/$FAIRWAY_WORLD_SIZE $MASTER_PORT'"""
"""Prints what only ranks have: a single task is none."""


@pytest.mark.parametrize(
    ("options", "line", "told", "code"),
    [
        ([], f"srun {TASK} x", ["0/1 x"], 0),
        ([], f"srun -l --mpi=pmix --cpu-bind none -c 4 -u {TASK} x", ["0/1 x"], 0),
        (["--ntasks=2"], f"srun {TASK} x", ["0/2 x", "1/2 x"], 1),
        (["--nodes=2", "--ntasks-per-node=2"], f"srun {TASK} x", ["0/4 x", "1/4 x", "2/4 x", "3/4 x"], 3),
        (["--ntasks=2"], f"srun -n 1 {TASK} x", ["0/1 x"], 0),
        ([], f"srun -n2 {TASK} x", ["0/2 x", "1/2 x"], 1),
        (["--ntasks=2"], f"srun {RANKED}", ["0/2 0/2 77", "1/2 1/2 77"], 0),
        ([], f"srun {RANKED}; echo $FAIRWAY_WORLD_SIZE", ["", "/ /"], 0),
        (["--ntasks=2"], f"srun {TASK} x || echo failed", ["0/2 x", "1/2 x", "failed"], 0),
    ],
)
def test_srun_starts_the_tasks(
    scripts: Scripts, tmp_path: Path, options: list[str], line: str, told: list[str], code: int
) -> None:
    draft = scripts.read("--gpus=1", *options, body=f"{line}\n")
    env = {"FAIRWAY_TASKS_PORT": "77", **draft.fields.get("env", {})}
    assert _run(draft.fields["command"], tmp_path, **env).wait(30) == code
    assert sorted((tmp_path / "rank-0.log").read_text().splitlines()) == told


def test_all_tasks_of_srun_may_save_when_they_are_stopped(scripts: Scripts, tmp_path: Path) -> None:
    each = SAVES.replace("touch went-on\n", "").replace('"ready"', '"ready" + os.environ["SLURM_PROCID"]')
    each = each.replace('"saved"', '"saved" + os.environ["SLURM_PROCID"]').replace("import signal", "import os, signal")
    draft = scripts.read("--gpus=1", "--ntasks=2", body=f"srun {each}\ntouch went-on\n")
    process = _run(draft.fields["command"], tmp_path, **draft.fields["env"])
    until_s = time.monotonic() + WAIT_S
    while not all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 75
    assert all((tmp_path / f"saved{rank}").exists() for rank in (0, 1))
    assert not (tmp_path / "went-on").exists()
