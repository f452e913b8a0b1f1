"""Switching times: the poster's table, the rows of families, and estimates from the size of a model."""

from __future__ import annotations

import math

import pytest

from fairway.models.builtin import STATE_BYTES_PER_PARAMETER
from fairway.models.figures import FIGURES
from fairway.models.switching import (
    PCIE_BYTES_PER_S,
    POSTER,
    STATE_PER_WEIGHT,
    Method,
    Switching,
    SwitchTable,
    SwitchTimes,
    working_bytes,
)
from fairway.models.tensors import known_models, known_tensors
from fairway.testing import job

GIB = 1024**3


@pytest.mark.parametrize(
    ("model", "restart_ms", "pipelined_ms", "resident_ms"),
    [("VGG19", 3288.94, 4.01, 2.77), ("bert", 9016.99, 12.57, 5.03), ("GraphSAGE", 5213.54, 2.42, 0.96)],
)
def test_the_posters_times_are_found_under_any_spelling(
    model: str, restart_ms: float, pipelined_ms: float, resident_ms: float
) -> None:
    times = POSTER.times(model)
    assert [1e3 * s for s in times[:3]] == pytest.approx([restart_ms, pipelined_ms, resident_ms])
    assert 1e3 * times.hit_s == pytest.approx(0.96)


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("InceptionV3", "Inception3"),
        ("Inception4", "Inception3"),
        ("resnet18", "ResNet-50"),
        ("ResNet-152", "ResNet-50"),
        ("vgg16", "VGG19"),
        ("DeepSpeech", "DeepSpeech2"),
        ("Bert_base", "BERT-base"),
    ],
)
def test_a_model_takes_the_row_of_its_family(model: str, row: str) -> None:
    assert POSTER.times(model) == POSTER.rows[row]


def test_a_job_of_an_unknown_model_costs_the_median() -> None:
    assert POSTER.times("") == POSTER.times("my own net") == POSTER.median
    assert POSTER.median.restart_s == pytest.approx(5.292205)
    assert POSTER.median.pipelined_s == pytest.approx(0.00489)
    assert POSTER.median.resident_s == pytest.approx(0.002615)


def test_estimates_meet_the_table_that_they_were_made_from_within_a_factor_of_1_7() -> None:
    """The stated error of the calibration: each of the eight models, each method, and the mean over all."""
    for name, row in POSTER.rows.items():
        found = POSTER.estimate(name)
        assert found is not None
        for estimate_s, right_s in zip(found[:3], row[:3], strict=True):
            assert 1 / 1.7 < estimate_s / right_s < 1.7
    for method in range(3):
        errors = [
            abs(estimate[method] / row[method] - 1)
            for name, row in POSTER.rows.items()
            if (estimate := POSTER.estimate(name)) is not None
        ]
        assert sum(errors) / len(errors) < 0.25


def test_every_known_model_has_times_in_the_order_of_the_methods() -> None:
    for model in known_models():
        times = POSTER.times(model)
        assert 0 < times.hit_s <= times.resident_s < times.pipelined_s < 0.02 < times.restart_s < 10


def test_a_restart_waits_for_the_whole_transfer_and_larger_models_cost_more() -> None:
    row = {"small": SwitchTimes(4.0, 0.004, 0.002, 0.001), "large": SwitchTimes(6.0, 0.044, 0.012, 0.001)}
    table = SwitchTable("two", row, {"small": 12e6, "large": 492e6})
    assert table.times("small") == row["small"]
    found, size = table.estimate("AlexNet"), known_tensors("AlexNet")
    assert found is not None
    assert size is not None
    moved_s = size.total_bytes / PCIE_BYTES_PER_S
    assert found.restart_s == pytest.approx((4.0 - 0.001 + 6.0 - 0.041) / 2 + moved_s)
    # Two rows lie on their line exactly: 3 ms and 1 ms per ms; 1.75 ms and a quarter.
    exposed_s = (1 - size.skew) * moved_s
    assert found.pipelined_s == pytest.approx(0.003 + exposed_s)
    assert found.resident_s == pytest.approx(0.00175 + 0.25 * exposed_s)


@pytest.mark.parametrize("sizes", [{}, {"a": 12e6, "b": 12e6}, {"a": 12e9, "b": 12e6}], ids=["none", "same", "falling"])
def test_a_table_from_which_no_line_follows_gives_its_median(sizes: dict[str, float]) -> None:
    table = SwitchTable("odd", {"a": SwitchTimes(4, 0.1, 0.1, 0.1), "b": SwitchTimes(6, 0.3, 0.3, 0.1)}, sizes)
    assert table.times("AlexNet").pipelined_s == pytest.approx(0.2)


def test_a_line_never_starts_below_zero() -> None:
    table = SwitchTable(
        "steep", {"a": SwitchTimes(4, 0.001, 0.1, 0), "b": SwitchTimes(6, 10.0, 0.1, 0)}, {"a": 12e6, "b": 120e6}
    )
    assert table.times("A3C").pipelined_s > 0


@pytest.mark.parametrize(("method", "at"), [("restart", 0), ("pipelined", 1), ("resident", 2)])
def test_a_method_costs_what_its_column_says(method: Method, at: int) -> None:
    how = Switching(method, method)
    assert how.cost_s(job(model="VGG19")) == POSTER.rows["VGG19"][at]
    assert how.typical_s == POSTER.median[at]
    hit_s = POSTER.rows["VGG19"].hit_s if method == "resident" else how.cost_s(job(model="VGG19"))
    assert how.hit_s(job(model="VGG19")) == hit_s


def test_only_a_restart_costs_what_the_job_itself_says() -> None:
    own = job(model="VGG19", checkpoint_s=45.0)
    assert Switching("restart", "restart").cost_s(own) == 45.0
    assert Switching("resident", "resident").cost_s(own) == POSTER.rows["VGG19"].resident_s
    assert Switching.fixed(0.005).cost_s(own) == 0.005


def test_memory_is_what_the_job_says_or_an_estimate_or_unknown() -> None:
    how, bert = Switching("resident", "resident"), FIGURES["BERT-base"]
    said = job(model="BERT-base", memory_bytes=GIB)
    assert (working_bytes(said), how.state_bytes(said)) == (GIB, GIB)
    estimated = job(model="BERT-base", batch_size=2)
    assert working_bytes(estimated) == STATE_BYTES_PER_PARAMETER * bert.parameters + 2 * bert.activation_bytes
    tensors = known_tensors("BERT-base")
    assert tensors is not None
    assert how.state_bytes(estimated) == STATE_PER_WEIGHT * tensors.total_bytes
    assert how.state_bytes(job(memory_bytes=GIB)) == GIB
    assert working_bytes(job()) == how.state_bytes(job()) == math.inf
