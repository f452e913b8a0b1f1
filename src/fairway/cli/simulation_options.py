"""The options that describe the simulated world, shared by every command that simulates.

`World` is what the user wrote: texts and numbers, each field with its option. `Scene` is what was loaded from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fairway.cli.options import option, takes
from fairway.core.errors import FairwayError, InputError, PolicyError

if TYPE_CHECKING:
    from fairway.core.cluster import Cluster
    from fairway.core.job import Workload
    from fairway.models.profile import Profile
    from fairway.models.switching import Switching
    from fairway.simulator.faults import Faults, Outage
    from fairway.simulator.result import Result
    from fairway.simulator.run import Progress

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class World:
    """The cluster and the rules under which a trace is replayed."""

    cluster: Annotated[
        str, option("--cluster", "v100:32, v100:16x4 (16 nodes of 4), v100:4x8,k80:8x4, or a file", "SPEC")
    ]
    profile: Annotated[
        str | None,
        option("--profile", "Throughputs: Gavel's JSON, or a directory in Pollux' format. Default: estimates", "PATH"),
    ] = None
    rules: Annotated[str, option("--rules", "native, gavel, shockwave, tiresias, pollux or sia", "NAME")] = "native"
    round_s: Annotated[
        float | None,
        option("--round", "Seconds between decisions; 0: at every event. Default: as the rules have it", "S"),
    ] = None
    restart_cost_s: Annotated[
        float | None, option("--restart-cost", "Seconds that a restarted job loses. Default: as the rules have it", "S")
    ] = None
    switching: Annotated[
        str | None,
        option(
            "--switching",
            "What it costs to give a GPU to another job: restart, pipelined, resident, suspend, pinned (each with "
            ":FILE for measured times), or a time such as 5ms. Default: the restart cost of the rules",
            "HOW",
        ),
    ] = None
    host_memory: Annotated[
        str | None,
        option(
            "--host-memory",
            "What each node has for the memory of suspended jobs, such as 512G. Default: no limit",
            "SIZE",
        ),
    ] = None
    min_run_s: Annotated[
        float | None,
        option("--min-run", "Seconds for which a job that has just started is left alone. Default: by the rules", "S"),
    ] = None
    replan_interval_s: Annotated[
        float | None, option("--replan-interval", "Seconds between plans of a policy that plans shares", "S")
    ] = None
    placement: Annotated[
        str | None,
        option(
            "--placement",
            "packed, spread, freest, skew[:knobs] or count (GPU counts only). Default: as the rules have it",
            "NAME",
        ),
    ] = None
    seed: Annotated[int, option("--seed", "Seed of failures and of random policies", "N")] = 0
    format: Annotated[str | None, option("--format", "The trace's format, if its content is ambiguous", "NAME")] = None
    skip_impossible: Annotated[
        bool, typer.Option("--skip-impossible", help="Leave out jobs that can never run here, and count them")
    ] = False
    any_type: Annotated[
        bool,
        typer.Option("--any-type", help="Let jobs that ask for a GPU type run on any: replay a log on other hardware"),
    ] = False
    plugin: Annotated[
        list[str] | None, option("--plugin", "A Python file with your own policies; may be repeated", "FILE")
    ] = None
    mtbf_hours: Annotated[
        float | None, option("--mtbf-hours", "Let each node fail at random, once in H hours on average", "H")
    ] = None
    repair_hours: Annotated[
        float | None, option("--repair-hours", "How long a failed node is down. Default: 1", "H")
    ] = None
    faults: Annotated[
        str | None, option("--faults", "Planned failures: a CSV file with time_s,node,down_s", "FILE")
    ] = None
    tenants: Annotated[
        str | None, option("--tenants", "Virtual clusters: a TOML file with the cells of each tenant", "FILE")
    ] = None

    priorities: Annotated[
        str | None,
        option(
            "--priorities", "on or off: serve jobs of higher priority first. Default: as the rules have it", "on|off"
        ),
    ] = None
    fractions: Annotated[
        str | None,
        option(
            "--fractions",
            "on or off: let jobs that ask for a share of a GPU share it. Default: as the rules have it",
            "on|off",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, said in (("--priorities", self.priorities), ("--fractions", self.fractions)):
            if said not in (None, "on", "off"):
                raise InputError(f"{name} must be on or off, not {said!r}")
        for name, value in (
            ("--round", self.round_s),
            ("--restart-cost", self.restart_cost_s),
            ("--min-run", self.min_run_s),
            ("--replan-interval", self.replan_interval_s),
            ("--mtbf-hours", self.mtbf_hours),
            ("--repair-hours", self.repair_hours),
        ):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a finite number of at least 0, not {value}")
        if self.switching is not None and self.restart_cost_s is not None:
            raise InputError("give --restart-cost or --switching, not both")
        if self.host_memory is not None and self.switching is None:
            raise InputError("--host-memory needs --switching suspend or pinned")
        if self.tenants == "":
            raise InputError("--tenants names no file")
        if self.mtbf_hours == 0:
            raise InputError("--mtbf-hours must be above 0")
        if self.repair_hours is not None and self.mtbf_hours is None:
            raise InputError("--repair-hours needs --mtbf-hours")
        check_seed(self.seed)

    @property
    def inputs(self) -> list[str]:
        """The files among the options, which no output may overwrite."""
        from fairway.simulator.switch_table import file_of

        table = file_of(self.switching) if self.switching else None
        paths = (self.cluster, self.profile, self.faults, self.tenants, table, *(self.plugin or ()))
        return [path for path in paths if path]

    def switching_model(self) -> Switching | None:
        """What the user wrote about switching GPUs."""
        from fairway.core.units import size_bytes
        from fairway.simulator.switch_table import switching_of

        if self.switching is None:
            return None
        return switching_of(self.switching, None if self.host_memory is None else size_bytes(self.host_memory))

    def check_names(self) -> None:
        """Refuse unknown rules, placement or switching and load the plug-ins, before anything large is read."""
        from fairway.placement import placement
        from fairway.policies import load_plugin
        from fairway.simulator.rules import rules_named, switched

        rules = rules_named(self.rules)
        switching = self.switching_model()
        if switching is not None:
            switched(rules, switching)
        if self.placement is not None:
            placement(self.placement)
        for path in self.plugin or ():
            load_plugin(path)

    def load(self, trace: str | Workload) -> Scene:
        """Read all files."""
        from fairway.cli.faults import read_faults
        from fairway.models.profile import load_profile
        from fairway.simulator.tenancy import tenants_of
        from fairway.traces import read_cluster, read_trace

        cluster = read_cluster(self.cluster)
        outages = read_faults(self.faults, cluster) if self.faults is not None else ()
        if self.tenants is not None:
            tenants_of(self.tenants, cluster)  # complains before anything large is read
        profile = load_profile(self.profile)
        workload = read_trace(trace, format=self.format) if isinstance(trace, str) else trace
        return Scene(self, workload, cluster, profile, outages)


class RunError(FairwayError):
    """A policy's code raised something; the text names the policy."""


@dataclass(frozen=True)
class Scene:
    """A world with its files read, ready for any number of runs."""

    world: World
    workload: Workload
    cluster: Cluster
    profile: Profile
    outages: tuple[Outage, ...]

    def run(self, policy: str, seed: int, progress: Progress | None = None, promises: int = 0) -> Result:
        """Simulate one policy with one seed; what a policy's own code raises becomes an error that names it."""
        try:
            return self._simulated(policy, seed, progress, promises)
        except PolicyError as error:
            raise RunError(f"policy {policy!r}: {error}") from error
        except (FairwayError, OSError, MemoryError):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RunError(f"policy {policy!r} failed: {what} (FAIRWAY_DEBUG=1 shows where)") from error

    def idle_tenants(self) -> list[str]:
        """Tenants without a job in the trace: perhaps their names are misspelt."""
        if self.world.tenants is None:
            return []
        from fairway.traces.tenants import read_tenants

        queues, users = {job.queue for job in self.workload.jobs}, {job.user for job in self.workload.jobs}
        tenants = read_tenants(self.world.tenants)
        return [each.name for each in tenants if queues.isdisjoint(each.queues) and users.isdisjoint(each.users)]

    def _simulated(self, policy: str, seed: int, progress: Progress | None, promises: int) -> Result:
        from fairway.simulator.run import simulate

        world = self.world
        return simulate(
            self.workload,
            cluster=self.cluster,
            policy=policy,
            profile=self.profile,
            rules=world.rules,
            round_s=world.round_s,
            restart_cost_s=world.restart_cost_s,
            replan_interval_s=world.replan_interval_s,
            switching=world.switching_model(),
            min_run_s=world.min_run_s,
            placement=world.placement,
            seed=seed,
            faults=self._faults(seed),
            skip_impossible=world.skip_impossible,
            any_type=world.any_type,
            tenants=world.tenants,
            priorities=None if world.priorities is None else world.priorities == "on",
            fractions=None if world.fractions is None else world.fractions == "on",
            progress=progress,
            promises=promises,
        )

    def _faults(self, seed: int) -> Faults | None:
        from fairway.simulator.faults import Faults

        mtbf_h, repair_h = self.world.mtbf_hours, self.world.repair_hours
        if mtbf_h is None and not self.outages:
            return None
        mtbf_s = math.inf if mtbf_h is None else mtbf_h * 3600
        repair_s = 3600.0 if repair_h is None else repair_h * 3600
        return Faults(self.outages, mtbf_s=mtbf_s, repair_s=repair_s, seed=seed)


def takes_world(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `World`; they replace its parameter `world`."""
    return takes(world=World)(command)


def check_seed(seed: int) -> None:
    """A seed is a whole number that every generator takes."""
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"--seed must be from 0 to {MAX_SEED}, not {seed}")
