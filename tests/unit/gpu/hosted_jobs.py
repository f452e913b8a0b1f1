"""Jobs without torch that tests have hosted by an executor. `ready` files let a test see and hold them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class Counting:
    """Counts its steps; its state is the count."""

    def __init__(self, steps: str = "5", pause_s: str = "0", note: str = "") -> None:
        self.steps = int(steps)
        self.count = 0
        self._pause_s = float(pause_s)
        self._note = note

    def step(self) -> dict[str, float]:
        """Count."""
        if self._pause_s:
            time.sleep(self._pause_s)
        self.count += 1
        if self._note:
            with Path(self._note).open("a", encoding="ascii") as file:
                file.write(f"{os.getpid()} {self.count}\n")
        return {"loss": 1.0 / self.count}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Sized(Counting):
    """Says how much memory it needs, and may grow."""

    def __init__(self, persistent: str, ephemeral: str, steps: str = "5", pause_s: str = "0", note: str = "") -> None:
        super().__init__(steps, pause_s, note)
        self.persistent_bytes, self.ephemeral_bytes = int(persistent), int(ephemeral)


class Odd:
    """Fails in one way or another at its third step."""

    def __init__(self, what: str) -> None:
        self.steps = 1000
        self.stop_on_nan = what == "nan"
        self._what = what
        self._count = 0

    def step(self) -> Any:
        """Count to three."""
        self._count += 1
        if self._count == 2:
            print("it prints")
        if self._what == "nan reported" and self._count >= 3:
            time.sleep(0.02)
            return {"loss": float("nan")}
        if self._count == 3:
            if self._what == "raises":
                raise ValueError("a bad step")
            if self._what == "nan":
                return {"loss": float("nan")}
            if self._what == "stops":
                raise StopIteration
            if self._what == "dies":
                os.kill(os.getpid(), 9)
            if self._what == "hangs":
                time.sleep(1000)
        return None


def counting(*arguments: str) -> Counting:
    return Counting(*arguments)


def saving(*arguments: str) -> Counting:
    made = Counting(*arguments)
    made.save_every = 10  # type: ignore[attr-defined]
    return made


def sized(*arguments: str) -> Sized:
    return Sized(*arguments)


def odd(what: str) -> Odd:
    if what == "factory":
        raise RuntimeError("no data here")
    return Odd(what)


def nothing() -> None:
    return None


def configured(rate: str = "none") -> Counting:
    print(f"task {os.environ.get('FAIRWAY_ARRAY_TASK_ID')} rate {rate} {os.environ.get('LR')} own {os.environ['PATH']}")
    os.environ["LEFT_BEHIND"] = rate
    return Counting("3")


def left_behind() -> Counting:
    print(f"left {os.environ.get('LEFT_BEHIND')} {os.environ.get('LR')} {os.environ['OMP_NUM_THREADS']}")
    return Counting("1")
