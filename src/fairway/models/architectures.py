"""The tensors of well-known networks, counted from their published architectures.

Each function lists the shapes of a network, layer by layer, so the sizes follow from a few widths and depths instead of
being copied from a file. The totals are those of the usual implementations; a test compares them with the published
numbers of parameters and with the built-in profile's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

Layers: TypeAlias = Iterator[tuple[str, int]]
"""Tensors as (name, number of elements)."""


def _conv(name: str, inputs: int, outputs: int, height: int, width: int = 0, *, bias: bool = True) -> Layers:
    """A convolution with a kernel of height × width (square if no width is given)."""
    yield f"{name}.weight", inputs * outputs * height * (width or height)
    if bias:
        yield f"{name}.bias", outputs


def _normed(name: str, inputs: int, outputs: int, height: int, width: int = 0) -> Layers:
    """A convolution without bias and the batch norm behind it."""
    yield from _conv(name, inputs, outputs, height, width, bias=False)
    yield f"{name}.norm.weight", outputs
    yield f"{name}.norm.bias", outputs


def _dense(name: str, inputs: int, outputs: int) -> Layers:
    yield f"{name}.weight", inputs * outputs
    yield f"{name}.bias", outputs


def _norm(name: str, width: int) -> Layers:
    yield f"{name}.weight", width
    yield f"{name}.bias", width


def _recurrent(name: str, gates: int, inputs: int, width: int) -> Layers:
    """An LSTM (four gates) or GRU (three) in one direction: its gates are stacked into one tensor each way."""
    yield f"{name}.input.weight", gates * width * inputs
    yield f"{name}.hidden.weight", gates * width * width
    for bias in range(2):
        yield f"{name}.bias{bias}", gates * width


def _chain(name: str, widths: tuple[int, ...], *kernels: tuple[int, int]) -> Layers:
    """Convolutions with batch norm one behind the other; `kernels` has one entry per step between the widths."""
    for at, (height, width) in enumerate(kernels):
        yield from _normed(f"{name}.{at}", widths[at], widths[at + 1], height, width)


_ONE, _THREE, _FIVE, _WIDE, _TALL = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)


def _vgg(depths: tuple[int, ...]) -> Layers:
    """Simonyan and Zisserman, ICLR 2015: five stages of 3×3 convolutions, then three dense layers on 7×7×512."""
    inputs = 3
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), 1):
        for layer in range(depth):
            yield from _conv(f"conv{stage}_{layer + 1}", inputs, width, 3)
            inputs = width
    yield from _classifier(7 * 7 * 512)


def _alexnet() -> Layers:
    """Krizhevsky, 2014: the one-tower version."""
    sizes = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
    for layer, (inputs, outputs, kernel) in enumerate(sizes, 1):
        yield from _conv(f"conv{layer}", inputs, outputs, kernel)
    yield from _classifier(6 * 6 * 256)


def _classifier(inputs: int) -> Layers:
    """The three dense layers on top of AlexNet and VGG; the first holds most of the network."""
    for name, width, outputs in (("fc6", inputs, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000)):
        yield from _dense(name, width, outputs)


def _resnet(depths: tuple[int, ...]) -> Layers:
    """He et al., CVPR 2016: four stages of bottleneck blocks, for ImageNet."""
    yield from _normed("stem", 3, 64, 7)
    inputs = 64
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), 1):
        for block in range(depth):
            name = f"stage{stage}.{block}"
            if block == 0:
                yield from _normed(f"{name}.shortcut", inputs, 4 * width, 1)
            yield from _chain(name, (inputs, width, width, 4 * width), _ONE, _THREE, _ONE)
            inputs = 4 * width
    yield from _dense("fc", inputs, 1000)


def _resnet18() -> Layers:
    """He et al., CVPR 2016: basic blocks, at 32×32 for CIFAR-10."""
    yield from _normed("stem", 3, 64, 3)
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"stage{stage}.{block}"
            if inputs != width:
                yield from _normed(f"{name}.shortcut", inputs, width, 1)
            yield from _chain(name, (inputs, width, width), _THREE, _THREE)
            inputs = width
    yield from _dense("fc", inputs, 10)


def _inception3() -> Layers:
    """Szegedy et al., CVPR 2016, without the auxiliary classifier."""
    yield from _chain("stem", (3, 32, 32, 64, 80, 192), _THREE, _THREE, _THREE, _ONE, _THREE)
    for block, (inputs, pooled) in enumerate(((192, 32), (256, 64), (288, 64))):
        yield from _chain(f"a{block}.1", (inputs, 64), _ONE)
        yield from _chain(f"a{block}.5", (inputs, 48, 64), _ONE, _FIVE)
        yield from _chain(f"a{block}.3", (inputs, 64, 96, 96), _ONE, _THREE, _THREE)
        yield from _chain(f"a{block}.pool", (inputs, pooled), _ONE)
    yield from _chain("b.3", (288, 384), _THREE)
    yield from _chain("b.33", (288, 64, 96, 96), _ONE, _THREE, _THREE)
    for block, width in enumerate((128, 160, 160, 192)):
        yield from _chain(f"c{block}.1", (768, 192), _ONE)
        yield from _chain(f"c{block}.7", (768, width, width, 192), _ONE, _WIDE, _TALL)
        yield from _chain(f"c{block}.77", (768, *[width] * 4, 192), _ONE, _TALL, _WIDE, _TALL, _WIDE)
        yield from _chain(f"c{block}.pool", (768, 192), _ONE)
    yield from _chain("d.3", (768, 192, 320), _ONE, _THREE)
    yield from _chain("d.7", (768, 192, 192, 192, 192), _ONE, _WIDE, _TALL, _THREE)
    for block, inputs in enumerate((1280, 2048)):
        yield from _chain(f"e{block}.1", (inputs, 320), _ONE)
        yield from _chain(f"e{block}.3", (inputs, 384), _ONE)
        yield from _chain(f"e{block}.33", (inputs, 448, 384), _ONE, _THREE)
        for branch in ("3", "33"):
            yield from _normed(f"e{block}.{branch}.wide", 384, 384, 1, 3)
            yield from _normed(f"e{block}.{branch}.tall", 384, 384, 3, 1)
        yield from _chain(f"e{block}.pool", (inputs, 192), _ONE)
    yield from _dense("fc", 2048, 1000)


def _inception4() -> Layers:
    """Szegedy et al., AAAI 2017."""
    yield from _chain("stem", (3, 32, 32, 64), _THREE, _THREE, _THREE)
    yield from _chain("stem.a", (64, 96), _THREE)
    yield from _chain("stem.b", (160, 64, 96), _ONE, _THREE)
    yield from _chain("stem.c", (160, 64, 64, 64, 96), _ONE, _WIDE, _TALL, _THREE)
    yield from _chain("stem.d", (192, 192), _THREE)
    for block in range(4):
        yield from _chain(f"a{block}.1", (384, 96), _ONE)
        yield from _chain(f"a{block}.3", (384, 64, 96), _ONE, _THREE)
        yield from _chain(f"a{block}.33", (384, 64, 96, 96), _ONE, _THREE, _THREE)
        yield from _chain(f"a{block}.pool", (384, 96), _ONE)
    yield from _chain("reduce_a.3", (384, 384), _THREE)
    yield from _chain("reduce_a.33", (384, 192, 224, 256), _ONE, _THREE, _THREE)
    for block in range(7):
        yield from _chain(f"b{block}.1", (1024, 384), _ONE)
        yield from _chain(f"b{block}.7", (1024, 192, 224, 256), _ONE, _WIDE, _TALL)
        yield from _chain(f"b{block}.77", (1024, 192, 192, 224, 224, 256), _ONE, _TALL, _WIDE, _TALL, _WIDE)
        yield from _chain(f"b{block}.pool", (1024, 128), _ONE)
    yield from _chain("reduce_b.3", (1024, 192, 192), _ONE, _THREE)
    yield from _chain("reduce_b.7", (1024, 256, 256, 320, 320), _ONE, _WIDE, _TALL, _THREE)
    for block in range(3):
        yield from _chain(f"c{block}.1", (1536, 256), _ONE)
        yield from _chain(f"c{block}.3", (1536, 384), _ONE)
        yield from _chain(f"c{block}.33", (1536, 384, 448, 512), _ONE, (3, 1), (1, 3))
        for branch, inputs in (("3", 384), ("33", 512)):
            yield from _normed(f"c{block}.{branch}.wide", inputs, 256, 1, 3)
            yield from _normed(f"c{block}.{branch}.tall", inputs, 256, 3, 1)
        yield from _chain(f"c{block}.pool", (1536, 256), _ONE)
    yield from _dense("fc", 1536, 1000)


def _lstm() -> Layers:
    """A two-layer word language model of width 200 on Wikitext-2, with separate tensors for words in and out."""
    words, width = 33_278, 200
    yield "embedding.weight", words * width
    for layer in range(2):
        yield from _recurrent(f"lstm{layer}", 4, width, width)
    yield from _dense("decoder", width, words)


def _transformer() -> Layers:
    """Vaswani et al., NeurIPS 2017: the base size, with one vocabulary of 9,500 words for both sides."""
    width, inner = 512, 2048
    yield "embedding.weight", 9_500 * width
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        for layer in range(6):
            name = f"{side}.{layer}"
            for attention in range(attentions):
                yield from _attention(f"{name}.attention{attention}", width)
            yield from _dense(f"{name}.inner", width, inner)
            yield from _dense(f"{name}.outer", inner, width)
            yield from _norm(f"{name}.norm", width)


def _attention(name: str, width: int) -> Layers:
    for part in ("query", "key", "value", "output"):
        yield from _dense(f"{name}.{part}", width, width)
    yield from _norm(f"{name}.norm", width)


def _bert() -> Layers:
    """Devlin et al., NAACL 2019: the base size, uncased, with its pooler."""
    width, inner = 768, 3072
    for name, count in (("words", 30_522), ("positions", 512), ("segments", 2)):
        yield f"embedding.{name}.weight", count * width
    yield from _norm("embedding.norm", width)
    for layer in range(12):
        yield from _attention(f"layer{layer}.attention", width)
        yield from _dense(f"layer{layer}.inner", width, inner)
        yield from _dense(f"layer{layer}.outer", inner, width)
        yield from _norm(f"layer{layer}.norm", width)
    yield from _dense("pooler", width, width)


def _recommendation() -> Layers:
    """An autoencoder with 200 hidden units over the 20,000 films of ML-20M."""
    yield from _dense("encoder", 20_000, 200)
    yield from _dense("decoder", 200, 20_000)


def _deep_speech2() -> Layers:
    """Amodei et al., ICML 2016: two convolutions and five bidirectional GRU layers of width 800, summed."""
    width = 800
    yield from _conv("conv1", 1, 32, 41, 11)
    yield from _conv("conv2", 32, 32, 21, 11)
    inputs = 32 * 41
    for layer in range(5):
        for direction in ("forward", "backward"):
            yield from _recurrent(f"gru{layer}.{direction}", 3, inputs, width)
        inputs = width
    yield from _dense("fc", width, 29)


def _yolov3() -> Layers:
    """Redmon and Farhadi, 2018: Darknet-53 and three detection heads of 255 channels."""
    yield from _normed("stem", 3, 32, 3)
    for stage, (width, blocks) in enumerate(((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))):
        yield from _normed(f"stage{stage}.down", width // 2, width, 3)
        for block in range(blocks):
            yield from _chain(f"stage{stage}.{block}", (width, width // 2, width), _ONE, _THREE)
    for head, (inputs, width) in enumerate(((1024, 512), (768, 256), (384, 128))):
        widths = (inputs, width, 2 * width, width, 2 * width, width, 2 * width)
        yield from _chain(f"head{head}", widths, *(_ONE, _THREE) * 3)
        yield from _conv(f"head{head}.out", 2 * width, 255, 1)
        if head < 2:
            yield from _normed(f"head{head}.route", width, width // 2, 1)


def _a3c() -> Layers:
    """Mnih et al., ICML 2016, with four small convolutions and an LSTM of width 256, as in its common code."""
    for layer in range(4):
        yield from _conv(f"conv{layer}", 32 if layer else 1, 32, 3)
    yield from _recurrent("lstm", 4, 288, 256)
    yield from _dense("actor", 256, 6)
    yield from _dense("critic", 256, 1)


def _cyclegan() -> Layers:
    """Zhu et al., ICCV 2017: two generators with nine residual blocks, two 70×70 discriminators."""
    for side in ("a", "b"):
        name = f"generator_{side}"
        for layer, (inputs, outputs, kernel) in enumerate(((3, 64, 7), (64, 128, 3), (128, 256, 3))):
            yield from _conv(f"{name}.in{layer}", inputs, outputs, kernel)
        for layer in range(18):
            yield from _conv(f"{name}.residual{layer}", 256, 256, 3)
        for layer, (inputs, outputs, kernel) in enumerate(((256, 128, 3), (128, 64, 3), (64, 3, 7))):
            yield from _conv(f"{name}.out{layer}", inputs, outputs, kernel)
        for layer, (inputs, outputs) in enumerate(((3, 64), (64, 128), (128, 256), (256, 512), (512, 1))):
            yield from _conv(f"discriminator_{side}.{layer}", inputs, outputs, 4)


ARCHITECTURES: dict[str, Callable[[], Layers]] = {
    "VGG11": lambda: _vgg((1, 1, 2, 2, 2)),
    "VGG16": lambda: _vgg((2, 2, 3, 3, 3)),
    "VGG19": lambda: _vgg((2, 2, 4, 4, 4)),
    "AlexNet": _alexnet,
    "ResNet-18": _resnet18,
    "ResNet-50": lambda: _resnet((3, 4, 6, 3)),
    "ResNet-101": lambda: _resnet((3, 4, 23, 3)),
    "ResNet-152": lambda: _resnet((3, 8, 36, 3)),
    "Inception3": _inception3,
    "Inception4": _inception4,
    "LSTM": _lstm,
    "Transformer": _transformer,
    "BERT-base": _bert,
    "Recommendation": _recommendation,
    "DeepSpeech2": _deep_speech2,
    "YOLOv3": _yolov3,
    "A3C": _a3c,
    "CycleGAN": _cyclegan,
}
"""The tensors of each network that Fairway knows, by name."""
