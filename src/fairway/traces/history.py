"""What a live scheduler did, as a trace: the jobs of some days, and beside each of them what really became of it.

Times are seconds from the beginning of the history. A job that was there already counts from then on, and one that has
not ended counts with what it has done so far. So every job of a history has done all its work in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Workload, job_to_dict
from fairway.traces.native import job_from_dict

SOURCE = "history"


class PastSpan(NamedTuple):
    """A stretch of time in which a job computed on GPUs."""

    from_s: float
    to_s: float
    gpus: tuple[int, ...]


class PastJob(NamedTuple):
    """A job and what became of it: when it started and ended, and for how long it held GPUs."""

    spec: JobSpec
    started_s: float
    finished_s: float
    held_s: float
    preemptions: int
    starts: int
    spans: tuple[PastSpan, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return self._asdict() | {"spec": job_to_dict(self.spec), "spans": [list(span) for span in self.spans]}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> PastJob:
        """Read what `plain` gave."""
        spans = tuple(PastSpan(float(begin), float(end), tuple(gpus)) for begin, end, gpus in values["spans"])
        about = {name: values[name] for name in PastJob._fields}
        return PastJob(**about | {"spec": job_from_dict(values["spec"]), "spans": spans})


@dataclass(frozen=True)
class JobHistory:
    """The jobs of a machine between two dates (seconds since 1970), in the order of submission, and their terms.

    `policies` were in force one after the other, the present one last. `left_out` counts jobs that are not here, by
    reason, those with damaged records among them; `damaged` names the latter. Before `whole_from_s`, jobs may have been
    deleted. `min_run_s`, `round_s` (None: the policy's own) and `placement` are those of the scheduler.
    """

    from_s: float
    to_s: float
    jobs: tuple[PastJob, ...]
    cluster: Cluster
    policies: tuple[str, ...]
    min_run_s: float
    round_s: float | None = None
    placement: str = "packed"
    left_out: Mapping[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    whole_from_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def policy(self) -> str:
        """The policy that is in force now."""
        return self.policies[-1]

    @property
    def workload(self) -> Workload:
        """The jobs as a trace."""
        jobs = [job.spec for job in self.jobs]
        return Workload.of(jobs, source=SOURCE, format="fairway", skipped=dict(self.left_out), notes=self.notes)

    def without(self, numbers: Sequence[int], reason: str) -> JobHistory:
        """The history without some jobs, which are counted under a reason."""
        gone, left = set(numbers), tuple(job for at, job in enumerate(self.jobs) if at not in set(numbers))
        counted = {**self.left_out, reason: self.left_out.get(reason, 0) + len(gone)} if gone else self.left_out
        return replace(self, jobs=left, left_out=counted)

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        nodes = [[node.name, node.gpu_type, node.gpus, node.rack] for node in self.cluster.nodes]
        types = [[gpu.name, gpu.memory_bytes, gpu.price_per_h, gpu.speed] for gpu in self.cluster.types]
        return {
            **vars(self),
            "jobs": [job.plain() for job in self.jobs],
            "cluster": {"nodes": nodes, "types": types, "text": self.cluster.text},
            "left_out": dict(self.left_out),
        }

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> JobHistory:
        """Read what `plain` gave; `InputError` if it is something else."""
        try:
            machines = values["cluster"]
            types = [GpuType(*gpu) for gpu in machines["types"]]
            about = dict(values) | {
                "jobs": tuple(map(PastJob.from_plain, values["jobs"])),
                "cluster": Cluster.of([Node(*node) for node in machines["nodes"]], types, machines["text"]),
            }
            return JobHistory(**about | {name: tuple(values[name]) for name in ("policies", "damaged", "notes")})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is no history of a scheduler: {error}") from None
