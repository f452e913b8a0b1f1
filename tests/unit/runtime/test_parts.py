"""How the parts of a gang over several nodes end as one attempt."""

from __future__ import annotations

import pytest

from fairway.runtime.jobs.life import verdict
from fairway.runtime.processes.parts import joined
from fairway.runtime.processes.site import LOST, REFUSED, Moment, Outcome


def test_one_part_is_the_attempt() -> None:
    only = Outcome((0, 1), "gang", memory_kills=2)
    assert joined([only]) is only


def test_codes_are_in_the_order_of_ranks_and_figures_cover_all_parts() -> None:
    parts = [
        Outcome((0, 0), ended=Moment(10.0, "a", 3.0), memory_kills=1, ran_s=5.0),
        Outcome((0, 0), ended=Moment(12.0, "b", 1.0), memory_kills=-1, ran_s=4.0, said_no_memory=True),
        Outcome((0,), ended=Moment(11.0, "c", 2.0), memory_kills=2, stop_s=1.5, killed=True),
    ]
    whole = joined(parts)
    assert whole == Outcome((0,) * 5, "", True, "", Moment(12.0, "b", 1.0), 3, 1.5, 5.0, True)


def test_what_nobody_knows_stays_unknown() -> None:
    whole = joined([Outcome((0,)), Outcome((0,))])
    assert (whole.ended, whole.memory_kills, whole.stop_s, whole.ran_s) == (None, -1, None, None)
    # A part whose end has no date has ended now, after the others.
    assert joined([Outcome((0,), ended=Moment(10.0)), LOST]).ended is None


@pytest.mark.parametrize(
    ("causes", "whole"),
    [
        (("gang", ""), "gang"),
        (("gang", "lost"), "lost"),
        (("request", "lost"), "lost"),
        (("request", "gang"), "request"),
        (("", "request"), "request"),
        (("gang", "limit"), "limit"),
        (("gang", REFUSED, "start"), REFUSED),
        (("gang", "start"), "start"),
        (("", ""), ""),
    ],
)
def test_the_first_real_cause_counts(causes: tuple[str, ...], whole: str) -> None:
    parts = [Outcome((143,), cause, problem=f"because of {cause}") for cause in causes]
    found = joined(parts)
    assert (found.cause, found.problem) == (whole, f"because of {whole}")


def test_a_failure_on_one_node_fails_the_job_with_its_code() -> None:
    judged = verdict(joined([Outcome((143, 143), "gang"), Outcome((3, 143), "gang")]), asked=False)
    assert (judged.next, judged.code) == ("retry", 3)


def test_a_part_that_could_not_start_fails_the_job_even_if_the_others_end_well() -> None:
    for left in ((0,), (75,), (143, 75)):
        whole = joined([Outcome((), "start", problem="'train': No such file"), Outcome(left, "gang")])
        judged = verdict(whole, asked=False)
        assert (judged.next, judged.code, judged.why) == ("retry", 127, "cannot be started: 'train': No such file")


def test_ranks_that_fail_because_their_peers_were_stopped_first_are_no_failure() -> None:
    whole = joined([Outcome((75,), "request", stop_s=1.0), Outcome((1,), "")])
    assert verdict(whole, asked=whole.cause == "request").next == "again"
