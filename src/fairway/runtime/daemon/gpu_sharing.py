"""How jobs that ask for shares of a GPU share it on this machine: by MPS, or in turns.

By MPS they compute at the same time, and the driver limits the threads and the memory of each. In turns they are
throttled, so that each computes for its part of the time; nothing limits their memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.processes import mps
from fairway.runtime.processes.environment import account_of
from fairway.runtime.processes.local import scratch_folder

SharingWish = Literal["auto", "mps", "turns"]
"""What the configuration says: "auto" is MPS where it can be had."""


class GpuSharing:
    """The way of one machine. `folder` is the state directory; `wish` gives the present configuration.

    On other machines (not `here`), nobody knows whether MPS can be had: jobs take turns unless they must use it.
    """

    def __init__(
        self, folder: Path, devices: Sequence[str] | None, wish: Callable[[], SharingWish], *, here: bool = True
    ) -> None:
        self._folder = (folder if here else scratch_folder()) / "mps"
        self._devices = devices
        self._wish = wish
        self._here = here
        self._program = None if devices is None or not here else mps.found()

    @property
    def by_mps(self) -> bool:
        """Whether jobs share GPUs by MPS."""
        wish = self._wish()
        return wish == "mps" or (wish == "auto" and self._program is not None)

    def in_turns(self) -> bool:
        """Whether jobs share GPUs in turns."""
        return not self.by_mps

    def by_user(self) -> bool:
        """Whether only jobs of one user share a GPU: each user has an MPS server, and its clients cannot be mixed."""
        return self.by_mps and os.geteuid() == 0

    def words(self) -> str:
        """The way, and why it is not another."""
        if self.by_mps:
            return (
                "MPS"
                if self._program or not self._here
                else "MPS, which is not there: jobs that ask for shares cannot start"
            )
        if self._wish() == "turns":
            return "turns"
        why = (
            "virtual GPUs"
            if self._devices is None
            else f"there is no {mps.CONTROL}"
            if self._here
            else "other machines"
        )
        return f"turns ({why})"

    def launch(self, record: JobRecord, gpu_bytes: int) -> dict[str, Any] | None:
        """What the keeper of a job needs to know, on a GPU with `gpu_bytes`; None if the job shares none by MPS."""
        share = record.request.gpu_share
        if share >= 1 or not self.by_mps:
            return None
        folder = self._folder / (account_of(record) or str(os.geteuid()))
        memory = max(int(gpu_bytes * share), record.request.memory_bytes)
        env = mps.client_variables(folder, share, memory)
        about = {"program": self._program or mps.CONTROL, "folder": str(folder)}
        return {**about, "must": self._wish() == "mps", "env": env}
