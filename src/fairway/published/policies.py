"""The published forms of policies, by name."""

from __future__ import annotations

from typing import cast

from fairway.core.policy import Policy
from fairway.published.allox import PublishedAlloX
from fairway.published.gandiva_fair import PublishedGandivaFair
from fairway.published.gavel import (
    PublishedFifo,
    PublishedFinishTimeFairness,
    PublishedHierarchical,
    PublishedIsolated,
    PublishedMaxMinFairness,
    PublishedMaxThroughput,
    PublishedMinCost,
    PublishedMinCostSlo,
    PublishedMinMakespan,
    PublishedSjf,
    PublishedWaterFilling,
)
from fairway.published.shockwave import PublishedShockwave
from fairway.published.tiresias import ListedTiresias

FORMS: dict[str, type[Policy]] = {
    cls.name: cast(type[Policy], cls)
    for cls in (
        PublishedAlloX,
        PublishedGandivaFair,
        PublishedFifo,
        PublishedFinishTimeFairness,
        PublishedHierarchical,
        PublishedIsolated,
        PublishedMaxMinFairness,
        PublishedMaxThroughput,
        PublishedMinCost,
        PublishedMinCostSlo,
        PublishedMinMakespan,
        PublishedSjf,
        PublishedWaterFilling,
        PublishedShockwave,
        ListedTiresias,
    )
}
