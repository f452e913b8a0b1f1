"""New jobs are likened to known ones by a few measured pairs, and what runs side by side is learned from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import fairway
from fairway import JobSpec, Workload
from fairway.cli.lab.holdout import WORTH, hold_out, profile_table, published_row
from fairway.core.action import Launch
from fairway.core.decision import Decision, Reason
from fairway.core.event import JobStarted, Woken
from fairway.core.pairing import Pairing, PairTable
from fairway.core.snapshot import Snapshot
from fairway.models.builtin import memory_bytes
from fairway.models.estimator import LearnedPairs, blend, estimate_speeds
from fairway.models.fingerprint import PairRow, ReferenceTable, cosines, estimate_row
from fairway.models.gavel_profile import GavelProfile
from fairway.models.names import ProfileKey
from fairway.models.references import TYPICAL, Reference, builtin_kept, known_reference, prior, resembling
from fairway.testing import job, random_snapshot, snapshot_of, state_of
from fairway.testing.pace import loops

TYPES = ("v100", "k80")
KINDS = [ProfileKey(f"m{n}", None, 1) for n in range(12)]


def made_up(a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float]:
    """Every kind has a greed, and the greedier one keeps more. The last kind fits beside nobody on a K80."""
    greed = {kind: 0.2 + 0.05 * n for n, kind in enumerate(KINDS)}
    if KINDS[-1] in (a, b) and gpu_type == "k80":
        return (0.0, 0.0)
    most = 1.0 if gpu_type == "v100" else 0.8
    return (most * greed[a] / (greed[a] + greed[b]) + 0.1, most * greed[b] / (greed[a] + greed[b]) + 0.1)


def part_of(row: PairRow, share: float, seed: int = 0) -> PairRow:
    shown = np.random.default_rng(seed).random(row.own.shape) < share
    return PairRow(np.where(shown, row.own, np.nan), np.where(shown, row.other, np.nan))


def test_a_table_holds_both_sides_of_every_pair_and_rows_leave_it_whole() -> None:
    table = ReferenceTable.of(KINDS, TYPES, made_up)
    assert (table.kept[2, 1, 5], table.kept[5, 1, 2]) == made_up(KINDS[2], KINDS[5], "k80")
    less = table.without([0, 3])
    assert [kind.model for kind in less.kinds[:3]] == ["m1", "m2", "m4"]
    assert less.kept[1, 0, 2] == table.kept[2, 0, 4]
    row = table.row(2, [4, 5])
    assert row.own[1, 1] == table.kept[2, 1, 5]
    assert row.other[1, 1] == table.kept[5, 1, 2]
    split = PairRow.split(row.joined, 2)
    assert np.array_equal(split.other, row.other)


def test_a_newcomer_is_likened_to_the_kind_that_it_behaves_like() -> None:
    table = ReferenceTable.of(KINDS, TYPES, made_up)
    beside = [n for n in range(12) if n != 5]
    truth = table.row(5, beside)
    found = estimate_row(table.without([5]), part_of(truth, 0.3))
    assert table.without([5]).kinds[found.reference].model in ("m4", "m6")
    for row in (found.nearest, found.completed, found.mixed):
        assert np.abs(row.joined - truth.joined).mean() < 0.03
        assert row.joined.min() >= 0
        assert row.joined.max() <= 1


def test_what_was_measured_of_a_newcomer_stands() -> None:
    table = ReferenceTable.of(KINDS, TYPES, made_up)
    truth = table.row(5, [n for n in range(12) if n != 5])
    odd = part_of(PairRow(truth.own * 0.5, truth.other), 0.3)
    found = estimate_row(table.without([5]), odd)
    known = ~np.isnan(odd.own)
    for row in (found.nearest, found.completed, found.mixed):
        assert np.allclose(row.own[known], odd.own[known])


def test_a_pair_that_does_not_fit_is_learned_from_a_reference_that_does_not_fit_either() -> None:
    twin = ProfileKey("twin", None, 1)

    def with_twin(a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float]:
        return made_up(KINDS[-1] if a == twin else a, KINDS[-1] if b == twin else b, gpu_type)

    table = ReferenceTable.of([*KINDS, twin], TYPES, with_twin)
    measured = part_of(table.row(12, range(12)), 0.3)
    found = estimate_row(table.without([12]), measured)
    assert found.reference == 11
    assert not found.nearest.own[1].any()
    assert np.isnan(measured.own[1]).any()


def test_the_published_way_looks_at_one_side_only() -> None:
    table = ReferenceTable.of(KINDS, TYPES, made_up)
    truth = table.row(5, [n for n in range(12) if n != 5])
    measured = part_of(truth, 0.5)
    blind = PairRow(measured.own, np.full(measured.other.shape, np.nan))
    rows = [published_row(table.without([5]), given).joined for given in (measured, blind)]
    assert np.array_equal(rows[0], rows[1])
    assert any(np.allclose(rows[0], row) for row in table.without([5]).joined)


def test_cosines_look_at_the_direction_and_not_at_the_length() -> None:
    alike = cosines(np.array([[2.0, 2.0], [1.0, 0.0], [0.0, 0.0]]), np.array([0.5, 0.5]))
    assert alike == pytest.approx([1.0, math.sqrt(0.5), 0.0])


def test_speeds_on_a_type_never_tried_follow_the_other_jobs() -> None:
    speeds = np.outer([1.0, 2.0, 8.0, 5.0], [10.0, 4.0, 1.0])
    shown = speeds.copy()
    shown[1, 2] = shown[3, 0] = np.nan
    shown[2, 1] = 0.0
    found = estimate_speeds(shown)
    assert found[1, 2] == pytest.approx(2.0, rel=0.05)
    assert found[3, 0] == pytest.approx(50.0, rel=0.05)
    assert found[2, 1] == 0.0
    assert np.array_equal(found[0], speeds[0])


def test_speeds_of_a_job_that_never_ran_stay_unknown() -> None:
    found = estimate_speeds(np.array([[1.0, 2.0], [np.nan, np.nan], [3.0, np.nan]]))
    assert np.isnan(found[1]).all()
    assert found[2, 1] == pytest.approx(6.0, rel=0.05)


def test_measurements_take_over_by_halves_and_settle() -> None:
    pair = (0.8, 0.4)
    seen = []
    for _ in range(10):
        pair = blend(pair, (0.6, 0.6))
        seen.append(pair[0])
    assert seen[:3] == pytest.approx([0.7, 0.65, 0.625])
    assert pair == (0.6, 0.6)
    assert blend((0.8, 0.4), (0.0, 0.0)) == (0.0, 0.0)
    assert blend((0.0, 0.0), (0.5, 0.6)) == (0.5, 0.6)
    assert blend((0.8, 0.4), (0.6, 0.6), alpha=1.0) == (0.6, 0.6)


def test_references_are_the_built_in_models_and_means_of_them() -> None:
    known = known_reference("resnet18", 32)
    assert known == Reference("ResNet-18", 32)
    assert known_reference("", 0) is known_reference("nobody", 4) is None
    other = Reference("LSTM", 0)
    expected = builtin_kept(ProfileKey("ResNet-18", 32, 1), ProfileKey("LSTM", None, 1), "v100")
    assert prior(known, other, "v100", 1) == expected
    first, second = prior(TYPICAL, TYPICAL, "v100", 1)
    assert first == pytest.approx(second)
    assert 0.5 < first < 0.8
    assert builtin_kept(ProfileKey("nobody", None, 1), ProfileKey("LSTM", None, 1), "v100") is None
    large = ProfileKey("ResNet-50", 10_000, 1)
    assert builtin_kept(large, large, "v100") == (0.0, 0.0)


def test_an_unknown_model_takes_the_place_of_one_with_its_speeds_and_memory() -> None:
    from fairway.models.builtin import BuiltinProfile

    types = ("v100", "k80", "t4")
    for model in ("CycleGAN", "A3C", "ResNet-50"):
        speeds = tuple(7 * BuiltinProfile().rate(model, None, gpu, 1) for gpu in types)
        assert resembling(speeds, memory_bytes(model, None), types).model == model
    assert resembling((1.0,), 0, ("v100",)) == TYPICAL
    assert resembling((1.0,), memory_bytes("VGG19", None), ("v100",)).model == "VGG19"


JOBS = [
    job("a", 1, steps=1000, model="ResNet-18", batch_size=32),
    job("b", 1, steps=1000, model="LM", batch_size=10),
    job("c", 1, model="my own"),
    job("d", 2, steps=1000, model="ResNet-18", batch_size=32),
]


def test_without_measurements_pairs_are_the_built_in_estimates_whoever_is_asked_about_first() -> None:
    snapshot = snapshot_of(JOBS, "v100:1x4,k80:1x4")
    pairs: Pairing = LearnedPairs.recall().observe(snapshot)
    told = pairs.factors(0, 1)
    assert told[0] == builtin_kept(ProfileKey("ResNet-18", 32, 1), ProfileKey("LSTM", 10, 1), "v100")
    assert pairs.factors(1, 0) == tuple((y, x) for x, y in told)
    assert all(0 < x < 1 for pair in pairs.factors(0, 2) for x in pair)
    assert pairs.kind(0) != pairs.kind(3)
    table = PairTable.of(pairs, range(4))
    assert table.factors(3, 1) == pairs.factors(3, 1)


def test_what_does_not_fit_keeps_nothing() -> None:
    half = [job(name, 1, memory_bytes=9 * 2**30) for name in "ab"]
    pairs = LearnedPairs.recall().observe(snapshot_of(half, "v100:1x1,a100:1x1"))
    assert pairs.factors(0, 1)[0] == (0.0, 0.0)
    assert min(pairs.factors(0, 1)[1]) > 0
    picky = [job("a", 1, gpu_types=("v100",)), job("b", 1)]
    pairs = LearnedPairs.recall().observe(snapshot_of(picky, "v100:1x1,a100:1x1"))
    assert pairs.factors(0, 1)[1] == (0.0, 0.0)


def test_a_job_that_is_not_there_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not in the snapshot"):
        LearnedPairs.recall().factors(0, 1)
    with pytest.raises(ValueError, match="job 9"):
        LearnedPairs.recall().observe(snapshot_of(JOBS, "v100:4")).kind(9)


@dataclass(frozen=True)
class SideBySide:
    """Everybody on the GPU of the first job, if estimated to fit. Knows: what it has seen."""

    seen: list[LearnedPairs] = field(default_factory=list)

    name: ClassVar[str] = "side_by_side"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 60.0

    def decide(self, snapshot: Snapshot) -> Decision:
        pairs = LearnedPairs.recall(json.loads(json.dumps(snapshot.memory.get("pairs", {})))).observe(snapshot)
        self.seen.append(pairs)
        gpus, partners, jobs = np.zeros(len(snapshot), dtype=np.int64), dict[int, int](), snapshot.jobs
        gpus[0] = snapshot.gpus[0]
        for row in range(1, len(snapshot)):
            if snapshot.held[0] and min(pairs.factors(int(jobs[0]), int(jobs[row]))[0]) > 0:
                gpus[row], partners[row] = snapshot.gpus[row], 0
                break
        pairs.expect(snapshot, partners)
        reasons = np.multiply(gpus == 0, int(Reason.NO_FREE_GPUS), dtype=np.int8)
        return Decision(gpus, reasons, memory={"pairs": pairs.memory()}, partners=partners)


def world(pair: Sequence[float]) -> GavelProfile:
    names = ["('ResNet-18 (batch size 32)', 1)", "('LM (batch size 10)', 1)"]
    tables: dict[str, Any] = {
        "v100": {names[0]: {"null": 10.0, names[1]: list(pair)}, names[1]: {"null": 20.0, names[0]: list(pair)[::-1]}}
    }
    return GavelProfile(tables, "made-up.json")


def run_side_by_side(pair: Sequence[float]) -> list[LearnedPairs]:
    policy = SideBySide()
    more: dict[str, Any] = {"gpus": 1, "submitted_s": 0.0}
    jobs = [
        JobSpec("a", steps=20_000, model="ResNet-18", batch_size=32, **more),
        JobSpec("b", steps=20_000, model="LM", batch_size=10, **more),
    ]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:1x1", policy=policy, profile=world(pair))
    assert result.finished == 2
    return policy.seen


def test_running_pairs_teach_what_each_job_keeps() -> None:
    seen = run_side_by_side([9.0, 2.0])
    together = [pairs for pairs in seen if pairs.measured]
    assert together
    label_b, label_a = "1x10:LM", "1x32:ResNet-18"
    assert together[-1].memory()["kept"] == {"v100": {label_b: {label_a: [0.1, 0.9]}}}
    guess = builtin_kept(ProfileKey("LSTM", 10, 1), ProfileKey("ResNet-18", 32, 1), "v100")
    assert guess is not None
    assert together[0].memory()["kept"]["v100"][label_b][label_a] == pytest.approx(blend(guess, (0.1, 0.9)))


def test_a_pair_that_was_asked_for_and_does_not_come_up_is_not_asked_for_again() -> None:
    seen = run_side_by_side([0.0, 0.0])
    learned = [pairs for pairs in seen if pairs.measured]
    assert learned[0].memory()["kept"]["v100"]["1x10:LM"]["1x32:ResNet-18"] == [0.0, 0.0]
    assert sum(bool(pairs.memory()["asked"]) for pairs in seen) == 1


def beside(gpus: int, cluster: str, seats: Sequence[Sequence[int]], ready_s: float = 0.0, throttle: float = 1.0) -> Any:
    """What is measured of jobs on the same GPUs, each at half of its speed; the first is the host."""
    names = ["ResNet-18", "LSTM", "A3C"][: len(seats)]
    state = state_of([job(name, gpus, steps=1e6, model=name) for name in names], cluster)
    for number, seat in enumerate(seats):
        last = number == len(seats) - 1
        state.commit([Launch(number, tuple(seat), 0, 0 if number else -1, throttle if last else 1.0)])
        state.apply(JobStarted(0.0, number, 0.5 * float(state.snapshot().speeds[0, number]), ready_s))
    state.apply(Woken(10.0))
    return LearnedPairs.recall().observe(state.snapshot()).memory()["kept"]


def test_only_pairs_that_tell_what_a_pair_does_are_measured() -> None:
    assert set(beside(1, "v100:1x4", [(0,), (0,)])["v100"]) == {"1x0:LSTM"}
    assert set(beside(2, "v100:2x2", [(0, 1), (0, 1)])["v100"]) == {"2x0:LSTM"}
    assert beside(1, "v100:1x4", [(0,), (0,)], ready_s=20.0) == {}
    assert beside(1, "v100:1x4", [(0,), (0,)], throttle=0.5) == {}
    assert beside(1, "v100:1x4", [(0,), (0,), (0,)]) == {}
    assert beside(2, "v100:2x2", [(0, 2), (0, 2)]) == {}  # a spread gang is slow for another reason


@pytest.mark.parametrize("seed", range(8))
def test_factors_are_shares_and_the_same_from_either_side(seed: int) -> None:
    snapshot = random_snapshot(seed)
    pairs = LearnedPairs.recall().observe(snapshot)
    jobs = snapshot.jobs.tolist()
    for a in jobs:
        for b in jobs:
            told = pairs.factors(a, b)
            assert len(told) == len(snapshot.cluster.types)
            assert all(0 <= x <= 1 for pair in told for x in pair)
            assert told == tuple((y, x) for x, y in pairs.factors(b, a))


def measured_memory(deviation: float, names: Sequence[str]) -> dict[str, Any]:
    """A memory in which all pairs of some models keep more or less than estimated."""
    labels = sorted(f"1x0:{name}" for name in names)
    kept: dict[str, Any] = {}
    for i, a in enumerate(labels):
        for b in labels[i:]:
            x, y = prior(Reference(a[4:], 0), Reference(b[4:], 0), "v100", 1)
            kept.setdefault(a, {})[b] = [x + deviation, y + deviation]
    return {"like": {label: [label[4:], 0] for label in labels}, "kept": {"v100": kept}, "asked": []}


def test_measured_pairs_correct_the_estimates_of_others() -> None:
    names = ["ResNet-18", "LSTM", "A3C", "Transformer"]
    jobs = [job(name, 1, steps=100, model=name) for name in names]
    memory = measured_memory(-0.15, names)
    del memory["kept"]["v100"]["1x0:LSTM"]["1x0:ResNet-18"]
    snapshot = snapshot_of(jobs, "v100:4")
    before = LearnedPairs.recall().observe(snapshot).factors(0, 1)[0]
    after = LearnedPairs.recall(memory).observe(snapshot).factors(0, 1)[0]
    for old, new in zip(before, after, strict=True):
        assert old - 0.2 < new < old - 0.08


def test_an_unknown_model_is_likened_by_its_measured_pairs() -> None:
    names = ["ResNet-18", "LSTM", "A3C", "Transformer", "ResNet-50"]
    snapshot = snapshot_of([job("x", 1, model="mine"), *(job(n, 1, steps=9, model=n) for n in names)], "v100:4")
    memory = LearnedPairs.recall().observe(snapshot).memory()
    twin = Reference("CycleGAN", 0)
    memory["like"]["1x0:mine"] = ["", 0]
    memory["like"].update({f"1x0:{name}": [name, 0] for name in names})
    kept = {a: {"1x0:mine": list(prior(Reference(a[4:], 0), twin, "v100", 1))} for a in sorted(memory["like"])}
    del kept["1x0:mine"]
    pairs = LearnedPairs.recall({**memory, "kept": {"v100": kept}}).observe(snapshot)
    pairs._liken("1x0:mine")
    x, y = prior(Reference(*pairs.memory()["like"]["1x0:mine"]), Reference("VGG19", 0), "v100", 1)
    assert (x, y) == pytest.approx(prior(twin, Reference("VGG19", 0), "v100", 1), abs=0.05)


def test_memory_survives_json_and_changes_nothing() -> None:
    names = ["ResNet-18", "LSTM", "A3C"]
    snapshot = snapshot_of([job(name, 1, steps=100, model=name) for name in names], "v100:4")
    memory = measured_memory(0.05, names)
    first = LearnedPairs.recall(memory).observe(snapshot)
    again = LearnedPairs.recall(json.loads(json.dumps(first.memory()))).observe(snapshot)
    assert first.memory() == again.memory() == memory
    assert all(first.factors(a, b) == again.factors(a, b) for a in range(3) for b in range(3))


def test_two_thousand_jobs_are_looked_at_in_a_moment() -> None:
    names = ["ResNet-18", "LSTM", "A3C", "Transformer", "ResNet-50", "Recommendation", "VGG19", "CycleGAN"]
    jobs = [job(f"j{n}", 1, steps=100, model=names[n % 8], batch_size=1 + n % 3) for n in range(2000)]
    snapshot = snapshot_of(jobs, "v100:4x8,k80:4x8")
    memory = measured_memory(0.05, names)

    def look() -> int:
        pairs = LearnedPairs.recall(memory).observe(snapshot)
        kinds = {pairs.kind(n): n for n in range(2000)}
        for a in kinds.values():
            for b in kinds.values():
                pairs.factors(a, b)
        return len(kinds)

    assert look() == 24
    assert loops(look, tries=3) < 20


def test_the_estimator_beats_the_mean_on_a_table_that_it_has_not_seen() -> None:
    table = ReferenceTable.of(KINDS, TYPES, made_up)
    scores = hold_out(table, 0.3, range(2))
    assert "built-in" not in scores  # it knows none of these models
    assert scores["mixed"].mean < scores["mean"].mean / 3
    assert scores["mixed"].right > 0.9
    assert scores["mixed"].right + scores["mixed"].rash + scores["mixed"].missed == pytest.approx(1.0)
    assert scores["mixed"].pairs == scores["mean"].pairs > 200


def test_a_perfect_estimate_makes_no_error_and_a_wrong_one_is_counted_as_rash_or_missed() -> None:
    from fairway.cli.lab.holdout import _score

    truth = np.array([[0.6, 0.5, 0.9], [0.6, 0.5, 0.9]])
    assert _score([(truth, truth)], WORTH)[1:] == (0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    off = truth + [[-0.2, 0.2, 0.0]] * 2
    score = _score([(off, truth)], WORTH)
    assert (score.right, score.rash, score.missed) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert score.mean == pytest.approx(0.4 / 3)


def test_a_profile_gives_the_pairs_of_single_gpus_and_tells_misfits_from_gaps() -> None:
    keys = [f"('m{n}', 1)" for n in range(4)]
    rows: dict[str, Any] = {key: {"null": 10.0} for key in keys}
    rows[keys[0]].update({keys[0]: [6.0, 6.0], keys[1]: [5.0, 8.0], keys[2]: [0.0, 0.0]})
    rows[keys[1]].update({keys[2]: [7.0, 4.0]})
    rows["('m0', 2)"] = {"null": 20.0, "('m0', 2)": [0.0, 0.0]}
    profile = GavelProfile({"v100": rows}, "some.json")
    table = profile_table(profile)
    assert [kind.model for kind in table.kinds] == ["m0", "m1", "m2"]  # m3 has no pairs
    assert (table.kept[1, 0, 0], table.kept[0, 0, 1]) == (0.8, 0.5)
    assert table.kept[0, 0, 2] == 0.0
    assert np.isnan(table.kept[2, 0, 2])
    assert profile.measured_pair(ProfileKey("m0", None, 2), ProfileKey("m0", None, 2), "v100") == (0.0, 0.0)
    assert profile.measured_pair(ProfileKey("m3", None, 1), ProfileKey("m0", None, 1), "v100") is None
