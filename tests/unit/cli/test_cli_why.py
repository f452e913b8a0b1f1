"""What `fairway why` and `fairway what-if` print of an answer."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType

from fairway.cli.why import _outlook, _reasons

WAITS: dict[str, Any] = {
    "id": "7",
    "state": "PENDING",
    "reason": "needs 2 GPUs, 0 free",
    "policy": "fifo",
    "position": 3,
    "waiting": 9,
    "ahead": [],
    "frees": [],
}
NOTHING = {"start_in_s": None, "finish_in_s": None, "basis": "its owner's estimate"}
FIGURES: dict[str, Any] = {
    "finished": 0,
    "not_finished": 0,
    "never_start": 0,
    "mean_jct_s": None,
    "all_done_in_s": None,
    "preemptions": 0,
}
ROW: dict[str, Any] = {
    "id": "7",
    "user": "ann",
    "state": "PENDING",
    "gpus": 1,
    "start_in_s": 4000.0,
    "finish_in_s": 7e4,
    "preemptions": 0,
    "basis": "its owner's estimate",
}
ENDED = ROW | {"id": "3", "state": "COMPLETED", "start_in_s": None, "finish_in_s": None}
TOLD: dict[str, Any] = {"policy": "fifo", "jobs": [], "new": [], "left_out": 0, "cut": "", "problem": "", **FIGURES}


def printed(what: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as said:
        console.print(what)
    return said.get()


def test_a_start_that_was_not_seen_is_not_given() -> None:
    far = {**NOTHING, "cut": "looking ahead was stopped", "looked_s": 7200.0}
    text = printed(_reasons({**WAITS, "estimate": far}))
    assert "not within 2 h" in text
    assert "3 of 9" in text
    assert "owner's estimate" not in text
    never = printed(_reasons({**WAITS, "position": 0, "estimate": {**NOTHING, "why": "held"}}))
    assert "never, as things are now" in never
    assert "position" not in never
    assert "in 1 min" in printed(_reasons({**WAITS, "estimate": {**NOTHING, "start_in_s": 60.0}}))


def test_of_an_array_it_is_said_which_task_is_meant() -> None:
    array = {"id": "7", "tasks": 5, "states": {"RUNNING": 2, "PENDING": 3}}
    frees = [{"what": "a task of its array ends", "tasks": ["7_0", "7_1"]}]
    text = printed(_reasons({**WAITS, "id": "7_2", "array": array, "frees": frees}))
    assert "7, 5 tasks (2 RUNNING, 3 PENDING); this is about task 7_2" in text
    assert "a task of its array ends: 7_0, 7_1" in text


def test_a_narrow_terminal_has_a_line_for_each_job() -> None:
    row = ROW | {"preemptions": 2}
    rows = [row | {"id": str(number), "basis": "nothing; an hour is assumed"} for number in (10, 11)]
    rows.append(row | {"id": "12", "start_in_s": None, "why": "no GPUs that are here now can run it, " * 3})
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as said:
        console.print(_outlook({**TOLD, "jobs": rows}))
    lines = said.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:5]] == ["10", "11", "12"]
    assert all("nothing (1 h)" in line for line in lines[2:4])
    assert "no GPUs that are" in lines[4]
    assert printed(_outlook({**TOLD, "jobs": rows})).count("can run it") == 3


def test_figures_that_do_not_exist_are_not_printed() -> None:
    text = printed(_outlook({**TOLD, "jobs": [ROW]}))
    assert "–" not in text
    assert "fifo: 0 preemptions" in text
    text = printed(
        _outlook({**TOLD, "jobs": [ROW], "finished": 2, "not_finished": 4, "never_start": 3, "mean_jct_s": 30.0})
    )
    assert "(of 2 that end)" in text
    assert "1 job not done within the forecast" in text
    assert "3 jobs never start, as things are now" in text


def test_of_jobs_that_have_ended_nothing_is_forecast() -> None:
    failed = ENDED | {"id": "4", "state": "FAILED"}
    assert (
        printed(_outlook({**TOLD, "jobs": [ENDED, failed]})) == "job 3 has ended: COMPLETED\njob 4 has ended: FAILED\n"
    )
    both = printed(_outlook({**TOLD, "jobs": [ROW, ENDED]})).splitlines()
    assert both[2].endswith("its owner's estimate")
    assert both[3].rstrip().endswith("it has ended")


def test_an_empty_queue_is_said_to_be_empty() -> None:
    assert printed(_outlook(TOLD)) == "no jobs wait or run\n"
    assert printed(_outlook({**TOLD, "problem": "it broke"})) == "no jobs wait or run\nit broke\n"


def test_what_is_thought_of_stands_on_the_first_line() -> None:
    new = {name: ROW[name] for name in ("gpus", "start_in_s", "finish_in_s", "preemptions")}
    lines = printed(_outlook({**TOLD, "new": [new]}, "a new job: `nonsense`")).splitlines()
    assert lines[0] == "a new job: `nonsense`"
    assert lines[3].startswith("new ")


def test_how_sure_a_start_is_stands_beside_it() -> None:
    told = {"start_s": 1e9, "start_between_s": [1e9, 1e9], "finish_s": None, "finish_between_s": None, "sure": 0.8}
    text = printed(_reasons({**WAITS, "estimate": {**NOTHING, "start_in_s": 60.0, **told}}))
    assert "in 1 min, about 2001-09-0" in text
    assert "(80 % sure: 2001-09-0" in text
    table = printed(_outlook({**TOLD, "jobs": [ROW | told]}))
    assert "80 % sure: starts" in table
    assert "80 % sure: ends" not in table


def test_a_time_without_an_interval_is_called_rough() -> None:
    told = {"start_s": 1e9, "start_between_s": None, "start_rough": True, "finish_s": None, "sure": None}
    text = printed(_reasons({**WAITS, "estimate": {**NOTHING, "start_in_s": 60.0, **told}}))
    assert "in 1 min, about 2001-09-0" in text
    assert "(rough)" in text
    row = ROW | {"start_rough": True, "finish_rough": False}
    table = printed(_outlook({**TOLD, "jobs": [row]}))
    assert table.count("(rough)") == 1
    assert "% sure" not in text + table
