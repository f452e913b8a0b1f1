"""Measured training in the format of the Pollux artifact (Qiao et al., OSDI 2021): a directory of applications.

`DIR/<application>/` holds `placements[-<type>].csv` and `scalability[-<type>].csv` (seconds per iteration by where the
gang sits and by the mini-batch of one GPU) and `validation-<batch>.csv` (one row per epoch of a whole run at that
global batch: progress, iterations, gradient statistics). Together they say how fast a job passes through its epochs on
any placement: goodput = progress per iteration / seconds per iteration.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.batch import BatchLimits, Split, limits_of
from fairway.core.errors import InputError
from fairway.core.hardware import known_gpu
from fairway.models.names import ModelNames, ProfileKey
from fairway.models.pollux_timings import Timings, numbers, packed_shape

MODEL_OF_APPLICATION = {
    "cifar10": "ResNet-18",
    "imagenet": "ResNet-50",
    "bert": "BERT-base",
    "deepspeech2": "DeepSpeech2",
    "yolov3": "YOLOv3",
    "ncf": "Recommendation",
    "gpt_pmp": "Transformer",
}
_VALIDATION = ("progress", "iteration", "grad_sqr", "grad_var")


class Application:
    """One application: its epochs at every global batch that was run, and its timings by GPU type."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.folder = folder
        files = {_batch_of(path): path for path in folder.glob("validation-*.csv")}
        self.batches: Floats = np.array(sorted(files), dtype=np.float64)
        tables = [np.array(list(numbers(files[int(batch)], _VALIDATION))) for batch in self.batches]
        self.epochs = len(tables[0])
        for batch, table in zip(self.batches, tables, strict=True):
            if len(table) != self.epochs:
                message = f"{len(table)} epochs; validation-{int(self.batches[0])}.csv has {self.epochs}"
                raise InputError(message, path=str(files[int(batch)]))
        self._progress, self._iterations, self._sqr, self._var = np.stack(tables, axis=2).transpose(1, 0, 2)
        self.ends: Floats = self._progress.min(axis=1)
        if not (np.diff(self.ends, prepend=0.0) > 0).all():
            raise InputError("progress must rise from epoch to epoch", path=str(files[int(self.batches[0])]))
        self.types = tuple(sorted(_type_of(path) for path in folder.glob("placements*.csv")))
        self._timings: dict[str, Timings] = {}
        self._gains: dict[int, Floats] = {}
        self._statistics: dict[int, tuple[Floats, Floats]] = {}

    @property
    def first_batch(self) -> int:
        """The global batch in whose iterations progress is counted: the smallest that was run."""
        return int(self.batches[0])

    def timings(self, gpu_type: str) -> Timings | None:
        """The timings on a GPU type, by its own name or that of another name of the same GPU; None without any."""
        found = gpu_type if gpu_type in self.types else self._same_gpu(gpu_type)
        if found is None:
            return None
        if found not in self._timings:
            self._timings[found] = Timings(self.folder, found)
        return self._timings[found]

    def _same_gpu(self, gpu_type: str) -> str | None:
        if self.types == ("",):
            return ""
        known = known_gpu(gpu_type)
        alike = [name for name in reversed(self.types) if name and known is not None and known_gpu(name) == known]
        return alike[0] if alike else None

    def split(self, batch: int, gpus: int, timings: Timings) -> Split:
        """How a gang works through a fixed global batch without overfilling a GPU."""
        return self.limits(timings).split(batch, gpus)

    def limits(self, timings: Timings) -> BatchLimits:
        """From the smallest batch that was run to the largest, and the mini-batches that were timed."""
        local = timings.least_local, timings.most_local
        return limits_of(self.first_batch, int(self.batches[-1]), *local, accumulation=True)

    def statistics(self, batch: int) -> tuple[Floats, Floats]:
        """The squared norm of the gradient and its variance at a global batch, for every epoch."""
        found = self._statistics.get(batch)
        if found is None:
            found = self._statistics[batch] = self._between(batch, self._sqr), self._between(batch, self._var)
        return found

    def gains(self, batch: int) -> Floats:
        """Progress per iteration at a global batch, for every epoch (AdaScale's gain)."""
        found = self._gains.get(batch)
        if found is None:
            sqr, var = self.statistics(batch)
            noise = var / (batch / self.first_batch) + sqr
            found = self._gains[batch] = np.divide(var + sqr, noise, out=np.ones_like(noise), where=noise > 0)
        return found

    def iterations(self, batch: int) -> Floats:
        """Iterations done at the end of every epoch of a run at a global batch."""
        return self._between(batch, self._iterations)

    def _between(self, batch: int, table: Floats) -> Floats:
        """The entry of every epoch at a global batch, between those of the batches that were run."""
        return np.array([portable.interpolate(batch, self.batches, row) for row in table])


class PolluxProfile:
    """The applications of one directory, as a profile: steps per second, and goodput for `--rules pollux`."""

    def __init__(self, path: str) -> None:
        self._path = path
        root = Path(path)
        try:
            folders = sorted(folder for folder in root.iterdir() if any(folder.glob("validation-*.csv")))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
        if not folders:
            message = "no application here: a profile directory has folders with placements and validation-*.csv files"
            raise InputError(message, path=path)
        self.applications = {folder.name: Application(folder) for folder in folders}
        for name, application in self.applications.items():
            if not application.types:
                raise InputError("no placements.csv or placements-<GPU type>.csv", path=str(root / name))
        self._names = ModelNames(self.applications)
        known = {MODEL_OF_APPLICATION.get(name, name): name for name in self.applications}
        self._by_model, self._model_names = known, ModelNames(known)
        self._found: dict[str, Application] = {}

    @property
    def name(self) -> str:
        return Path(self._path).name or self._path

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._by_model)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types on which some application was timed."""
        return tuple(sorted({name for each in self.applications.values() for name in each.types if name}))

    def application(self, model: str) -> Application:
        """The application of a model, by either name."""
        found = self._found.get(model)
        if found is None:
            name = self._names.find(model) or self._by_model[self._model_names.require(model, self._path)]
            found = self._found[model] = self.applications[name]
        return found

    def timings(self, model: str, gpu_type: str) -> Timings | None:
        """An application's timings on a GPU type, None if it was not timed there; an unknown type is an error."""
        found = self.application(model).timings(gpu_type)
        if found is None and all(each.timings(gpu_type) is None for each in self.applications.values()):
            raise InputError(f"unknown GPU type {gpu_type!r}; known: {', '.join(self.gpu_types)}", path=self._path)
        return found

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """Steps per second of the whole job; see `Profile.rate`. A spread gang has one GPU on each node."""
        if gpus < 1:
            raise InputError(f"a gang needs at least 1 GPU, not {gpus}")
        timings = self.timings(model, gpu_type)
        if timings is None:
            return 0.0
        local = batch_size or min(self.application(model).first_batch, timings.most_local)
        if local > timings.most_local:
            return 0.0
        shape = (1,) * gpus if spread else packed_shape(gpus, timings.node_gpus)
        return gpus / timings.pass_s(shape, local)[0]

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """The artifact measured no pairs."""
        return None


def _batch_of(path: Path) -> int:
    text = path.stem.partition("-")[2]
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InputError(f"{text!r} is not a batch size", path=str(path))
    return int(text)


def _type_of(path: Path) -> str:
    return path.stem.partition("-")[2].lower()
