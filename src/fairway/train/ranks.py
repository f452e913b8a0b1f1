"""The ranks of a job together: they agree on what to do after a step, wait for one another, and average numbers.

With `torch.distributed` they ask one another over gloo, which leaves GPUs alone. Plain processes have no such
connection: they leave notes in files of the attempt's directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from fairway.train.context import Context
from fairway.train.noise_scale import mean_over_processes

GO_ON, SAVE, STOP = 0, 1, 2
"""What to do after a step; of several wishes the highest counts."""
NOTE_BITS = 60
"""A note is a number of at most this many bits."""
_LOOK_EVERY_S = 0.01


def distributed() -> Any | None:
    """`torch.distributed`, if the script has loaded it and its processes have met."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


class Ranks:
    """All processes of this attempt of the job, seen from one of them."""

    def __init__(self, context: Context, agree_every: int = 1) -> None:
        if agree_every < 1:
            raise ValueError(f"ranks cannot agree every {agree_every} steps")
        self._context = context
        self._agree_every = agree_every
        self._steps = 0
        self._control: Any = None
        self._meetings = 0
        self._by_file = FileAgreement(context.attempt)

    @property
    def rank(self) -> int:
        """The number of this process: from its process group, else from its environment."""
        module = distributed()
        return self._context.rank if module is None else int(module.get_rank())

    @property
    def size(self) -> int:
        """How many processes there are."""
        module = distributed()
        return self._context.world_size if module is None else int(module.get_world_size())

    @property
    def connected(self) -> bool:
        """Whether every rank learns the wishes of every other rank after each step."""
        return self.size == 1 or distributed() is not None

    def decide(self, wish: int, note: int = 0) -> tuple[int, int]:
        """What all ranks do after this step, and rank 0's note, or 0. Every rank must ask after every step.

        If ranks are not connected, they agree only on stopping; each rank decides for itself when to save, and has its
        own note. A note may be lost in a step after which ranks save or stop.
        """
        if self.size == 1:
            return wish, note
        self._steps += 1
        if self._steps % self._agree_every:
            return GO_ON, 0
        if distributed() is not None:
            highest = self.highest(wish << NOTE_BITS | (note if self.rank == 0 else 0))
            return highest >> NOTE_BITS, highest & ((1 << NOTE_BITS) - 1)
        if self._by_file.stops(wish == STOP):
            return STOP, note
        return GO_ON if wish == STOP else wish, note

    def highest(self, value: int) -> int:
        """The largest value of any rank, for all of them; without a process group, this rank's own."""
        module = distributed()
        if module is None or self.size == 1:
            return value
        cell = sys.modules["torch"].tensor([value], dtype=sys.modules["torch"].int64)
        module.all_reduce(cell, op=module.ReduceOp.MAX, group=self._group(module))
        return int(cell.item())

    def mean(self, value: float) -> float:
        """The mean over the ranks of a process group."""
        return mean_over_processes((value,), self._group(distributed()))[0][0]

    def meet(self, timeout_s: float) -> bool:
        """Wait until every rank is here; False if some rank did not come in time. All ranks must call it alike."""
        self._meetings += 1
        module = distributed()
        if self.size == 1:
            return True
        if module is not None:
            module.barrier(group=self._group(module))
            return True
        return self._by_file.meet(self._meetings, self.rank, self.size, timeout_s)

    def part(self) -> None:
        """Leave the process group together, so that no rank loses a peer that it still talks to."""
        module = distributed()
        if module is None:
            return
        try:
            module.barrier(group=self._group(module))
            module.destroy_process_group()
        except Exception:  # the process is about to end in any case
            return

    def _group(self, module: Any) -> Any:
        """A group that does not touch a GPU: reading a number off one would wait for all of its work."""
        if module is None:
            return None
        if self._control is None:
            gloo = module.get_backend() == "gloo"
            self._control = module.group.WORLD if gloo else module.new_group(backend="gloo")
        return self._control


class FileAgreement:
    """One step after which all ranks stop, by a file that the first rank to be asked writes.

    A rank that is asked to stop after its n-th step proposes to stop after step n + 1. If every rank needs something
    from every other one in a step, no rank ends step n + 1 before the proposer has begun it, and by then the file is
    there: all read it in time. Ranks that train without one another stop as soon as they see it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._steps = 0
        self._last: int | None = None

    def stops(self, asked: bool) -> bool:
        """Count a step; whether it is the last one. `asked`: this process was asked to stop."""
        self._steps += 1
        if self._folder is None:
            return asked
        if self._last is None:
            if asked:
                self._propose(self._folder, self._steps + 1)
            self._last = self._read(self._folder)
        if self._last is None:
            # The file cannot be written, as on a full disk.
            return asked
        return self._steps >= self._last

    def meet(self, number: int, rank: int, size: int, timeout_s: float) -> bool:
        """Wait until all ranks have left a note that they came to a meeting."""
        if self._folder is None:
            return False
        deadline_s = time.monotonic() + timeout_s
        try:
            (self._folder / f"meeting-{number}.{rank}").touch()
            missing = [self._folder / f"meeting-{number}.{other}" for other in range(size)]
            while missing := [path for path in missing if not path.exists()]:
                if time.monotonic() > deadline_s:
                    return False
                time.sleep(_LOOK_EVERY_S)
        except OSError:
            return False
        return True

    def _propose(self, folder: Path, step: int) -> None:
        scratch = folder / f"stop.{os.getpid()}"
        try:
            scratch.write_text(str(step), encoding="ascii")
            # A link appears at once and only if there is none, so no rank reads half a file or a second proposal.
            os.link(scratch, folder / "stop")
        except OSError:
            return
        finally:
            scratch.unlink(missing_ok=True)

    def _read(self, folder: Path) -> int | None:
        try:
            return int((folder / "stop").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
