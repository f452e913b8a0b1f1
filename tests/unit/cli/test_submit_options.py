"""From the words of the command line to a request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fairway.cli.submit_options import AskedTerms, draft_of
from fairway.core.errors import InputError
from fairway.runtime.jobs.request import JobRequest

ENVIRONMENT = {
    "PATH": "/bin",
    "VIRTUAL_ENV": "/v",
    "TOKEN": "secret",
    "SLURM_JOB_ID": "7",
    "FAIRWAY_JOB_ID": "1",
    "F%": "x",
}


def asked(*words: str, literal: bool = True, **given: Any) -> JobRequest:
    return draft_of(words or ("true",), AskedTerms(**given), literal=literal).request(ENVIRONMENT)


def test_a_one_liner_has_defaults_and_runs_here() -> None:
    request = asked("python", "train.py", "--gpus", "9")
    assert request.command == ("python", "train.py", "--gpus", "9")
    assert (request.gpus, request.preempt, request.processes, request.cwd) == (1, "suspend", "one", str(Path.cwd()))


def test_every_option_has_its_field() -> None:
    request = asked(
        gpus="2",
        type=["a100", "h100"],
        memory="16G",
        per_gpu=True,
        name="n",
        queue="q",
        priority=3,
        weight=2.0,
        time="2h",
        expect="30m",
        deadline="6h",
        preempt="checkpoint",
        grace="90",
        retries=2,
        hold=True,
        depends=["afterok:1"],
        env=["A=1", "B="],
        model="bert",
        batch_size=32,
        steps=10.0,
        epochs=2.0,
        slurm_env=True,
        user="ann",
    )
    assert (request.gpus, request.gpu_types, request.memory_bytes) == (2, ("a100", "h100"), 16 << 30)
    assert (request.processes, request.name, request.queue, request.user) == ("per_gpu", "n", "q", "ann")
    assert (request.priority, request.weight, request.limit_s, request.expected_s) == (3, 2.0, 7200, 1800)
    assert request.deadline_s == pytest.approx(6 * 3600)
    assert (request.preempt, request.grace_s, request.retries, request.hold) == ("checkpoint", 90, 2, True)
    assert (request.env["A"], request.env["B"]) == ("1", "")
    assert (request.model, request.batch_size, request.steps, request.epochs) == ("bert", 32, 10, 2)
    assert request.slurm_env


def test_an_elastic_range_means_checkpoints() -> None:
    request = asked(gpus="1-4")
    assert (request.gpus, request.gpus_min, request.gpus_max, request.preempt) == (1, 1, 4, "checkpoint")
    with pytest.raises(InputError, match="checkpoint"):
        asked(gpus="1-4", preempt="suspend")


def test_what_goes_along() -> None:
    assert asked().env == {"PATH": "/bin", "VIRTUAL_ENV": "/v", "TOKEN": "secret"}
    assert asked(export="none").env == {}
    assert asked(export="TOKEN,MISSING,A=1,B=2", env=["B=3"]).env == {"TOKEN": "secret", "A": "1", "B": "3"}
    assert asked(export="ALL,SLURM_JOB_ID").env.keys() == {"PATH", "VIRTUAL_ENV", "TOKEN", "SLURM_JOB_ID"}
    with pytest.raises(InputError, match="--export: 'a-b' is not the name of a variable"):
        asked(export="a-b")


def test_the_type_is_given_once() -> None:
    assert asked(gpus="a100:2").gpu_types == ("a100",)
    with pytest.raises(InputError, match="twice"):
        asked(gpus="a100:2", type=["h100"])


def test_options_count_more_than_a_script(tmp_path: Path) -> None:
    script = tmp_path / "s.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=4 --time=10 -J name --array=0-3\n#SBATCH --export=A=1,B=2\ntrue\n")
    draft = draft_of([str(script)], AskedTerms(gpus="2", name="other", env=["B=3"]), literal=False)
    assert (draft.fields["gpus"], draft.fields["gpus_max"], draft.fields["limit_s"]) == (2, 2, 600)
    assert (draft.fields["name"], draft.fields["env"]) == ("other", {"A": "1", "B": "3"})
    assert draft.array is not None
    assert draft.array.tasks == (0, 1, 2, 3)
    request = draft.request(ENVIRONMENT)
    assert "PATH" not in request.env


def test_after_dashes_a_file_is_a_command(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=4\n")
    script.chmod(0o755)
    assert asked(str(script)).command == (str(script),)
    assert asked(str(script), literal=False).gpus == 4


def test_a_program_is_a_command_and_a_text_file_is_a_mistake(tmp_path: Path) -> None:
    program, text = tmp_path / "program", tmp_path / "train.py"
    program.write_bytes(b"\x7fELF\xff\xfe")
    program.chmod(0o755)
    text.write_text("print(1)\n")
    assert asked(str(program), literal=False).command == (str(program),)
    with pytest.raises(InputError, match="put the command after --"):
        asked(str(text), literal=False)


def test_a_torchrun_command_and_the_number_beside_it_must_agree() -> None:
    request = asked("torchrun", "--nproc-per-node=gpu", "t.py", gpus="1-4")
    assert (request.gpus_min, request.gpus_max, request.processes) == (1, 4, "per_gpu")
    with pytest.raises(InputError, match="something else"):
        asked("torchrun", "--nproc-per-node=2", "t.py", gpus="4")


def test_nothing_to_run() -> None:
    with pytest.raises(InputError, match="no command"):
        draft_of((), AskedTerms(), literal=False)


def test_a_share_of_a_gpu_is_one_gpu_with_a_share() -> None:
    request = asked(gpus="a100:0.5")
    assert (request.gpus, request.gpu_share, request.gpu_types, request.elastic) == (1, 0.5, ("a100",), False)
    assert JobRequest.from_plain(request.plain()) == request
    assert asked("torchrun", "--nproc-per-node=1", "train.py", gpus="0.5").gpu_share == 0.5


@pytest.mark.parametrize("gpus", ["0", "1.5", "-0.5", "nan", "0.5-1", "0.0"])
def test_what_is_no_share_of_a_gpu_is_refused(gpus: str) -> None:
    with pytest.raises(InputError, match="--gpus"):
        asked(gpus=gpus)


def test_a_gang_has_no_share() -> None:
    with pytest.raises(InputError, match="--gpus says something else"):
        asked("torchrun", "--nproc-per-node=2", "train.py", gpus="0.5")


def test_the_words_beside_an_executor_are_arguments_of_its_function() -> None:
    request = draft_of(("0.1", "two words"), AskedTerms(executor="my.jobs:make"), literal=True).request(ENVIRONMENT)
    assert request.executor == "my.jobs:make"
    assert request.command == ("python3", "0.1", "two words")
    assert request.shown == "my.jobs:make 0.1 'two words'"
    assert draft_of((), AskedTerms(executor="my.jobs:make"), literal=False).request(ENVIRONMENT).command == ("python3",)


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"executor": "my.jobs"}, "executor: has characters that it may not have: 'my.jobs'"),
        ({"executor": "my.jobs:make", "gpus": "2"}, "executor: a job that is hosted has one GPU and one process"),
        ({"executor": "my.jobs:make", "per_gpu": True}, "executor: a job that is hosted has one GPU and one process"),
    ],
)
def test_an_executor_takes_a_function_and_one_gpu(about: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        draft_of((), AskedTerms(**about), literal=True).request(ENVIRONMENT)
