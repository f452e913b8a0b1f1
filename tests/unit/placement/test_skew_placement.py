"""Skew-aware placement: gangs of skewed models wait for a place together, the others take what there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.core.job import Workload
from fairway.core.occupancy import Occupancy
from fairway.placement import placement
from fairway.placement.skew import Fragments, Skew
from fairway.simulator.faults import Faults
from fairway.simulator.run import simulate
from fairway.testing import cluster, job, snapshot_of
from fairway.testing.strategies import clusters


def _busy(spec: str, *taken: int) -> Occupancy:
    occupancy = Occupancy(cluster(spec))
    if taken:
        occupancy.take(taken)
    return occupancy


def _placed(
    occupancy: Occupancy, gpus: int, placer: Skew | None = None, now_s: float = 0.0, **about: object
) -> tuple[int, ...] | None:
    view = snapshot_of([job("it", gpus, **about)], occupancy.cluster, now_s=now_s)
    return (placer or Skew()).suited(view, 0).place(occupancy, gpus, 0)


def test_a_skewed_gang_waits_for_a_node_and_another_does_not() -> None:
    occupancy = _busy("v100:2x4", 0, 4)
    assert _placed(occupancy, 4, model="vgg16") is None
    assert _placed(occupancy, 4, model="ResNet-50") == (1, 2, 3, 5)
    assert _placed(occupancy, 3, model="vgg16") == (1, 2, 3)


def test_a_gang_larger_than_a_node_waits_for_whole_nodes() -> None:
    assert _placed(_busy("v100:3x4", 0), 8, model="AlexNet") == (4, 5, 6, 7, 8, 9, 10, 11)
    assert _placed(_busy("v100:3x4", 0, 4), 8, model="AlexNet") is None
    assert _placed(_busy("v100:3x4", 0, 4), 6, model="AlexNet") == (8, 9, 10, 11, 1, 2)


def test_nodes_that_are_down_are_not_waited_for() -> None:
    """Without its large node the cluster has three nodes of two: four GPUs need two of them."""
    occupancy = _busy("v100:1x8,v100:3x2")
    occupancy.lose(0)
    gpus = _placed(occupancy, 4, model="vgg16")
    assert gpus is not None
    assert len({occupancy.node_of_gpu[gpu] for gpu in gpus}) == 2


def test_patience_ends_and_then_the_fewest_nodes_must_do() -> None:
    occupancy = _busy("v100:4x4", 0, 4, 8, 9, 12, 13, 14)
    placer = Skew(patience_s=100.0)
    assert _placed(occupancy, 4, placer, now_s=99.0, model="AlexNet") is None
    gpus = _placed(occupancy, 4, placer, now_s=100.0, model="AlexNet")
    assert gpus is not None
    assert len({occupancy.node_of_gpu[gpu] for gpu in gpus}) == 2


def test_a_running_job_is_not_stopped_for_want_of_a_better_place() -> None:
    occupancy = _busy("v100:2x4", 0, 4)
    grows = job("grows", 4, model="vgg16", gpus_min=2, gpus_max=4)
    view = snapshot_of([grows], occupancy.cluster, running={"grows": (1, 2)})
    assert Skew().suited(view, 0).place(occupancy, 4, 0) == (1, 2, 3, 5)


def test_what_the_owner_says_goes_before_the_table() -> None:
    occupancy = _busy("v100:2x4", 0, 4)
    assert _placed(occupancy, 4, model="vgg16", skew=0.1) == (1, 2, 3, 5)
    assert _placed(occupancy, 4, model="ResNet-50", skew=0.9) is None


def test_an_unknown_model_is_packed_without_waiting() -> None:
    assert _placed(_busy("v100:2x4", 0, 1), 3) == (4, 5, 6)
    assert _placed(_busy("v100:2x4", 0, 4), 4, model="mystery") == (1, 2, 3, 5)


def test_skew_at_the_threshold_is_not_above_it() -> None:
    occupancy = _busy("v100:2x4", 0, 4)
    assert _placed(occupancy, 4, Skew(0.4), skew=0.4) is not None
    assert _placed(occupancy, 4, Skew(0.4), skew=0.41) is None


def test_fragments_leave_whole_nodes_whole() -> None:
    occupancy, placer = _busy("v100:3x4", 0, 1, 2, 4, 5), Skew(others="fragments")
    assert _placed(occupancy, 3, placer, model="ResNet-50") == (3, 6, 7)
    assert _placed(occupancy, 4, placer, model="ResNet-50") == (3, 6, 7, 8)
    assert _placed(occupancy, 4, placer, model="vgg16") == (8, 9, 10, 11)


def test_knobs_are_read_from_the_name() -> None:
    assert placement("skew") == Skew(0.25, 86_400.0, "packed")
    assert placement("skew:threshold=0.8,patience_s=60,others=fragments") == Skew(0.8, 60.0, "fragments")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("skew:threshold=2", "threshold must be from 0 to 1, not 2"),
        ("skew:threshold=nan", "threshold must be from 0 to 1"),
        ("skew:threshold=x", "threshold must be a number, not 'x'"),
        ("skew:patience_s=-1", "patience_s must be at least 0"),
        ("skew:others=none", "others must be one of packed, fragments"),
        ("skew:limit=1", "no knob 'limit'; its knobs: threshold, patience_s, others"),
        ("skew:threshold=0,threshold=1", "given twice"),
        ("packed:x=1", "'packed' has no knobs"),
    ],
)
def test_a_wrong_knob_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        placement(text)


@given(where=clusters(), data=st.data())
def test_fragments_never_touch_an_emptier_node_while_a_fuller_one_has_room(where: object, data: st.DataObject) -> None:
    occupancy = Occupancy(where)  # type: ignore[arg-type]
    taken = data.draw(st.lists(st.integers(0, occupancy.cluster.gpu_count - 1), unique=True))
    if taken:
        occupancy.take(tuple(taken))
    free = [mask.bit_count() for mask in occupancy.free_mask]
    gpus = Fragments().place(occupancy, data.draw(st.integers(1, 8)), 0)
    if gpus is None:
        return
    used = [sum(occupancy.node_of_gpu[gpu] == node for gpu in gpus) for node in range(len(free))]
    kinds = occupancy.cluster.node_type
    for node, count in enumerate(used):
        left_over = [n for n in range(len(free)) if kinds[n] == 0 and used[n] < free[n] and free[n] < free[node]]
        assert not (count and left_over)


def test_waiting_for_a_place_together_pays_for_a_skewed_gang() -> None:
    """Three nodes have one GPU left each for a minute: two of them are enough for the ResNet, the VGG waits."""
    ends: dict[tuple[str, str], float] = {}
    for model in ("VGG19", "ResNet-50"):
        jobs = [
            *(job(f"filler{n}", 3, 60.0) for n in range(3)),
            job("it", 2, steps=10_000, model=model, submitted_s=1.0),
        ]
        for name in ("packed", "skew"):
            result = simulate(Workload.of(jobs), cluster="v100:3x4", placement=name, policy="backfill")
            ends[model, name] = float(result.finished_s[3])
            assert result.started_s[3] == (60.0 if (model, name) == ("VGG19", "skew") else 1.0)
    assert ends["VGG19", "skew"] < 0.8 * ends["VGG19", "packed"]
    assert ends["ResNet-50", "skew"] == ends["ResNet-50", "packed"]


@pytest.mark.parametrize("policy", ["fifo", "las:levels=300", "capacity"])
@pytest.mark.parametrize("knobs", ["", ":threshold=0", ":others=fragments"])
def test_every_job_ends_even_when_nodes_fail(policy: str, knobs: str) -> None:
    models = ["VGG19", "ResNet-50", "LSTM", ""]
    jobs = [
        job(
            f"j{n}",
            1 + n % 8,
            100.0 + 7 * n,
            submitted_s=20.0 * n,
            model=models[n % 4],
            skew=0.5 if n % 5 == 0 else None,
        )
        for n in range(60)
    ]
    faults = Faults(mtbf_s=5_000.0, repair_s=300.0, seed=1)
    result = simulate(
        Workload.of(jobs),
        cluster="v100:4x4",
        policy=policy,
        placement=f"skew{knobs}",
        faults=faults,
        skip_impossible=True,
    )
    assert result.finished == 60


def test_the_end_of_patience_wakes_the_scheduler() -> None:
    """Two jobs of three GPUs leave one free on each node; the gang of two waits for its patience and no longer."""
    jobs = [job("a", 3, 10_000.0), job("b", 3, 10_000.0), job("gang", 2, 100.0, submitted_s=10.0, model="vgg16")]
    result = simulate(Workload.of(jobs), cluster="v100:2x4", policy="fifo", placement="skew:patience_s=100")
    assert result.ledger.started_s.tolist() == pytest.approx([0.0, 0.0, 110.0], abs=1e-5)
