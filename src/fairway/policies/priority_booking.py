"""Which job has which GPUs while classes of jobs are served one after the other, the highest priority first.

Most policies answer in counts, and placement chooses the GPUs. Policies that name GPUs have to know which are gone. So
for them the GPUs of every served class are worked out, with as few jobs of lower priority as possible in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot


class Served:
    """The GPUs of a snapshot during one decision. A row with GPUs of its own also stands for the rows that share them.

    `granted` counts the GPUs of the classes served so far, by type; `kinds` are the granted types of rows.
    """

    def __init__(self, snapshot: Snapshot, head: Ints, rank: Ints, fixed: Bools) -> None:
        self.snapshot = snapshot
        self.granted: Ints = np.zeros(len(snapshot.capacity), dtype=np.int64)
        self.kinds: Ints = np.full(len(snapshot), -1, dtype=np.int64)
        self._head = head
        self._rank = rank
        self._fixed = fixed
        heads = [row for row in snapshot.running_rows.tolist() if head[row] == row]
        self._on = {gpu: row for row in heads for gpu in snapshot.gpus_held(row)}
        self._taken = set(snapshot.withheld_gpus)
        self._gone: set[int] = set()
        self._named: dict[int, tuple[int, ...]] = {}

    def counted(self, rows: Ints) -> Ints:
        """How many GPUs rows hold now, by type."""
        counts = np.zeros(len(self.granted), dtype=np.int64)
        np.add.at(counts, self.snapshot.gpu_type[rows], self.snapshot.held[rows])
        return counts

    def withheld(self, kept: Ints) -> frozenset[int]:
        """GPUs that the next class cannot have: those of the classes before it, and of the rows `kept`."""
        return frozenset(self._taken.union(*(self.snapshot.gpus_held(row) for row in kept.tolist())))

    def stopped(self, rows: Ints, left: Ints) -> list[int]:
        """Rows of the next class whose GPUs are gone, and as many of the youngest as must go for `left` to suffice."""
        snapshot, head = self.snapshot, self._head
        mine = rows[(snapshot.held[rows] > 0) & (head[rows] == rows)]
        gone = {row for row in mine.tolist() if row in self._gone}
        stays = np.array([row for row in mine.tolist() if row not in gone], dtype=np.int64)
        over = self.counted(stays) - left
        for row in sorted(stays[~self._fixed[stays]].tolist(), key=self._cheapness) if (over > 0).any() else ():
            if over[snapshot.gpu_type[row]] > 0:
                over[snapshot.gpu_type[row]] -= snapshot.held[row]
                gone.add(row)
        return [row for row in rows[snapshot.held[rows] > 0].tolist() if int(head[row]) in gone] if gone else []

    def _cheapness(self, row: int) -> tuple[int, float, int]:
        """The order in which jobs lose GPUs: the lowest priority first, and within it the one started last."""
        return int(self._rank[row]), -float(self.snapshot.since_s[row]), -row

    def serve(self, rows: Ints, view: Snapshot, decision: Decision) -> Decision:
        """Book what a class was given. Returns the decision without the rows for which no GPU type has room."""
        hosts = [at for at in decision.gpus.nonzero()[0].tolist() if at not in decision.partners]
        refused = self._choose_types(rows, view, decision, hosts)
        if refused:
            decision = decision.without(refused, Reason.NO_PLACEMENT)
            hosts = [at for at in hosts if at not in refused]
        for guest, host in decision.partners.items():
            self.kinds[rows[guest]] = self.kinds[rows[host]]
        self.stop(rows)
        later: list[int] = []
        for at in hosts:
            row, gpus = int(rows[at]), view.gpus_held(at)
            stays = decision.gpus[at] == view.held[at] and self.kinds[row] == view.gpu_type[at]
            if stays and decision.placements.get(at, gpus) == gpus:
                self._taken.update(gpus)
            elif decision.placements:
                later.append(at)
        for at in sorted(later, key=lambda at: at not in decision.placements):
            self._settle(int(rows[at]), int(decision.gpus[at]), decision.placements.get(at, ()))
        return decision

    def stop(self, rows: Ints) -> None:
        """Free what the rows of a class hold: they are settled again, or nothing is left for them."""
        for row in rows[self.snapshot.held[rows] > 0].tolist():
            self._leave(row)

    def _choose_types(self, rows: Ints, view: Snapshot, decision: Decision, hosts: Sequence[int]) -> list[int]:
        """Choose the GPU type of each gang where the policy leaves it open. Returns the rows without room."""
        room, open_to, refused = view.capacity.copy(), list[int](), list[int]()
        node_of_gpu, node_type = view.cluster.node_of_gpu, view.cluster.node_type
        for at in hosts:
            named, kind = decision.placements.get(at), -1
            if named:
                kind = node_type[node_of_gpu[named[0]]]
            elif decision.gpu_types is not None and decision.gpu_types[at] >= 0:
                kind = int(decision.gpu_types[at])
            elif decision.gpus[at] == view.held[at]:
                kind = int(view.gpu_type[at])
            if kind < 0:
                open_to.append(at)
            else:
                self.kinds[rows[at]] = kind
                room[kind] -= decision.gpus[at]
        for at in sorted(open_to, key=lambda at: -int(decision.gpus[at])):
            speeds, need = view.speeds[:, at].tolist(), int(decision.gpus[at])
            own = int(self.snapshot.gpu_type[rows[at]]) if self.snapshot.held[rows[at]] == need else -1
            fits = [kind for kind, speed in enumerate(speeds) if speed > 0 and room[kind] >= need]
            if fits:
                kind = min(fits, key=lambda kind: (kind != own, -speeds[kind]))
                self.kinds[rows[at]] = kind
                room[kind] -= need
            else:
                refused.append(at)
        self.granted += view.capacity - room
        return refused

    def _settle(self, row: int, count: int, named: Sequence[int]) -> None:
        """Find GPUs for a gang: on the nodes that were named, otherwise of its type, where it costs others least."""
        cluster = self.snapshot.cluster
        nodes: dict[int, int] = {}
        for gpu in named:
            nodes[cluster.node_of_gpu[gpu]] = nodes.get(cluster.node_of_gpu[gpu], 0) + 1
        chosen: list[int] = []
        for node, part in nodes.items():
            first = cluster.first_gpu[node]
            chosen += self._cheapest(range(first, first + cluster.nodes[node].gpus), part, named)
        if named and len(chosen) == count:
            self._named[row] = tuple(chosen) if set(chosen) != set(named) else tuple(named)
        else:
            kinds, down, kind = cluster.node_type, self.snapshot.down_nodes, int(self.kinds[row])
            nodes_of = enumerate(cluster.node_of_gpu)
            chosen = self._cheapest((gpu for gpu, node in nodes_of if kinds[node] == kind and node not in down), count)
        for gpu in chosen:
            if gpu in self._on:
                self._gone.add(self._on[gpu])
                self._leave(self._on[gpu])
        self._taken.update(chosen)

    def _cheapest(self, gpus: Iterable[int], count: int, liked: Sequence[int] = ()) -> list[int]:
        """`count` of these GPUs: free ones (those in `liked` first), then those of the cheapest jobs."""
        ranked = []
        for gpu in gpus:
            row = self._on.get(gpu)
            if gpu not in self._taken and (row is None or not self._fixed[row]):
                ranked.append(
                    (row is not None, (0, 0.0, 0) if row is None else self._cheapness(row), gpu not in liked, gpu)
                )
        return sorted(one[-1] for one in sorted(ranked)[:count])

    def _leave(self, row: int) -> None:
        """Free the GPUs that a row holds."""
        for gpu in self.snapshot.gpus_held(row):
            self._on.pop(gpu, None)

    def placements(self, whole: Decision) -> dict[int, tuple[int, ...]]:
        """The named GPUs that can be had together. A gang whose GPUs cannot be had is placed like any other."""
        snapshot, named = self.snapshot, dict(self._named)
        same = (whole.gpus == snapshot.held) & (self.kinds == snapshot.gpu_type) & (whole.gpus > 0)
        stay = [row for row in same.nonzero()[0].tolist() if row not in whole.partners]
        while True:
            used = {gpu for row in stay if row not in named for gpu in snapshot.gpus_held(row)}
            refused = []
            for row, gpus in named.items():
                if len(gpus) != whole.gpus[row] or not used.isdisjoint(gpus):
                    refused.append(row)
                else:
                    used.update(gpus)
            if not refused:
                return named
            for row in refused:
                del named[row]
