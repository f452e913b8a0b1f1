"""What an executor hosts: an object with `step()`, made by a function of its owner.

    class Job:
        steps = 1000                    # how many steps it has; without it, until `step` raises StopIteration
        model = ...                     # a torch module and its optimiser: they are saved, and may leave the GPU
        optimizer = ...
        def step(self):                 # one whole iteration; returns figures such as {"loss": loss}, or nothing
            ...

    def make_job(*arguments):
        return Job()

Everything but `step` may be missing. `state_dict` and `load_state_dict` take the place of the ones that are made from
model and optimiser. `persistent_bytes` and `ephemeral_bytes` say how much memory the job needs between and in its
steps; without them it is measured. `save_every` steps or `save_every_s` seconds lie between two saves.
`movable = False` keeps the state on the GPU, for jobs that carry gradients from step to step or use weights outside of
their modules. `stop_on_nan = True` ends the job if a figure is not a number. `finish()` is called after the last step.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.core.errors import FairwayError

SAVE_EVERY_S = 300.0


class HostingError(FairwayError):
    """A job cannot be hosted, in one line."""


def make_job(factory: str, arguments: Sequence[str]) -> HostedJob:
    """Call the factory `package.module:function`."""
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise HostingError(f"{factory!r} is not a factory; write package.module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise HostingError(f"{factory}: there is no module {error.name!r} in {Path.cwd()}") from None
        raise HostingError(f"{factory}: the module cannot be loaded: {one_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise HostingError(f"{factory}: the module has no function {name!r}")
    try:
        made = function(*arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise HostingError(f"{factory}: {one_line(error)}") from error
    if not callable(getattr(made, "step", None)):
        raise HostingError(f"{factory}: it gives {type(made).__name__}, which has no method `step`")
    return HostedJob(made)


def one_line(error: BaseException) -> str:
    """An error, and where it was raised."""
    text = " ".join(str(error).split())
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}{': ' if text else ''}{text[:500]}{where}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left. torch is not loaded just to ask."""
    return type(error).__name__ in ("OutOfMemoryError", "MemoryError")


class HostedJob:
    """A job as its factory made it, with what it does not say filled in."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.model: Any = getattr(made, "model", None)
        self.optimizer: Any = getattr(made, "optimizer", None)
        self.steps: int | None = self._whole("steps")
        self.save_every: int | None = self._whole("save_every")
        self.save_every_s = float(getattr(made, "save_every_s", SAVE_EVERY_S))
        self.stops_on_nan = bool(getattr(made, "stop_on_nan", False))
        self.hints = self._whole("persistent_bytes"), self._whole("ephemeral_bytes")

    def _whole(self, name: str) -> int | None:
        value = getattr(self.made, name, None)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise HostingError(f"{name}: must be a whole number, not {value!r}")
        return value

    @property
    def is_movable(self) -> bool:
        """Whether its state can leave the device."""
        return hasattr(self.model, "named_modules") and bool(getattr(self.made, "movable", True))

    @property
    def can_be_saved(self) -> bool:
        """Whether it has a state to save."""
        return hasattr(self.made, "state_dict") or self.model is not None

    def step(self) -> Mapping[str, Any]:
        """One iteration; its figures. `StopIteration` when there is nothing left to do."""
        found = self.made.step()
        return found if isinstance(found, Mapping) else {}

    def finish(self) -> None:
        """After the last step."""
        finish = getattr(self.made, "finish", None)
        if callable(finish):
            finish()

    def save(self, path: Path, step: int, random: Any) -> None:
        """Write the state to a file."""
        if hasattr(self.made, "state_dict"):
            state = self.made.state_dict()
        else:
            parts = {"model": self.model, "optimizer": self.optimizer}
            state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        content = {"step": step, "random": random, "job": state}
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.save(content, path)
        else:
            with path.open("wb") as file:
                pickle.dump(content, file)

    def load(self, path: Path) -> tuple[int, Any]:
        """Read what `save` wrote. Returns the number of steps, and the state of random numbers."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            content = torch.load(path, map_location="cpu", weights_only=False)
        else:
            with path.open("rb") as file:
                content = pickle.load(file)
        state = content["job"]
        if hasattr(self.made, "load_state_dict"):
            self.made.load_state_dict(state)
        else:
            for name, part in (("model", self.model), ("optimizer", self.optimizer)):
                if part is not None:
                    part.load_state_dict(state[name])
        return int(content["step"]), content["random"]
