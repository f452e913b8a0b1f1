"""Where batch sizes are laid down: published tables as they are, a general law for other models, memory the limit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairway.core.job import JobSpec, Regime
from fairway.models.adaptation import DOUBLINGS, EPOCH_SAMPLES, LARGEST_BATCH
from fairway.models.courses import (
    CRITICAL,
    GENERAL_EPOCHS,
    LARGEST_GENERAL_BATCH,
    accordion_course,
    epochs_of,
    gns_course,
    laid_down,
)

WHOLE = (Regime(1.0),)


def spec(model: str, method: Any, batch_size: int | None, steps: float = 1000.0, **more: Any) -> JobSpec:
    return JobSpec("a", 0.0, steps=steps, model=model, batch_size=batch_size, adaptation=method, **more)


def anything(batch_size: int) -> bool:
    return True


def up_to(most: int) -> Any:
    return lambda batch_size: batch_size <= most


def in_epochs(regimes: tuple[Regime, ...], epochs: float) -> list[tuple[int | None, float]]:
    ends = [0.0, *(regime.until * epochs for regime in regimes)]
    lengths = [until - since for since, until in pairwise(ends)]
    return [(regime.batch_size, round(many, 6)) for regime, many in zip(regimes, lengths, strict=True)]


def test_resnet_50_for_90_epochs_has_six_regimes_of_two_batch_sizes() -> None:
    job = spec("ResNet-50", "accordion", 32, steps=90 * 3125)
    assert epochs_of(job) == 90
    found = in_epochs(laid_down(job, anything), 90)
    assert found == [(32, 28), (128, 2), (32, 10), (128, 20), (32, 10), (128, 20)]
    small = sum(many for batch_size, many in found if batch_size == 32)
    assert (small, 90 - small) == (48, 42)


def test_resnet_18_doubles_at_the_published_epochs() -> None:
    job = spec("ResNet-18", "gns", 16, steps=100 * 3125)
    found = in_epochs(laid_down(job, anything), 100)
    assert found == [(16, 31), (32, 10), (64, 10), (128, 20), (256, 29)]


def test_a_last_epoch_that_is_not_whole_ends_with_the_work() -> None:
    job = spec("LM", "gns", 10, steps=12.5 * 5968)
    regimes = laid_down(job, anything)
    assert epochs_of(job) == 12.5
    assert in_epochs(regimes, 12.5) == [(10, 11), (20, 1.5)]
    assert regimes[-1].until == 1.0


@pytest.mark.parametrize("model", ["Transformer", "A3C", "CycleGAN"])
@pytest.mark.parametrize("method", ["accordion", "gns"])
def test_published_models_that_never_adapt_still_do_not(model: str, method: str) -> None:
    assert laid_down(spec(model, method, 16), anything) == WHOLE


def test_other_models_alternate_in_hundredths_under_accordion() -> None:
    regimes = laid_down(spec("VGG19", "accordion", 16), up_to(64))
    assert in_epochs(regimes, 100) == [(16, 30), (64, 20), (16, 10), (64, 15), (16, 10), (64, 15)]
    assert epochs_of(spec("VGG19", "accordion", 16)) == GENERAL_EPOCHS


def test_critical_stretches_come_in_order_and_training_does_not_end_in_one() -> None:
    edges = [edge for stretch in CRITICAL for edge in stretch]
    assert edges == sorted(set(edges))
    assert edges[0] == 0
    assert edges[-1] < GENERAL_EPOCHS


def test_the_largest_batch_is_the_first_times_a_power_of_two_that_fits() -> None:
    assert {batch for batch, _ in accordion_course(12, up_to(100))} == {12, 96}
    assert {batch for batch, _ in accordion_course(12, lambda batch: batch in (12, 48))} == {12, 48}
    assert accordion_course(12, up_to(23)) == [(12, 100)]
    assert {batch for batch, _ in accordion_course(16, anything)} == {16, LARGEST_GENERAL_BATCH}
    assert accordion_course(5000, anything) == [(5000, 100)]


def test_gns_goes_from_16_to_4096_and_wants_the_noise_to_be_larger_not_equal() -> None:
    course = gns_course(16, anything)
    # After five tenths the noise scale is 16 times the first batch, just as large as the fourth doubling.
    expected = [(16, 10), (32, 10), (64, 10), (128, 10), (256, 20), (512, 10), (1024, 10), (2048, 10), (4096, 10)]
    assert course == expected


@pytest.mark.parametrize("first", [1, 5, 12, 16, 100, 3000, 4096, 9000])
@pytest.mark.parametrize("most", [0, 64, 500, 10**9])
def test_gns_doubles_in_order_until_memory_or_4096_ends_it(first: int, most: int) -> None:
    course = gns_course(first, up_to(most))
    sizes = [batch for batch, _ in course]
    assert sizes == [first << turn for turn in range(len(sizes))]
    assert all(size <= min(most, LARGEST_GENERAL_BATCH) for size in sizes[1:])
    assert sum(many for _, many in course) == GENERAL_EPOCHS
    assert all(many > 0 for _, many in course)


def test_gns_never_jumps_over_a_batch_size_that_does_not_fit() -> None:
    assert [batch for batch, _ in gns_course(8, lambda batch: batch != 32)] == [8, 16]


def test_published_batches_are_halved_until_they_fit() -> None:
    grown = laid_down(spec("ResNet-18", "gns", 16, steps=100 * 3125), up_to(64))
    assert in_epochs(grown, 100) == [(16, 31), (32, 10), (64, 59)], "it stays at 64 and does not fall back to 16"
    alternates = laid_down(spec("ResNet-50", "accordion", 32, steps=90 * 3125), up_to(64))
    assert {regime.batch_size for regime in alternates} == {32, 64}
    assert laid_down(spec("ResNet-50", "accordion", 32, steps=90 * 3125), up_to(32)) == WHOLE


def test_a_batch_above_the_published_largest_never_shrinks() -> None:
    assert laid_down(spec("ResNet-50", "accordion", 256, steps=90 * 391), anything) == WHOLE


@pytest.mark.parametrize("method", ["accordion", "gns"])
@pytest.mark.parametrize("model", ["ResNet-18", "BERT"])
def test_without_work_or_a_batch_size_there_is_one_regime(model: str, method: str) -> None:
    assert laid_down(spec(model, method, 16, steps=0), anything) == WHOLE
    assert laid_down(spec(model, method, None), anything) == WHOLE
    timed = JobSpec("a", 0.0, duration_s=100.0, model=model, batch_size=16, adaptation=method)
    assert laid_down(timed, anything) == WHOLE
    assert epochs_of(timed) == GENERAL_EPOCHS


@pytest.mark.parametrize("method", ["none", "tuned"])
def test_only_accordion_and_gns_are_laid_down(method: str) -> None:
    assert laid_down(spec("BERT", method, 8), anything) == WHOLE


def test_the_documented_tables_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "adaptation.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    found: dict[str, dict[int, dict[int, tuple[int, ...]]]] = {}
    model = ""
    for row in rows:
        if len(row) == 5 and row[1].isdigit():
            model = row[0] or model
            gangs = zip((1, 2, 4), row[2:], strict=True)
            doublings = {gang: tuple(map(int, cell.split(", "))) for gang, cell in gangs if cell != "–"}
            found.setdefault(model, {})[int(row[1])] = doublings
    assert found == DOUBLINGS
    large = {row[0]: (int(row[1].replace(",", "")), int(row[3])) for row in rows if len(row) == 4 and row[3].isdigit()}
    assert large == {name: (EPOCH_SAMPLES[name], most) for name, most in LARGEST_BATCH.items()}
