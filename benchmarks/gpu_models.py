"""The models of the benchmarks on a real GPU: eight trainings of Hare's table, small networks, and inference.

A training makes its next batch at the end of a step, as a data loader does, so the first kernel of a step is the
model's. Convolutional networks are torchvision's, BERT is that of transformers; the others are written here at the
sizes of their papers. DeepSpeech is trained frame by frame: the loss of whole transcripts (CTC) has no kernel that
repeats its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

Batch = tuple[Tensor, ...]
NAMES = ("VGG19", "ResNet50", "InceptionV3", "BERT-base", "Transformer", "DeepSpeech", "FastGCN", "GraphSAGE")
PUBLISHED_MS = {
    "VGG19": (4.01, 2.77),
    "ResNet50": (4.75, 2.04),
    "InceptionV3": (5.03, 2.46),
    "BERT-base": (12.57, 5.03),
    "Transformer": (10.34, 5.79),
    "DeepSpeech": (8.91, 4.27),
    "FastGCN": (2.86, 1.83),
    "GraphSAGE": (2.42, 0.96),
}
"""PipeSwitch and Hare, as Hare's poster has them."""


class Training:
    """A job that an executor can host: a model, its optimiser, and a step on random data."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        make_batch: Callable[[], Batch],
        loss: Callable[[nn.Module, Batch], Tensor],
        steps: int | None = None,
    ) -> None:
        self.model, self.optimizer, self.steps = model, optimizer, steps
        self._make_batch, self._loss = make_batch, loss
        self._batch = make_batch()

    def step(self) -> dict[str, Any]:
        """One iteration."""
        loss = self._loss(self.model, self._batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self._batch = self._make_batch()
        return {"loss": loss.detach()}


class Inference:
    """A model that answers requests. A step is one request."""

    def __init__(self, model: nn.Module, make_batch: Callable[[], Batch]) -> None:
        self.model, self._make_batch = model.eval().requires_grad_(False), make_batch
        self.optimizer, self.steps = None, None
        self._batch = make_batch()

    @torch.no_grad()
    def step(self) -> None:
        """Answer one request."""
        self.model(*self._batch[:-1])
        self._batch = self._make_batch()


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    *inputs, labels = batch
    found = model(*inputs)
    if hasattr(found, "aux_logits"):
        return F.cross_entropy(found.logits, labels) + 0.4 * F.cross_entropy(found.aux_logits, labels)
    found = getattr(found, "logits", found)
    return F.cross_entropy(found.flatten(0, -2), labels.flatten())


def _images(size: int, batch: int, classes: int, device: str) -> Callable[[], Batch]:
    def make() -> Batch:
        images = torch.randn(batch, 3, size, size, device=device)
        return images, torch.randint(classes, (batch,), device=device)

    return make


def _words(vocabulary: int, batch: int, length: int, classes: int, device: str) -> Callable[[], Batch]:
    def make() -> Batch:
        words = torch.randint(vocabulary, (batch, length), device=device)
        return words, torch.randint(classes, (batch,), device=device)

    return make


class Translation(nn.Module):
    """A Transformer of the base size for translation."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, heads, layers, layers, 4 * width, batch_first=True)
        self.project = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        found = self.transformer(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return self.project(found)


class Speech(nn.Module):
    """DeepSpeech 2: two convolutions over spectrograms, recurrent layers in both directions, letters for each frame."""

    def __init__(self, frequencies: int, channels: int, hidden: int, layers: int, letters: int = 29) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(channels), nn.ReLU()
        )
        width = channels * (((frequencies + 1) // 2 + 1) // 2)
        sizes = [width] + [2 * hidden] * (layers - 1)
        self.recurrent = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True, bidirectional=True) for size in sizes)
        self.letters = nn.Linear(2 * hidden, letters)

    def forward(self, spectrogram: Tensor) -> Tensor:
        found = self.second(self.first(spectrogram.unsqueeze(1)))
        found = found.flatten(1, 2).transpose(1, 2)
        for layer in self.recurrent:
            found = layer(found)[0]
        return self.letters(found)


class SampledGraph(nn.Module):
    """FastGCN: two layers, each over nodes that were sampled for the whole layer."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, features: Tensor, near: Tensor, far: Tensor) -> Tensor:
        found = F.dropout(F.relu(far @ self.first(features)), 0.5, self.training)
        return near @ self.second(found)


class Aggregated(nn.Module):
    """GraphSAGE: two layers, each the mean of sampled neighbours beside the node itself."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * features, hidden), nn.Linear(2 * hidden, hidden)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, nodes: Tensor, near: Tensor, far: Tensor) -> Tensor:
        around = F.relu(self.first(torch.cat([near, far.mean(2)], -1)))
        here = F.relu(self.first(torch.cat([nodes, near.mean(1)], -1)))
        return self.classes(F.relu(self.second(torch.cat([here, around.mean(1)], -1))))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def _convolutional(name: str, device: str, quick: bool, batch: int) -> tuple[nn.Module, Callable[[], Batch]]:
    if quick:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
        make = _images(8, 4, 10, device)
        model(torch.randn(4, 3, 8, 8))
        return model.to(device), make
    from torchvision import models

    size = 299 if name == "InceptionV3" else 224
    kinds = {"VGG19": models.vgg19, "ResNet50": models.resnet50, "InceptionV3": models.inception_v3}
    about = {"init_weights": False} if name == "InceptionV3" else {}
    return kinds[name](weights=None, **about).to(device), _images(size, batch, 1000, device)


def _bert(device: str, quick: bool, batch: int) -> tuple[nn.Module, Callable[[], Batch]]:
    if quick:
        model: nn.Module = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 2))
        return model.to(device), _words(50, 4, 6, 2, device)
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig()).to(device), _words(30_000, batch, 128, 2, device)


def _translation(device: str, quick: bool, batch: int) -> tuple[nn.Module, Callable[[], Batch]]:
    vocabulary, width, layers, heads, length = (50, 16, 1, 2, 5) if quick else (32_000, 512, 6, 8, 64)

    def make() -> Batch:
        pairs = torch.randint(vocabulary, (3, 4 if quick else batch, length), device=device)
        return pairs[0], pairs[1], pairs[2]

    return Translation(vocabulary, width, layers, heads).to(device), make


def _speech(device: str, quick: bool, batch: int) -> tuple[nn.Module, Callable[[], Batch]]:
    frequencies, frames, sizes = (16, 20, (2, 8, 2)) if quick else (161, 400, (32, 800, 5))
    model = Speech(frequencies, *sizes).to(device)

    def make() -> Batch:
        count = 4 if quick else batch
        sounds = torch.randn(count, frequencies, frames, device=device)
        return sounds, torch.randint(29, (count, frames // 2), device=device)

    return model, make


def _graph(name: str, device: str, quick: bool) -> tuple[nn.Module, Callable[[], Batch]]:
    features, hidden, classes, batch, fan = (6, 4, 3, 4, 3) if quick else (602, 128, 41, 512, 10)

    def fast() -> Batch:
        sampled = 100 * fan if not quick else 5
        near = torch.rand(batch, sampled, device=device) / sampled
        far = torch.rand(sampled, sampled, device=device) / sampled
        nodes = torch.randn(sampled, features, device=device)
        return nodes, near, far, torch.randint(classes, (batch,), device=device)

    def sage() -> Batch:
        nodes, near = torch.randn(batch, features, device=device), torch.randn(batch, fan, features, device=device)
        far = torch.randn(batch, fan, fan, features, device=device)
        return nodes, near, far, torch.randint(classes, (batch,), device=device)

    if name == "FastGCN":
        return SampledGraph(features, hidden, classes).to(device), fast
    return Aggregated(features, hidden, classes).to(device), sage


def made(name: str, device: str, *, quick: bool, batch: int = 32) -> tuple[nn.Module, Callable[[], Batch]]:
    """A model by its name, with what makes its batches."""
    if name in ("VGG19", "ResNet50", "InceptionV3"):
        return _convolutional(name, device, quick, batch)
    if name in ("FastGCN", "GraphSAGE"):
        return _graph(name, device, quick)
    makers = {"BERT-base": _bert, "Transformer": _translation, "DeepSpeech": _speech}
    return makers[name](device, quick, batch)


def training(name: str, device: str, *, quick: bool, steps: int | None = None, batch: int = 32) -> Training:
    """A training by the name of its model. Its weights and data come from the random numbers of this process."""
    model, make_batch = made(name, device, quick=quick, batch=batch)
    by_momentum = name in ("VGG19", "ResNet50", "InceptionV3")
    return Training(model, (_sgd if by_momentum else _adam)(model), make_batch, _cross_entropy, steps)


class SmallSearch:
    """One configuration of a hyper-parameter search: a small network on a data set that fits on the GPU.

    `graphed`: after a few steps its kernels are recorded once and replayed from then on, so that a step is one launch.
    """

    def __init__(self, width: int, rate: float, steps: int, graphed: bool, device: str) -> None:
        self.steps, self.movable = steps, False
        self._data = torch.randn(4096, 64, device=device)
        self._labels = torch.randint(10, (4096,), device=device)
        self._at = torch.zeros((), dtype=torch.long, device=device)
        self._rows = torch.arange(128, device=device)
        layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self._graph: Any = None
        self._graphed = graphed and device.startswith("cuda")
        self._made, self._loss = 0, torch.zeros((), device=device)

    def step(self) -> dict[str, Any] | None:
        """One iteration."""
        self._made += 1
        if self._graphed and self._made == 4:
            # Not `torch.cuda.graph`, which empties the caches of all jobs of this process.
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin()
            self._iterate()
            self._graph.capture_end()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._iterate()
        return {"loss": self._loss} if self._made == self.steps else None

    def _iterate(self) -> None:
        rows = (self._rows + self._at) % len(self._data)
        loss = F.cross_entropy(self.model(self._data[rows]), self._labels[rows])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self._at += len(self._rows)
        self._loss.copy_(loss.detach())


class Kept(nn.Module):
    """Memory that a job keeps."""

    def __init__(self, size: int, mark: int, device: str) -> None:
        super().__init__()
        self.register_buffer("content", torch.full((size,), mark, dtype=torch.uint8, device=device))

    def forward(self, mark: int) -> Tensor:
        """How many of some bytes are not what they should be. Looking at all of them would take memory."""
        return (self.content[:: 1 << 12] != mark).sum()


class Sized:
    """A job of a given size, without work: it fills memory in each step, and sees whether its own was touched."""

    def __init__(self, persistent_bytes: int, ephemeral_bytes: int, steps: int, device: str) -> None:
        self.steps, self._size, self._mark = steps, ephemeral_bytes, persistent_bytes % 251
        self.model = Kept(persistent_bytes, self._mark, device)
        self._wrong = torch.zeros((), dtype=torch.long, device=device)

    def step(self) -> dict[str, Any]:
        """Use memory."""
        used = torch.full((self._size,), self._mark, dtype=torch.uint8, device=self._wrong.device)
        self._wrong += self.model(self._mark) + (used[:: 1 << 12] != self._mark).sum()
        return {"wrong": self._wrong}


INFERENCE = (
    *("alexnet", "vgg11", "vgg16", "vgg19", "resnet18", "resnet50", "resnet101", "resnet152", "googlenet"),
    *("densenet121", "mobilenet_v2", "inception_v3", "BERT-base", "DeepSpeech"),
)
"""Fourteen models that answer requests."""


def inference(name: str, device: str, *, quick: bool) -> Inference:
    """A model that answers requests for one image, text or sound each."""
    if quick or name in NAMES:
        return Inference(*made(name if name in NAMES else "VGG19", device, quick=quick, batch=1))
    from torchvision import models

    about = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = getattr(models, name)(weights=None, **about).to(device)
    return Inference(model, _images(299 if name == "inception_v3" else 224, 1, 1000, device))


def this_device() -> str:
    """The device of the jobs of this process."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def training_job(name: str, quick: str = "", steps: str = "") -> Training:
    """A training for an executor, without an end if no number of steps is given."""
    return training(name, this_device(), quick=bool(quick), steps=int(steps) if steps else None)


def sized_job(persistent_bytes: str, ephemeral_bytes: str, steps: str) -> Sized:
    """A job of a given size, for an executor."""
    return Sized(int(persistent_bytes), int(ephemeral_bytes), int(steps), this_device())


def search_job(width: str, rate: str, steps: str, graphed: str = "") -> SmallSearch:
    """A configuration of a search, for an executor."""
    return SmallSearch(int(width), float(rate), int(steps), bool(graphed), this_device())


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as a table in Markdown."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(_shown(cell) for cell in line)} |" for line in lines)


def _shown(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def versions() -> dict[str, Any]:
    """What the figures were measured on."""
    about: dict[str, Any] = {"torch": torch.__version__, "device": "cpu"}
    if torch.cuda.is_available():
        about |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda, "driver": _driver()}
    return about


def _driver() -> str:
    import subprocess

    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""
