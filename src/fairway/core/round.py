"""The one scheduling loop: observe, decide, check, place, reconcile, enact.

The simulator, the daemon, a replay and the tests all call `Loop.step`; they differ in the engine that they pass in. The
loop never reads a policy's name and never looks at a clock other than its engine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from fairway.core.action import Action
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.event import Event, JobEvicted, Woken
from fairway.core.plan import Placer, plan
from fairway.core.policy import Policy
from fairway.core.reconcile import reconcile
from fairway.core.snapshot import Snapshot
from fairway.core.state import State

RETRY_S = 60.0
"""How long the loop waits, if nothing else happens, before it lets the policy try a refused start again."""


class Engine(Protocol):
    """Where jobs really run, or are simulated to."""

    def poll(self, until_s: float) -> Sequence[Any]:
        """Wait for the next instant at which something happens, at the latest until `until_s`; return what happened.

        All events carry that one instant. `Woken` says that `until_s` has come. An empty answer means that there is
        nothing left to wait for. An `Interpreter` translates what is not an event of the state.
        """
        ...

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Carry out actions, in order. Returns what is known at once (a start, a refusal); `poll` reports the rest."""
        ...


class Interpreter(Protocol):
    """Says what an engine's own kinds of happenings mean for the state."""

    def handle(self, happening: Any) -> Sequence[Event]:
        """The events of a happening; they are applied before the next one is handled."""
        ...

    def owed_s(self, happened: Sequence[Any], events: Sequence[Event]) -> float:
        """When a round is due after all this; infinity if no round is needed."""
        ...


class Observer(Protocol):
    """Keeps a record: metrics, a journal, invariants under test."""

    def after_events(self, state: State, events: Sequence[Event]) -> None: ...

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None: ...


class Loop:
    """A policy, a placement and an engine around one state.

    `round_s` > 0: a round at every multiple of it. `round_s` = 0: a round at every instant at which something
    happened or that the policy asked for.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        policy: Policy,
        placer: Placer,
        *,
        round_s: float = 0.0,
        observer: Observer | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        self.engine = engine
        self.state = state
        self.policy = policy
        self.placer = placer
        self.round_s = round_s
        self.observer = observer
        self.interpreter = interpreter
        self.decision: Decision | None = None
        self._wake_s = math.inf
        self._owed_s = math.inf
        self._quiet = False

    @property
    def owes_round(self) -> bool:
        """Whether something has happened that no round has dealt with yet."""
        return self._owed_s < math.inf

    def step(self) -> bool:
        """Observe one instant and, if a round is due, run it. False when there is nothing left to wait for."""
        wake_s = self._next_wake_s()
        happened = self.engine.poll(wake_s if wake_s < self._owed_s else self._owed_s)
        if not happened:
            return False
        events: Sequence[Event] = happened
        if self.interpreter is None:
            for event in happened:
                self.state.apply(event)
        else:
            events = self._interpreted(self.interpreter, happened)
        if self.observer is not None:
            self.observer.after_events(self.state, events)
        self._quiet = False
        if (self.interpreter is None or self._is_owed(self.interpreter, happened, events)) and self._due():
            self._owed_s = math.inf
            self.run_round()
        return True

    def _interpreted(self, interpreter: Interpreter, happened: Sequence[Any]) -> Sequence[Event]:
        """Tell the state what the happenings mean for it."""
        events: list[Event] = []
        for one in happened:
            for event in interpreter.handle(one):
                self.state.apply(event)
                events.append(event)
        return events

    def _is_owed(self, interpreter: Interpreter, happened: Sequence[Any], events: Sequence[Event]) -> bool:
        """Whether what has happened so far needs a round at this instant."""
        now_s = happened[-1].time_s
        self._owed_s = min(self._owed_s, interpreter.owed_s(happened, events))
        owed = self.round_s > 0 or self._owed_s <= now_s
        if owed and self.state.now_s < now_s:
            self.state.apply(Woken(now_s))
        if self.round_s > 0 or not self.state.active:
            self._owed_s = math.inf
        return owed

    def run(self) -> None:
        """Step until nothing is left to wait for."""
        while self.step():
            pass

    def run_round(self) -> None:
        """Decide on the present state and have the decision carried out."""
        state = self.state
        snapshot = state.snapshot(self.policy.knows)
        decision = self.policy.decide(snapshot)
        check(snapshot, decision)
        planned = plan(snapshot, decision, state.occupancy, self.placer)
        decision = planned.kept(decision)
        actions = reconcile(snapshot, decision, planned)
        state.memory = decision.memory
        state.round += 1
        self.decision = decision
        self._wake_s = wake_s = decision.wake_s
        if self.observer is not None:
            self.observer.after_round(snapshot, decision, actions)
        self._quiet = not actions and not state.busy_gpus and wake_s == math.inf
        if actions:
            state.commit(actions, planned.occupancy)
            self._learn(self.engine.enact(state.now_s, actions))

    def _learn(self, events: Sequence[Event]) -> None:
        """Apply what an engine reports at once about actions. A refused start is tried again a little later."""
        for event in events:
            self.state.apply(event)
            if type(event) is JobEvicted:
                self._wake_s = min(self._wake_s, event.time_s + RETRY_S)
        if self.observer is not None and events:
            self.observer.after_events(self.state, events)

    def _due(self) -> bool:
        if not self.state.active:
            self._wake_s = math.inf
            return False
        return self.round_s == 0 or self._is_boundary(self.state.now_s)

    def _is_boundary(self, now_s: float) -> bool:
        rounds = now_s / self.round_s
        return abs(rounds - round(rounds)) * self.round_s < 1e-6

    def _next_wake_s(self) -> float:
        """The next instant at which a round is due although nothing may have happened."""
        if self.round_s == 0:
            return self._wake_s
        if not self.state.active:
            return math.inf
        boundary = (math.floor(self.state.now_s / self.round_s + 1e-9) + 1) * self.round_s
        # Where nothing runs and the policy starts nothing, only an event can change that.
        return math.inf if self._quiet else boundary
