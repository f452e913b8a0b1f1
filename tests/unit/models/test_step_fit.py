"""Fits of step times: derivatives, known models found again, what was not explored, and timings that cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairway.core.batch import Timing, limits_of
from fairway.models.goodput import best_splits
from fairway.models.step_fit import averaged, fit, most_replicas
from fairway.models.step_loss import Growth, Seen, StepLoss, loss
from fairway.models.step_time import StepModel, gradient_s, overlapped, step_s, sync_s
from fairway.testing.pace import loops

TRUE = StepModel(0.1, 0.01, 0.5, 0.02, 0.05, 0.004, 1.5)
NEVER = 1e-8


def timings_of(model: StepModel, count: int, seed: int, noise: float = 0.0, accumulation: int = 0) -> Seen:
    random = np.random.default_rng(seed)
    nodes = random.integers(1, 5, count)
    replicas = nodes * random.integers(1, 5, count)
    local, passes = random.integers(8, 200, count), random.integers(0, accumulation + 1, count)
    wobble = 1.0 + noise * (random.random((2, count)) - 0.5)
    exact = step_s(model, nodes, replicas, local, passes), gradient_s(model, local)
    columns = (nodes, replicas, local, passes, exact[0] * wobble[0], exact[1] * wobble[1])
    return Seen(*(np.asarray(column, dtype=np.float64) for column in columns))


@pytest.mark.parametrize("accumulation", [0, 3])
@pytest.mark.parametrize("flat", [0.0, 0.01])
def test_derivatives_are_those_of_finite_differences(accumulation: int, flat: float) -> None:
    step_loss = StepLoss(timings_of(TRUE, 15, 1, 0.5, accumulation), Growth(0.0, 0.0))
    at = [0.12, 0.008, 0.4, 0.03, 0.06, 0.003, 1.7]
    slopes, bends = step_loss.point(at).derivatives(flat)
    for k in range(7):
        change = 1e-5 * at[k]
        up, down = list(at), list(at)
        up[k] += change
        down[k] -= change
        above, below = step_loss.point(up), step_loss.point(down)
        assert slopes[k] == pytest.approx((above.loss(flat) - below.loss(flat)) / (2 * change), rel=1e-6, abs=1e-9)
        rows = zip(above.derivatives(flat).slopes, below.derivatives(flat).slopes, strict=True)
        assert bends[k] == pytest.approx([(a - b) / (2 * change) for a, b in rows], rel=1e-5, abs=1e-6)


def test_penalties_have_the_slopes_that_they_should() -> None:
    step_loss = StepLoss(timings_of(TRUE, 15, 1, 0.5))
    at = [0.12, 0.008, 0.4, 0.3, 0.06, 0.03, 1.7]
    slopes = step_loss.point(at).derivatives(0.0).slopes
    for k in range(7):
        up, down = list(at), list(at)
        up[k] *= 1 + 1e-5
        down[k] *= 1 - 1e-5
        change = (step_loss.point(up).loss(0.0) - step_loss.point(down).loss(0.0)) / (2e-5 * at[k])
        assert slopes[k] == pytest.approx(change, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_a_fit_explains_timings_better_than_the_model_that_made_them(seed: int, noise: float) -> None:
    seen = timings_of(TRUE, 60, seed, noise)
    found = fit(seen)
    assert found is not None
    assert loss(found, seen) <= loss(TRUE, seen) + 1e-5
    if noise == 0.0:
        assert step_s(found, 3, 12, 64) == pytest.approx(float(step_s(TRUE, 3, 12, 64)), rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_step_times_alone_are_enough(seed: int) -> None:
    seen = timings_of(TRUE, 60, seed, 0.0, accumulation=2)
    found = fit(seen._replace(gradient_s=np.full(60, math.nan)))
    assert found is not None
    for nodes, replicas, local in ((1, 1, 32), (1, 4, 100), (4, 16, 64)):
        right = float(step_s(TRUE, nodes, replicas, local, 1))
        assert float(step_s(found, nodes, replicas, local, 1)) == pytest.approx(right, rel=0.03)


def seen_at(*allocations: tuple[int, int, int]) -> Seen:
    rows = [Timing(n, k, m, 0, float(step_s(TRUE, n, k, m)), float(gradient_s(TRUE, m))) for n, k, m in allocations]
    return averaged(rows)


def test_what_was_not_explored_is_thought_to_cost_nothing() -> None:
    alone = fit(seen_at((1, 1, 32), (1, 1, 64)))
    assert alone is not None
    assert alone[4:6] == (NEVER, NEVER)
    assert alone[2:4] == pytest.approx((1.1 * NEVER, 1.1 * NEVER))
    pair = fit(seen_at((1, 1, 32), (1, 2, 32)))
    assert pair is not None
    assert float(step_s(pair, 1, 2, 32)) == pytest.approx(float(step_s(TRUE, 1, 2, 32)), rel=1e-3)
    assert pair.inside_replica_s == NEVER
    assert pair.across_s == pytest.approx(1.1 * pair.inside_s)
    apart = fit(seen_at((2, 2, 32), (4, 8, 32), (1, 1, 16)))
    assert apart is not None
    assert apart[4:6] == (NEVER, NEVER)


def test_with_one_batch_size_half_of_a_pass_does_not_depend_on_it() -> None:
    found = fit(seen_at((1, 1, 32), (1, 4, 32)))
    assert found is not None
    assert found.pass_s == pytest.approx(float(gradient_s(TRUE, 32)) / 2)


def test_models_of_more_replicas_are_optimistic_until_they_were_tried() -> None:
    found = fit(seen_at((1, 1, 32), (1, 1, 64)))
    assert found is not None
    assert float(sync_s(found, 2, 8)) < float(sync_s(TRUE, 2, 8))
    assert float(step_s(found, 2, 8, 32)) < float(step_s(TRUE, 2, 8, 32))


def test_a_job_grows_to_twice_what_it_had() -> None:
    assert [most_replicas(seen, 64, 4096, 32) for seen in (0, 1, 3, 40)] == [1, 2, 6, 64]
    assert most_replicas(40, 64, 128, 32) == 4
    assert most_replicas(40, 64, 16, 32) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_timings_that_cannot_be_are_left_out(bad: float) -> None:
    good = [Timing(1, 1, 32, 0, 0.42, 0.42), Timing(1, 2, 32, 0, 0.5, 0.42)]
    strange = [Timing(1, 1, 32, 0, bad), Timing(2, 1, 32, 0, 0.1), Timing(1, 1, 0, 0, 0.1), Timing(1, 1, 8, -1, 0.1)]
    seen, expected = averaged([*strange, *good]), averaged(good)
    assert [column.tolist() for column in seen] == [column.tolist() for column in expected]
    unknown = averaged([Timing(1, 2, 32, 0, 0.5, bad)])
    assert math.isnan(unknown.gradient_s[0])
    found = fit(unknown)
    assert found is not None
    assert all(math.isfinite(value) for value in found)


def test_timings_of_one_allocation_are_averaged() -> None:
    seen = averaged([Timing(1, 2, 32, 0, 0.4, 0.2), Timing(1, 1, 32, 0, 0.1), Timing(1, 2, 32, 0, 0.6)])
    assert seen.replicas.tolist() == [1, 2]
    assert seen.step_s.tolist() == [0.1, 0.5]
    assert seen.gradient_s[1] == 0.2


def test_without_timings_there_is_no_model() -> None:
    assert fit(averaged([])) is None


@pytest.mark.parametrize("seed", range(20))
def test_any_timings_have_a_model_within_the_bounds(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [
        Timing(
            nodes := int(random.integers(1, 5)),
            nodes * int(random.integers(1, 5)),
            int(random.integers(1, 1000)),
            int(random.integers(0, 3)),
            float(10 ** (6 * random.random() - 4)),
            float(10 ** (6 * random.random() - 4)) if random.random() < 0.5 else math.nan,
        )
        for _ in range(int(random.integers(1, 12)))
    ]
    found = fit(averaged(rows))
    assert found is not None
    assert all(NEVER <= value < math.inf for value in found[:6])
    assert 1.0 <= found.overlap <= 10.0


def test_a_fit_takes_a_few_milliseconds() -> None:
    seen = timings_of(TRUE, 20, 0, 0.1)
    assert loops(lambda: fit(seen)) < 8


def test_overlap_is_a_norm() -> None:
    assert float(overlapped(0.0001, 0.4, 10.0)) == pytest.approx(0.4)
    assert float(overlapped(0.4, 0.0001, 1.0)) == pytest.approx(0.4001)


def test_a_fit_is_the_same_to_the_bit_everywhere() -> None:
    rows = [
        Timing(1, 1, 32, 0, 0.421, 0.42),
        Timing(1, 2, 32, 0, 0.47, 0.42),
        Timing(1, 4, 64, 1, 1.6),
        Timing(2, 8, 64, 0, 1.3, 0.75),
        Timing(4, 16, 48, 0, 1.5, 0.6),
    ]
    found = fit(averaged(rows))
    assert found is not None
    assert [float(value).hex() for value in found] == [
        *("0x1.4de65559263bfp-4", "0x1.5ba0ffd668766p-7", "0x1.186a74875d03bp-2", "0x1.7c621ebeec248p-5"),
        *("0x1.a485fc0ecb8bbp-5", "0x1.02d1fffc9c64fp-6", "0x1.03c6e75064f4ep+0"),
    ]
    again = fit(averaged(reversed(rows)))
    assert again == found
    splits = best_splits(found, 321.5, limits_of(128, 4096, 16, 200, True), np.array([1, 2]), np.array([4, 8]))
    assert splits.local.tolist() == [35, 50]
    assert [value.hex() for value in splits.goodput.tolist()] == ["0x1.001bcec8b63dep+8", "0x1.b05ced1e4e030p+7"]
