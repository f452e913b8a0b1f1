"""Gandiva_fair's shares and trades as plain arithmetic: water filling, prices, and that nobody loses by a deal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.arrays import Floats
from fairway.policies.gandiva_fair.tickets import entitlements, job_tickets, user_tickets, water_fill
from fairway.policies.gandiva_fair.trade import Deal, TypeMarket, UsefulGpus, price_of, trade, trade_all, worth_of

SPEEDUPS = np.array([1.2, 5.0, 3.0])
NO_LIMITS = UsefulGpus(np.full(3, np.inf), np.full(3, np.inf), np.full(3, np.inf))


def worth(market: TypeMarket) -> list[float]:
    """What everybody has, in slow GPUs."""
    return [s * fast + slow for s, fast, slow in zip(SPEEDUPS.tolist(), market.fast, market.slow, strict=True)]


def filled(amount: float, weight: list[float], cap: list[float]) -> list[float]:
    group = np.zeros(len(weight), dtype=np.int64)
    return water_fill(np.array([amount]), np.array(weight), np.array(cap), group).tolist()


def test_what_one_user_cannot_use_goes_to_the_others() -> None:
    assert filled(8.0, [1, 1, 1], [math.inf, math.inf, 2.0]) == [3.0, 3.0, 2.0]


def test_water_is_filled_in_proportion_to_tickets() -> None:
    assert filled(12.0, [1, 2, 3], [math.inf, 3.0, math.inf]) == [2.25, 3.0, 6.75]


def test_no_more_is_dealt_out_than_is_wanted() -> None:
    assert filled(8.0, [1, 1], [2.0, 3.0]) == [2.0, 3.0]


@given(
    st.floats(0, 100),
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 50)), min_size=1, max_size=8),
)
def test_water_filling_uses_all_and_treats_equals_equally(amount: float, users: list[tuple[float, float]]) -> None:
    weight, cap = [w for w, _ in users], [c for _, c in users]
    share = filled(amount, weight, cap)
    assert sum(share) == pytest.approx(min(amount, sum(cap)), abs=1e-6)
    assert all(got <= most + 1e-9 for got, most in zip(share, cap, strict=True))
    level = max((got / w for got, w in zip(share, weight, strict=True)), default=0.0)
    for got, w, most in zip(share, weight, cap, strict=True):
        assert got == pytest.approx(most, abs=1e-6) or got / w == pytest.approx(level, rel=1e-6, abs=1e-6)


def test_each_group_is_filled_for_itself() -> None:
    """Two users divide 4 and 3 GPUs among their jobs: no job gets more than its gang."""
    tickets = job_tickets(np.array([4.0, 3.0]), np.array([0, 0, 1, 1, 1]), np.ones(5), np.array([1, 8, 4, 4, 4]))
    assert tickets.tolist() == [1.0, 3.0, 1.0, 1.0, 1.0]


def test_more_jobs_do_not_make_more_tickets() -> None:
    assert user_tickets(np.array([0, 1, 1, 1]), np.array([1.0, 2.0, 2.0, 2.0]), 3).tolist() == [1.0, 2.0, 0.0]


def test_each_gpu_type_is_shared_by_tickets_and_small_demands_return_the_rest() -> None:
    shares = entitlements(
        np.ones(3), np.array([9.0, 9.0, 2.0]), np.array([[9, 9, 2], [9, 9, 2.0]]), np.array([4, 4]), [0, 1]
    )
    assert shares.sum(axis=0).tolist() == pytest.approx([3.0, 3.0, 2.0])
    assert shares[0].tolist() == pytest.approx([4 / 3] * 3)


def test_a_type_that_nobody_else_can_use_goes_to_who_can() -> None:
    shares = entitlements(np.ones(2), np.array([8.0, 8.0]), np.array([[8, 0.0], [8, 8]]), np.array([4, 4]), [0, 1])
    assert shares.tolist() == [[4.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("price", "seller", "buyer"),
    [(3.0, 10.6, 26.0), (1.2, 8.8, 27.8), (5.0, 12.6, 24.0)],
    ids=["second", "low", "high"],
)
def test_the_worked_example_of_a_trade(price: float, seller: float, buyer: float) -> None:
    """Users with speed-ups 1.2, 5 and 3 have 4 fast and 4 slow GPUs each; user 2 buys one fast GPU from user 1.

    In slow GPUs they are worth 8.8 and 24 before.
    """
    market = TypeMarket(np.full(3, 4.0), np.full(3, 4.0), NO_LIMITS)
    assert worth(market) == pytest.approx([8.8, 24.0, 16.0])
    market.exchange(Deal(seller=0, buyer=1, price=price, fast=1.0))
    assert worth(market) == pytest.approx([seller, buyer, 16.0])


def test_the_price_is_the_second_bid() -> None:
    assert price_of(1.2, 5.0, [3.0]) == 3.0
    assert price_of(1.2, 5.0, [2.0, 3.0, 1.1]) == 3.0


def test_without_a_second_bidder_the_price_is_the_geometric_mean() -> None:
    assert price_of(1.2, 5.0, []) == pytest.approx(math.sqrt(6.0))
    assert price_of(1.2, 5.0, [1.0]) == pytest.approx(math.sqrt(6.0))


def test_a_rival_who_bids_as_much_does_not_take_the_whole_gain() -> None:
    assert 1.2 < price_of(1.2, 5.0, [5.0]) < 5.0
    assert 1.2 < price_of(1.2, 5.0, [1.2000001]) < 5.0


def test_trades_go_from_the_cheapest_seller_to_the_highest_bidder_until_nobody_gains() -> None:
    """User 2 spends its 4 slow GPUs at price 3; then user 3, alone, spends its own at sqrt(1.2 · 3)."""
    fast, slow, deals = trade(np.full(3, 4.0), np.full(3, 4.0), SPEEDUPS, NO_LIMITS)
    assert [(deal.seller, deal.buyer) for deal in deals] == [(0, 1), (0, 2)]
    assert [deal.price for deal in deals] == pytest.approx([3.0, math.sqrt(3.6)])
    assert [deal.fast for deal in deals] == pytest.approx([4 / 3, 4 / math.sqrt(3.6)])
    assert slow.tolist() == pytest.approx([12.0, 0.0, 0.0])
    assert fast.tolist() == pytest.approx([0.559, 4 + 4 / 3, 4 + 2.108], abs=1e-3)


def test_equal_speedups_do_not_trade() -> None:
    assert trade(np.full(3, 4.0), np.full(3, 4.0), np.array([2.0, 2.05, 2.0]), NO_LIMITS)[2] == []


def test_a_seller_is_not_paid_with_gpus_that_it_cannot_use() -> None:
    limits = UsefulGpus(np.full(3, np.inf), np.array([5.0, 99.0, 99.0]), np.array([9.0, 99.0, 99.0]))
    fast, slow, _ = trade(np.full(3, 4.0), np.full(3, 4.0), SPEEDUPS, limits)
    assert slow[0] <= 5.0 + 1e-9
    assert fast[0] + slow[0] <= 9.0 + 1e-9


def _some(low: float, high: float) -> st.SearchStrategy[Floats]:
    return st.lists(st.floats(low, high), min_size=4, max_size=4).map(np.array)


@given(_some(0, 8), _some(0, 8), _some(0.5, 10), _some(0, 20), _some(0, 20))
def test_trades_leave_nobody_worse_off_and_lose_no_gpu(
    fast: Floats, slow: Floats, speedup: Floats, more_fast: Floats, more: Floats
) -> None:
    limits = UsefulGpus(fast + more_fast, slow + more, fast + slow + more)
    after_fast, after_slow, deals = trade(fast, slow, speedup, limits)
    before, after = speedup * fast + slow, speedup * after_fast + after_slow
    assert (after >= before - 1e-6).all()
    assert after_fast.sum() == pytest.approx(fast.sum(), abs=1e-6)
    assert after_slow.sum() == pytest.approx(slow.sum(), abs=1e-6)
    assert (after_fast <= limits.fast + 1e-6).all()
    assert (after_fast + after_slow <= limits.total + 1e-6).all()
    for deal in deals:
        assert speedup[deal.seller] < deal.price < speedup[deal.buyer]


@given(st.lists(_some(0.05, 1.0), min_size=3, max_size=3), st.lists(_some(0, 8), min_size=3, max_size=3))
def test_trades_between_three_types_leave_nobody_worse_off(speeds: list[Floats], shares: list[Floats]) -> None:
    worth, had = np.array(speeds), np.array(shares)
    got = trade_all(had, worth, np.full((4, 4), np.inf), [0, 1, 2])
    assert ((worth * got).sum(axis=0) >= (worth * had).sum(axis=0) - 1e-6).all()
    assert got.sum(axis=1) == pytest.approx(had.sum(axis=1), abs=1e-6)


def test_who_has_a_job_that_cannot_run_on_a_type_does_not_trade_it() -> None:
    """Of the first user one job needs the fast type, so that it must keep what it has of it."""
    speeds = np.array([[2.0, 2.0, 10.0], [1.0, 0.0, 1.0]])
    worth = worth_of(speeds, np.array([1, 3, 2]), np.array([0, 0, 1]), 2)
    assert worth.tolist() == [[1.0, 1.0], [0.0, 0.1]]
    shares = np.array([[2.0, 2.0], [2.0, 2.0]])
    assert trade_all(shares, worth, np.full((3, 2), np.inf), [0, 1]).tolist() == shares.tolist()


def test_the_worth_of_a_type_is_weighted_by_gangs() -> None:
    worth = worth_of(np.array([[4.0, 2.0], [1.0, 1.0]]), np.array([1, 3]), np.array([0, 0]), 1)
    assert worth[:, 0].tolist() == pytest.approx([1.0, (0.25 + 3 * 0.5) / 4])
