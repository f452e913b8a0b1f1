"""Jobs that change their batch size: the courses of Accordion and GNS as the Shockwave artifact has them."""

from __future__ import annotations

from fairway.models.adaptation import AdaptationCourse
from fairway.models.courses import gns_course
from fairway.reproduce.case import Case, Figure, Findings, Setting, Yardstick

SMALL, EPOCHS = 32, 90
KUNGFU = (16, 4096)
"""Batch sizes with which a run of KungFu starts and ends."""


def courses(_: Setting) -> Findings:
    """ResNet-50 from batch 32 for 90 epochs under Accordion, and the batch sizes of a GNS course."""
    stretches = AdaptationCourse("ResNet-50", "accordion", SMALL, 1).stretches(EPOCHS)
    small = sum(epochs for batch, epochs in stretches if batch == SMALL)
    batches = [batch for batch, _ in gns_course(KUNGFU[0], lambda batch: batch <= KUNGFU[1])]
    equal = Yardstick.equal(0)
    figures = (
        Figure("Accordion, ResNet-50: epochs at the small batch", 48, small, equal, decimals=0),
        Figure("Accordion, ResNet-50: regimes", 6, len(stretches), equal, decimals=0),
        Figure("GNS: largest batch of a run that starts at 16", 4096, max(batches), equal, decimals=0),
    )
    return Findings(figures)


CASES = (
    Case(
        "adaptation-courses",
        "GNS and Accordion",
        "batch sizes over a training",
        "Zheng et al., NSDI'23, its generator; Mai et al., OSDI'20",
        "../adaptation.md",
        courses,
        0.1,
        0.1,
    ),
)
