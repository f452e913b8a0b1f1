"""The process that hosts all jobs of a user on one GPU: `python -m fairway.gpu.executor FOLDER`.

One thread runs all jobs. It launches one iteration after the other, each on the stream of its job's lane, and is at
most a few iterations ahead of the device, so the lanes compute at the same time. Only one job's code runs at a time:
its memory is counted exactly, its random numbers are its own, and an error in it is its own.

Seats connect to `FOLDER/socket` (see `talk`). A seat asks for a job to be hosted, and is told how far it is. When the
connection of a seat ends, its job is removed. The process ends when it has had no job for a minute. If it cannot go on,
it ends with another code, is started again, and jobs go on from their last saved state.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import queue
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from fairway.core.errors import FairwayError
from fairway.gpu.device import Device, RandomNumbers, Stream, find_device
from fairway.gpu.hosted import HostingError, is_out_of_memory, one_line
from fairway.gpu.lanes import MARGIN_BYTES, InLane, Lanes, Mode, Need, Waiting
from fairway.gpu.occupant import TRIED_STEPS, HostingRequest, Occupant
from fairway.gpu.residency import CopyStreams
from fairway.gpu.safeguards import MOST_CRASHES, Suspicion, Watchdog
from fairway.gpu.talk import Said, Switchboard
from fairway.gpu.turns import ORDERS, IterationOrder, Order

IDLE_S = 60.0
LOST = 70
"""The exit code if the device is lost."""
AHEAD = 2
"""How many iterations of a lane may be launched and not have ended."""
MOST_LANES = 8
"""More streams than this do not compute at the same time anyway."""
_ATTEND_EVERY_S = 0.002
"""How often all jobs are seen to. With many jobs it is less often, so that it takes little of the time."""
_AHEAD_EVERY_S = 0.05
"""How often it is tried to bring the state of the next job ahead."""
_LOOK_EVERY_S = 0.005
"""How often a job that stands still is asked whether it may go on, unless its seat says so."""


class Executor:
    """Hosts jobs on a device."""

    def __init__(
        self,
        folder: Path,
        device: Device,
        order: Order = "pack",
        mode: Mode = "published",
        idle_s: float = IDLE_S,
        most_bytes: int | None = None,
    ) -> None:
        self._folder = folder
        self._device = device
        self._idle_s = idle_s
        self._seats = Switchboard(folder / "socket")
        if most_bytes is not None:
            device.limit(most_bytes + MARGIN_BYTES)
        capacity_bytes = min(device.capacity_bytes() - MARGIN_BYTES, most_bytes or device.capacity_bytes())
        self._lanes = Lanes(max(capacity_bytes, 0), mode, most_lanes=MOST_LANES)
        self._order = IterationOrder(order)
        self._copies = CopyStreams(device)
        self._random = RandomNumbers(device)
        self._streams: dict[int, Stream] = {}
        self._jobs: dict[str, Occupant] = {}
        self._arriving: list[Occupant] = []
        self._flying: dict[str, Occupant] = {}
        self._landed: dict[Occupant, None] = {}
        self._attend_at_s = 0.0
        self._active_s = time.time()
        self._suspicion = Suspicion(folder)
        self._watchdog = Watchdog(self._seats)

    def run(self) -> None:
        """Host jobs until there are none any more."""
        started = False
        while self._jobs or self._arriving or not self._is_idle():
            self._hear(0.0 if started or self._flying else self._patience_s())
            self._land()
            self._attend_all()
            self._let_in()
            started = self._start()
            if not started:
                self._wait_for_device()
        # The warden looks here for when that was: to end may take longer than a job waits to be hosted.
        (self._folder / "idle").touch()
        self._suspicion.forget()

    def _is_idle(self) -> bool:
        """Whether no job has been here for a while, and none is announced."""
        announced_s = 0.0
        with contextlib.suppress(OSError):
            announced_s = self._folder.with_name("wanted").stat().st_mtime
        return time.time() - max(self._active_s, announced_s) > self._idle_s

    # --- seats -------------------------------------------------------------------------------------------------------

    def _patience_s(self) -> float:
        """How long to wait for a seat to say something, if there is nothing to do."""
        return _LOOK_EVERY_S if self._jobs or self._arriving else min(1.0, self._idle_s)

    def _hear(self, patience_s: float) -> None:
        while True:
            try:
                said = self._seats.said.get(timeout=patience_s) if patience_s else self._seats.said.get_nowait()
            except queue.Empty:
                return
            patience_s = 0.0
            self._take(said)

    def _take(self, said: Said) -> None:
        occupant = next((one for one in [*self._jobs.values(), *self._arriving] if one.seat == said.seat), None)
        if said.message is None:
            if occupant is not None:
                self._remove(occupant)
        elif "host" in said.message:
            self._host(said.seat, said.message["host"])
        elif "leave" in said.message and occupant is not None:
            occupant.leaving = True
            if occupant in self._arriving:
                self._part(occupant, {"left": occupant.landed})
        elif "move" in said.message and occupant is not None:
            occupant.asked_out = True
            if occupant.resting or occupant in self._arriving:
                self._leave_the_device(occupant)

    def _host(self, seat: int, message: dict[str, object]) -> None:
        try:
            wanted = HostingRequest.read(message)
            if wanted.job in self._jobs or any(one.job == wanted.job for one in self._arriving):
                raise HostingError(f"job {wanted.job} is hosted already")
            if self._suspicion.crashes(wanted.job) >= MOST_CRASHES:
                raise HostingError(f"the executor has died in steps of this job {MOST_CRASHES} times")
        except FairwayError as error:
            self._seats.tell(seat, {"error": str(error)})
            self._seats.hang_up(seat)
            return
        self._arriving.append(self._occupant(seat, wanted))

    def _occupant(self, seat: int, wanted: HostingRequest) -> Occupant:
        return Occupant(seat, wanted, self._device, self._random, lambda told: self._seats.tell(seat, told))

    def _part(self, occupant: Occupant, last: dict[str, object]) -> None:
        """Tell a seat how its job ended, and drop the job."""
        self._remove(occupant)
        occupant.tell(last)
        self._seats.hang_up(occupant.seat)

    def _remove(self, occupant: Occupant) -> None:
        if occupant in self._arriving:
            self._arriving.remove(occupant)
        self._jobs.pop(occupant.job, None)
        self._flying.pop(occupant.job, None)
        self._order.leave(occupant.job)
        with contextlib.suppress(Exception):
            occupant.finish_flying()
        if not occupant.close() or not (self._jobs or self._arriving):
            self._device.give_back()
        self._admitted(self._lanes.release(occupant.job))
        self._active_s = time.time()
        self._suspicion.nobody_runs()

    # --- memory ------------------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Load jobs that have come. What they need is what they say, or what their first iteration takes."""
        for occupant in list(self._arriving):
            if occupant.wanted.memory_bytes and not occupant.is_reserved:
                self._guarded(occupant, self._reserve)
            if occupant.is_reserved:
                has_room = self._lanes.lane_of(occupant.job) is not None
            else:
                has_room = self._lanes.free_bytes > occupant.more_than_bytes or not self._computing()
            if has_room:
                self._guarded(occupant, self._load)

    def _reserve(self, occupant: Occupant) -> None:
        """Take memory for a job that says how much it needs, before it is loaded."""
        occupant.is_reserved = True
        found = self._lanes.request(occupant.job, Need(occupant.wanted.memory_bytes, 0))
        self._placed(occupant, found)

    def _load(self, occupant: Occupant) -> None:
        self._suspicion.runs(occupant.job)
        with self._watchdog.over(occupant.seat):
            occupant.load()
        self._arriving.remove(occupant)
        self._jobs[occupant.job] = occupant
        hosted = occupant.hosted
        assert hosted is not None
        left = None if hosted.steps is None else max(hosted.steps - occupant.landed, 0)
        self._order.join(occupant.job, left)
        if occupant.need is None:
            self._try_out(occupant)
        if occupant.is_reserved:
            occupant.is_reserved = False
            self._grow(occupant, occupant.measured())
        else:
            self._request(occupant)

    def _try_out(self, occupant: Occupant) -> None:
        """See what a job needs that does not say it. The second step also shows in which order its layers compute."""
        if not occupant.is_reserved:
            occupant.stream = self._stream(-1)
        for _ in range(TRIED_STEPS):
            if occupant.has_steps and not occupant.files.is_paused():
                occupant.need = self._launched(occupant)
        occupant.finish_flying()
        self._land_one(occupant)

    def _request(self, occupant: Occupant) -> None:
        """Ask for a lane."""
        self._placed(occupant, self._lanes.request(occupant.job, occupant.measured()))

    def _placed(self, occupant: Occupant, found: InLane | Waiting) -> None:
        """A job was given a lane, or waits for one."""
        if isinstance(found, InLane):
            self._admitted({occupant.job: found})
            return
        if not found.forever:
            self._make_room()
        if self._lanes.lane_of(occupant.job) is None:
            self._wait(occupant, found)

    def _make_room(self) -> None:
        """Let jobs that stand still leave the device for those that wait."""
        for occupant in self._resting():
            if not self._lanes.waiting:
                return
            self._move_out(occupant)

    def _resting(self) -> list[Occupant]:
        """The jobs that stand still and have memory, in the order in which they leave.

        Those that are next in the policy's plan leave last, and before them those that ran last.
        """
        found = [one for one in self._jobs.values() if one.resting and self._lanes.lane_of(one.job) is not None]
        return sorted(found, key=lambda one: (-one.files.in_plan(), one.used_s))

    def _come_ahead(self, occupant: Occupant) -> None:
        """Let the state of the job that is next in the policy's plan come back while others compute.

        All of it comes if there is room, or if jobs behind it in the plan can make room; else as much as there is room
        for, the groups that it needs first.
        """
        state, now_s = occupant.state, time.monotonic()
        if state is None or state.is_resident or occupant.sent_out or now_s < occupant.ahead_s:
            return
        occupant.ahead_s = now_s + _AHEAD_EVERY_S
        if occupant.files.in_plan() > 0 or self._lanes.waiting or not self._computing():
            return
        # Programs beside this process may have taken what the lanes could give.
        room = self._device.capacity_bytes() - MARGIN_BYTES - self._device.allocated_and_peak_bytes()[0]
        need, leaving = occupant.measured(), self._room_ahead(occupant)
        if leaving is not None and need.persistent_bytes - sum(one.here_bytes for one in leaving) <= room:
            for one in leaving:
                self._move_out(one)
            if self._take_ahead(occupant, need):
                occupant.load_ahead()
        elif self._lanes.lane_of(occupant.job) is None:
            occupant.load_ahead(min(self._lanes.free_bytes, room))
            if occupant.here_bytes and not self._take_ahead(occupant, Need(occupant.here_bytes, 0)):
                occupant.move_out(self._copies)

    def _room_ahead(self, occupant: Occupant) -> list[Occupant] | None:
        """The jobs that have to leave for the next one, if that is enough."""
        trial, leaving = copy.deepcopy(self._lanes), list[Occupant]()
        behind = [one for one in self._resting() if one is not occupant and one.can_move]
        trial.release(occupant.job)
        while isinstance(trial.request(occupant.job, occupant.measured()), Waiting):
            trial.release(occupant.job)
            if not behind:
                return None
            leaving.append(behind.pop(0))
            trial.release(leaving[-1].job)
        return leaving

    def _take_ahead(self, occupant: Occupant, need: Need) -> bool:
        """Take memory for a job that comes ahead. Whether there was enough."""
        self._lanes.release(occupant.job)
        found = self._lanes.request(occupant.job, need)
        if isinstance(found, InLane):
            self._admitted({occupant.job: found})
            return True
        self._lanes.release(occupant.job)
        return False

    def _wait(self, occupant: Occupant, why: Waiting) -> None:
        if why.forever:
            raise HostingError(f"it does not fit on this GPU: {why.reason}")
        occupant.tell({"waits": why.reason})
        occupant.finish_flying()
        if not occupant.move_out(self._copies):
            occupant.forget()

    def _move_out(self, occupant: Occupant) -> None:
        if occupant.move_out(self._copies):
            self._admitted(self._lanes.release(occupant.job))

    def _leave_the_device(self, occupant: Occupant) -> None:
        """The scheduler needs the memory of a job that stands still, for somebody outside of this process."""
        occupant.asked_out, occupant.sent_out = False, True
        size = occupant.here_bytes
        if size and self._lanes.lane_of(occupant.job) is not None:
            self._move_out(occupant)
        if size and occupant.here_bytes:
            occupant.tell({"stays": "its state cannot leave the GPU"})
            return
        occupant.finish_leaving()
        self._device.give_back()
        occupant.tell({"moved": size})

    def _admitted(self, jobs: dict[str, InLane]) -> None:
        for job, lane in jobs.items():
            occupant, stream = self._find(job), self._stream(lane.lane)
            if stream is not occupant.stream:
                occupant.finish_flying()
                occupant.stream = stream

    def _find(self, job: str) -> Occupant:
        return self._jobs.get(job) or next(one for one in self._arriving if one.job == job)

    def _stream(self, lane: int) -> Stream:
        """The stream of a lane. Orders that run one iteration at a time need only one."""
        number = lane if self._order.order == "pack" else -1
        if number not in self._streams:
            self._streams[number] = self._device.new_stream()
        return self._streams[number]

    def _grow(self, occupant: Occupant, need: Need) -> None:
        """A job takes more than before: its lane grows, or it waits until it can, or it never will fit."""
        occupant.need = need
        self._placed(occupant, self._lanes.change(occupant.job, need))
        self._admitted(self._lanes.retry())

    # --- iterations --------------------------------------------------------------------------------------------------

    def _computing(self) -> list[Occupant]:
        return [one for one in self._jobs.values() if not one.resting and self._lanes.lane_of(one.job) is not None]

    def _wanting(self) -> dict[str, int]:
        """The jobs that could launch an iteration, with their lanes."""
        now_s = time.monotonic()
        found = {}
        for lane in self._lanes.lanes.values():
            for job in lane.jobs:
                one = self._jobs.get(job)
                if one is not None and not one.resting and not one.leaving and one.has_steps and now_s >= one.ready_s:
                    found[job] = lane.number
        return found

    def _start(self) -> bool:
        """Launch the iterations whose turn it is. Whether there were any."""
        wanting = self._wanting()
        flying = Counter(job for job, one in self._flying.items() for _ in one.flying)
        lanes = self._lanes.lanes.values() if flying else ()
        busy = [lane.number for lane in lanes if sum(flying[job] for job in flying.keys() & lane.jobs.keys()) >= AHEAD]
        started = self._order.next(wanting, wanting, busy)
        for job in started:
            self._guarded(self._jobs[job], self._iterate)
        return bool(started)

    def _iterate(self, occupant: Occupant) -> None:
        before = occupant.measured()
        need = self._launched(occupant)
        if need != before:
            self._grow(occupant, need)

    def _launched(self, occupant: Occupant) -> Need:
        self._suspicion.runs(occupant.job)
        self._flying[occupant.job] = occupant
        with self._watchdog.over(occupant.seat):
            return occupant.launch()

    def _land(self) -> None:
        for occupant in list(self._flying.values()):
            self._guarded(occupant, self._land_one)
            if not occupant.flying:
                self._flying.pop(occupant.job, None)

    def _land_one(self, occupant: Occupant) -> None:
        for _, took_s in occupant.landings():
            self._landed[occupant] = None
            self._order.note(occupant.job, took_s, occupant.measured().peak_bytes)
        self._active_s = time.time()

    def _wait_for_device(self) -> None:
        """Nothing can be launched: wait for the first iteration to end."""
        flying = [one.flying[0] for one in self._flying.values() if one.flying]
        if flying:
            self._device.finish(flying[0].end)

    def _attend_all(self) -> None:
        """See to the jobs whose iterations have ended, and to all of them now and then."""
        began_s = time.monotonic()
        everyone = began_s >= self._attend_at_s
        for occupant in list(self._jobs.values() if everyone else self._landed):
            self._guarded(occupant, self._attend)
        self._landed.clear()
        if everyone:
            now_s = time.monotonic()
            self._attend_at_s = now_s + max(_ATTEND_EVERY_S, 10.0 * (now_s - began_s))

    def _attend(self, occupant: Occupant) -> None:
        """Between two iterations: leave, end, save, stand still or go on."""
        if occupant.leaving:
            occupant.save()
            self._suspicion.trust(occupant.job)
            self._part(occupant, {"left": occupant.landed})
        elif occupant.is_done:
            self._finish(occupant)
        elif occupant.files.is_paused():
            if occupant.resting:
                self._come_ahead(occupant)
            else:
                self._rest(occupant)
        elif occupant.resting:
            self._go_on(occupant)
        elif occupant.should_save():
            occupant.save()
            self._suspicion.trust(occupant.job)

    def _finish(self, occupant: Occupant) -> None:
        assert occupant.hosted is not None
        occupant.save()
        occupant.hosted.finish()
        self._part(occupant, {"done": occupant.landed})

    def _rest(self, occupant: Occupant) -> None:
        occupant.finish_flying()
        self._land_one(occupant)
        if self._lanes.lane_of(occupant.job) is None:
            # It must not be given memory that it cannot use now.
            self._admitted(self._lanes.release(occupant.job))
        occupant.resting = True
        occupant.files.rest()
        self._make_room()
        if occupant.asked_out:
            self._leave_the_device(occupant)

    def _go_on(self, occupant: Occupant) -> None:
        occupant.resting = occupant.sent_out = False
        occupant.files.go_on()
        lane = self._lanes.lane_of(occupant.job)
        if lane is None:
            self._request(occupant)
        elif lane.jobs[occupant.job] != occupant.measured():
            # Only a part of it has come ahead.
            self._grow(occupant, occupant.measured())

    # --- errors ------------------------------------------------------------------------------------------------------

    def _guarded(self, occupant: Occupant, act: Callable[[Occupant], None]) -> None:
        """Do something for a job. What goes wrong is its own."""
        if occupant.job not in self._jobs and occupant not in self._arriving:
            return
        try:
            act(occupant)
        except Exception as error:
            self._failed(occupant, error)

    def _failed(self, occupant: Occupant, error: Exception) -> None:
        lost = self._device.is_lost()
        others = [one for one in self._computing() if one is not occupant]
        if not lost and is_out_of_memory(error) and others:
            error.__traceback__ = None
            self._again(occupant)
            return
        if not isinstance(error, FairwayError):
            occupant.tell({"log": "".join(traceback.format_exception(error))})
        told = str(error) if isinstance(error, FairwayError) else one_line(error)
        # The traceback holds the variables of the job, and so its memory.
        error.__traceback__ = None
        self._part_in_error(occupant, told, lost=lost)

    def _part_in_error(self, occupant: Occupant, told: str, *, lost: bool) -> None:
        if not lost:
            self._part(occupant, {"error": told})
            return
        occupant.tell({"error": f"{told}; the GPU does not answer any more"})
        self._seats.hang_up(occupant.seat)
        self._suspicion.nobody_runs()
        self._seats.flush(2.0)
        print(f"job {occupant.job}: {told}; this process ends, since the GPU does not answer any more", flush=True)
        os._exit(LOST)

    def _again(self, occupant: Occupant) -> None:
        """A job took more memory than there was. It begins again at its last saved state when there is more.

        One that had a lane, and so was measured, begins when no other job computes.
        """
        had_lane = self._lanes.lane_of(occupant.job) is not None
        free_bytes = self._lanes.free_bytes
        occupant.tell({"log": "fairway: memory ran out; it goes on from its last saved state when there is more\n"})
        self._remove(occupant)
        again = self._occupant(occupant.seat, replace(occupant.wanted, memory_bytes=0))
        again.more_than_bytes = math.inf if had_lane else free_bytes
        self._arriving.append(again)


def main() -> None:
    """Host jobs for the seats that connect to the folder that is the first argument."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder = Path(sys.argv[1])
    order, mode = os.environ.get("FAIRWAY_EXECUTOR_ORDER", "pack"), os.environ.get("FAIRWAY_EXECUTOR_MODE", "published")
    if order not in ORDERS or mode not in get_args(Mode):
        sys.exit(f"there is no order {order!r} or no mode {mode!r}")
    idle_s = float(os.environ.get("FAIRWAY_EXECUTOR_IDLE_S", IDLE_S))
    most_bytes = int(os.environ.get("FAIRWAY_EXECUTOR_BYTES", 0)) or None
    Executor(folder, find_device(), order, mode, idle_s, most_bytes).run()  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
