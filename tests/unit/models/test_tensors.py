"""Tensor sizes: the table adds up to what is published, any model can be read, and skew is what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.models.figures import FIGURES
from fairway.models.tensors import SKEW_LIMIT, Tensor, TensorProfile, known_models, known_tensors, tensor_profile

MIB = 2**20
# Parameters of the reference implementations, as published with them.
PUBLISHED = {
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "alexnet": 61_100_840,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "inception3": 23_834_568,
    "inception4": 42_679_816,
    "BERT-base": 109_482_240,
}


class Parameter:
    """As much of a PyTorch parameter as is needed."""

    def __init__(self, *shape: int, size: int = 4, requires_grad: bool = True) -> None:
        self.shape = shape
        self.size = size
        self.requires_grad = requires_grad

    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def element_size(self) -> int:
        return self.size


class Module:
    """A model that lists its parameters by name."""

    def __init__(self, **parameters: object) -> None:
        self._parameters = parameters

    def named_parameters(self) -> Iterator[tuple[str, object]]:
        return iter(self._parameters.items())


class Nameless:
    """A model that lists its parameters without names."""

    def parameters(self) -> list[Parameter]:
        return [Parameter(3), Parameter(5)]


def profile(*sizes: int) -> TensorProfile:
    return TensorProfile(tuple(Tensor(str(at), size) for at, size in enumerate(sizes)))


@pytest.mark.parametrize(("model", "parameters"), PUBLISHED.items())
def test_the_table_adds_up_to_the_published_number_of_parameters(model: str, parameters: int) -> None:
    known = known_tensors(model)
    assert known is not None
    assert known.total_bytes == 4 * parameters


@pytest.mark.parametrize("model", FIGURES)
def test_the_table_agrees_with_the_profile_on_every_model(model: str) -> None:
    known = known_tensors(model)
    assert known is not None
    assert known.total_bytes / 4 == pytest.approx(FIGURES[model].parameters, rel=0.02)


@pytest.mark.parametrize(("model", "mib"), [("vgg11", 392), ("vgg16", 392), ("vgg19", 392), ("alexnet", 144)])
def test_one_dense_layer_holds_most_of_a_skewed_network(model: str, mib: int) -> None:
    known = known_tensors(model)
    assert known is not None
    assert known.largest(1) == (Tensor("fc6.weight", mib * MIB),)
    assert known.skew > 0.6


def test_the_limit_keeps_vgg_and_alexnet_together_but_not_resnet_and_inception() -> None:
    verdicts = {name: tensors.skew > SKEW_LIMIT for name in known_models() if (tensors := known_tensors(name))}
    together = {name for name, skewed in verdicts.items() if skewed}
    assert {"VGG11", "VGG16", "VGG19", "AlexNet"} <= together
    assert not any(name.startswith(("ResNet", "Inception")) for name in together)


def test_no_model_of_the_table_is_near_the_limit() -> None:
    skews = [tensors.skew for name in known_models() if (tensors := known_tensors(name))]
    assert all(abs(skew - SKEW_LIMIT) > 0.03 for skew in skews)
    assert not any(0.22 < skew < 0.47 for skew in skews)


@pytest.mark.parametrize("name", ["VGG-16", "vgg16", "InceptionV3", "inception_v4", "LM", "BERT"])
def test_models_are_found_under_other_spellings(name: str) -> None:
    assert known_tensors(name) is not None


def test_an_unknown_model_has_no_tensors() -> None:
    assert known_tensors("gpt-17") is None
    assert known_tensors("") is None


def test_skew_is_the_share_of_the_largest_tensor() -> None:
    assert profile(10).skew == 1.0
    assert profile(1, 3, 4).skew == 0.5


def test_the_busiest_server_carries_the_largest_tensor() -> None:
    # 6 alone on one of three servers, 3 and 2+1 on the others: 6 over a mean of 4.
    assert profile(1, 2, 3, 6).imbalance(3) == pytest.approx(1.5)
    assert profile(1, 2, 3, 6).imbalance(1) == 1.0
    assert profile(2, 2, 2, 2).imbalance(4) == 1.0


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=30), st.integers(1, 40))
def test_imbalance_lies_between_its_bounds(sizes: list[int], servers: int) -> None:
    tensors = profile(*sizes)
    imbalance = tensors.imbalance(servers)
    assert max(1.0, servers * tensors.skew) <= imbalance + 1e-9
    # Dealing out the largest first never leaves a server more than one tensor above the mean.
    assert imbalance <= 1.0 + servers * tensors.skew + 1e-9


def test_no_server_is_an_error() -> None:
    with pytest.raises(InputError, match="at least 1 server"):
        profile(1).imbalance(0)


def test_a_module_is_read_by_its_named_parameters() -> None:
    tensors = tensor_profile(Module(small=Parameter(10), large=Parameter(30, 2, size=2)))
    assert tensors.tensors == (Tensor("small", 40), Tensor("large", 120))
    assert tensors.skew == 0.75


def test_parameters_without_names_are_numbered() -> None:
    assert tensor_profile(Nameless()).tensors == (Tensor("0", 12), Tensor("1", 20))


def test_frozen_parameters_do_not_count_and_tied_ones_count_once() -> None:
    tied = Parameter(7)
    module = Module(words=tied, decoder=tied, backbone=Parameter(1000, requires_grad=False))
    assert tensor_profile(module).tensors == (Tensor("words", 28),)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (object(), r"a object has no parameters\(\)"),
        (Module(), "no parameters"),
        (Module(a=Parameter(0)), "no parameters"),
        (Module(a=Parameter(5, requires_grad=False)), "no parameters"),
        (Module(a="text"), "'a' is a str without numel"),
    ],
)
def test_what_has_no_tensors_is_one_clear_line(module: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tensor_profile(module)


def test_a_real_pytorch_module_is_read() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(100, 10), torch.nn.Linear(10, 10).half())
    tensors = tensor_profile(layers)
    assert tensors.tensors == (
        Tensor("0.weight", 4000),
        Tensor("0.bias", 40),
        Tensor("1.weight", 200),
        Tensor("1.bias", 20),
    )
    assert tensors.skew == pytest.approx(4000 / 4260)


@pytest.mark.parametrize("name", ["vgg11", "vgg16", "vgg19", "alexnet", "resnet50", "resnet101", "resnet152"])
def test_the_table_holds_the_tensors_of_the_usual_implementation(name: str) -> None:
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("torchvision.models")
    known = known_tensors(name)
    assert known is not None
    with torch.device("meta"):
        real = tensor_profile(getattr(models, name)())
    assert sorted(size for _, size in real.tensors) == sorted(size for _, size in known.tensors)
