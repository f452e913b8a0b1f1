"""The processes of an attempt over its nodes: how many run where, and the variables that tell them so."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.processes.site import Member

ANY_PORT = "0"
"""Stands for a port that the site has yet to choose: it has to be free on the node of rank 0."""
_HERE = ("127.", "::1", "localhost")


class GangNode(NamedTuple):
    """A machine of an attempt: the numbers of its GPUs there, and their names for CUDA; None if they are virtual."""

    member: Member
    gpus: tuple[int, ...]
    devices: Sequence[str] | None

    @property
    def is_here(self) -> bool:
        """Whether it is this machine: no other one can be reached at such an address."""
        return self.member.address.startswith(_HERE)


@dataclass(frozen=True)
class Gang:
    """The nodes of an attempt in the order of its ranks, and how many processes each has: one, or one per GPU."""

    places: Sequence[GangNode]
    per_gpu: bool

    @property
    def each(self) -> list[int]:
        """How many processes there are on each node."""
        return [len(place.gpus) if self.per_gpu else 1 for place in self.places]

    @property
    def world(self) -> int:
        """How many processes there are."""
        return sum(self.each)

    @property
    def hosts(self) -> list[str]:
        """What the nodes are called, so that others reach them by it: by address, if each has one of its own."""
        if len(self.places) == 1 and self.places[0].is_here:
            return [self.places[0].member.name]
        addresses = [place.member.address for place in self.places]
        return addresses if len(set(addresses)) == len(addresses) else [place.member.name for place in self.places]

    def ranks(self, node: int) -> range:
        """The ranks on a node."""
        first = sum(self.each[:node])
        return range(first, first + self.each[node])

    @property
    def is_group(self) -> bool:
        """Whether its processes are ranks of a group: it has one for each GPU, or one on each of several nodes."""
        return self.per_gpu or len(self.places) > 1

    def group(self, node: int, port: str) -> dict[str, str]:
        """What torchrun tells ranks of the others. A program that is started once must not find it: it would take
        itself for a rank, and wait for the others."""
        return {
            "LOCAL_WORLD_SIZE": str(self.each[node]),
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": self.places[0].member.address if len(self.places) > 1 else "127.0.0.1",
            "MASTER_PORT": port,
        }

    def variables(self, node: int) -> dict[str, str]:
        """What the processes on a node are told of their GPUs, and of the other nodes."""
        place = self.places[node]
        return {
            "CUDA_VISIBLE_DEVICES": "" if place.devices is None else ",".join(place.devices),
            "FAIRWAY_NODES": str(len(self.places)),
            "FAIRWAY_NODE_RANK": str(node),
            "FAIRWAY_NODE_NAMES": ",".join(one.member.name for one in self.places),
            "FAIRWAY_NODE_ADDRESSES": ",".join(one.member.address for one in self.places),
            "FAIRWAY_NODE_GPUS": ",".join(str(len(one.gpus)) for one in self.places),
        }

    def interface(self, node: int) -> dict[str, str]:
        """Over which network the processes of several nodes meet. Left to themselves, they may choose loopback."""
        name = self.places[node].member.interface if len(self.places) > 1 else ""
        return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), name) if name else {}

    def skypilot(self, node: int) -> dict[str, str]:
        """The variables that SkyPilot sets on a node."""
        addresses = [place.member.address for place in self.places]
        return {
            "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NUM_NODES": str(len(self.places)),
            "SKYPILOT_NODE_IPS": "\n".join(addresses if len(addresses) > 1 else ["127.0.0.1"]),
            "SKYPILOT_NUM_GPUS_PER_NODE": str(len(self.places[node].gpus)),
        }

    def slurm(self, node: int, record: JobRecord, attempt: Attempt) -> dict[str, str]:
        """The variables that Slurm sets on a node, for a batch job or for a task of it."""
        request, array = record.request, record.id.split("_")[0]
        asked = request.env.get("FAIRWAY_TASKS", "")
        tasks = shared_out(int(asked), self.places) if not self.per_gpu and asked.isdecimal() else self.each
        return {
            **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), array),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(sum(tasks))),
            **({"SLURM_NTASKS_PER_NODE": str(tasks[0])} if len(set(tasks)) == 1 else {}),
            "SLURM_TASKS_PER_NODE": counts_text(tasks),
            **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(self.places))),
            **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(self.hosts)),
            "SLURMD_NODENAME": self.hosts[node],
            "SLURM_SUBMIT_HOST": socket.gethostname(),
            "SLURM_GPUS_ON_NODE": str(len(self.places[node].gpus)),
            "SLURM_GPUS": str(len(attempt.gpus)),
            "SLURM_NODEID": str(node),
            "SLURM_CPUS_ON_NODE": str(os.cpu_count() or 1),
            "SLURM_SUBMIT_DIR": request.cwd,
            "SLURM_JOB_NAME": request.name,
            "SLURM_JOB_USER": request.user,
            "SLURM_RESTART_COUNT": str(attempt.number - 1),
            **({"SLURM_JOB_PARTITION": request.queue} if request.queue else {}),
            **(
                {"SLURM_ARRAY_TASK_ID": str(request.array_task), "SLURM_ARRAY_JOB_ID": array}
                if request.array_task is not None
                else {}
            ),
        }


def shared_out(tasks: int, places: Sequence[GangNode]) -> list[int]:
    """How many of a job's tasks each node gets: as many as its part of the GPUs, and of those left over the first ones
    get one each."""
    total = sum(len(place.gpus) for place in places)
    whole = [tasks * len(place.gpus) // total for place in places]
    return [count + (node < tasks - sum(whole)) for node, count in enumerate(whole)]


def counts_text(counts: Sequence[int]) -> str:
    """Numbers for each node, as Slurm writes them: `8(x2),4`."""
    runs = [(count, len(list(run))) for count, run in itertools.groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
