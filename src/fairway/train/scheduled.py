"""A training loop that can be scheduled: the session between a training script and Fairway.

The scheduler may want the GPUs of a job at any time. It sends SIGTERM. The session notes that, has the state saved
after the present step, and ends the process with the exit code that means "run me again". The next attempt finds the
checkpoint. Outside Fairway a session does nothing, so the same script runs with and without.
"""

from __future__ import annotations

import atexit
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from fairway.train.adaptive import Batch
from fairway.train.checkpoints import Checkpoint, Checkpoints, sync
from fairway.train.context import Context
from fairway.train.course import Course, Step
from fairway.train.pace import Pace
from fairway.train.ranks import GO_ON, STOP, Ranks
from fairway.train.reporter import Lines, Reporter
from fairway.train.sampler import Sampler
from fairway.train.saving import Load, Save, Saving
from fairway.train.stopping import REQUEUE_CODE, StopFlag
from fairway.train.tuned import TunedBatch, TunedCourse, Wish
from fairway.train.yielding import Yielding

_WISH_EVERY_S = 0.25


class Session:
    """The connection between a training script and the scheduler; made by `session()`."""

    def __init__(
        self,
        context: Context,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        checkpoint_dir: str | Path | None = None,
        keep: int = 2,
        agree_every: int = 1,
    ) -> None:
        self.context = context
        self.total = steps
        self.ranks = Ranks(context, agree_every)
        self._stop = StopFlag()
        self._pace = Pace(context.node, context.local_rank, hurried=lambda: self._stop.is_set)
        self._yielding = Yielding(context.node, context.world_size, hurried=lambda: self._stop.is_set)
        lines = Lines(context.report, speaks=lambda: self.rank == 0)
        self._reporter = Reporter(lines, total=steps, batch_size=batch_size)
        self._checkpoints = _checkpoints(context, checkpoint_dir, keep)
        self._saved_step: int | None = None
        self._wish_file = _wish_file(context)
        self._wish_at_s = 0.0
        self._wished: Wish | None = None
        if context.scheduled:
            self._stop.install()
            atexit.register(self._reporter.flush)
        if self._checkpoints is not None and self.rank == 0:
            self._checkpoints.clear_parts()
        self.announce(steps=steps, epochs=epochs, batch_size=batch_size)

    @property
    def scheduled(self) -> bool:
        """Whether Fairway runs this process."""
        return self.context.scheduled

    @property
    def rank(self) -> int:
        """The number of this process among those of the job."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes the job has now; the number may differ after the next restart."""
        return self.ranks.size

    @property
    def grace_s(self) -> float:
        """How long the job may take to stop."""
        return self.context.grace_s

    def local_batch(self, batch_size: int) -> int:
        """How many samples of a global batch this process trains, so that all processes together train all of it."""
        each, left = divmod(batch_size, self.world_size)
        return each + (self.rank < left)

    def sampler(self, samples: int, *, seed: int = 0, shards: int | None = None) -> Sampler:
        """The samples of this process in each step; global batches do not depend on how many processes there are."""
        return Sampler(samples, seed=seed, rank=self.rank, world_size=self.world_size, shards=shards)

    def wanted_batch(self) -> int | None:
        """The batch size that the scheduler wants, if any; the same for all ranks of a process group."""
        return self.ranks.highest(_wanted(self.context) or 0) or None

    def mean(self, value: float) -> float:
        """The mean of a number over the ranks of a process group, for example of a loss to report."""
        return self.ranks.mean(value)

    def announce(self, **about: Any) -> None:
        """Announce to the scheduler what is to come: `steps`, `epochs`, `batch_size`, `batch_sizes` in their order."""
        self._reporter.announce(**about)

    def report(
        self,
        step: float | None = None,
        *,
        samples: float | None = None,
        loss: Any = None,
        batch_size: int | None = None,
        epoch: float | None = None,
        noise_scale: float | None = None,
    ) -> None:
        """Report how far training is: `step` steps are done (a loop of this session knows that itself).

        `batch_size` counts the samples of a step over all processes, `samples` those since the last report, if that is
        another number. Cheap enough for every step: rank 0 writes a few lines per second, and a loss on a GPU is read
        only for those. Nothing that goes wrong here is raised.
        """
        reporter = self._reporter
        reporter.epoch = reporter.epoch if epoch is None else epoch
        reporter.noise_scale = reporter.noise_scale if noise_scale is None else noise_scale
        reporter.report(step, samples, batch_size, loss)

    def close(self) -> None:
        """Write what was held back and restore the previous SIGTERM handler. A process that ends need not call it."""
        self._reporter.flush()
        atexit.unregister(self._reporter.flush)
        self._stop.remove()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def resume(self) -> Path | None:
        """The path of the state from which to go on; None to begin at the beginning."""
        found = self.checkpoint
        if found is None:
            return None
        self._reporter.begin_at(found.state.get("progress", found.step), float(found.state.get("samples", 0.0)))
        return found.path

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint from which to go on, and the step after which it was saved."""
        return None if self._checkpoints is None else self._checkpoints.latest()

    @property
    def first_step(self) -> int:
        """The step with which a training goes on; 0 at the beginning."""
        found = self.checkpoint
        return 0 if found is None else found.step

    def checkpoint_path(self, step: int) -> Path | None:
        """A name for a checkpoint that the script writes by itself, followed by `saved`; None if there is no place for
        it.
        """
        return None if self._checkpoints is None else self._checkpoints.path(step)

    def saved(self, path: str | Path, step: int, **state: Any) -> None:
        """A checkpoint after this many steps is complete: from now on it counts. Call it on rank 0, or on all ranks.

        The file (or directory) is on disk before the scheduler hears of it.
        """
        if self._checkpoints is not None and self.rank == 0:
            sync(Path(path))
            self._register(Path(path), step, state)

    def save(self, step: int, write: Save, *, everyone: bool = False, **state: Any) -> float:
        """Write a checkpoint after this many steps, completely or not at all, and let it count; returns the seconds it
        took.

        `write` gets a path and is called on rank 0; with `everyone` on all ranks, for each to put its part into the
        directory at that path. If there is no place for checkpoints this does nothing.
        """
        if self._checkpoints is None or self._saved_step == step:
            return 0.0
        began_s = time.monotonic()
        if everyone:
            path = self._write_together(self._checkpoints, step, write)
        else:
            path = self._checkpoints.write(step, write) if self.rank == 0 else None
        self._saved_step = step
        took_s = time.monotonic() - began_s
        if path is not None:
            self._register(path, step, state, took_s)
        return took_s

    def _write_together(self, checkpoints: Checkpoints, step: int, write: Save) -> Path | None:
        """Every rank writes its part; returns the path for rank 0, which registers it, when all have."""
        part = checkpoints.part(step)
        part.mkdir(exist_ok=True)
        write(part)
        sync(part)
        if not self.ranks.meet(self.grace_s):
            warnings.warn("fairway: not every rank has saved; the checkpoint does not count", stacklevel=3)
            return None
        return checkpoints.complete(step) if self.rank == 0 else None

    def _register(self, path: Path, step: int, state: Mapping[str, Any], took_s: float | None = None) -> None:
        assert self._checkpoints is not None
        progress = state.get("progress", step)
        self._reporter.pass_step(progress)
        self._checkpoints.register(path, step, {"samples": self._reporter.samples, **state})
        self._reporter.write(step=progress, checkpoint=str(path.absolute()), save_s=took_s)
        if took_s is not None and self.scheduled and took_s > self.grace_s:
            late = f"saving took {took_s:.0f} s; when the job is stopped it has only {self.grace_s:.0f} s"
            warnings.warn(f"fairway: {late}", stacklevel=3)

    def should_stop(self) -> bool:
        """Whether to save and leave now. All ranks get the same answer after the same step, so all must ask."""
        return self._decide(GO_ON)[0] == STOP

    def exit_for_requeue(self) -> NoReturn:
        """End the process and ask to be run again: the state is saved."""
        self._reporter.flush()
        self.ranks.part()
        sys.exit(REQUEUE_CODE)

    def steps(
        self,
        save: Save | None = None,
        load: Load | None = None,
        *,
        start: int = 0,
        every: int | None = None,
        every_s: float = 300.0,
        everyone: bool = False,
    ) -> Iterator[int]:
        """Count the steps of a training from where it was left, or from `start`, to the number that was announced.

        `load` gets the checkpoint, if there is one. `save` is called every `every` steps, or after `every_s` seconds,
        and before the process ends because the scheduler asked it to. See `save` about `everyone`.
        """
        saving = Saving(save, self.ranks, every=every, every_s=every_s, everyone=everyone)
        found = self._loaded(load)
        if found is None:
            self._reporter.begin_at(start)
        else:
            start = found.step
        for step in itertools.count(start) if self.total is None else range(start, self.total):
            self._reporter.at = step + 1
            yield step
            self._reporter.pass_step(step + 1)
            if step + 1 != self.total:
                self._end_step(step + 1, saving)
        self._reporter.flush()

    def batches(
        self,
        sampler: Sampler,
        batch: Batch | int,
        epochs: int,
        save: Save | None = None,
        load: Load | None = None,
        *,
        every: int | None = None,
        every_s: float = 300.0,
        everyone: bool = False,
    ) -> Iterator[Step]:
        """Go through epochs batch by batch, at batch sizes that may change from epoch to epoch; else like `steps`.

        Position, batch size and measurements are saved with each checkpoint and are there again when it is loaded. A
        `TunedBatch` may change after every step.
        """
        saving = Saving(save, self.ranks, every=every, every_s=every_s, everyone=everyone)
        course: Course | TunedCourse
        if isinstance(batch, TunedBatch):
            course = TunedCourse(sampler, batch, epochs)
        else:
            course = Course(sampler, Batch(batch) if isinstance(batch, int) else batch, epochs)
        found = self._loaded(load)
        if found is not None:
            course.restore(found.state["course"])
        self._set_out(course)
        for step in course:
            self._reporter.at = course.progress(ahead=1)
            self._reporter.epoch = course.epochs_done(ahead=1)
            yield step
            self._reporter.noise_scale = course.batch.noise_scale
            course.advance()
            if isinstance(course, TunedCourse):
                # What the step was worth is known only now.
                self._reporter.at, self._reporter.timing = course.progress(), course.timer.known
            self._reporter.pass_step(self._reporter.at)
            if course.batch.size != step.batch_size:
                self.report(course.progress(), samples=0, batch_size=course.batch.size, epoch=course.epochs_done())
            self._reporter.samples_per_step = course.samples_per_step
            if not course.done:
                wish = self._wish() if isinstance(course, TunedCourse) else None
                note = self._end_step(
                    course.steps, saving, note_of(wish), progress=course.progress(), course=course.state()
                )
                if isinstance(course, TunedCourse) and note and course.batch.take(wish_in(note)):
                    self._reporter.timing = None
                    self._reporter.samples_per_step = course.samples_per_step
                    self.report(course.progress(), samples=0, batch_size=course.batch.size)
        self._reporter.flush()

    def _loaded(self, load: Load | None) -> Checkpoint | None:
        """The checkpoint, after it was loaded."""
        if load is None:
            return None
        found, path = self.checkpoint, self.resume()
        if path is not None:
            load(path)
        return found

    def _set_out(self, course: Course | TunedCourse) -> None:
        """Announce a course, from where it is."""
        batch = course.batch
        self._reporter.begin_at(course.progress(), self._reporter.samples)
        self._reporter.total, self._reporter.batch_size = course.total, batch.size
        self._reporter.samples_per_step = course.samples_per_step
        sizes = list(batch.sizes) if len(batch.sizes) > 1 else None
        limits = list(batch.limits) if isinstance(batch, TunedBatch) else None
        about = {"batch_sizes": sizes, "batch_size": batch.size, "batch_limits": limits}
        self.announce(steps=course.total, epochs=course.epochs, **about)

    def _end_step(self, step: int, saving: Saving, note: int = 0, **state: Any) -> int:
        """After a step: save if it is time, and leave if the scheduler asks for it. Returns rank 0's note, or 0."""
        told, note = self._decide(saving.wish(), note)
        if saving.save is not None and (told != GO_ON or saving.due(step)):
            saving.note(self._try_to_save(step, saving.save, saving.everyone, state))
        if told == STOP:
            self.exit_for_requeue()
        return note

    def _try_to_save(self, step: int, save: Save, everyone: bool, state: Mapping[str, Any]) -> float:
        """Save. A full disk costs the checkpoint, not the training: the one before still counts."""
        began_s = time.monotonic()
        try:
            return self.save(step, save, everyone=everyone, **state)
        except (OSError, RuntimeError) as error:  # torch raises a RuntimeError on a full disk
            if everyone:
                raise
            warnings.warn(f"fairway: step {step} could not be saved: {error}", RuntimeWarning, stacklevel=4)
        return time.monotonic() - began_s

    def _decide(self, wish: int, note: int = 0) -> tuple[int, int]:
        if not self.scheduled and self._checkpoints is None:
            return GO_ON, 0
        self._yielding.rest()
        self._pace.rest()
        return self.ranks.decide(STOP if self._stop.is_set else wish, note)

    def _wish(self) -> Wish | None:
        """The split of the batch that the scheduler wants, looked for a few times per second."""
        now_s = time.monotonic()
        if self._wish_file is not None and now_s >= self._wish_at_s:
            self._wish_at_s = now_s + _WISH_EVERY_S
            self._wished = _wish_in_file(self._wish_file)
        return self._wished


def session(
    steps: int | None = None,
    *,
    epochs: float | None = None,
    batch_size: int | None = None,
    checkpoint_dir: str | Path | None = None,
    keep: int = 2,
    agree_every: int = 1,
    env: Mapping[str, str] | None = None,
) -> Session:
    """The session of this process, from its environment.

    `steps` is how many steps the whole training has, `batch_size` its global batch; both help the scheduler to estimate
    its end. `checkpoint_dir` is where to save when Fairway does not run the process; without it nothing is saved then.
    The last `keep` checkpoints are kept. Several ranks ask one another every `agree_every` steps whether to stop, which
    costs a fraction of a millisecond.
    """
    return Session(
        Context.from_environment(env),
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint_dir=checkpoint_dir,
        keep=keep,
        agree_every=agree_every,
    )


def _checkpoints(context: Context, otherwise: str | Path | None, keep: int) -> Checkpoints | None:
    if not context.scheduled:
        return None if otherwise is None else Checkpoints(Path(otherwise), keep=keep)
    if context.checkpoints is None:
        return None
    # With the attempt in its name a checkpoint cannot replace an earlier one, which may be the one that counts.
    mark = f"-attempt-{context.restart_count + 1}"
    return Checkpoints(context.checkpoints, keep=keep, resume=context.resume, mark=mark)


def _wish_file(context: Context) -> Path | None:
    """Where the scheduler writes which batch it wants."""
    folder = context.node
    if folder is None:
        return None
    return (folder.parent if folder.name == "shared" else folder) / "wanted.json"


def _wish_in_file(path: Path) -> Wish | None:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        wish = Wish(told["local"], told["accumulation"], told["gpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wish if all(type(one) is int and 0 <= one < 1 << 20 for one in wish) and min(wish[0], wish[2]) else None


def note_of(wish: Wish | None) -> int:
    """A wish as a note of one rank for the others; 0 for none."""
    return 0 if wish is None else (wish.local << 20 | wish.accumulation) << 20 | wish.processes


def wish_in(note: int) -> Wish:
    """Read what `note_of` gave."""
    mask = (1 << 20) - 1
    return Wish(note >> 40, note >> 20 & mask, note & mask)


def _wanted(context: Context) -> int | None:
    """The batch size that the scheduler wants now, else what it said at the start."""
    path = _wish_file(context)
    wish = None if path is None else _wish_in_file(path)
    return context.batch_size if wish is None else wish.processes * wish.local * (wish.accumulation + 1)
