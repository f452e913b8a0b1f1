"""What is known of a job's batch sizes: the spells that were seen, and what a fall-back undoes."""

from __future__ import annotations

import pytest

from fairway.core.errors import PolicyError
from fairway.core.event import JobEvicted, JobSubmitted, RegimeEntered
from fairway.core.facts import Facts
from fairway.core.prospect import Entry, Prospect, Spell, Stage, Training, entered, spells_of
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.testing import cluster, job

STAGES = (Stage(32, (0.1, 0.0)), Stage(128, (0.3, 0.2)))


def test_a_job_begins_with_its_first_batch_and_its_last_spell_goes_on() -> None:
    assert spells_of((), 32, 0.25, 80) == (Spell(32, 20),)
    entries = (Entry(128, 0.25), Entry(32, 0.5))
    assert spells_of(entries, 32, 0.75, 80) == (Spell(32, 20), Spell(128, 20), Spell(32, 20))
    assert spells_of(entries, 32, 0.5, 80)[-1] == Spell(32, 0), "at the very instant of the change"


def test_a_report_from_before_the_last_change_makes_no_negative_spell() -> None:
    assert spells_of((Entry(128, 0.5),), 32, 0.4, 10) == (Spell(32, 5), Spell(128, 0))


def test_a_fall_back_undoes_what_was_entered_after_it() -> None:
    entries = entered(entered((), 128, 0.3), 32, 0.5)
    assert entries == (Entry(128, 0.3), Entry(32, 0.5))
    assert entered(entries, 128, 0.4) == (Entry(128, 0.3),), "back in the second regime, which began where it began"
    assert entered(entries, 32, 0.6) == entries, "the regime that is on already"


def test_a_fall_back_into_the_first_regime_and_a_second_try_are_one_spell() -> None:
    entries = entered(entered((), 128, 0.3), 32, 0.2)
    assert spells_of(entries, 32, 0.25, 100) == (Spell(32, 25),)
    again = entered(entries, 128, 0.3)
    assert spells_of(again, 32, 0.4, 100) == (Spell(32, 30), Spell(128, pytest.approx(10)))


def test_epochs_done_are_the_sum_of_the_spells() -> None:
    training = Training(90, STAGES, (Spell(32, 28), Spell(128, 1.5)))
    assert training.done == 29.5


def test_prospects_and_facts_survive_json_values() -> None:
    prospect = Prospect(90.0, STAGES)
    assert Prospect.from_plain(prospect.plain()) == prospect
    facts = Facts(prospect=prospect, entries=(Entry(128, 0.3),), skew=0.5)
    assert Facts.from_plain(facts.plain()) == facts


def test_a_prospect_on_other_gpu_types_keeps_their_speeds() -> None:
    assert Prospect(90.0, STAGES).on((1,)).stages == (Stage(32, (0.0,)), Stage(128, (0.2,)))
    assert Prospect(90.0, STAGES).on((1, 0)).stages[1].speeds == (0.2, 0.3)


def announced(prospect: Prospect | None = None, work: float = 100.0, scaling: tuple[float, ...] = ()) -> State:
    state = State(cluster("v100:4,k80:4"))
    spec = job("a", 1, steps=work, model="BERT", batch_size=32)
    about = {"scaling": scaling, "prospect": prospect}
    state.apply(JobSubmitted(0.0, 0, spec, work, (1.0, 0.5), 30.0, work / 2, 20.0, **about))
    return state


def seen(state: State, *knows: str) -> Snapshot:
    return state.snapshot(frozenset(knows))


def test_only_who_says_so_may_look_and_nothing_told_is_none() -> None:
    with pytest.raises(PolicyError, match="regimes"):
        seen(announced(), "duration").training(0)
    assert seen(announced(), "regimes").training(0) is None


def test_a_snapshot_shows_a_regime_from_its_event_on_and_forgets_it_after_a_fall_back() -> None:
    state = announced(Prospect(10.0, STAGES))
    assert seen(state, "regimes").training(0) == Training(10.0, STAGES, (Spell(32, 0.0),))
    state.apply(RegimeEntered(60.0, 0, 50.0, 0.0, 128, (2.0, 1.0), 100.0, 0.0))
    training = seen(state, "regimes").training(0)
    assert training == Training(10.0, STAGES, (Spell(32, 5.0), Spell(128, 0.0)))
    state.apply(JobEvicted(70.0, 0, 20.0, "its node failed"))
    state.apply(RegimeEntered(70.0, 0, 20.0, 0.0, 32, (1.0, 0.5), 50.0, 20.0))
    training = seen(state, "regimes").training(0)
    assert training is not None
    assert training.spells == (Spell(32, 2.0),)
    copy = from_json(to_json(seen(state, "regimes").copy()))
    assert copy.training(0) == training


def test_everybody_sees_entries_but_not_the_prospect() -> None:
    state = announced(Prospect(10.0, STAGES))
    state.apply(RegimeEntered(60.0, 0, 50.0, 0.0, 128, (2.0, 1.0), 100.0, 0.0))
    facts = seen(state).facts(0)
    assert facts.entries == (Entry(128, 0.5),)
    assert facts.prospect is None


def test_scaling_follows_the_regime_where_it_is_told() -> None:
    state = announced(scaling=(1.0, 1.8))
    state.apply(RegimeEntered(1.0, 0, 5.0, 0.0, 64, (1.5, 0.5), 100.0, 0.0))
    assert seen(state, "scaling").scaling(0) == (1.0, 1.8), "an event that says nothing leaves it as it was"
    state.apply(RegimeEntered(2.0, 0, 6.0, 0.0, 128, (2.0, 1.0), 100.0, 0.0, scaling=(2.0, 3.4)))
    assert seen(state, "scaling").scaling(0) == (2.0, 3.4)


def test_a_job_without_work_has_trained_all_of_it() -> None:
    training = seen(announced(Prospect(0.0, STAGES), work=0.0), "regimes").training(0)
    assert training is not None
    assert training.done == 0.0
