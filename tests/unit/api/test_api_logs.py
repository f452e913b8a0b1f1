"""Logs: over attempts and ranks, from an offset, the last lines, followed, and cut while they are followed."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairway.api import logs
from fairway.api.logs import CHUNK_BYTES, MOST_TAIL_BYTES, LogPart, Logs
from fairway.core.errors import InputError
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import life
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.waiting import WAIT_S


class Job:
    """A job's record and the files of its ranks, written by the test."""

    def __init__(self, folder: Path, *, ranks: int = 1) -> None:
        request = JobRequest(command=("x",), gpus=ranks, processes="per_gpu" if ranks > 1 else "one", grace_s=0.0)
        self.record = JobRecord(0, "7", request, 0.0, JobState.RUNNING)
        self.ranks = ranks
        self.folder = folder
        self.scheduler = cast(Scheduler, SimpleNamespace(jobs_folder=folder / "jobs", clock=Clock({})))

    def attempt(self) -> None:
        if self.record.attempts:
            self.record.attempts[-1].ended_s = 1.0
        number = len(self.record.attempts) + 1
        self.record.attempts.append(Attempt(number, list(range(self.ranks)), "t", 0.0))
        (self.folder / "jobs" / "7" / f"attempt-{number}").mkdir(parents=True)

    def path(self, rank: int = 0) -> Path:
        return self.folder / "jobs" / "7" / f"attempt-{len(self.record.attempts)}" / f"rank-{rank}.log"

    def write(self, text: bytes, rank: int = 0) -> None:
        with self.path(rank).open("ab") as file:
            file.write(text)

    def cut(self) -> None:
        """As the keeper does with a log that has grown too large."""
        content = self.path().read_bytes()
        self.path().with_name("rank-0.log.1").write_bytes(content)
        self.path().write_bytes(b"")

    def end(self) -> None:
        life.move(self.record, JobState.COMPLETED, time.time())
        self.record.attempts[-1].ended_s = time.time()

    def now(self, **which: Any) -> bytes:
        part = LogPart(**{name: which.pop(name) for name in LogPart._fields if name in which})
        return b"".join(Logs(self.scheduler, self.record, **which).now(part))

    def follow(self, *steps: Callable[[], None], **about: Any) -> bytes:
        """Follow while the steps are done, each when the one before has been read."""
        part = LogPart(**{name: about.pop(name) for name in LogPart._fields if name in about})
        logs = Logs(self.scheduler, self.record, **about)

        async def both() -> bytes:
            read: list[bytes] = []

            async def reading() -> None:
                async for piece in logs.follow(lambda: False, part, poll_s=0.01):
                    read.append(piece)

            task = asyncio.create_task(reading())
            for step in steps:
                await asyncio.sleep(0.1)
                step()
            await asyncio.wait_for(task, WAIT_S)
            return b"".join(read)

        return asyncio.run(both())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path)
    made.attempt()
    return made


def test_attempts_follow_one_another(job: Job) -> None:
    job.write(b"one\n")
    job.attempt()
    job.write(b"two\nthree")
    assert job.now() == b"one\ntwo\nthree"
    assert job.now(attempt=1) == b"one\n"
    assert job.now(attempt=2) == b"two\nthree"


def test_a_rank_or_an_attempt_that_there_is_not_is_a_mistake(job: Job) -> None:
    with pytest.raises(InputError, match="has had one attempt; there is no attempt 2"):
        job.now(attempt=2)
    with pytest.raises(InputError, match="has one process, rank 0; there is no rank 5"):
        job.now(rank=5)


def test_an_offset_counts_over_all_attempts(job: Job) -> None:
    job.write(b"0123")
    job.attempt()
    job.write(b"4567")
    whole = b"01234567"
    for offset in range(10):
        assert job.now(offset=offset) == whole[offset:]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_lines_are_found_over_files_and_pieces(job: Job, end: bytes) -> None:
    lines = [f"line {k} ".encode() + b"x" * 50 for k in range(5000)]
    job.write(b"\n".join(lines[:2000]) + b"\n")
    job.cut()
    job.write(b"\n".join(lines[2000:3000]) + b"\n")
    job.attempt()
    job.write(b"\n".join(lines[3000:]) + end)
    assert len(b"\n".join(lines)) > 3 * CHUNK_BYTES
    for count in (1, 2, 1999, 2000, 2001, 4999, 5000, 6000):
        assert job.now(tail=count) == b"\n".join(lines[-count:]) + end
    assert job.now(tail=0) == b""


def test_lines_of_several_ranks_are_marked(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    job.attempt()
    job.write(b"a\nb", 0)
    job.write(b"c\n", 1)
    assert job.now() == b"[0] a\n[0] b\n[1] c\n"
    assert job.now(rank=1) == b"c\n"
    assert job.now(tail=1) == b"[0] b\n[1] c\n"


def test_a_log_is_followed_over_attempts_until_the_job_has_ended(job: Job) -> None:
    job.write(b"one\n")

    def again() -> None:
        job.write(b"two\n")
        job.attempt()
        job.write(b"three\n")

    def last() -> None:
        job.write(b"end")
        job.end()

    assert job.follow(again, last) == b"one\ntwo\nthree\nend"


def test_following_begins_where_it_is_asked_to(job: Job) -> None:
    job.write(b"one\ntwo\nthree\n")

    def last() -> None:
        job.write(b"four\n")
        job.end()

    assert job.follow(last, tail=1) == b"three\nfour\n"
    assert job.follow(tail=0) == b""
    assert job.follow(offset=4) == b"two\nthree\nfour\n"
    assert job.follow(attempt=1) == b"one\ntwo\nthree\nfour\n"


def test_nothing_is_lost_when_a_log_is_cut_while_it_is_followed(job: Job) -> None:
    job.write(b"one\n")

    def cut() -> None:
        job.write(b"two\n")
        job.cut()
        job.write(b"3\n")

    assert job.follow(cut, job.end) == b"one\ntwo\n3\n"


def test_ranks_are_followed_line_by_line(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    job.attempt()
    job.write(b"begin", 0)

    def more() -> None:
        job.write(b"ning\nrest", 0)
        job.write(b"other\n", 1)
        job.end()

    assert sorted(job.follow(more).splitlines()) == [b"[0] beginning", b"[0] rest", b"[1] other"]


def test_one_that_was_cancelled_is_followed_until_its_processes_are_gone(job: Job) -> None:
    life.move(job.record, JobState.CANCELLED, time.time())

    def gone() -> None:
        job.write(b"saved\n")
        job.record.attempts[-1].ended_s = time.time()

    assert job.follow(lambda: None, gone) == b"saved\n"


def test_following_ends_when_the_server_does(job: Job) -> None:
    job.write(b"one\n")
    logs = Logs(job.scheduler, job.record)
    looks = iter([False] * 20)

    async def reading() -> bytes:
        return b"".join([piece async for piece in logs.follow(lambda: next(looks, True), poll_s=0.01)])

    assert asyncio.run(asyncio.wait_for(reading(), WAIT_S)) == b"one\n"


def test_the_last_lines_of_a_log_without_ends_of_lines_take_little_memory(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.attempt()
    with job.path().open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
    logs = Logs(job.scheduler, job.record)
    tracemalloc.start()
    read = sum(map(len, logs.now(LogPart(tail=1_000_000))))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == MOST_TAIL_BYTES
    assert most_bytes < 8 * CHUNK_BYTES


def test_the_end_of_a_log_is_found_by_bytes_at_a_line(job: Job) -> None:
    job.write(b"first\nsecond\n")
    job.cut()
    job.write(b"third\n")
    job.attempt()
    job.write(b"fourth\nfifth")
    whole = b"first\nsecond\nthird\nfourth\nfifth"
    for size in range(len(whole) + 3):
        cut = max(len(whole) - size, 0)
        begin = 0 if not cut else whole.find(b"\n", cut - 1) + 1 or cut
        assert job.now(tail_bytes=size) == whole[begin if size else cut :]


@pytest.mark.parametrize("offset", range(0, 34, 3))
def test_a_log_is_followed_from_any_offset(job: Job, offset: int) -> None:
    job.write(b"first\nsecond\n")
    job.cut()
    job.write(b"third\n")
    job.attempt()
    job.write(b"fourth\n")
    job.end()
    assert job.follow(offset=offset) == b"first\nsecond\nthird\nfourth\n"[offset:]


def test_a_huge_log_is_followed_from_its_end_without_being_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with job.path().open("wb") as file:
        # A hole: two gigabytes that take no room.
        file.truncate(2 << 30)
    job.write(b"\nlast but one\nlast\n")
    job.end()
    read: list[int] = []
    before = logs._from

    def counted(*about: Any) -> Any:
        for piece in before(*about):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(logs, "_from", counted)
    assert job.follow(tail_bytes=10) == b"last\n"
    assert job.now(tail_bytes=25).endswith(b"last but one\nlast\n")
    assert sum(read) < 4 * CHUNK_BYTES


def test_the_ends_of_several_logs_are_followed(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    job.attempt()
    job.write(b"a\nbb\n", 0)
    job.write(b"c\ndd\n", 1)
    job.end()
    assert sorted(job.follow(tail_bytes=3).splitlines()) == [b"[0] bb", b"[1] dd"]
    assert job.now(tail_bytes=3) == b"[0] bb\n[1] dd\n"
