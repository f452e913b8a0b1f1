"""Nothing runs twice, no end is lost on a full disk, logs stay within bounds, and files of others are not trusted."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from real_processes import (
    attempt_alone,
    attempts,
    end_of,
    fill,
    launch,
    log_of,
    processes_of,
    python,
    small_disk,
    start,
    wait_for,
)

from fairway.runtime.processes import containment, environment, keeper, ranks
from fairway.runtime.processes.local import LocalSite
from fairway.runtime.processes.site import Outcome

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from attempt_alone(tmp_path)


def test_a_keeper_that_is_killed_as_it_forks_leaves_no_rank(tmp_path: Path) -> None:
    draw, folders = random.Random(7), attempts(tmp_path)
    for _ in range(40):
        folder = next(folders)
        running = start(folder, *[["sleep", "603"]] * 4, token=folder.name)
        wait_for((folder / "keeper.json").exists)
        time.sleep(draw.uniform(0.0, 0.012))
        running.signal(signal.SIGKILL)
        wait_for(lambda running=running: running.ended)
        running.close()
        containment.kill_strays(folder, folder.name, just_now=True)
        # A child that was forked and had not begun its program ends by itself, before it does anything.
        wait_for(lambda folder=folder: not processes_of(folder.name), "what was forked to end")


def test_a_rank_whose_keeper_is_gone_does_not_begin() -> None:
    child = os.fork()
    if not child:
        ranks._prepare(os.getpid(), ranks.RankTerms("/", 0o022, None, None))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 126


def test_a_child_that_has_not_begun_its_program_has_the_token(folder: Path) -> None:
    running = start(folder, ["sleep", "600"], token=folder.name, grace_s=1.0)
    wait_for(lambda: f"{containment.TOKEN}={folder.name}".encode() in containment._environment(running.pid))
    running.stop()
    end_of(running)


def test_ends_are_written_down_on_a_disk_that_others_keep_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folders = [disk / f"attempt-{number}" for number in range(6)]
        code = "import sys, time; sys.stdin; time.sleep(1.0); print('x' * 10_000)"
        all_running = [start(folder, python(code)) for folder in folders]
        for folder in folders:
            wait_for(lambda folder=folder: (folder / "reserve").exists() and (folder / "ranks.json").exists())
        while not all(running.ended for running in all_running):
            fill(disk)
            time.sleep(0.002)
        assert [end_of(running).codes for running in all_running] == [(0,)] * 6


def test_a_job_that_writes_without_end_stays_within_its_bounds(folder: Path) -> None:
    most = 1 << 20
    running, sizes = start(folder, ["yes"], log_bytes=most, grace_s=1.0), [0]

    def is_cut() -> bool:
        # A file that is moved away just now is not counted.
        with suppress(FileNotFoundError):
            sizes.append(sum(path.stat().st_size for path in folder.glob("rank-0.log*")))
        return sum(after < before for before, after in pairwise(sizes)) >= 5

    wait_for(is_cut, "the log to be cut again and again")
    running.stop()
    assert end_of(running).cause == "request"
    assert most < max(sizes) <= 2 * most


def test_a_job_can_open_its_output_again(folder: Path) -> None:
    running = start(folder, ["bash", "-c", "echo one > /dev/stdout; echo two > /dev/stderr"])
    assert end_of(running).codes == (0,)
    assert log_of(running) == "one\ntwo\n"


@AS_ROOT
def test_a_job_of_another_user_owns_its_output(folder: Path) -> None:
    for one in (folder.parent, *folder.parent.parents[:3]):
        one.chmod(0o711)
    running = start(folder, ["bash", "-c", "umask; echo again > /dev/stdout"], account="nobody")
    assert end_of(running).codes == (0,)
    assert log_of(running) == "0022\nagain\n"


def test_an_end_that_cannot_be_read_is_not_taken_for_a_lost_attempt(folder: Path) -> None:
    site = LocalSite()
    running = site.start(folder / "attempt-1", {**_launch(folder), "account": "", "token": folder.name})
    wait_for(lambda: running.ended)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert site.wait(0.1) == []
        assert site.wait(0.1) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (over,) = wait_for(lambda: site.wait(1.0), "the end")
    assert over.outcome.codes == (0,)


def _launch(folder: Path) -> dict[str, object]:
    return launch(folder / "attempt-1", ["true"])


def test_folders_of_jobs_cannot_be_changed_by_others_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        running = LocalSite().start(folder / "attempt-1", {**_launch(folder), "account": "", "token": folder.name})
        assert end_of(running).codes == (0,)
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert not path.lstat().st_mode & 0o022, path
        if not stat.S_ISDIR(path.lstat().st_mode):
            assert not path.lstat().st_mode & 0o077, path


@AS_ROOT
def test_a_folder_that_a_job_made_for_its_next_attempt_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "attempt-1").mkdir()
    os.chown(folder / "attempt-1", 65534, 65534)
    with pytest.raises(PermissionError, match="is not a folder of the scheduler's user"):
        LocalSite().start(folder / "attempt-1", {**_launch(folder), "account": "", "token": folder.name})


@AS_ROOT
def test_a_keeper_does_not_trust_a_file_of_another_user(folder: Path) -> None:
    folder.mkdir()
    keeper.write_over(folder / "launch.json", _launch(folder))
    os.chown(folder / "launch.json", 65534, 65534)
    with pytest.raises(PermissionError):
        keeper.Keeper(folder)


def test_a_keeper_whose_own_log_cannot_be_written_goes_on() -> None:
    code = "from fairway.runtime.processes import ranks; ranks.say('this does not arrive')"
    with Path("/dev/full").open("wb", buffering=0) as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full).returncode == 0


def test_jobs_keep_the_umask_of_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(environment, "_jobs_have", {"umask": 0o022})
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        environment.keep_to_ourselves(1024)
        assert environment._jobs_have == {"umask": 0o027, "open_files": 1024}
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)


def test_an_outcome_in_the_reserve_is_read_with_its_spaces(folder: Path) -> None:
    running = start(folder, ["true"])
    assert isinstance(end_of(running), Outcome)
    assert (folder / "exit.json").stat().st_size == 65_536
