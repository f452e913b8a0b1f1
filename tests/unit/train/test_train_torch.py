"""The same measurements on torch tensors, and across processes of torch.distributed; skipped without torch."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway.train import (
    ConsecutiveNoiseEstimator,
    EpochGradient,
    ReplicaNoiseEstimator,
    gradients_of,
    squared_norm,
)
from fairway.train.noise_scale import mean_over_processes

torch: Any = pytest.importorskip("torch")
PROCESSES = 2
BATCH = 4


def numpy_gradients(many: int, seed: int = 0) -> list[list[Any]]:
    random = np.random.default_rng(seed)
    return [[random.normal(size=(3, 2)).astype(np.float32) + 1, random.normal(size=4) + 1] for _ in range(many)]


def as_tensors(gradients: list[list[Any]]) -> list[list[Any]]:
    return [[torch.from_numpy(layer) for layer in gradient] for gradient in gradients]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_tensors_have_the_norms_of_arrays(dtype: str) -> None:
    array = (np.random.default_rng(1).normal(size=(5, 7)) * 10).astype(dtype)
    assert squared_norm(torch.from_numpy(array)) == pytest.approx(squared_norm(array), rel=1e-14)


def test_bfloat16_is_squared_in_double_precision() -> None:
    assert squared_norm(torch.full((100_000,), 1.0, dtype=torch.bfloat16)) == 100_000


def test_replicas_steps_and_epochs_of_tensors_agree_with_arrays() -> None:
    arrays = numpy_gradients(6)
    tensors = as_tensors(arrays)
    for make in (ReplicaNoiseEstimator, ConsecutiveNoiseEstimator):
        found = []
        for gradients in (arrays, tensors):
            estimator = make()
            if isinstance(estimator, ReplicaNoiseEstimator):
                estimator.observe(gradients, BATCH)
            else:
                for gradient in gradients:
                    estimator.observe(gradient, BATCH)
            assert estimator.noise is not None
            found.append(estimator.noise)
        assert found[0] == pytest.approx(found[1], rel=1e-12)
    norms = []
    for gradients in (arrays, tensors):
        epoch = EpochGradient()
        for gradient in gradients:
            epoch.add(gradient, BATCH)
        norms.append(epoch.norms())
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


def test_gradients_of_a_module_are_taken_and_its_weights_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(3, 2))
    model[0](torch.ones(5, 3)).sum().backward()
    gradients = gradients_of(model.parameters())
    assert [gradient is None for gradient in gradients] == [False, False, True, True]
    assert squared_norm(gradients) == pytest.approx(6 * 25 + 2 * 25)
    with pytest.raises(TypeError, match="gradients_of"):
        squared_norm(list(model.parameters()))


def test_steps_pair_although_backward_overwrites_gradients_in_place() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    estimator = ConsecutiveNoiseEstimator()
    for target in ([1.0, 2.0], [3.0, 1.0]):
        if weight.grad is not None:
            weight.grad.zero_()
        (weight * torch.tensor(target)).sum().backward()
        estimator.observe(gradients_of([weight]), 4)
    assert estimator.noise == pytest.approx((5.0, 4 * 5.0 / 2))


def test_sparse_gradients_are_summed_where_they_overlap() -> None:
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    assert embedding.weight.grad.is_sparse
    assert squared_norm(gradients_of(embedding.parameters())) == 3 * (4 + 1)
    estimator = ConsecutiveNoiseEstimator()
    assert [estimator.observe(gradients_of(embedding.parameters()), 3) for _ in range(2)] == [False, True]


def test_broken_tensors_are_skipped() -> None:
    estimator = ReplicaNoiseEstimator()
    assert not estimator.observe([torch.ones(2), torch.tensor([1.0, float("inf")])], BATCH)
    assert estimator.skipped == 1


def test_complex_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        squared_norm(torch.ones(2, dtype=torch.complex64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_on_several_devices() -> None:
    arrays = numpy_gradients(4)
    tensors = as_tensors(arrays)
    mixed = [
        [layer.to("cuda" if (row + place) % 2 else "cpu") for place, layer in enumerate(gradient)]
        for row, gradient in enumerate(tensors)
    ]
    estimators = [ReplicaNoiseEstimator(), ReplicaNoiseEstimator()]
    for estimator, gradients in zip(estimators, (arrays, mixed), strict=True):
        estimator.observe(gradients, BATCH)
    assert estimators[0].noise == pytest.approx(estimators[1].noise, rel=1e-12)


def train(rank: int, folder: str) -> None:
    """Two steps of one process of data-parallel training, whose hook measures local gradients; then a broken step."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    local: list[float] = []

    def measure(group, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations of a hook
        local.append(squared_norm(bucket.buffer()))
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, measure)
    estimator = ReplicaNoiseEstimator()
    for inputs in shares(rank):
        model.zero_grad()
        local.clear()
        model(inputs).mean().backward()
        reduced = squared_norm(gradients_of(model.parameters()))
        assert estimator.observe_reduced(sum(local), reduced, BATCH)
    assert not estimator.observe_reduced(float("nan") if rank else 1.0, 1.0, BATCH)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(estimator.state()))
    # PyTorch may abort while a process exits, after all of its work. So no process takes anything down.
    while not all((Path(folder) / f"{one}.json").exists() for one in range(PROCESSES)):
        time.sleep(0.01)
    os._exit(0)


def shares(rank: int) -> list[Any]:
    random = np.random.default_rng(rank)
    return [torch.tensor(random.normal(size=(BATCH, 3)) + 1, dtype=torch.float32) for _ in range(2)]


def test_processes_share_one_estimate(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(train, (str(tmp_path),), nprocs=PROCESSES)
    states = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    assert states[0] == states[1]
    assert (states[0]["observed"], states[0]["skipped"]) == (2, 1)
    alone = ReplicaNoiseEstimator()
    for step in range(2):
        # The gradient of the mean output of a linear layer is the mean input.
        alone.observe([shares(rank)[step].mean(dim=0) for rank in range(PROCESSES)], BATCH)
    assert states[0]["variance"] == pytest.approx(alone.state()["variance"], rel=1e-4)
    assert states[0]["squared_gradient"] == pytest.approx(alone.state()["squared_gradient"], rel=1e-4)


def test_without_a_process_group_a_process_is_alone() -> None:
    assert mean_over_processes((1.0, 2.0), None) == ([1.0, 2.0], 1)
