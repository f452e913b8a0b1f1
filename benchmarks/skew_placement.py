"""What skew-aware placement is worth: mean completion times under several placements.

    python benchmarks/skew_placement.py [--jobs N] [--seeds N] [--json FILE]

Jobs of the built-in profile's models, half of them skewed and half not, on 16 nodes of 4 V100 at eight tenths of their
capacity. `skew:threshold=0` makes every gang wait for a place together, `packed` none. Networks: the built-in profile's
ring all-reduce, in which only the size of a model matters, and parameter servers, one per GPU, in which a gang that is
spread waits for the most loaded server (the network model of Tiresias); with balanced servers the two are equally fast.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fairway import JobSpec, Workload, simulate
from fairway.core.hardware import known_gpu
from fairway.models import builtin
from fairway.models.figures import FIGURES
from fairway.models.tensors import SKEW_LIMIT, known_tensors

CLUSTER, GPUS, LOAD = "v100:16x4", 64, 0.8
PLACEMENTS = ("packed", "skew", "skew:threshold=0", "skew:others=fragments", "spread")
GANGS, GANG_SHARES = (1, 2, 4, 8), (0.4, 0.2, 0.25, 0.15)
MEDIAN_S, SIGMA = 1800.0, 1.2
EVEN = ("ResNet-18", "ResNet-50", "Transformer", "YOLOv3", "DeepSpeech2")
SKEWED = ("VGG19", "LSTM", "Recommendation")


class ParameterServers(builtin.BuiltinProfile):
    """The built-in estimates with parameter servers in the place of the ring for gangs that are spread."""

    def __init__(self, gbit_per_s: float) -> None:
        super().__init__()
        self.bytes_per_s = gbit_per_s / 8 * 1e9

    @property
    def name(self) -> str:
        return "built-in estimates, parameter servers"

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        together = super().rate(model, batch_size, gpu_type, gpus)
        if not spread or gpus == 1 or not together:
            return together
        figures, gpu, tensors = FIGURES[model], known_gpu(gpu_type), known_tensors(model)
        assert gpu is not None
        assert tensors is not None
        step = builtin.step_time(figures, batch_size or figures.usual_batch, gpu, gpus)
        sent = 2 * (gpus - 1) / gpus * tensors.total_bytes * tensors.imbalance(gpus)
        sending_s = sent / self.bytes_per_s
        hidden_s = builtin.HIDDEN_SHARE * builtin.BACKWARD_SHARE * step.busy_s
        exchange_s = max(sending_s - hidden_s, (1 - builtin.HIDDEN_SHARE) * sending_s)
        wait_s = builtin.WAIT_PER_DOUBLING * math.log2(gpus) * (step.busy_s + step.overhead_s)
        return gpus / (step.busy_s + step.overhead_s + wait_s + exchange_s)


NETWORKS = {
    "ring, 10 Gbit/s": builtin.BuiltinProfile(),
    "servers, 10 Gbit/s": ParameterServers(10.0),
    "servers, 100 Gbit/s": ParameterServers(100.0),
}


def workload(jobs: int, seed: int) -> Workload:
    """Jobs whose work is steps; a job takes its drawn duration on GPUs of as few nodes as possible."""
    random, profile = np.random.default_rng(seed), builtin.BuiltinProfile()
    out, now_s = [], 0.0
    gangs = random.choice(GANGS, jobs, p=GANG_SHARES)
    seconds = random.lognormal(math.log(MEDIAN_S), SIGMA, jobs)
    mean_gap_s = float((gangs * seconds).mean()) / (LOAD * GPUS)
    for number, (gang, duration_s) in enumerate(zip(gangs.tolist(), seconds.tolist(), strict=True)):
        models = SKEWED if random.random() < 0.5 else EVEN
        model = models[int(random.integers(len(models)))]
        steps = max(1.0, float(int(duration_s * profile.rate(model, None, "v100", gang))))
        out.append(JobSpec(str(number), round(now_s, 3), gang, steps=steps, model=model))
        now_s += float(random.exponential(mean_gap_s))
    return Workload.of(out, source=f"mixed models, seed {seed}")


def measure(trace: Workload, network: str, policy: str, placement: str) -> dict[str, float]:
    """Mean completion times: of all, of the gangs of skewed and of other models."""
    result = simulate(trace, cluster=CLUSTER, policy=policy, placement=placement, profile=NETWORKS[network])
    tensors = [known_tensors(spec.model) for spec in result.specs]
    skewed = np.array([each is not None and each.skew > SKEW_LIMIT for each in tensors])
    gang = np.array([spec.gpus > 1 for spec in result.specs])
    needed = [result.cluster.nodes_needed(0, spec.gpus) for spec in result.specs]
    pieces = [
        (number, (end_s - start_s), len({result.cluster.node_of_gpu[gpu] for gpu in gpus}) > needed[number])
        for number, start_s, end_s, gpus in result.ledger.segments
        if skewed[number] and gang[number]
    ]
    apart_s = sum(length_s for _, length_s, apart in pieces if apart)
    return {
        "all": float(result.jct_s.mean()),
        "skewed gangs": float(result.jct_s[skewed & gang].mean()),
        "other gangs": float(result.jct_s[~skewed & gang].mean()),
        "skewed apart": apart_s / sum(length_s for _, length_s, _ in pieces),
        "makespan": float(result.makespan_s or 0.0),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    """Measure and print the tables."""
    told = _arguments()
    names = ("fifo", "las", "tiresias")
    console, rows = Console(width=120), list[dict[str, Any]]()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=len(NETWORKS) * len(names) * len(PLACEMENTS) * told.seeds)
        traces = [workload(told.jobs, seed) for seed in range(told.seeds)]
        for network in NETWORKS:
            for policy in names:
                for placement in PLACEMENTS:
                    runs = []
                    for trace in traces:
                        runs.append(measure(trace, network, policy, placement))
                        progress.advance(task)
                    means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
                    rows.append({"network": network, "policy": policy, "placement": placement, **means})
    table = Table(title=f"{told.jobs} jobs on {CLUSTER}, load {LOAD}, mean over {told.seeds} seeds; mean JCT in s")
    for column in rows[0]:
        table.add_column(column, justify="right" if isinstance(rows[0][column], float) else "left")
    for row in rows:
        shown = row | {"skewed apart": f"{100 * row['skewed apart']:.1f} %"}
        table.add_row(*(f"{value:,.0f}" if isinstance(value, float) else str(value) for value in shown.values()))
    console.print(table)
    if told.json:
        told.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
