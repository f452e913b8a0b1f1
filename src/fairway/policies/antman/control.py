"""How much a guest may compute: AntMan's controller, and what the policy remembers between decisions.

Mini-batches of a training job take almost equal time, so one that takes longer than it did alone is a sign of
interference. When the host shows that sign, the throttle of its guests is cut at once; otherwise it is raised slowly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

MARGIN = 0.9
"""How much of the slowdown that a host tolerates may be used up while a throttle is being raised."""
BAND = 0.02
"""A smaller change of the throttle than this is not worth making: the controller has settled."""
MOMENT_S = 1e-6
REFUSED = 1e9
"""The interference of a pair that an engine has refused to put together."""
MOST_PAIRS = 4096


def aimd(share: float, slowdown: float, *, eps: float = 0.05, decrease: float = 0.5, increase: float = 0.1) -> float:
    """The next throttle: cut if the host's step takes more than 1 + `eps` times as long as alone, else raised.

    >>> share = 1.0
    >>> for step_ms in (230, 215, 205, 204):
    ...     share = aimd(share, step_ms / 200)
    ...     print(round(share, 2))
    0.5
    0.25
    0.35
    0.45
    """
    return share * decrease if slowdown > 1 + eps + 1e-9 else min(1.0, share + increase)


@dataclass(frozen=True)
class ControlKnobs:
    """The parameters of a controller: knobs of the policy."""

    eps: float
    decrease: float
    increase: float
    least: float
    window: int
    interval_s: float
    hold_s: float


@dataclass
class HostWatch:
    """One host with guests: its speed alone, the throttle of its guests, and the steps seen since that was set.

    A step is measured by how many times as long as alone it takes. `due_s` is when the throttle is checked next.
    """

    alone: float
    share: float
    due_s: float
    settled: bool = False
    seen: list[float] = field(default_factory=list)

    def step(self, now_s: float, slowdown: float, limits: ControlKnobs) -> bool:
        """Take a measurement and, when it is time, set a new throttle. False: the guests must leave."""
        self.seen = [*self.seen, slowdown][-limits.window :]
        usual = median(self.seen)
        too_slow = usual > 1 + limits.eps + 1e-9
        if now_s < self.due_s - MOMENT_S and not (self.settled and too_slow):
            return True
        share = aimd(self.share, usual, eps=limits.eps, decrease=limits.decrease, increase=limits.increase)
        bearable = MARGIN * self.share * limits.eps / (usual - 1) if usual > 1 else 1.0
        if too_slow:
            if bearable < limits.least:
                return False
            share = max(share, limits.least)
        else:
            share = min(share, max(bearable, self.share))
        share = round(share, 9)
        self.settled = abs(share - self.share) < BAND
        if not self.settled:
            self.share, self.seen = share, []
        self.due_s = now_s + (limits.hold_s if self.settled else limits.interval_s)
        return True

    def reopen(self, now_s: float, share: float, interval_s: float) -> None:
        """Another guest has come: start again, gently."""
        self.share, self.seen, self.settled, self.due_s = min(self.share, share), [], False, now_s + interval_s


@dataclass
class AntManNotes:
    """The policy's memory. Keys are job numbers as texts; pairs are `host/guest`, of job numbers or of models.

    `watches`: hosts with guests. `closed`: until when a host gets no guests. `paused`: guests that had to leave, with
    the host and its slowdown. `pairs`: by models, the interference of a guest that is not throttled, and when it was
    seen. `refused`: pairs that did not fit together. `joined`: guests of the last decision that were new.
    """

    watches: dict[str, HostWatch] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    paused: dict[str, list[float]] = field(default_factory=dict)
    pairs: dict[str, list[float]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    joined: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def recalled(memory: Mapping[str, Any], active: Iterable[int], now_s: float) -> AntManNotes:
        """The memory, without jobs that have left and times that have passed."""
        if not memory:
            return AntManNotes()
        alive = {str(job) for job in active}
        return AntManNotes(
            {host: HostWatch(**about) for host, about in memory["watches"].items()},
            {host: until for host, until in memory["closed"].items() if host in alive and until > now_s + MOMENT_S},
            {guest: why for guest, why in memory["paused"].items() if guest in alive},
            dict(memory["pairs"]),
            [pair for pair in memory["refused"] if alive.issuperset(pair.split("/"))],
            dict(memory["joined"]),
        )

    def plain(self) -> dict[str, Any]:
        """The notes as JSON values."""
        if len(self.pairs) > MOST_PAIRS:
            self.pairs = dict(list(self.pairs.items())[-MOST_PAIRS:])
        watches = {host: dict(vars(watch)) for host, watch in self.watches.items()}
        return {**vars(self), "watches": watches}

    def learn(self, pair: str, interference: float, now_s: float) -> None:
        """Note what a guest of one model costs a host of another. Pairs without names teach nothing."""
        if pair:
            self.pairs.pop(pair, None)
            self.pairs[pair] = [interference, now_s]
