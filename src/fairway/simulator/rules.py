"""Rule sets: what a simulated second, round and restart mean. A small frozen value that the engine reads.

`native` is Fairway's own: exact times, restarts have a cost, a job that has just started is protected for a minute.
The others reproduce the semantics of published simulators, so that their figures can be repeated (see docs/rules.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.models.restart import restart_cost_s
from fairway.models.switching import Switching


@dataclass(frozen=True, slots=True)
class Rules:
    """How a simulation behaves.

    `round_s` None leaves the length to the policy. `time_quantum_s` is the grid to which event times are rounded up.
    `charge` says which starts pay `restart_cost_s`: every start after a job's first ("restart"), all starts
    ("start"), or starts after a round in which the job did not run ("absence"). `min_run_s` protects a job that has
    just started. `replan_interval_s` is the shortest time between two plans of a policy that plans shares.
    `spread_matters` makes a gang on more nodes than needed slower, if a profile says so. `checkpoint_every_s` bounds
    the work that a node failure destroys. A job that was suspended warm loses `suspend_cost_s` when it resumes in
    place, `migrate_cost_s` elsewhere, and never more than a restart.

    `rounds` is "clock" if rounds come at the multiples of `round_s`, "whole_steps" if each lasts until the last of its
    jobs has done the whole steps that fit into it (see `published.rounds`). With "whole_steps", a start has a cost only
    in a round in which the job computes for more than `charged_from_s`, and a job that has run `most_run` times as long
    as it takes alone counts as done.

    `adapts` says whether jobs of Accordion and GNS change their batch sizes: at fixed epochs of their models
    ("regimes"), or by requests at the ends of rounds ("requests"). Explicit regimes of a job always count. `priorities`
    says whether jobs of a higher priority are served first, whatever the policy. `fractions` says whether jobs that ask
    for a share of a GPU get that; otherwise each has a whole GPU.

    `restart_costs` are those of single applications or data sets; other jobs pay `restart_cost_s`. `slowdowns` say by
    what factor some applications are slower than their profile.

    `progress` is "rate" if work is done at the rates of a profile, "epochs" if it is done epoch by epoch along measured
    validation curves (see `published.epochs`). `placement` is the default placement. `knobs` are the settings of
    policies in the published simulator, by policy; they apply unless the user gives others. `unmodelled` names what
    this value does not reproduce of the published simulator.

    `switching` replaces all costs of starts by those of switching GPUs between jobs (see docs/switching.md).
    """

    name: str
    round_s: float | None = None
    time_quantum_s: float = 1e-6
    restart_cost_s: float = 0.0
    charge: Literal["restart", "start", "absence"] = "restart"
    min_run_s: float = 0.0
    replan_interval_s: float = 0.0
    spread_matters: bool = True
    frees_gpus: Literal["at_once", "at_round_end"] = "at_once"
    checkpoint_every_s: float = 600.0
    suspend_cost_s: float = math.inf
    migrate_cost_s: float = math.inf
    rounds: Literal["clock", "whole_steps"] = "clock"
    charged_from_s: float = 0.0
    adapts: Literal["never", "regimes", "requests"] = "never"
    most_run: float = math.inf
    priorities: bool = False
    fractions: bool = False
    progress: Literal["rate", "epochs"] = "rate"
    placement: str = "packed"
    knobs: Mapping[str, str] = field(default_factory=dict)
    restart_costs: Mapping[str, float] = field(default_factory=dict)
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    unmodelled: tuple[str, ...] = ()
    switching: Switching | None = None

    def restart_s(self, job: JobSpec) -> float:
        """What a stop and restart of a job costs, as far as policies are told."""
        return restart_cost_s(job, self.restart_cost_s) if self.switching is None else self.switching.cost_s(job)


_PLANNERS = (
    *("max_min_fairness", "isolated", "gavel_fifo", "gavel_sjf", "max_throughput", "min_cost", "min_cost_slo"),
    *("min_makespan", "finish_time_fairness", "water_filling", "hierarchical"),
)
"""Policies that plan shares of time and have a published form."""

NATIVE = Rules(
    "native",
    restart_cost_s=30.0,
    min_run_s=60.0,
    suspend_cost_s=1.0,
    migrate_cost_s=8.0,
    adapts="regimes",
    priorities=True,
    fractions=True,
)
TIRESIAS = Rules(
    "tiresias",
    round_s=0.0,
    time_quantum_s=1.0,
    spread_matters=False,
    knobs={"tiresias": "within=published"},
)
GAVEL = Rules(
    "gavel",
    round_s=360.0,
    replan_interval_s=1920.0,
    spread_matters=False,
    frees_gpus="at_round_end",
    rounds="whole_steps",
    knobs=dict.fromkeys(_PLANNERS, "published=on") | {"allox": "published=on,alpha=1"},
)
SHOCKWAVE = Rules(
    "shockwave",
    round_s=120.0,
    restart_cost_s=20.0,
    charge="absence",
    replan_interval_s=1000.0,
    spread_matters=False,
    frees_gpus="at_round_end",
    rounds="whole_steps",
    charged_from_s=115.0,
    adapts="requests",
    most_run=1.5,
    knobs=dict.fromkeys((*_PLANNERS, "gandiva_fair"), "published=on") | {"allox": "published=on,alpha=0.2"},
)
POLLUX = Rules(
    "pollux",
    round_s=60.0,
    restart_cost_s=30.0,
    charge="start",
    frees_gpus="at_round_end",
    progress="epochs",
    placement="freest",
    knobs={"tiresias": "queues=57600,within=entry", "optimus": "estimates=oracle,interval_s=60"},
)
SIA = replace(
    POLLUX,
    name="sia",
    restart_costs={"cifar10": 50, "deepspeech2": 25, "bert": 120, "yolov3": 80, "imagenet": 250, "ncf": 15},
    slowdowns={"cifar10": 1.8, "deepspeech2": 1.2, "bert": 1.2, "yolov3": 1.2, "imagenet": 1.2, "ncf": 1.5},
    unmodelled=("moves to other nodes of the same type, which cost nothing there",),
)
RULES: dict[str, Rules] = {rules.name: rules for rules in (NATIVE, GAVEL, SHOCKWAVE, TIRESIAS, POLLUX, SIA)}


def rules_named(rules: str | Rules, **changed: float | None) -> Rules:
    """A rule set by name, with the given (not None) fields replaced."""
    if isinstance(rules, str):
        if rules not in RULES:
            raise InputError(f"unknown rules {rules!r}; known: {', '.join(RULES)}")
        rules = RULES[rules]
    return replace(rules, **{key: value for key, value in changed.items() if value is not None})  # type: ignore[arg-type]


def switched(rules: Rules, switching: Switching) -> Rules:
    """The rules with the costs of switching GPUs instead of their own costs of starts."""
    if rules.rounds == "whole_steps":
        raise InputError(f"--switching needs rules that charge starts by time; the {rules.name} rules charge by rounds")
    return replace(rules, switching=switching, restart_cost_s=switching.typical_s, restart_costs={})
