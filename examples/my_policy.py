"""A policy of your own in one file.

fairway compare jobs.jsonl --cluster v100:8x4 --plugin examples/my_policy.py --policy largest --policy fifo
fairway up --plugin examples/my_policy.py --policy largest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import fairway
from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot


@fairway.register
@dataclass(frozen=True)
class Largest:
    """Most GPUs first; running jobs are left alone.

    Knows: gang sizes. Never preempts.
    """

    name: ClassVar[str] = "largest"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, -snapshot.gpus, preempt=False)
