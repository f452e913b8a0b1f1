"""PyTorch's data-parallel training over two machines: whatever is done to it, its loss curve does not show it."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster_cli import ClusterCli, cluster_cli
from machines import Machines, wait_until
from training import alone, example

PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
PLUGIN = Path(__file__).with_name("dictated.py")
WAIT_S = 240.0
"""Two trainings beside each other, with all that PyTorch loads, on a busy machine."""


def reach(cli: ClusterCli, job: str, step: int, attempts: int) -> None:
    """Wait until a training runs in so many attempts and has made so many steps."""

    def there() -> bool:
        shown = cli.client.show(job)
        assert not shown["ended_s"], cli.told(job)
        return len(shown["history"]) == attempts and shown["state"] == "RUNNING" and shown["progress"]["step"] >= step

    wait_until(there, f"step {step} in attempt {attempts}", WAIT_S, lambda: cli.told(job) + cli("logs", job).out)


def submit(cli: ClusterCli, out: Path, pause_s: float, *words: str) -> str:
    """Submit the training, with a pause in each step; its id."""
    usual = ("--per-gpu", "--grace", "60", "--env", "OMP_NUM_THREADS=1")
    command = (*example("pytorch_ddp", PYTHON), "--out", str(out), "--pause", str(pause_s))
    return cli.submit(*usual, *words, "--", *command)


@pytest.mark.skipif(not PYTHON, reason="needs torch")
def test_a_training_over_two_machines_has_the_loss_curve_of_an_uninterrupted_one(machines: Machines) -> None:
    """One is suspended in place. Another is resized from two machines to one, preempted there, and goes on on two."""
    with cluster_cli(machines, "--plugin", str(PLUGIN), "--min-run", "5", policy="dictated:gpus=2", gpus=1) as cli:
        whole, still, moved = (cli.folder / f"{name}.json" for name in ("whole", "still", "moved"))
        # First, so that it does not compete with what has to be suspended in time.
        alone(*example("pytorch_ddp", PYTHON), "--out", str(whole))
        stands = submit(cli, still, 0.1, "--gpus", "2", "--preempt", "suspend")
        reach(cli, stands, 5, 1)
        assert cli("suspend", stands).code == 0
        cli.wait_for(stands, "SUSPENDED")
        assert cli("resume", stands).code == 0
        cli.ended([stands], WAIT_S)

        moves = submit(cli, moved, 0.2, "--gpus", "1-2", "--preempt", "checkpoint")
        # A job keeps its GPUs for its first five seconds, whatever the policy says: thirty steps take six.
        reach(cli, moves, 28, 1)
        cli.client.set_policy("dictated:gpus=1")
        reach(cli, moves, 60, 2)
        cli.client.set_policy("dictated:gpus=0")
        wait_until(lambda: cli.state_of(moves) == "PREEMPTED", "it to stop", about=lambda: cli.told(moves))
        cli.client.set_policy("dictated:gpus=2")
        cli.ended([moves], WAIT_S)

        records = cli.records()
        expected = json.loads(whole.read_text())
        assert len(expected["losses"]) == 96
        for out in (still, moved):
            assert json.loads(out.read_text()) == expected
    assert [len(attempt.gpus) for attempt in records[stands].attempts] == [2]
    assert [len(attempt.gpus) for attempt in records[moves].attempts] == [2, 1, 2]
    # PyTorch may abort (134) while a process exits, after all of its work.
    first, second, third = ({*attempt.codes} - {134} for attempt in records[moves].attempts)
    assert (first, second, third <= {0}) == ({75}, {75}, True)
