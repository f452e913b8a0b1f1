"""What was measured of live jobs: bounded, averaged, the same after a restart, and a profile for simulations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairway import JobSpec, Workload, simulate
from fairway.core.errors import InputError
from fairway.models import measured_profile
from fairway.models.gavel_profile import GavelProfile
from fairway.models.measured_profile import TIME_SLICING, MeasuredProfile, factors_of
from fairway.models.names import ProfileKey

ANT, BEE = ProfileKey("ant", 32, 1), ProfileKey("bee", None, 1)


def measured(kept: tuple[float, float] = (0.8, 0.6)) -> MeasuredProfile:
    profile = MeasuredProfile()
    profile.note_speed("V100", BEE, 10.0, 1.0)
    profile.note_speed("V100", ANT, 20.0, 2.0)
    profile.note_pair("V100", BEE, ANT, kept, 3.0, TIME_SLICING)
    return profile


def test_a_pair_is_told_in_either_order() -> None:
    profile = measured()
    assert profile.kept("V100", BEE, ANT) == (0.8, 0.6)
    assert profile.kept("V100", ANT, BEE) == (0.6, 0.8)
    assert profile.kept("K80", ANT, BEE) is None
    assert factors_of(profile, ("K80", "V100"), ANT, BEE) == ((0.0, 0.0), (0.6, 0.8))
    assert factors_of(profile, ("K80",), ANT, BEE) == ()


def test_measurements_are_averaged_and_two_of_a_kind_keep_the_same() -> None:
    profile = measured()
    profile.note_speed("V100", ANT, 30.0, 4.0)
    profile.note_pair("V100", ANT, BEE, (1.6, -1.0), 4.0, TIME_SLICING)
    assert profile.speeds[measured_profile.MeasuredKind("V100", ANT)].rate == pytest.approx(23.0)
    assert profile.kept("V100", ANT, BEE) == pytest.approx((0.6 + 0.3 * 0.4, 0.8 - 0.3 * 0.8))
    profile.note_pair("V100", ANT, ANT, (0.4, 0.6), 5.0, TIME_SLICING)
    assert profile.kept("V100", ANT, ANT) == (0.5, 0.5)


def test_the_way_of_sharing_that_was_measured_last_counts() -> None:
    profile = measured()
    profile.note_pair("V100", ANT, BEE, (0.9, 0.9), 9.0, "mps")
    assert profile.kept("V100", ANT, BEE) == (0.9, 0.9)
    assert profile.document("mps")["v100"]["('ant (batch size 32)', 1)"]["('bee', 1)"] == [18.0, 9.0]
    assert profile.document(TIME_SLICING)["v100"]["('ant (batch size 32)', 1)"]["('bee', 1)"] == [12.0, 8.0]
    with pytest.raises(InputError, match="no pair was measured by 'lanes'; known: mps, time-slicing"):
        profile.document("lanes")


def test_it_is_the_same_after_a_restart() -> None:
    profile = measured()
    again = MeasuredProfile.from_plain(json.loads(json.dumps(profile.plain())))
    assert (again.speeds, again.pairs) == (profile.speeds, profile.pairs)
    assert not again.changed


def test_the_pair_that_was_measured_longest_ago_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_profile, "MOST_PAIRS", 2)
    profile = measured()
    cats = [ProfileKey("cat", number, 1) for number in (1, 2)]
    for cat in cats:
        profile.note_pair("V100", ANT, cat, (1.0, 1.0), 4.0, TIME_SLICING)
        profile.note_pair("V100", ANT, BEE, (1.0, 1.0), 5.0, TIME_SLICING)
    assert [pair.b for pair in profile.pairs] == [cats[1], BEE]


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ([], "has version None"),
        ({"version": 2, "speeds": [], "pairs": []}, "has version 2; this Fairway reads version 1"),
        ({"version": 1}, "is damaged"),
        ({"version": 1, "speeds": [["v100", ["a", None, 1], "x", 1, 2.0]], "pairs": []}, "is damaged"),
        ({"version": 1, "speeds": [["v100", ["a", None, 0], 3.0, 1, 2.0]], "pairs": []}, "not a kind of job"),
        ({"version": 1, "speeds": [], "pairs": [["v100", "mps", ["a", 1, 1], ["a", 1, 1], 0.5]]}, "are not 4 numbers"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(plain: object, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        MeasuredProfile.from_plain(plain)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kept", "least_s", "most_s"), [((1.0, 1.0), 2000.0, 2300.0), ((0.4, 0.3), 3900.0, 4500.0)])
def test_last_months_measurements_are_next_months_simulation(
    tmp_path: Path, kept: tuple[float, float], least_s: float, most_s: float
) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(measured(kept).document()))
    assert GavelProfile.read(str(path)).pair_rates(ANT, BEE, "v100") == (20.0 * kept[1], 10.0 * kept[0])
    ant = JobSpec("a", 0, gpus=1, steps=40_000, model="ant", batch_size=32)
    bee = JobSpec("b", 0, gpus=1, steps=20_000, model="bee")
    cat = JobSpec("c", 0, gpus=1, steps=10, model="cat")
    result = simulate(Workload.of([ant, bee]), policy="gandiva", cluster="v100:1", profile=str(path))
    assert least_s <= result.figures()["makespan_s"] <= most_s
    with pytest.raises(InputError, match="unknown model 'cat'; known: ant, bee"):
        simulate(Workload.of([cat]), policy="fifo", cluster="v100:1", profile=str(path))
