"""How fast a job trains: the one question that a simulator and a policy ask of a profile.

A step is one mini-batch of `batch_size` samples on one GPU. The GPUs of a gang each do their own, so the rate of a job
counts the steps of all its GPUs together, and samples per second are always `rate × batch_size`. Gavel's tables and
traces count in this way, so a job's number of steps means the same amount of work under every profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fairway.models.builtin import BuiltinProfile
from fairway.models.gavel_profile import GavelProfile
from fairway.models.names import ProfileKey
from fairway.models.pollux_profile import PolluxProfile

__all__ = ["Profile", "ProfileKey", "load_profile"]


class Profile(Protocol):
    """Training speed by model, batch size, GPU type and gang size."""

    @property
    def name(self) -> str:
        """ "built-in estimates", or the name of the file or directory."""
        ...

    @property
    def models(self) -> tuple[str, ...]: ...

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """Steps per second of the whole job, over all its GPUs; 0.0 means that it does not fit in memory.

        `spread` says that the gang sits on more nodes than it needs. `batch_size` is per GPU; None means the only or
        usual one. An unknown model, GPU type or batch size is an `InputError`.
        """
        ...

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """The rates of two jobs that share the same GPUs; None if the pair is unknown or does not fit."""
        ...


def load_profile(path: str | None) -> Profile:
    """The built-in estimates, or measurements: a file in Gavel's throughput format, a directory in that of Pollux."""
    if path is None:
        return BuiltinProfile()
    return PolluxProfile(path) if Path(path).is_dir() else GavelProfile.read(path)
