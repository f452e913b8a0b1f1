"""A gang over several nodes runs in parts, one for each node, each with a keeper of its own: how they ended as one."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.runtime.processes.site import REFUSED, Outcome

_CANNOT_START = 127
_CAUSES = ("lost", REFUSED, "start", "limit", "request", "gang", "")
"""Why an attempt was stopped, by what counts first. The parts of a gang learn of a request at different times, so ranks
may fail, because others have left, before their own part is asked to stop. That is no failure."""


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """How an attempt ended, from how its parts did, in the order of their ranks."""
    if len(outcomes) == 1:
        return outcomes[0]
    first = min(outcomes, key=lambda one: _CAUSES.index(one.cause) if one.cause in _CAUSES else 0)
    kills = [one.memory_kills for one in outcomes if one.memory_kills >= 0]
    ends = [one.ended for one in outcomes if one.ended is not None]
    return Outcome(
        codes=tuple(code for one in outcomes for code in _codes(one)),
        cause=first.cause,
        killed=any(one.killed for one in outcomes),
        problem=first.problem or next((one.problem for one in outcomes if one.problem), ""),
        # An end that nobody knows is taken to be now, which is later than all others.
        ended=max(ends, key=lambda one: one.date_s) if len(ends) == len(outcomes) else None,
        memory_kills=sum(kills) if kills else -1,
        stop_s=max((one.stop_s for one in outcomes if one.stop_s is not None), default=None),
        ran_s=max((one.ran_s for one in outcomes if one.ran_s is not None), default=None),
        said_no_memory=any(one.said_no_memory for one in outcomes),
    )


def _codes(outcome: Outcome) -> tuple[int, ...]:
    """The codes of a part. A rank that could not be started has one as well: the gang has not done its work."""
    return (*outcome.codes, _CANNOT_START) if outcome.cause == "start" else outcome.codes
