from __future__ import annotations

import pytest

from fairway.core.errors import InputError
from fairway.models.names import ModelNames, gpu_spellings

NAMES = ModelNames(["ResNet-18", "LM", "Recommendation"])


@pytest.mark.parametrize("spelling", ["ResNet-18", "resnet18", "RESNET_18", "ResNet 18"])
def test_a_name_is_found_under_any_spelling(spelling: str) -> None:
    assert NAMES.require(spelling) == "ResNet-18"


@pytest.mark.parametrize(("other", "own"), [("LSTM", "LM"), ("lstm", "LM"), ("Autoencoder", "Recommendation")])
def test_a_second_name_finds_the_same_model(other: str, own: str) -> None:
    assert NAMES.find(other) == own


def test_a_profile_that_has_both_names_keeps_them_apart() -> None:
    both = ModelNames(["LM", "LSTM"])
    assert both.find("lm") == "LM"
    assert both.find("lstm") == "LSTM"


@pytest.mark.parametrize("name", ["gpt2", "ResNet-34", "", "--"])
def test_an_unknown_model_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match="known: ResNet-18, LM, Recommendation") as caught:
        NAMES.require(name, "rates.json")
    assert str(caught.value).startswith(f"rates.json: unknown model {name!r}")


def test_a_gpu_goes_by_its_own_name_first_and_by_that_of_the_catalogue_second() -> None:
    assert gpu_spellings("V100") == ("v100",)
    assert gpu_spellings("azure") == ("azure", "v100")
    assert gpu_spellings("tpu") == ("tpu",)
