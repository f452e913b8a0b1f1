from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.core.hardware import ALIASES, CATALOGUE
from fairway.models.builtin import PAIR_SHARE_MAX, BuiltinProfile, memory_bytes
from fairway.models.figures import FIGURES
from fairway.models.profile import ProfileKey, load_profile

PROFILE = BuiltinProfile()
LADDER = ("k80", "p100", "v100", "a100", "h100", "h200")

models = st.sampled_from(sorted(FIGURES))
gpu_types = st.sampled_from(sorted([*CATALOGUE, *ALIASES]))
batches = st.integers(1, 16_384)
gangs = st.integers(1, 512)


def fits(model: str, batch: int, gpu_type: str) -> bool:
    return memory_bytes(model, batch) <= CATALOGUE[ALIASES.get(gpu_type, gpu_type)].memory_bytes


@given(models, batches, gpu_types, gangs, st.booleans())
def test_a_rate_is_positive_exactly_where_the_job_fits_in_memory(
    model: str, batch: int, gpu_type: str, gpus: int, spread: bool
) -> None:
    rate = PROFILE.rate(model, batch, gpu_type, gpus, spread=spread)
    assert math.isfinite(rate)
    assert (rate > 0) == fits(model, batch, gpu_type)


@given(models, batches, gangs, st.booleans())
def test_a_faster_gpu_is_never_slower(model: str, batch: int, gpus: int, spread: bool) -> None:
    rates = [PROFILE.rate(model, batch, gpu, gpus, spread=spread) for gpu in LADDER]
    assert rates == sorted(rates)


@pytest.mark.parametrize("model", FIGURES)
def test_the_generations_of_gpus_are_in_order(model: str) -> None:
    rates = [PROFILE.rate(model, None, gpu, 1) for gpu in LADDER]
    assert all(slow < fast for slow, fast in itertools.pairwise(rates))


@given(models, batches, gpu_types, gangs)
def test_a_larger_gang_is_faster_but_less_than_in_proportion(model: str, batch: int, gpu_type: str, gpus: int) -> None:
    assume(fits(model, batch, gpu_type))
    small, large = (PROFILE.rate(model, batch, gpu_type, n) for n in (gpus, gpus + 1))
    assert small < large < small * (gpus + 1) / gpus


@given(models, batches, gpu_types, st.integers(2, 512))
def test_a_larger_spread_gang_is_faster_than_a_smaller_spread_gang(
    model: str, batch: int, gpu_type: str, gpus: int
) -> None:
    assume(fits(model, batch, gpu_type))
    assert PROFILE.rate(model, batch, gpu_type, gpus, spread=True) < PROFILE.rate(
        model, batch, gpu_type, gpus + 1, spread=True
    )


@given(models, batches, gpu_types, st.integers(1, 100_000))
def test_spreading_never_helps(model: str, batch: int, gpu_type: str, gpus: int) -> None:
    assert PROFILE.rate(model, batch, gpu_type, gpus, spread=True) <= PROFILE.rate(model, batch, gpu_type, gpus)


@given(models, st.integers(1, 4096), gpu_types, gangs)
def test_a_larger_batch_gives_more_samples_per_second(model: str, batch: int, gpu_type: str, gpus: int) -> None:
    assume(fits(model, batch + 1, gpu_type))
    small, large = (PROFILE.rate(model, size, gpu_type, gpus) * size for size in (batch, batch + 1))
    assert large > small * (1 - 1e-12)


@given(models, batches)
def test_memory_grows_with_the_batch(model: str, batch: int) -> None:
    assert 0 < memory_bytes(model, batch) < memory_bytes(model, batch + 1)


keys = st.builds(ProfileKey, models, st.integers(1, 1024), st.sampled_from([1, 1, 2, 4]))


@given(keys, keys, gpu_types)
def test_pairs_are_symmetric_and_share_between_one_and_one_point_six(
    a: ProfileKey, b: ProfileKey, gpu_type: str
) -> None:
    pair, mirrored = PROFILE.pair_rates(a, b, gpu_type), PROFILE.pair_rates(b, a, gpu_type)
    assert pair == (mirrored if mirrored is None else mirrored[::-1])
    memory = memory_bytes(*a[:2]) + memory_bytes(*b[:2])
    together = memory <= CATALOGUE[ALIASES.get(gpu_type, gpu_type)].memory_bytes and a.gpus == b.gpus
    assert (pair is not None) == together
    if pair is not None:
        shares = [
            rate / PROFILE.rate(k.model, k.batch_size, gpu_type, k.gpus) for rate, k in zip(pair, (a, b), strict=True)
        ]
        assert 1.0 - 1e-9 <= sum(shares) <= 2 * PAIR_SHARE_MAX + 1e-9
        assert all(0.5 - 1e-9 <= share <= PAIR_SHARE_MAX + 1e-9 for share in shares)


def test_the_profile_is_what_you_get_without_a_file() -> None:
    profile = load_profile(None)
    assert profile.name == "built-in estimates"
    assert profile.models == tuple(FIGURES)


def test_the_usual_batch_size_stands_in_for_a_missing_one() -> None:
    assert PROFILE.rate("BERT", None, "a100", 4) == PROFILE.rate("BERT-base", 12, "A100", 4) > 0
    assert memory_bytes("bert", None) == memory_bytes("BERT-base", 12)


def test_second_names_are_the_same_model() -> None:
    assert PROFILE.rate("LM", 20, "v100", 1) == PROFILE.rate("lstm", 20, "v100", 1)
    assert PROFILE.rate("autoencoder", 512, "v100", 1) == PROFILE.rate("Recommendation", 512, "v100", 1)


def test_resnet50_at_128_fits_a_v100_and_not_a_k80() -> None:
    assert PROFILE.rate("ResNet-50", 128, "k80", 1) == 0.0
    assert PROFILE.rate("ResNet-50", 128, "v100", 1) > 0


def test_a_pair_of_unknown_things_has_no_rates() -> None:
    lm = ProfileKey("LM", 20, 1)
    assert PROFILE.pair_rates(lm, ProfileKey("", None, 1), "v100") is None
    assert PROFILE.pair_rates(lm, lm, "tpu") is None
    assert PROFILE.pair_rates(ProfileKey("LM", 20, 0), ProfileKey("LM", 20, 0), "v100") is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("gpt2", 1, "v100", 1), "unknown model 'gpt2'; known: ResNet-18, ResNet-50, LSTM"),
        (("vgg16", 1, "v100", 1), "unknown model 'vgg16'"),
        (("LM", 20, "tpu", 1), "unknown GPU type 'tpu'; known: k80, m60, p100"),
        (("LM", 0, "v100", 1), "model 'LSTM': batch size 0 is not at least 1"),
        (("LM", 20, "v100", 0), "a gang needs at least 1 GPU, not 0"),
    ],
)
def test_a_wrong_question_is_one_clear_line(asked: tuple[str, int | None, str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PROFILE.rate(*asked)
    assert str(caught.value).startswith(message)
