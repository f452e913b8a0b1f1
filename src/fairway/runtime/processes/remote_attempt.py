"""An attempt on other machines, as the scheduler sees it: its parts, and what each is still to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fairway.core.batch import Split
from fairway.runtime.processes.site import MemoryPlace, Outcome

_ON_GPU = MemoryPlace()
PartState = Literal["starting", "finding", "runs", "over"]


@dataclass(eq=False)
class RemotePart:
    """The processes of an attempt on one machine, as far as we know. `launch` is None if they were found there.

    `words` are what they are still to be told, in order. One question at a time is open (`asked_s`).
    """

    machine: str
    directory: Path
    token: str
    launch: Mapping[str, Any] | None = None
    state: PartState = "starting"
    since_s: float = 0.0
    asked_s: float | None = None
    words: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    outcome: Outcome | None = None
    stopping: bool = False
    throttled: float = 1.0
    memory: MemoryPlace = _ON_GPU

    def say(self, word: str, *about: Any) -> None:
        """Have something said. A later word of the same kind replaces one that was not said yet."""
        kind = "pause" if word == "go_on" else word
        self.words.pop(kind, None)
        self.words[kind] = (word, *about)


class RemoteAttempt:
    """The handle of an attempt on other machines. `parts` are in the order of its ranks."""

    def __init__(self, parts: Sequence[RemotePart], push: Callable[[RemotePart], None]) -> None:
        self.parts = parts
        self.asked_to_stop = False
        self._push = push

    @property
    def stopping(self) -> bool:
        """Whether the ranks have been asked to stop, for any reason."""
        return self.asked_to_stop or any(part.stopping for part in self.parts)

    @property
    def throttled(self) -> float:
        """The part of the time in which the ranks were last told to compute."""
        return self.parts[0].throttled

    @property
    def memory(self) -> MemoryPlace:
        """Where the GPU memory of the ranks is: the part that is the furthest from being away counts."""
        order = ("gpu", "leaving", "returning", "host")
        return min((part.memory for part in self.parts), key=lambda one: order.index(one.place))

    @property
    def ready_bytes(self) -> int:
        """What the ranks keep ready for a move is not known of other machines."""
        return 0

    def move_out(self, most_bytes: int, *, held_bytes: int = 0, everything: bool = False) -> bool:
        """Ask suspended ranks to leave the GPU's memory."""
        return self._say("move_out", most_bytes, held_bytes, everything)

    def tell_plan(self, place: int | None) -> bool:
        """Tell the executor of the job how many others would go on before it."""
        return self._say("tell_plan", place)

    def get_ready(self, most_bytes: int) -> None:
        """Let running ranks get host memory ready for a move."""
        self._say("get_ready", most_bytes)

    def stop(self, *, hurry: bool = False) -> None:
        """Ask the ranks to save and stop."""
        self.asked_to_stop = True
        self._say("stop", hurry)

    def pause(self) -> None:
        """Suspend the ranks in place."""
        self._say("pause")

    def go_on(self, *, keep: bool = True) -> None:
        """Let suspended ranks go on."""
        self._say("go_on", keep)

    def throttle(self, part: float) -> bool:
        """Let the ranks compute for a part of the time."""
        for one in self.parts:
            one.throttled = part
        return self._say("throttle", part)

    def want(self, batch: Split, gpus: int) -> bool:
        """Ask the ranks to work through their batch like this."""
        return self._say("want", batch.local, batch.accumulation, gpus)

    def set_limit(self, limit_s: float | None) -> None:
        """Give the attempt another time limit."""
        self._say("limit", limit_s)

    def _say(self, word: str, *about: Any) -> bool:
        for part in self.parts:
            if part.state != "over":
                part.say(word, *about)
                self._push(part)
        return True


def parts_of(directory: Path, launch: Mapping[str, Any]) -> list[tuple[Path, Mapping[str, Any]]]:
    """The directory and the launch of each part of an attempt."""
    if "parts" not in launch:
        return [(directory, launch)]
    return [(directory / f"node-{rank}", part) for rank, part in enumerate(launch["parts"])]
