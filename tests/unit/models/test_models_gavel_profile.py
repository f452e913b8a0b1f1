from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.models.gavel_profile import GavelProfile, interpolated_rate
from fairway.models.profile import ProfileKey, load_profile

R16, R32, LM5, A3C = (
    "('ResNet-18 (batch size 16)', 1)",
    "('ResNet-18 (batch size 32)', 1)",
    "('LM (batch size 5)', 1)",
    "('A3C', 1)",
)
DOCUMENT: dict[str, Any] = {
    "V100": {
        R16: {"null": 30.0, R16: [20.0, 20.0], R32: [18.0, 14.0], LM5: [0.0, 0.0], A3C: [25.0, 0.0]},
        R32: {"null": 20.0, R16: [14.0, 18.0]},
        LM5: {"null": 100.0},
        A3C: {"null": 7, LM5: [5.0, 60.0]},
        "('ResNet-18 (batch size 16)', 2)": {"null": 50.0},
        "('ResNet-18 (batch size 16)', 8)": {"null": 120.0},
        "('LM (batch size 5)', 2)": {"null": 0.0},
    },
    "v100_unconsolidated": {R16: {"null": 31.0}, "('ResNet-18 (batch size 16)', 2)": {"null": 40.0}},
    "k80": {R16: {"null": 5.0}},
}
PROFILE = GavelProfile(DOCUMENT, "some/rates.json")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "rates.json"
    path.write_text(text)
    return str(path)


def test_a_file_is_read_and_named(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, json.dumps(DOCUMENT)))
    assert profile.name == "rates.json"
    assert profile.models == ("ResNet-18", "LM", "A3C")
    assert profile.rate("resnet18", 16, "v100", 1) == 30.0
    assert GavelProfile(DOCUMENT, "x").gpu_types == ("v100", "k80")


def test_names_of_models_and_gpus_may_be_spelled_differently() -> None:
    assert PROFILE.rate("LSTM", 5, "V100", 1) == 100.0
    assert PROFILE.rate("ResNet-18", 16, "azure", 1) == 30.0


def test_a_batch_size_may_be_left_out_where_there_is_only_one() -> None:
    assert PROFILE.rate("LM", None, "v100", 1) == 100.0
    assert PROFILE.rate("A3C", None, "v100", 1) == 7.0
    assert PROFILE.pair_rates(ProfileKey("A3C", None, 1), ProfileKey("LM", None, 1), "v100") == (5.0, 60.0)


def test_a_spread_gang_uses_its_own_table_and_else_the_other_one() -> None:
    assert PROFILE.rate("ResNet-18", 16, "v100", 2, spread=True) == 40.0
    assert PROFILE.rate("ResNet-18", 16, "v100", 8, spread=True) == 120.0
    assert PROFILE.rate("ResNet-18", 32, "v100", 1, spread=True) == 20.0
    assert PROFILE.rate("ResNet-18", 16, "v100", 1, spread=True) == 30.0, "one GPU cannot be spread"
    assert PROFILE.rate("ResNet-18", 16, "k80", 4, spread=True) == 20.0


def test_gangs_that_were_not_measured_are_interpolated() -> None:
    assert PROFILE.rate("ResNet-18", 16, "v100", 4) == pytest.approx((50 * 120) ** 0.5)
    assert PROFILE.rate("ResNet-18", 16, "v100", 16) == 240.0, "beyond the largest, the rate per GPU stays"
    assert interpolated_rate({4: 8.0}, 2) == 4.0
    assert interpolated_rate({2: 0.0, 8: 5.0}, 4) == 0.0
    assert PROFILE.rate("LM", 5, "v100", 4) == 0.0


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.01, 1e4), min_size=1),
    st.integers(1, 64),
)
def test_an_interpolated_rate_lies_between_its_neighbours(points: dict[int, float], gpus: int) -> None:
    rate = interpolated_rate(points, gpus)
    assert rate > 0
    below = [points[size] for size in points if size <= gpus]
    if below and any(size >= gpus for size in points):
        low = points[max(size for size in points if size <= gpus)]
        high = points[min(size for size in points if size >= gpus)]
        assert min(low, high) * (1 - 1e-9) <= rate <= max(low, high) * (1 + 1e-9)


def test_pairs_come_in_the_order_asked_for() -> None:
    a, b = ProfileKey("ResNet-18", 16, 1), ProfileKey("ResNet-18", 32, 1)
    assert PROFILE.pair_rates(a, b, "v100") == (18.0, 14.0)
    assert PROFILE.pair_rates(b, a, "v100") == (14.0, 18.0)
    lm, a3c = ProfileKey("LM", 5, 1), ProfileKey("A3C", None, 1)
    assert PROFILE.pair_rates(lm, a3c, "v100") == (60.0, 5.0), "found although only the other order is in the file"


@pytest.mark.parametrize(
    ("a", "b", "gpu_type"),
    [
        (ProfileKey("ResNet-18", 16, 1), ProfileKey("LM", 5, 1), "v100"),
        (ProfileKey("ResNet-18", 16, 1), ProfileKey("A3C", None, 1), "v100"),
        (ProfileKey("ResNet-18", 16, 1), ProfileKey("ResNet-18", 32, 1), "k80"),
        (ProfileKey("ResNet-18", 16, 2), ProfileKey("ResNet-18", 16, 2), "v100"),
        (ProfileKey("ResNet-18", 17, 1), ProfileKey("ResNet-18", 16, 1), "v100"),
        (ProfileKey("", None, 1), ProfileKey("ResNet-18", 16, 1), "v100"),
        (ProfileKey("ResNet-18", 16, 1), ProfileKey("ResNet-18", 16, 1), "h100"),
    ],
)
def test_a_pair_that_does_not_fit_or_is_unknown_has_no_rates(a: ProfileKey, b: ProfileKey, gpu_type: str) -> None:
    assert PROFILE.pair_rates(a, b, gpu_type) is None
    assert PROFILE.pair_rates(b, a, gpu_type) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("gpt2", 1, "v100", 1), "unknown model 'gpt2'; known: ResNet-18, LM, A3C"),
        (("LM", 5, "tpu", 1), "unknown GPU type 'tpu'; known: v100, k80"),
        (("LM", 5, "v100_unconsolidated", 1), "unknown GPU type 'v100_unconsolidated'; known: v100, k80"),
        (("ResNet-18", 64, "v100", 1), "model 'ResNet-18' has no batch size 64; known: 16, 32"),
        (("ResNet-18", None, "v100", 1), "model 'ResNet-18' needs a batch size; known: 16, 32"),
        (("A3C", 4, "v100", 1), "model 'A3C' has no batch size 4; known: none (leave it out)"),
        (("ResNet-18", 32, "k80", 1), "ResNet-18 (batch size 32) was not measured on 'k80'"),
        (("A3C", None, "k80", 1), "A3C was not measured on 'k80'"),
    ],
)
def test_what_a_file_does_not_hold_is_one_clear_line(asked: tuple[str, int | None, str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PROFILE.rate(*asked)
    assert str(caught.value) == f"some/rates.json: {message}"


def test_a_gang_of_no_gpus_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 GPU"):
        PROFILE.rate("LM", 5, "v100", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty"),
        ('{"v100":\n {"a": }}', ":2: this is not JSON: Expecting value"),
        ("[1, 2]", ": this is not a throughput file: the top level must map GPU types to tables"),
        ("{}", ": this is not a throughput file"),
        ('{"v100": {}}', ": this is not a throughput file: no GPU type has a job type"),
        ('{"v100": 3}', ": 'v100' must map job types to rates"),
        ('{"v100": {"x": 3}}', ": 'v100', 'x' must map 'null' and job types to rates"),
        ('{"v100": {"LM": {"null": 1}}}', ": the job type 'LM' does not read ('Model (batch size B)', gpus)"),
        ('{"v100": {"x": {"null": "fast"}}}', ": 'v100', 'x', 'null': \"fast\" is not a rate of at least 0"),
        ('{"v100": {"x": {"null": NaN}}}', ": 'v100', 'x', 'null': NaN is not a rate"),
        ('{"v100": {"x": {"null": -1}}}', ": 'v100', 'x', 'null': -1 is not a rate"),
        ('{"v100": {"x": {"null": true}}}', ": 'v100', 'x', 'null': true is not a rate"),
        ('{"v100": {"x": {"null": 1e400}}}', ": 'v100', 'x', 'null': Infinity is not a rate"),
        ('{"v100": {"x": {"y": [1]}}}', ": 'v100', 'x', 'y': [1] is not a pair of rates"),
        ('{"v100": {"x": {"y": 1}}}', ": 'v100', 'x', 'y': 1 is not a pair of rates"),
        ('{"v100": {}, "V100": {}}', ": two tables are named alike"),
        ('{"v100": ' + "9" * 5000 + "}", ": this JSON has a number or a nesting that is too long"),
        ("[" * 100_000, ": this JSON has a number or a nesting that is too long"),
    ],
)
def test_a_malformed_file_is_named_with_the_bad_entry(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(path + message)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_directory_and_binary_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_profile(str(tmp_path / "absent.json"))
    with pytest.raises(InputError, match="no application here"):
        load_profile(str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a binary file, not text"):
        load_profile(str(binary))
