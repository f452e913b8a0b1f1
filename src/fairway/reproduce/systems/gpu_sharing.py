"""Systems whose figures are about a GPU's memory and kernels: no simulation stands for it, so they are only named."""

from __future__ import annotations

from fairway.reproduce.case import Case

PAGE = "../gpu.md"
CASES = (
    Case(
        "salus-sharing",
        "Salus",
        "42 models on a GPU, a search of 300 configurations, mean JCT 3.19 times shorter",
        "Yu and Chowdhury, MLSys'20, abstract",
        PAGE,
        gpu="benchmarks/gpu_share.py; not measured yet",
    ),
    Case(
        "pipeswitch-switching",
        "PipeSwitch",
        "switches in 3.6 to 6.6 ms",
        "Bai et al., OSDI'20, abstract",
        PAGE,
        gpu="benchmarks/gpu_switch.py; docs/gpu.md has what was measured on an H200",
    ),
    Case(
        "antman-gpu",
        "AntMan",
        "guests on real GPUs",
        "Xiao et al., OSDI'20",
        PAGE,
        gpu="benchmarks/gpu_guests.py; not measured yet",
    ),
)
