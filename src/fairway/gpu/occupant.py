"""A job in an executor: where it is, what it needs, the iterations that run, and what its seat is told about it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairway.gpu.attempt_files import AttemptFiles
from fairway.gpu.device import Device, Mark, RandomNumbers, Stream
from fairway.gpu.hosted import HostedJob, HostingError, is_out_of_memory, make_job
from fairway.gpu.lanes import Need
from fairway.gpu.residency import CallOrder, CopyStreams, MovableState, can_be_followed
from fairway.gpu.talk import Message
from fairway.train.checkpoints import Checkpoints

REPORT_EVERY_S = 0.25
TRIED_STEPS = 2
"""How many steps a job makes that does not say what it needs."""
_RECORDED_STEP = 1
"""The step in which the order of layers is noted. The first one also loads libraries."""


@dataclass(frozen=True)
class HostingRequest:
    """What a seat asks an executor to host. `memory_bytes` is the most that the job needs on the device, if known.

    `environment` are the variables of the job, which its factory finds in `os.environ`.
    """

    job: str
    factory: str
    arguments: Sequence[str] = ()
    attempt: Path | None = None
    checkpoints: Path | None = None
    resume: bool = False
    mark: str = ""
    memory_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(message: Mapping[str, Any]) -> HostingRequest:
        """Read what a seat wrote."""
        try:
            return HostingRequest(
                str(message["job"]),
                str(message["factory"]),
                [str(one) for one in message.get("arguments", ())],
                attempt=Path(message["attempt"]) if message.get("attempt") else None,
                checkpoints=Path(message["checkpoints"]) if message.get("checkpoints") else None,
                resume=bool(message.get("resume")),
                mark=str(message.get("mark", "")),
                memory_bytes=int(message.get("memory_bytes", 0)),
                environment={str(name): str(value) for name, value in message.get("environment", {}).items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HostingError(f"the executor cannot read what to host: {error}") from None


@contextlib.contextmanager
def variables_of(environment: Mapping[str, str]) -> Iterator[None]:
    """Let the variables of the process be those of a job. All jobs live in this process and are made one at a time.

    The process keeps its own afterwards, also where the job has changed some.
    """
    if not environment:
        yield
        return
    own = dict(os.environ)
    try:
        _set_variables(environment)
        yield
    finally:
        _set_variables(own)


def _set_variables(wanted: Mapping[str, str]) -> None:
    """Change the variables of the process where they are others. Threads of libraries may read them meanwhile."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


class Iteration(NamedTuple):
    """An iteration that was launched: its number, its marks on the device, its figures."""

    number: int
    begin: Mark
    end: Mark
    figures: Mapping[str, Any]


class Output(io.TextIOBase):
    """Where a job's `print` goes while it runs."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        super().__init__()
        self._tell = tell

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._tell({"log": text})
        return len(text)


class Occupant:
    """A job in an executor. `stream` is that of its lane; it has one when it is admitted."""

    def __init__(
        self,
        seat: int,
        wanted: HostingRequest,
        device: Device,
        random: RandomNumbers,
        tell: Callable[[Message], None],
    ) -> None:
        self.seat = seat
        self.wanted = wanted
        self.files = AttemptFiles(wanted.attempt)
        self.tell = tell
        self.hosted: HostedJob | None = None
        self.need: Need | None = None
        self.state: MovableState | None = None
        self.stream: Stream = None
        self.launched = self.landed = 0
        self.flying: deque[Iteration] = deque()
        self.leaving = self.resting = self.exhausted = self.is_reserved = self.asked_out = self.sent_out = False
        self.more_than_bytes = -math.inf
        self.ready_s = self.used_s = self.ahead_s = 0.0
        self._device = device
        self._random = random
        self._called: dict[Any, Mark] | None = None
        self._output = Output(tell)
        self._saved_s = time.monotonic()
        self._saved_step = -1
        self._loaded_step = self._persistent_bytes = 0
        self._reported_s = -math.inf
        self._not_a_number = self._is_stuck = False
        folder = wanted.checkpoints
        self._checkpoints = None if folder is None else Checkpoints(folder, resume=wanted.resume, mark=wanted.mark)

    @property
    def job(self) -> str:
        return self.wanted.job

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Run code of the job: with its own random numbers, and what it prints goes to its seat."""
        self._random.use(self.job)
        with contextlib.redirect_stdout(self._output), contextlib.redirect_stderr(self._output):
            yield

    def load(self) -> None:
        """Make the job, and load its last saved state."""
        before = self._device.allocated_bytes()
        self.launched = self.landed = 0
        with self._inside(), variables_of(self.wanted.environment):
            self.hosted = make_job(self.wanted.factory, self.wanted.arguments)
        saved = None if self._checkpoints is None else self._checkpoints.latest()
        if saved is not None and self.hosted.can_be_saved:
            try:
                with self._inside():
                    step, random = self.hosted.load(saved.path)
            except Exception as error:
                raise HostingError(f"its saved state {saved.path} cannot be loaded: {error}") from error
            self.launched = self.landed = self._saved_step = step
            self._random.set(self.job, random)
        self._loaded_step = self.launched
        # It computes on another stream than the one on which it was made.
        self._device.synchronize()
        persistent, ephemeral = self.hosted.hints
        if persistent is not None and ephemeral is not None:
            self.need = Need(persistent, ephemeral)
        self._persistent_bytes = persistent or self._device.allocated_and_peak_bytes()[0] - before
        self.tell({"hosted": {"step": self.landed, "steps": self.hosted.steps}})

    def forget(self) -> None:
        """Drop a job that can be made again when there is room for it: it is saved, or was only tried out."""
        self.save()
        if self.hosted is None or self.landed > max(self._saved_step, self._loaded_step + TRIED_STEPS):
            return
        self.need = self.measured()
        self.hosted = self._called = None
        self._random.forget(self.job)
        self._device.give_back()

    def measured(self) -> Need:
        """What it needs, as far as it was seen or said."""
        if self.need is not None or self.hosted is None:
            return self.need or Need(0, 0)
        return Need(self.hosted.hints[0] or self._persistent_bytes, self.hosted.hints[1] or 0)

    @property
    def has_steps(self) -> bool:
        """Whether there is another iteration to launch."""
        total = None if self.hosted is None else self.hosted.steps
        return not self.exhausted and (total is None or self.launched < total)

    @property
    def is_done(self) -> bool:
        """Whether all iterations have ended."""
        return not self.has_steps and not self.flying

    def launch(self) -> Need:
        """Launch an iteration. Returns what the job needs, which may be more than before."""
        if self.hosted is None:
            self.load()
        assert self.hosted is not None
        device, hosted = self._device, self.hosted
        if self.state is not None:
            self.state.load()
        records = hosted.is_movable and self._called is None and self.launched >= _RECORDED_STEP
        order = CallOrder(device, hosted.model) if records else None
        before = device.allocated_bytes()
        with device.on(self.stream), self._inside():
            begin = device.mark(self.stream)
            try:
                figures = hosted.step()
            except StopIteration:
                self.exhausted = True
                return self.measured()
            finally:
                if order is not None:
                    self._called = order.end()
            end = device.mark(self.stream)
        self.launched += 1
        self.flying.append(Iteration(self.launched, begin, end, figures))
        return self._grown(before)

    def _grown(self, before: int) -> Need:
        """What it needs after an iteration that began with `before` bytes on the device."""
        known, (after, peak) = self.measured(), self._device.allocated_and_peak_bytes()
        self._persistent_bytes += after - before
        return Need(max(known.persistent_bytes, self._persistent_bytes), max(known.ephemeral_bytes, peak - before))

    def landings(self) -> Iterator[tuple[Iteration, float]]:
        """The iterations that have ended, with their durations."""
        while self.flying and self._device.reached(self.flying[0].end):
            iteration = self.flying.popleft()
            self.landed = iteration.number
            took_s = self._device.seconds(iteration.begin, iteration.end)
            self.used_s = time.monotonic()
            self.ready_s = self.used_s + self.files.pause_after_s(took_s)
            self.files.say_eased()
            self._report(iteration)
            yield iteration, took_s

    def finish_flying(self) -> None:
        """Wait for the iterations that run."""
        if self.flying:
            self._device.finish(self.flying[-1].end)

    def _report(self, iteration: Iteration) -> None:
        """Tell the seat how far it is, now and then. Reading figures off a device takes time."""
        assert self.hosted is not None
        now_s = time.monotonic()
        last = self.is_done
        if not (last or self.hosted.stops_on_nan or now_s >= self._reported_s + REPORT_EVERY_S):
            return
        self._reported_s = now_s
        figures = {str(name): _number(value) for name, value in iteration.figures.items()}
        wrong = [name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)]
        self.tell({"step": iteration.number, "figures": {n: v for n, v in figures.items() if n not in wrong}})
        if wrong and self.hosted.stops_on_nan:
            raise HostingError(f"{wrong[0]} is {figures[wrong[0]]} after step {iteration.number}")
        if wrong and not self._not_a_number:
            self._not_a_number = True
            self.tell({"log": f"fairway: {wrong[0]} is {figures[wrong[0]]} after step {iteration.number}\n"})

    @property
    def _has_news(self) -> bool:
        """Whether there is a state to save that was not saved."""
        can_be_saved = self.hosted is not None and self.hosted.can_be_saved and self._checkpoints is not None
        return can_be_saved and self.landed != self._saved_step

    def should_save(self) -> bool:
        """Whether it is time to save."""
        if not self._has_news or self.hosted is None:
            return False
        every = self.hosted.save_every
        by_steps = bool(every) and self.landed // (every or 1) > max(self._saved_step, 0) // (every or 1)
        return by_steps or time.monotonic() >= self._saved_s + self.hosted.save_every_s

    def save(self) -> None:
        """Save the state, if there is one that is not saved. A full disk costs the checkpoint, not the training."""
        self.finish_flying()
        for _ in self.landings():
            pass
        hosted, checkpoints = self.hosted, self._checkpoints
        if not self._has_news or hosted is None or checkpoints is None:
            return
        step, began_s = self.landed, time.monotonic()
        with self._device.on(self.stream), self._inside():
            if self.state is not None:
                self.state.finish_loading()
            random = self._random.state(self.job)
            try:
                path = checkpoints.write(step, lambda part: hosted.save(part, step, random))
                checkpoints.register(path, step, {})
            except (OSError, RuntimeError) as error:
                self.tell({"log": f"fairway: step {step} could not be saved: {error}\n"})
                return
            finally:
                self._saved_s = time.monotonic()
        self._saved_step = step
        self.tell({"saved": str(path), "step": step, "took_s": time.monotonic() - began_s})

    def move_out(self, copies: CopyStreams) -> bool:
        """Let the state leave the device, if it can. The job stands still."""
        hosted = self.hosted
        if hosted is None or self._called is None or not self.can_move:
            return False
        if not can_be_followed(hosted.model, self._called):
            self._is_stuck = True
            self.tell({"log": "fairway: its state stays on the GPU: weights are used outside of their modules\n"})
            return False
        with self._device.on(self.stream):
            if self.state is None:
                try:
                    self.state = MovableState(self._device, copies, hosted.model, hosted.optimizer, self._called)
                except (RuntimeError, MemoryError) as error:
                    self._is_stuck = True
                    self.tell({"log": f"fairway: its state stays on the GPU, there is no room for it: {error}\n"})
                    return False
            self.state.unload(self.stream, self._device.mark(self.stream))
        return True

    @property
    def can_move(self) -> bool:
        """Whether its state can leave the device, as far as is known."""
        return self.hosted is not None and self.hosted.is_movable and self._called is not None and not self._is_stuck

    @property
    def here_bytes(self) -> int:
        """What of its state is on the device."""
        return self.measured().persistent_bytes if self.state is None else self.state.here_bytes

    def load_ahead(self, most_bytes: float = math.inf) -> None:
        """Let as much of the state come back as this, first groups first, while others compute."""
        assert self.state is not None
        try:
            self.state.load(most_bytes)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise

    def finish_leaving(self) -> None:
        """Wait until host memory has all of its state."""
        if self.state is not None:
            self.state.finish_unloading()

    def close(self) -> bool:
        """Drop the job and all that it has. Whether it is gone; otherwise only a collection of garbage finds it."""
        if self.state is not None:
            self.state.close()
        self.files.go_on()
        self._random.forget(self.job)
        made = None if self.hosted is None else self.hosted.made
        seen = None if made is None or not hasattr(made, "__weakref__") else weakref.ref(made)
        self.hosted = self.state = self._called = made = None
        self.flying.clear()
        return seen is not None and seen() is None


def _number(value: Any) -> Any:
    """A number of Python, NumPy or torch; text for everything else."""
    if isinstance(value, int | float):
        return value
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:200]
