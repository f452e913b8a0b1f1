"""Room in the memory of GPUs. A suspended job keeps its memory there until another job needs the room.

Before a job starts or goes on, each of its GPUs must have as much free memory as it needs. If one has not, suspended
jobs move out of the way. Those that the policy would let go on next go last; of the others, the job that was suspended
last goes first, because its next turn is the farthest. What a job needs is what its owner says, or what it was seen to
have once it has run for a while. If neither is known, all suspended jobs move out.

A job leaves by the cheapest way that frees enough. Processes that move their memory themselves leave a rest on the GPU,
their CUDA context. If rests stand in the way, the driver is asked to take them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fairway.runtime.processes.live_attempt import Live, LiveAttempts
from fairway.runtime.processes.site import Site

MARGIN_BYTES = 512 << 20
"""A CUDA context takes about this much beside what a job asks for."""
READY_EVERY_S = 20.0
"""How often running jobs are asked to get host memory ready."""


class Needs(Protocol):
    """What is known about the memory of jobs."""

    def needs_bytes(self, job: int) -> int:
        """The memory that a job needs on each GPU; 0 if nobody knows."""
        ...

    def share_a_process(self, job: int, other: int) -> bool:
        """Whether one executor hosts both jobs, and sees to their memory itself."""
        ...

    def saves(self, job: int) -> bool:
        """Whether a job that is stopped goes on from a checkpoint."""
        ...

    def stays(self, job: int) -> bool:
        """Whether a job that loses its GPUs is suspended in place, rather than stopped."""
        ...


class GpuRoom:
    """Makes room. `host_bytes` says how much host memory all suspended jobs may take.

    `why` has the jobs that wait for room that is being made, with the reason. `full` has those for which there will be
    none for a while.
    """

    def __init__(self, site: Site, needs: Needs, host_bytes: Callable[[], int]) -> None:
        self.why: Mapping[int, str] = {}
        self.full: dict[int, str] = {}
        self._site = site
        self._needs = needs
        self._host_bytes = host_bytes
        self._ready_s = 0.0

    def is_there(self, job: int, gpus: tuple[int, ...], live: LiveAttempts) -> bool:
        """Whether a job finds room on these GPUs. If not, other jobs are asked to move out."""
        self.forget(job)
        self.full.pop(job, None)
        me = live.get(job)
        for gpu in gpus:
            others = [one for one in live.on((gpu,)) if one.job != job and one.status == "paused"]
            paused = [one for one in others if not self._needs.share_a_process(job, one.job)]
            # The driver is only asked if it matters.
            memory = self._site.gpu_memory(gpu) if paused or (me is not None and _is_out(me)) else None
            if memory is None:
                continue
            rests = [one for one in paused if self._has_rest(one)]
            lack = self._lack(job, memory.free, me, [one for one in paused if not _is_out(one)], rests)
            if lack == 0:
                continue
            moves = any(one.leaving for one in paused) or self._ask(paused, lack, live)
            if moves or (lack and self._ask_for_rests(rests, lack, live)):
                self.why = {**self.why, job: f"the memory of other jobs is being moved out of GPU {gpu}"}
            elif why := self._no_way(lack, gpu, me, paused):
                self.full[job] = why
        return job not in self.why and job not in self.full

    def _no_way(self, lack: int | None, gpu: int, me: Live | None, paused: list[Live]) -> str:
        """Why a job cannot run on a GPU for now, although nobody is asked to move out."""
        stuck = [one for one in paused if one.stuck]
        if (me is not None and not _is_out(me)) or any(self._needs.saves(one.job) for one in stuck):
            # Its own memory is there, or the others are stopped and go on from their checkpoints.
            return ""
        if stuck:
            return f"another job keeps its memory on GPU {gpu}: {stuck[0].handle.memory.problem}"
        if me is not None and _is_out(me) and lack:
            return f"GPU {gpu} has no room for its memory; {lack / 2**30:.1f} GiB are missing"
        return ""

    def forget(self, job: int) -> None:
        """A job does not wait for room any more."""
        if job in self.why:
            self.why = {other: why for other, why in self.why.items() if other != job}

    def look(self, live: Mapping[int, Live]) -> bool:
        """Whether a move has ended since the last time."""
        ended = False
        for one in live.values():
            if one.leaving:
                memory = one.handle.memory
                out = memory.place == "host" and (not one.emptied or "driver" in memory.ways or bool(memory.problem))
                if out or (memory.place == "gpu" and memory.problem):
                    one.leaving, one.stuck, ended = False, memory.place == "gpu", True
        return ended

    def stuck(self, job: int, gpus: tuple[int, ...], live: LiveAttempts) -> list[int]:
        """Other suspended jobs whose memory cannot leave these GPUs, and that can go on from a checkpoint."""
        found = [one for one in live.on(gpus) if one.stuck and one.status == "paused"]
        return [one.job for one in found if one.job != job and self._needs.saves(one.job)]

    def get_ready(self, now_s: float, live: Mapping[int, Live]) -> None:
        """Let running jobs that may be suspended get host memory ready, if other jobs are there."""
        if now_s < self._ready_s or len(live) < 2:
            return
        self._ready_s = now_s + READY_EVERY_S
        running = [one for one in live.values() if one.status == "running" and self._needs.stays(one.job)]
        left = None
        for one in running:
            need = self._needs.needs_bytes(one.job) * len(one.gpus)
            if one.ready_bytes or not need:
                continue
            left = self._left_bytes(live) if left is None else left
            if need <= left and self._site.gpu_memory(one.gpus[0]):
                one.ready_bytes = need
                left -= need
                one.handle.get_ready(need)

    def may_keep(self, one: Live, live: Mapping[int, Live]) -> bool:
        """Whether a job whose memory comes back may keep the host memory for the next time: if all jobs may.

        A job that is never suspended has none. For one that has not left, what was got ready stays.
        """
        if not self._needs.stays(one.job) or one.handle.memory.place == "gpu":
            return True
        memory = one.handle.memory
        sizes = [max(_outside_bytes(other), other.ready_bytes, _held_bytes(other)) for other in live.values()]
        keeps = sum(sizes) <= self._host_bytes()
        one.ready_bytes = max(memory.bytes, one.ready_bytes) if keeps else 0
        return keeps

    def held_bytes(self, one: Live, live: LiveAttempts) -> int:
        """What an attempt that is being suspended has on its first GPU, as the rest of it shows; 0 if nobody knows."""
        gpu = one.gpus[0]
        there = [other for other in live.on((gpu,)) if other is not one]
        memory = self._site.gpu_memory(gpu)
        if memory is None or any(other.status != "paused" for other in there):
            return 0
        others = sum(other.held_bytes for other in there if other.handle.memory.place == "gpu")
        contexts = 1 + sum(not _is_out(other) or "driver" not in other.handle.memory.ways for other in there)
        return max(memory.total - memory.free - others - MARGIN_BYTES * contexts, 0)

    def _has_rest(self, one: Live) -> bool:
        """Whether a job that is out has left something on its GPUs that the driver could take."""
        moved = _is_out(one) and one.handle.memory.ways == ("moved",)
        return moved and not one.emptied and not self._needs.share_a_process(one.job, one.job)

    def _lack(self, job: int, free: int, me: Live | None, others: list[Live], rests: list[Live]) -> int | None:
        """How much memory a job lacks on a GPU beside others that are suspended there; None if nobody knows.

        `rests` are those of which only a rest is there, which counts if it is known what the job needs.
        A job may have been suspended, or may be about to be, before it had taken all that it needs.
        """
        needs = {one.job: self._needs.needs_bytes(one.job) for one in others}
        need = self._needs.needs_bytes(job)
        if me is not None and _is_out(me):
            need = max(need, me.handle.memory.bytes // len(me.gpus))
        elif not others and not (need and rests):
            return 0
        if others and not (need and all(needs.values())):
            return None
        free -= sum(max(needs[one.job] - one.held_bytes, 0) for one in others)
        if me is not None and me.handle.memory.place == "gpu":
            grows = need - me.held_bytes
            return max(grows - free, 0) if grows > 0 else 0
        return max(need + (MARGIN_BYTES if me is None else 0) - free, 0)

    def _ask(self, paused: list[Live], lack: int | None, live: Mapping[int, Live]) -> bool:
        """Ask jobs to move out until there is as much as is lacking; all of them if that is not known."""
        asked, got = False, 0
        for one in sorted(paused, key=_keeps):
            memory = one.handle.memory
            if memory.place != "gpu" or one.stuck or (lack is not None and got >= lack):
                continue
            most, size = self._left_bytes(live) + one.ready_bytes, _held_bytes(one)
            if (not size or most < size) and any(other.leaving for other in live.values()):
                # There may be enough host memory for it when it is seen how much the others take.
                return True
            if size:
                most = min(most, size + size // 4 + 4 * MARGIN_BYTES * len(one.gpus))
            known = size or self._needs.needs_bytes(one.job) * len(one.gpus)
            if one.handle.move_out(most, held_bytes=known):
                one.leaving = asked = True
                one.allowed_bytes = most
                got += one.held_bytes
        return asked

    def _ask_for_rests(self, rests: list[Live], lack: int, live: Mapping[int, Live]) -> bool:
        """Ask the driver for what jobs have left on a GPU, until that should be as much as is lacking."""
        asked = 0
        for one in sorted(rests, key=_keeps):
            rest, size = MARGIN_BYTES * len(one.gpus), one.handle.memory.bytes
            if asked * MARGIN_BYTES >= lack or rest > self._left_bytes(live):
                break
            if one.handle.move_out(size + rest, held_bytes=rest, everything=True):
                one.leaving = one.emptied = True
                one.allowed_bytes = size + rest
                asked += 1
        return asked > 0

    def _left_bytes(self, live: Mapping[int, Live]) -> int:
        return max(self._host_bytes() - sum(max(one.ready_bytes, _outside_bytes(one)) for one in live.values()), 0)


def _outside_bytes(one: Live) -> int:
    """The host memory that an attempt has for its GPU memory, or is about to have."""
    memory = one.handle.memory
    return one.allowed_bytes if one.leaving else memory.bytes if memory.place != "gpu" else 0


def _held_bytes(one: Live) -> int:
    """What an attempt had on all its GPUs when it was suspended; 0 if nobody knows."""
    return one.held_bytes * len(one.gpus)


def _keeps(one: Live) -> tuple[bool, int, int]:
    """The order in which suspended jobs leave: those that would go on next leave last."""
    return one.in_plan is not None, -(one.in_plan or 0), -one.paused


def _is_out(one: Live) -> bool:
    return one.handle.memory.place == "host"
