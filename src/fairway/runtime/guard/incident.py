"""An incident as a file: all that a live decision depends on, so that it can be repeated elsewhere and become a test.

The file has the snapshot, the policy, which jobs were not eligible and why, the GPUs that were blocked or held the
memory of a job, the configuration, and what was decided. It has no commands and no environments of jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.placement import placement as placement_named
from fairway.policies import make_policy
from fairway.runtime.daemon.config import parse_config
from fairway.runtime.guard.limits import Limits
from fairway.runtime.guard.policy_guard import PolicyGuard
from fairway.runtime.guard.tenancy import virtual_clusters

FORMAT = 1
DEFAULT_PLACEMENT = "packed"


class Granted(NamedTuple):
    """What a decision gives one job: GPUs, or a reason to wait."""

    id: str
    gpus: int
    reason: str


class Incident(NamedTuple):
    """One instant of a live scheduler, and what it decided then. `users_apart`: only jobs of one user share a GPU.

    Only if there are tenants, a decision depends on the placement.
    """

    snapshot: Snapshot
    policy: str
    outside: Mapping[int, str]
    blocked: Mapping[int, str]
    homes: Mapping[int, tuple[int, ...]]
    config: str
    decided: tuple[Granted, ...]
    users_apart: bool = False
    placement: str = DEFAULT_PLACEMENT

    def decide(self, policy: str = "") -> tuple[Granted, ...]:
        """What the same policy decides now, or another one."""
        chosen, config = make_policy(policy or self.policy), parse_config(self.config)
        cluster = self.snapshot.cluster
        shared = virtual_clusters(config, cluster, "the configuration", cluster.types[0].name)
        guard = PolicyGuard(
            chosen,
            Limits(config),
            tenants=lambda: shared,
            placer=placement_named(self.placement),
            outside=dict(self.outside),
            blocked=lambda: self.blocked,
            homes=lambda: self.homes,
            by_user=lambda: self.users_apart,
        )
        snapshot = self.snapshot if not policy else self.snapshot.part(memory={})
        found = granted(snapshot, guard.decide(snapshot))
        if guard.problem:
            raise InputError(guard.problem)
        return found

    def text(self) -> str:
        """The incident as the text of a file."""
        return json.dumps(
            {
                "fairway_incident": FORMAT,
                "policy": self.policy,
                "outside": dict(self.outside),
                "blocked": dict(self.blocked),
                "homes": {job: list(gpus) for job, gpus in self.homes.items()},
                "config": self.config,
                "decided": [list(one) for one in self.decided],
                "users_apart": self.users_apart,
                "placement": self.placement,
                "snapshot": json.loads(to_json(self.snapshot)),
            }
        )

    @staticmethod
    def of_text(text: str) -> Incident:
        """Read what `text` gave. `InputError` for anything else."""
        try:
            data = json.loads(text)
            if data["fairway_incident"] != FORMAT:
                raise InputError(f"this file has format {data['fairway_incident']}; this Fairway reads format {FORMAT}")
            return Incident(
                from_json(json.dumps(data["snapshot"])),
                str(data["policy"]),
                {int(job): str(why) for job, why in data["outside"].items()},
                {int(gpu): str(why) for gpu, why in data["blocked"].items()},
                {int(job): tuple(map(int, gpus)) for job, gpus in data["homes"].items()},
                str(data["config"]),
                tuple(Granted(str(name), int(gpus), str(reason)) for name, gpus, reason in data["decided"]),
                bool(data.get("users_apart", False)),
                str(data.get("placement", DEFAULT_PLACEMENT)),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError("this is not a file of `fairway snapshot save`") from None


def granted(snapshot: Snapshot, decision: Decision) -> tuple[Granted, ...]:
    """A decision, job by job."""
    gpus, jobs = decision.gpus.tolist(), snapshot.jobs.tolist()
    return tuple(
        Granted(snapshot.job_id(job), count, "" if count else decision.reason(snapshot, row))
        for row, (job, count) in enumerate(zip(jobs, gpus, strict=True))
    )
