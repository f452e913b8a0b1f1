"""The measured profile of a live scheduler, which its journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairway.core.errors import InputError
from fairway.models.measured_profile import MeasuredProfile
from fairway.runtime.jobs.company import LivePairing

FACT = "profile"
"""The fact of the journal that has the profile."""
EVERY_S, NEWS_EVERY_S = 60.0, 5.0
"""How often the profile is written at most, and if it has a new pair."""


class KeptProfile:
    """The profile that a journal has, and what policies see of it.

    If it cannot be read, it is a new one, and `problem` says why.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.problem = ""
        try:
            self.profile = MeasuredProfile.from_plain(facts.get(FACT))
        except InputError as error:
            self.profile, self.problem = MeasuredProfile(), f"{error}; measurements begin again"
        self.pairing = LivePairing(self.profile)
        self._written_s = -EVERY_S

    def facts(self, now_s: float) -> dict[str, Any]:
        """What the journal has to be told now: nothing if it knows everything, or can wait for the rest."""
        profile = self.profile
        if not profile.changed or now_s < self._written_s + (NEWS_EVERY_S if profile.news else EVERY_S):
            return {}
        self._written_s = now_s
        profile.changed = profile.news = False
        return {FACT: profile.plain()}
