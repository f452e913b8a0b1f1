"""Starting the processes of an attempt: what cannot be started says why, and logs stay within bounds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import attempt_alone, end_of, log_of, python, said, start, wait_for

from fairway.runtime.jobs.life import verdict
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes import containment, keeper, local


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from attempt_alone(tmp_path)


def lost(found: object) -> bool:
    """Whether an attempt is lost, at an instant that is not in the future."""
    return (
        isinstance(found, local.Outcome)
        and found.ended is not None
        and found.ended.date_s <= time.time()
        and found._replace(ended=None) == local.LOST
    )


def _told(folder: Path, command: list[str], **about: object) -> str:
    """The reason that the owner of a job is given for a start that failed."""
    running = start(folder, command, **about)
    outcome = end_of(running)
    assert outcome.cause == "start"
    judged = verdict(outcome, asked=False)
    assert (judged.next, judged.state, judged.code) == ("retry", JobState.FAILED, 127)
    assert "cannot start" in log_of(running)
    return judged.why


def test_a_command_that_does_not_exist_is_named(folder: Path) -> None:
    assert _told(folder, ["no-such-program-here"]) == (
        "cannot be started: 'no-such-program-here': No such file or directory"
    )


ON_A_TERMINAL = """
import os, sys
print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size())
try:
    open('/dev/tty')
except OSError:
    print('nothing controls it')
print('\\x1b[32m50%\\r100%', os.ttyname(1) == os.ttyname(2), file=sys.stderr)
"""


def test_ranks_may_draw_on_terminals_and_their_logs_get_it_as_it_is(folder: Path) -> None:
    running = start(folder, python(ON_A_TERMINAL), python("import os; print(os.ttyname(1))"), tty=True)
    assert end_of(running).codes == (0, 0)
    written = (running.directory / "rank-0.log").read_bytes()
    assert written == b"False True True 120 40\nnothing controls it\n\x1b[32m50%\r100% True\n"
    assert log_of(running, 1).startswith("/dev/pts/")
    without = start(folder.parent / "attempt-2", python("import sys; print(sys.stdout.isatty())"))
    assert end_of(without).codes == (0,)
    assert log_of(without) == "False\n"


def test_a_program_on_a_terminal_is_suspended_and_stopped_as_any_other(folder: Path) -> None:
    script = "echo begun; trap 'echo saved; exit 75' TERM; while :; do sleep 0.1; done"
    running = start(folder, ["sh", "-c", script], tty=True)
    said(running, "begun")
    running.pause()
    running.go_on()
    running.stop()
    assert end_of(running).codes == (75,)
    assert "saved" in log_of(running)


def test_a_command_that_is_not_executable_is_named(folder: Path) -> None:
    script = folder.parent / "script.sh"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o644)
    assert _told(folder, [str(script)]) == f"cannot be started: '{script}': Permission denied"


def test_a_script_for_no_known_interpreter_is_named(folder: Path) -> None:
    script = folder.parent / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    assert "Exec format error" in _told(folder, [str(script)])


def test_a_working_directory_that_does_not_exist_is_named(folder: Path) -> None:
    assert _told(folder, ["true"], cwd="/no/such/directory") == (
        "cannot be started: the working directory '/no/such/directory' does not exist"
    )


def test_an_environment_that_is_too_large_is_refused_with_its_reason(folder: Path) -> None:
    why = _told(folder, ["true"], env={f"LARGE_{number}": "x" * 130_000 for number in range(40)})
    assert why == "cannot be started: 'true': its arguments and environment are too large for this machine"


def test_a_large_environment_arrives_whole(folder: Path) -> None:
    env = {f"VARIABLE_{number}": f"{number} " * 40 for number in range(1000)}
    code = "import os; print(sum(len(value) for name, value in os.environ.items() if name.startswith('VARIABLE_')))"
    running = start(folder, python(code), env=env)
    assert end_of(running).codes == (0,)
    assert int(log_of(running)) == sum(map(len, env.values()))


def test_words_in_any_script_and_bytes_in_none_arrive_as_they_are(folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe raw")
    words = ["naïve", "モデル", "🚄", "a b", "$HOME", "`id`", "; exit 3", "*", "'\"", "-n", "line\nline", odd]
    cwd = folder.parent / "работа 🚄"
    cwd.mkdir()
    code = "import os, sys; print(ascii([os.getcwd(), os.environ['WORD'], *sys.argv[1:]]))"
    running = start(folder, [*python(code), *words], cwd=str(cwd), env={"WORD": words[1]})
    assert end_of(running).codes == (0,)
    assert log_of(running).strip() == ascii([str(cwd), words[1], *words])


def test_a_gang_of_which_one_cannot_start_runs_nobody(folder: Path) -> None:
    running = start(folder, ["sleep", "600"], ["no-such-program-here"])
    outcome = end_of(running)
    assert outcome.codes == (137,) or outcome.codes == (143,)
    assert outcome.problem
    assert verdict(outcome, asked=False).next == "retry"


def test_a_log_that_is_filled_stays_within_bounds(folder: Path) -> None:
    most = 200_000
    code = """
import sys, time
for number in range(30000):
    print(f'line {number:06d} ' + 'x' * 87)
    if number % 500 == 0: time.sleep(0.05)
print('the end')
"""
    running = start(folder, python(code), log_bytes=most)
    largest = 0

    def look() -> bool:
        nonlocal largest
        sizes = [path.stat().st_size for path in folder.glob("rank-0.log*") if path.exists()]
        largest = max(largest, sum(sizes))
        return running.ended

    wait_for(look)
    assert end_of(running).codes == (0,)
    assert 0 < largest < 3_000_000 / 2, "3 MB were written; at no time was most of that on disk"
    assert sum(path.stat().st_size for path in folder.glob("rank-0.log*")) <= 2 * most
    text = log_of(running) or (folder / "rank-0.log.1").read_text()
    assert text.endswith("the end\n")
    assert all(line.startswith(("line ", "the end")) for line in text.splitlines()[1:])


def test_a_log_that_was_filled_before_its_job_ended_is_cut(folder: Path) -> None:
    running = start(folder, python("print('x' * 500_000); print('MARK')"), log_bytes=10_000)
    assert end_of(running).codes == (0,)
    assert sum(path.stat().st_size for path in folder.glob("rank-0.log*")) <= 20_000
    assert "MARK" in log_of(running)


def test_how_a_job_ended_is_written_down_even_when_writing_fails_for_a_while(folder: Path) -> None:
    # A directory in the place of the file stands for a disk that cannot be written to.
    folder.mkdir()
    running = start(folder, ["bash", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.05; done"])
    (folder / "exit.json").mkdir()
    (folder / "go").touch()
    wait_for(lambda: "cannot be written" in (folder / "keeper.log").read_text())
    assert not running.ended
    (folder / "exit.json").rmdir()
    assert end_of(running).codes == (0,)


def test_room_for_the_outcome_is_reserved_while_a_job_runs(folder: Path) -> None:
    running = start(folder, ["sleep", "600"])
    wait_for((folder / "reserve").exists)
    running.stop()
    end_of(running)
    assert not (folder / "reserve").exists()


def test_a_pid_that_was_used_again_is_not_taken_for_ours(folder: Path) -> None:
    folder.mkdir()
    boot = keeper.boot_id()
    (folder / "keeper.json").write_text(json.dumps([os.getpid(), keeper.started_at(os.getpid()) - 1, boot]))
    assert lost(local.find_attempt(folder))
    (folder / "keeper.json").write_text(json.dumps([*keeper.identity(os.getpid()), "another boot"]))
    assert lost(local.find_attempt(folder))
    (folder / "keeper.json").write_text(json.dumps([*keeper.identity(os.getpid()), boot]))
    found = local.find_attempt(folder)
    assert isinstance(found, local.Running)
    found.close()


def test_strays_are_not_looked_for_under_pids_of_another_boot_or_process(folder: Path) -> None:
    folder.mkdir()
    pid, started = keeper.identity(os.getpid())
    (folder / "ranks.json").write_text(json.dumps([[pid, started - 1], [1, 5]]))
    (folder / "keeper.json").write_text(json.dumps([pid, started, keeper.boot_id()]))
    assert containment._strays(folder, "nobody has this token", just_now=False) == set()
    (folder / "ranks.json").write_text(json.dumps([[pid, started]]))
    (folder / "keeper.json").write_text(json.dumps([pid, started, "another boot"]))
    assert containment._strays(folder, "nobody has this token", just_now=True) == set()


def test_a_half_written_file_of_an_attempt_does_not_stop_its_recovery(folder: Path) -> None:
    folder.mkdir()
    (folder / "keeper.json").write_text("[12")
    (folder / "exit.json").write_text('{"codes": [0')
    (folder / "ranks.json").write_text("")
    assert lost(local.find_attempt(folder))
    assert containment.kill_strays(folder, "nobody has this token") == 0
