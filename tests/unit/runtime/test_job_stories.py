"""What is kept of a job's past: spans on GPUs, points of its course, notes; each of them bounded."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.api.timeline import Row, condensed
from fairway.core.cluster import Cluster, Node
from fairway.runtime.jobs.held_spans import spans_of
from fairway.runtime.jobs.job_course import MOST_POINTS, CoursePoint, JobCourse
from fairway.runtime.jobs.job_story import MOST_EVENTS, by_whom, gpus_text, story
from fairway.runtime.jobs.records import MOST_SPANS, Attempt, JobNote, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal import database
from fairway.runtime.journal.archive import JobArchive
from fairway.runtime.journal.database import FIRST_NOTES, LAST_NOTES, MOST_NOTES, Journal

CLUSTER = Cluster.of([Node("a", "v100", 4), Node("b", "k80", 8), Node("c", "k80", 1), Node("d", "k80", 1)])


def _attempt(**about: object) -> Attempt:
    made = Attempt(1, [0, 1], "t", 10.0, spans=[])
    for name, value in about.items():
        setattr(made, name, value)
    return made


def test_a_span_does_not_go_beyond_the_end_and_a_late_start_was_earlier() -> None:
    one = _attempt(ended_s=20.0)
    one.add_span(11.0, 10.0)
    assert one.spans == [[10.0, 20.0]]
    unseen = _attempt(ended_s=20.0)
    unseen.add_span(None, 4.0)
    assert unseen.spans == [[16.0, 20.0]]


def test_what_was_added_too_much_is_taken_back() -> None:
    one = _attempt()
    one.add_span(10.0, 5.0)
    one.add_span(20.0, 2.0)
    one.add_span(None, -3.0)
    assert one.spans == [[10.0, 14.0]]


def test_spans_without_a_gap_are_one_and_only_the_latest_are_kept() -> None:
    one = _attempt()
    one.add_span(10.0, 5.0)
    one.add_span(15.0, 5.0)
    assert one.spans == [[10.0, 20.0]]
    for number in range(2 * MOST_SPANS):
        one.add_span(30.0 + 2 * number, 1.0)
    assert one.spans is not None
    assert len(one.spans) == MOST_SPANS
    assert one.spans[-1] == [30.0 + 4 * MOST_SPANS - 2, 31.0 + 4 * MOST_SPANS - 2]


def test_spans_keep_the_gpus_and_the_host_that_they_had() -> None:
    one = _attempt(host="7")
    one.add_span(10.0, 5.0)
    one.take([2, 3], None)
    record = JobRecord(0, "1", JobRequest(("x",), gpus=2), 0.0, JobState.RUNNING, since_s=15.0, attempts=[one])
    record.count_until(18.0)
    record.since_s = 20.0
    found = [tuple(span) for span in spans_of(record)]
    assert found == [((0, 1), 10.0, 15.0, "7"), ((2, 3), 15.0, 18.0, None), ((2, 3), 20.0, None, None)]
    again = JobRecord.from_plain({**record.plain(), "state": "RUNNING"})
    assert [tuple(span) for span in spans_of(again)] == found
    assert [span.from_s for span in spans_of(record, 16.0)] == [15.0, 20.0]
    assert "spans" not in one.shown(0.0)


def test_an_attempt_of_an_earlier_version_is_told_as_a_whole() -> None:
    old = Attempt(1, [0, -1], "t", 10.0, started_s=11.0, ended_s=15.0)
    record = JobRecord(0, "1", JobRequest(("x",)), 0.0, attempts=[old])
    assert [tuple(span) for span in spans_of(record)] == [((0,), 11.0, 15.0, None)]


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0.1, 50.0), st.floats(0.0, 20.0)), min_size=1, max_size=60))
def test_condensed_spans_are_few_and_do_not_overlap(parts: list[tuple[int, float, float]]) -> None:
    rows, at_s = list[Row](), 0.0
    for job, length_s, gap_s in parts:
        rows.append((0, str(job), at_s, at_s + length_s, 1.0, None))
        at_s += length_s + gap_s
    kept, least_s = condensed(list(rows), at_s, most=5)
    assert len(kept) <= 5
    assert kept == rows if len(rows) <= 5 else least_s > 0
    assert all((one[3] or at_s) <= two[2] for one, two in itertools.pairwise(kept))


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=900), st.booleans())
def test_a_course_is_bounded_even_and_has_the_latest(gaps: list[float], stored: bool) -> None:
    course, at_s = JobCourse(), 1.7e9
    for step, gap_s in enumerate(gaps):
        at_s += gap_s
        course.add(CoursePoint(at_s, float(step), None, 0.5, 32, 2))
        if stored and step == len(gaps) // 2:
            course = JobCourse(course.bytes())
    points = list(course.points())
    assert len(points) < MOST_POINTS
    assert (points[-1].step, points[-1].loss, points[-1].batch_size, points[-1].gpus) == (len(gaps) - 1, None, 32, 2)
    assert points[0].date_s == pytest.approx(1.7e9 + gaps[0])
    assert [one.date_s for one in points] == sorted(one.date_s for one in points)


def test_a_long_course_is_thinned_evenly() -> None:
    course = JobCourse()
    for step in range(20_000):
        course.add(CoursePoint(1.7e9 + step, float(step), 1.0 / (step + 1), 1.0, None, 1))
    dates = [one.date_s for one in course.points()]
    assert MOST_POINTS // 2 <= len(dates) < MOST_POINTS
    gaps = sorted(two - one for one, two in itertools.pairwise(dates[:-1]))
    assert gaps[-1] <= 4 * gaps[0]
    assert len(course.bytes()) <= 8 + 24 * MOST_POINTS


def test_of_many_notes_the_first_and_the_last_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        for number in range(3 * MOST_NOTES):
            journal.add_notes([JobNote(7, float(number), "changed", str(number)), JobNote(8, 0.0, "held", "held")])
    archive = JobArchive(tmp_path / "journal.db")
    kept = [int(note.text) for note in archive.notes(7)]
    assert len(kept) <= MOST_NOTES
    assert kept[:FIRST_NOTES] == list(range(FIRST_NOTES))
    assert kept[-LAST_NOTES:] == list(range(3 * MOST_NOTES - LAST_NOTES, 3 * MOST_NOTES))
    archive.close()
    journal.close()


def test_a_journal_of_the_third_schema_gets_notes_and_courses(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE notes; DROP TABLE courses; PRAGMA user_version = 3")
    journal = Journal(path)
    with journal.transaction():
        journal.save_courses({3: b"abc"})
    assert (journal.course(3), journal.course(4)) == (b"abc", b"")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == database.SCHEMA
    journal.close()


def test_a_story_is_bounded_and_hides_what_is_private() -> None:
    record = JobRecord(
        0, "1", JobRequest(("x",), user="ada"), 5.0, JobState.FAILED, "cannot be started: no /home/ada/x"
    )
    record.ended_s = 9000.0
    notes = [JobNote(0, 10.0 + number, "failed", "cannot be started: no /home/ada/x") for number in range(300)]
    told = story(record, notes, CLUSTER, shift_s=100.0, seen=False)
    assert len(told) == MOST_EVENTS
    assert (told[0]["time_s"], told[0]["what"]) == (105.0, "submitted")
    assert told[-1] == {"time_s": 9100.0, "what": "ended", "text": "failed: cannot be started"}
    assert not any("/home" in one["text"] for one in told)
    assert "/home" in story(record, notes, CLUSTER, shift_s=0.0, seen=True)[-1]["text"]


def test_who_and_where_are_told_in_words() -> None:
    record = JobRecord(0, "1", JobRequest(("x",), user="ada"), 5.0)
    assert [by_whom(by, record) for by in ("ada", "root", "the scheduler: it did nothing", "")] == [
        " by its owner",
        " by the operator root",
        " by the scheduler: it did nothing",
        "",
    ]
    # By the numbers within their nodes, as `fairway nodes` and the page have them.
    assert gpus_text(CLUSTER, [4]) == "GPU 0 of b"
    assert gpus_text(CLUSTER, [5, 0, 1, 2, 3], ["a", "b"]) == "GPUs 1 of b and 0 to 3 of a"
    assert gpus_text(CLUSTER, [4, 5, 6, 8], ["b"]) == "4 GPUs of b"
    assert gpus_text(CLUSTER, [3, 4, 12, 13]) == "4 GPUs of a, b, c and 1 more node"
    # Numbered otherwise since.
    assert gpus_text(CLUSTER, [4, 5], ["a"]) == "2 GPUs of a"
    assert gpus_text(CLUSTER, [99], ["a"]) == "1 GPU of a"
    assert gpus_text(CLUSTER, [-1, -1]) == "2 GPUs"
