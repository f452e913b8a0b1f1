"""Lines of JSON that a job appends to its report file; the scheduler reads them at any time.

Training never waits for a report and never fails because of one: what cannot be written is left out, with one warning.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LEAST_S = 0.25
"""Reports with nothing new beyond progress are written at most this often."""
LEAST_OWN_S = 1.0
"""Reports that a loop makes by itself, if the script makes none, are written this often."""
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lines:
    """Appends to a file, if there is one, as long as `speaks` says so. Each line is one write and stays whole."""

    def __init__(self, path: Path | None, speaks: Callable[[], bool]) -> None:
        self.path = path
        self._speaks = speaks
        self._pid = os.getpid()
        self._torn = False
        self._warned = False

    @property
    def open(self) -> bool:
        """Whether lines are written; not in a forked process, such as a data loader's."""
        return self.path is not None and os.getpid() == self._pid and self._speaks()

    def write(self, report: Mapping[str, Any]) -> bool:
        """Append a report; False if that was not possible. Values that are None are left out."""
        if self.path is None or not self.open:
            return False
        told = {name: value for name, value in report.items() if value is not None}
        # The time of day can be set; the time since the machine was booted cannot.
        times = {"time": time.time(), "uptime": time.clock_gettime(_SINCE_BOOT)}
        line = json.dumps({**told, **times}, default=number).encode() + b"\n"
        if self._torn:
            # Half a line was written before; the reader skips it once it has an end.
            line = b"\n" + line
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._torn = os.write(fd, line) != len(line)
            finally:
                os.close(fd)
        except OSError as error:
            self._warn(f"reports cannot be written: {error}")
            return False
        return not self._torn

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"fairway: {what}; training goes on", RuntimeWarning, stacklevel=4)


class Reporter:
    """How far a training is, and what was reported of it.

    `at` is the number of steps that will be done when the present step is. `samples` counts those of all processes from
    the beginning of the job, `samples_per_step` for each step (by default a batch).
    """

    def __init__(self, lines: Lines, *, total: float | None = None, batch_size: int | None = None) -> None:
        self.lines = lines
        self.total = total
        self.batch_size = batch_size
        self.epoch: float | None = None
        self.noise_scale: float | None = None
        self.timing: list[float] | None = None
        self.at: float = 0
        self.samples = 0.0
        self.samples_per_step: float | None = None
        self._noted: float = 0
        self._written: tuple[float, float] | None = None
        self._written_s = -math.inf
        self._asked_s = -math.inf
        self._held_back = False

    def announce(self, **about: Any) -> None:
        """Report what is to come. It marks the start of an attempt: the time since the last report was not training."""
        self.lines.write({"started": True, **about})

    def begin_at(self, step: float, samples: float = 0.0) -> None:
        """Go on after this many steps."""
        self.at = self._noted = step
        self.samples = samples

    def report(self, step: Any, samples: Any, batch_size: Any, loss: Any) -> None:
        """Note the progress that the script reports, and write it if it is time."""
        size = int(number(batch_size) or 0)
        changed = size > 0 and size != self.batch_size
        self.batch_size = size if size > 0 else self.batch_size
        told = number(step)
        step = self.at if told is None else told
        self._note(step, number(samples))
        now_s = time.monotonic()
        if changed or now_s >= self._asked_s + LEAST_S or step == self.total:
            self._asked_s = now_s
            self.write(loss=number(loss))

    def pass_step(self, step: float) -> None:
        """Note a step that a loop has made, whether the script has reported it or not."""
        if step > self._noted:
            self._note(step, None)
            if step == self.total or time.monotonic() >= self._written_s + LEAST_OWN_S:
                self.write()

    def write(self, **more: Any) -> None:
        """Write how far it is now."""
        if not self.lines.open:
            return
        now_s, rate = time.monotonic(), None
        if self._written is not None and now_s > self._written[0] and self.samples > self._written[1]:
            rate = (self.samples - self._written[1]) / (now_s - self._written[0])
        self._written, self._written_s, self._held_back = (now_s, self.samples), now_s, False
        self.lines.write(
            {
                "step": self._noted,
                "epoch": self.epoch,
                "batch_size": self.batch_size,
                "noise_scale": number(self.noise_scale),
                "timing": self.timing,
                "samples": self.samples or None,
                "samples_per_s": rate,
                **more,
            }
        )

    def flush(self) -> None:
        """Write what was held back."""
        if self._held_back:
            self.write()

    def _note(self, step: float, samples: float | None) -> None:
        each = self.samples_per_step or self.batch_size or 0
        self.samples += each * max(step - self._noted, 0) if samples is None else samples
        self._noted, self._held_back = step, True


def number(value: Any) -> float | int | None:
    """A number of Python, NumPy or torch as JSON has it; None for what is not a finite number.

    Reading a number off a GPU waits for all of its work, so this is done only for reports that are written.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        plain = float(value.item() if hasattr(value, "item") else value)
    except Exception:  # any error that a tensor of several elements, or of a lost GPU, raises
        return None
    return plain if math.isfinite(plain) else None
