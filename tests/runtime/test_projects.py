"""Scripts of others as they are: stand-ins for twenty projects under one scheduler, as their users start them.

Each stand-in (`tests/projects`) looks at the environment, at ranks and at terminals as its original does, and writes a
log like it. `docs/projects.md` says which originals were run, in which versions.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_cli import LiveCli, live_cli_in

SCRIPTS = Path(__file__).parents[1] / "projects"
FINISH = "finish"
"""The file that lets the stand-ins end, once each has been seen to run and to be understood."""
WAIT_S = 120.0


@dataclass(frozen=True)
class Project:
    """A project as its user submits it, and what has to come of that.

    `submit` are the words after `fairway submit`; a name with a suffix is a file of `tests/projects`. `steps` and
    `source` are what is read off its log while it runs; None if its log does not say how much there is to do. `says`
    has to be in its log in the end. `resumes` has to be there after the job was taken from its GPUs and started again.
    That happens once `saves` is there, a checkpoint that it writes by itself.
    """

    name: str
    submit: str
    says: tuple[str, ...]
    steps: float | None = None
    source: str = ""
    resumes: str = ""
    saves: str = ""


PROJECTS = (
    Project(
        "nanoGPT",
        "-- python nanogpt.py tiny.conf --max_iters=4000",
        ("max_iters = 5000", "Overriding: max_iters = 4000", "iter 4000: loss 2.2000"),
        4000,
        "log (steps)",
    ),
    Project(
        "pytorch/examples: mnist",
        "-- python pytorch_mnist.py --epochs 40",
        ("Train Epoch: 40",),
        256000,
        "log (MNIST example)",
    ),
    Project(
        "pytorch/examples: imagenet",
        "--preempt checkpoint -- python pytorch_imagenet.py --dummy --epochs 20 -p 5 --resume checkpoint.pth.tar",
        ("distributed: False", "=> no checkpoint found", "Epoch: [19][ 96/100]"),
        2000,
        "log (ImageNet example)",
        resumes="=> loaded checkpoint",
        saves="checkpoint.pth.tar",
    ),
    Project(
        "pytorch/examples: word_language_model",
        "-- python pytorch_language_model.py --epochs 100",
        ("| epoch 100 |   800/ 1000 batches", "End of training"),
        100000,
        "log (language model)",
    ),
    Project(
        "PyTorch's tutorial of DDP, torchrun",
        "--preempt checkpoint -- torchrun --standalone --nproc-per-node=2 pytorch_ddp.py 400 2",
        ("[GPU0] Epoch 399 ", "[GPU1] Epoch 399 ", "rank 0 of 2", "rank 1 of 2"),
        resumes="Resuming training from snapshot",
        saves="snapshot.pt",
    ),
    Project(
        "Hugging Face Trainer",
        "--preempt checkpoint -- python hf_trainer.py --output_dir out --num_train_epochs 2",
        ("ParallelMode.NOT_PARALLEL world 1", "'train_loss'"),
        400,
        "log (Hugging Face Trainer)",
        resumes="resuming training at",
        saves="out/checkpoint-*",
    ),
    Project(
        "Hugging Face Trainer with DDP",
        "--gpus 2 --per-gpu -- python hf_trainer.py --output_dir out --num_train_epochs 4",
        ("ParallelMode.DISTRIBUTED world 2 rank 0", "ParallelMode.DISTRIBUTED world 2 rank 1"),
        400,
        "log (Hugging Face Trainer)",
    ),
    Project(
        "transformers' examples without Trainer",
        "-- python hf_no_trainer.py --num_train_epochs 4",
        ("DistributedType.NO", "processes 1 rank 0"),
        400,
        "log (Hugging Face Trainer)",
    ),
    Project(
        "accelerate launch",
        "--gpus 2 -- python launcher.py --nproc-per-node 2 hf_no_trainer.py --num_train_epochs 8",
        ("DistributedType.MULTI_CPU", "processes 2 rank 0", "processes 2 rank 1"),
        400,
        "log (Hugging Face Trainer)",
    ),
    Project(
        "Lightning",
        "-- python lightning_fit.py --tqdm --trainer.max_epochs=8",
        ("world 1 rank 0 of SingleDevice",),
        400,
        "log (Lightning)",
    ),
    Project(
        "Lightning with two devices",
        "--gpus 2 -- python lightning_fit.py --tqdm --trainer.max_epochs=8 --trainer.devices=2",
        ("world 2 rank 0 of LightningEnvironment", "world 2 rank 1 of LightningEnvironment"),
        400,
        "log (Lightning)",
    ),
    Project(
        "Lightning with rich",
        "--tty -- python lightning_fit.py --trainer.max_epochs=8",
        ("world 1 rank 0 of SingleDevice",),
        400,
        "log (Lightning)",
    ),
    Project(
        "DeepSpeed",
        "--gpus 2 --per-gpu -- python deepspeed_train.py --train-iters 4000",
        ("step=4000", "rank 0 of 2", "rank 1 of 2"),
        4000,
        "log (steps)",
    ),
    Project(
        "DeepSpeed's launcher",
        "--gpus 2 -- python launcher.py --nproc-per-node 2 deepspeed_train.py --train-iters 4000",
        ("rank 0 of 2", "rank 1 of 2"),
        4000,
        "log (steps)",
    ),
    Project(
        "timm",
        "-- python timm_train.py --epochs 34",
        ("Training with a single process on 1 device", "Train: 33 ["),
        2040,
        "log (timm)",
    ),
    Project("Keras", "-- python keras_fit.py --epochs 10", ("Epoch 10/10", "done"), 400, "log (Keras)"),
    Project(
        "JAX and Flax",
        "-- python jax_flax_mnist.py --config.num_epochs=400",
        ("process: 0 / 1", "epoch:400"),
        400,
        "log (epochs)",
    ),
    Project("scikit-learn", "-- python sklearn_search.py", ("[CV 5/5; 160/160] END",), 800, "log (scikit-learn)"),
    Project(
        "a batch script with srun",
        "train_ddp.sbatch",
        ("tasks 2 on 1 node, job ddp", "rank 0 of 2 local 0", "rank 1 of 2 local 1"),
        400,
        "log (steps)",
    ),
    Project(
        "a batch script that saves",
        "requeue.sbatch",
        ("begins at step 0", "restarts 0", "stop: pid", "saved at step", "restarts 1", "step 400/400"),
        400,
        "log (steps)",
        resumes="goes on at step",
    ),
)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    with_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for cli in live_cli_in(tmp_path):
        # What is not buffered is Fairway's doing, and not that of these tests.
        del cli.env["PYTHONUNBUFFERED"]
        cli.env["PATH"] = with_python
        cli.start("--gpus", "32", "--policy", "fifo")
        yield cli


class Run:
    """A project that was submitted."""

    def __init__(self, cli: LiveCli, project: Project) -> None:
        self._cli = cli
        self.project = project
        self.folder = cli.folder / project.name.replace("/", "-")
        self.folder.mkdir()
        (self.folder / "tiny.conf").write_text("max_iters = 5000\nlog_interval = 10\n")
        words = [str(SCRIPTS / word) if (SCRIPTS / word).is_file() else word for word in shlex.split(project.submit)]
        variables = "--env", f"FINISH={cli.folder / FINISH}", "--env", f"PROJECTS={SCRIPTS}"
        self.job = cli.submit("--chdir", str(self.folder), *variables, *words)

    def log(self) -> str:
        """What all its ranks have written in all attempts."""
        logs = (self._cli.state / "jobs" / self.job).glob("attempt-*/rank-*.log")
        return "".join(log.read_text(errors="replace") for log in sorted(logs))

    def has_saved(self) -> bool:
        """Whether its checkpoint is there, if it writes one by itself."""
        return not self.project.saves or any(self.folder.glob(self.project.saves))

    def missing(self) -> list[str]:
        """What it has to say in the end, and has not."""
        return [text for text in (*self.project.says, self.project.resumes) if text not in self.log()]


def until_none(left: Callable[[], list[str]]) -> None:
    """Wait until nothing is left; fail with what is."""
    end_s = time.monotonic() + WAIT_S
    while remaining := left():
        assert time.monotonic() < end_s, f"after {WAIT_S:g} s there are still {remaining}"
        time.sleep(0.5)


def test_projects_run_as_they_are(cli: LiveCli) -> None:
    runs = [Run(cli, project) for project in PROJECTS]

    def rows() -> dict[str, dict[str, object]]:
        return {row["id"]: row for row in cli("ls", "--all", "--json").json}

    def not_understood() -> list[str]:
        """The jobs whose progress is not known yet, that nobody sees a word of, or that have no checkpoint yet."""
        listed = rows()
        ended = [run for run in runs if listed[run.job]["state"] not in ("PENDING", "RUNNING")]
        assert not ended, [(run.project.name, listed[run.job]["reason"], run.log()[-500:]) for run in ended]
        return [
            f"{run.project.name}: {listed[run.job]['step']} of {listed[run.job]['steps']}"
            for run in runs
            if not run.log() or not run.has_saved() or listed[run.job]["steps"] != run.project.steps
        ]

    until_none(not_understood)
    for run in runs:
        if run.project.steps:
            assert cli.show(run.job)["progress"]["source"] == run.project.source, run.project.name
        if run.project.resumes:
            assert cli("requeue", run.job).code == 0
    until_none(lambda: [run.project.name for run in runs if run.project.resumes not in run.log()])
    (cli.folder / FINISH).touch()
    until_none(
        lambda: [run.project.name for run in runs if rows()[run.job]["state"] in ("PENDING", "RUNNING", "PREEMPTED")]
    )
    listed = rows()
    states = {run.project.name: listed[run.job]["state"] for run in runs}
    assert set(states.values()) == {"COMPLETED"}, states
    missing = {run.project.name: run.missing() for run in runs if run.missing()}
    assert not missing, json.dumps(missing, indent=1)
