"""Sessions in torch: ranks agree over gloo, probes measure replicas, data loaders survive the signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from session_cases import environment, reports

from fairway.train import NoiseProbe, NoiseScaleBatch, ReplicaNoiseEstimator, gradients_of, session, shield_worker

torch: Any = pytest.importorskip("torch")
RANKS, STEPS, SIZE = 2, 200, 16


def join(rank: int, folder: str, backend: str = "gloo") -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)


def leave() -> None:
    """Part from the others. A process that just ends may leave a thread of the group behind, which aborts it."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def stop_one(rank: int, folder: str) -> None:
    """One rank alone is told to stop, in a step of its own; every rank writes down where it left."""
    join(rank, folder)
    training = session(steps=STEPS, env=environment(Path(folder), rank=rank, world=RANKS))
    trained: list[int] = []
    try:
        for step in training.steps(lambda path: path.write_text(str(len(trained))), lambda path: None):
            trained.append(step)
            if rank == 1 and step == 20:
                os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit as left:
        (Path(folder) / f"left-{rank}").write_text(json.dumps([left.code, len(trained)]))
    leave()


def on_all_ranks(work: Callable[[int, str], None], folder: Path) -> Path:
    """Run something on all ranks. Returns the folder that it was run in.

    PyTorch sometimes aborts as a process ends ("terminate called without an active exception"). Then it is run again.
    """
    for turn in range(3):
        mine = folder / str(turn)
        mine.mkdir()
        try:
            torch.multiprocessing.spawn(work, (str(mine),), nprocs=RANKS)
            return mine
        except torch.multiprocessing.ProcessExitedException as error:
            if error.signal_name != "SIGABRT" or turn == 2:
                raise
    raise AssertionError


def test_all_ranks_leave_after_the_step_in_which_one_was_told(tmp_path: Path) -> None:
    tmp_path = on_all_ranks(stop_one, tmp_path)
    assert [json.loads((tmp_path / f"left-{rank}").read_text()) for rank in range(RANKS)] == [[75, 21]] * 2
    (saved,) = [line for line in reports(tmp_path) if "checkpoint" in line]
    assert saved["step"] == 21
    assert Path(saved["checkpoint"]).read_text() == "21"


def save_together(rank: int, folder: str) -> None:
    """Every rank has a part of the state; rank 0 decides by its clock when to save, and all do.

    A backend that is not plain gloo has them talk over a group of their own.
    """
    join(rank, folder, "cpu:gloo")
    training = session(steps=10**9, env=environment(Path(folder), rank=rank, world=RANKS))

    def save(path: Path) -> None:
        (path / f"rank-{rank}").write_text(str(trained[-1]))

    trained: list[int] = []
    for step in training.steps(save, lambda path: None, everyone=True, every_s=0.05):
        trained.append(step)
        if training.mean(float(training.checkpoint is not None)):
            break
    assert training.ranks.highest(rank) == RANKS - 1
    assert training.mean(float(rank)) == (RANKS - 1) / 2
    training.close()
    leave()


def test_ranks_with_a_part_of_the_state_each_save_in_the_same_step(tmp_path: Path) -> None:
    tmp_path = on_all_ranks(save_together, tmp_path)
    saved = next(line for line in reports(tmp_path) if "checkpoint" in line)
    parts = sorted(Path(saved["checkpoint"]).iterdir())
    assert [part.name for part in parts] == ["rank-0", "rank-1"]
    assert {part.read_text() for part in parts} == {str(saved["step"] - 1)}


def probe(rank: int, folder: str) -> None:
    """Train on replicas with a probe, then go on with the state alone."""
    join(rank, folder)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 1, bias=False))
    measure = NoiseProbe(model)
    draw = torch.Generator().manual_seed(rank)
    (model(torch.ones(1, 50)).sum() * 1e6).backward()  # a step that is not observed
    for _ in range(60):
        model.zero_grad()
        # The gradient of the mean output is the mean input: slope 1, and a spread of 2 for a sample.
        model(1 + 2 * torch.randn(SIZE, 50, generator=draw)).mean().backward()
        assert measure.observe(gradients_of(model.parameters()), SIZE)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([measure.noise_scale, measure.state()]))
    leave()


def test_a_probe_measures_replicas_and_its_averages_go_on_alone(tmp_path: Path) -> None:
    tmp_path = on_all_ranks(probe, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS))
    assert first == second
    scale, state = first
    assert scale == pytest.approx(4.0, rel=0.3)
    alone = NoiseScaleBatch(2, 64, noise=NoiseProbe(torch.nn.Linear(50, 1, bias=False)))
    alone.noise.restore(state)
    assert alone.noise_scale == scale
    assert alone.end_epoch() == 4


def test_a_probe_compares_the_passes_of_a_step_with_one_another() -> None:
    """As if each were on a process of its own."""
    model = torch.nn.Linear(50, 1, bias=False)
    measure, replicas = NoiseProbe(model, parts=2), ReplicaNoiseEstimator()
    draw = torch.Generator().manual_seed(0)
    for _ in range(30):
        model.zero_grad()
        batches = [1 + 2 * torch.randn(SIZE, 50, generator=draw) for _ in range(2)]
        for inputs in batches:
            (model(inputs).mean() / 2).backward()
        assert measure.observe(gradients_of(model.parameters()), 2 * SIZE)
        replicas.observe([inputs.mean(dim=0) for inputs in batches], SIZE)
    assert measure.noise_scale == pytest.approx(replicas.noise_scale, rel=1e-5)
    (model(batches[0]).mean() / 2).backward()
    assert not measure.observe(gradients_of(model.parameters()), 2 * SIZE)
    with pytest.raises(ValueError, match="backward"):
        NoiseProbe(model, parts=0)


def test_a_probe_on_one_process_compares_steps() -> None:
    model = torch.nn.Linear(50, 1, bias=False)
    measure = NoiseProbe(model)
    draw = torch.Generator().manual_seed(0)
    for step in range(60):
        model.zero_grad()
        model(1 + 2 * torch.randn(SIZE, 50, generator=draw)).mean().backward()
        assert measure.observe(gradients_of(model.parameters()), SIZE) == (step > 0)
    assert measure.noise_scale == pytest.approx(4.0, rel=0.3)


def test_a_loss_may_be_a_tensor(tmp_path: Path) -> None:
    with session(steps=1, env=environment(tmp_path)) as training:
        training.report(1, loss=torch.tensor(0.5, requires_grad=True), epoch=0.1)
    assert reports(tmp_path)[1]["loss"] == 0.5


def test_the_workers_of_a_data_loader_go_on_at_the_signal(tmp_path: Path) -> None:
    """The whole process group gets it. Without `shield_worker` they would end, and the training with them."""
    script = tmp_path / "loader.py"
    script.write_text(
        "import os, subprocess, sys, torch\n"
        "from fairway import train\n"
        "if __name__ == '__main__':\n"
        "    session = train.session(steps=40)\n"
        "    sampler = session.sampler(64)\n"
        "    loader = iter(torch.utils.data.DataLoader(list(range(64)), batch_sampler=sampler.rows_from(0, 4),\n"
        "        num_workers=2, worker_init_fn=train.shield_worker if sys.argv[1] == 'shielded' else None))\n"
        "    for step in session.steps(lambda path: path.write_text('.')):\n"
        "        rows = next(loader)\n"
        "        assert rows.tolist() == sampler.rows(sampler.at(step, 4), 4)\n"
        "        if step == 10:\n"
        "            subprocess.run(['sh', '-c', f'kill -TERM -{os.getpgrp()}'], start_new_session=True)\n"
        "            for _ in range(20):\n"
        "                next(loader)\n"
    )
    source = str(Path(shield_worker.__code__.co_filename).parents[2])
    env = {**os.environ, **environment(tmp_path), "PYTHONPATH": source}
    codes = [
        subprocess.run([sys.executable, str(script), how], env=env, start_new_session=True, timeout=120).returncode
        for how in ("shielded", "bare")
    ]
    assert codes[0] == 75
    assert codes[1] not in (0, 75)
