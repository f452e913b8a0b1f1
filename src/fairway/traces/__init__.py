"""Readers and writers of public trace formats, and seeded generators of workloads."""

from fairway.traces.cluster_files import read_cluster
from fairway.traces.describe import describe
from fairway.traces.generate import GENERATORS, gavel_like, generate, philly_like, shockwave_like
from fairway.traces.native import write_trace
from fairway.traces.pollux_like import pollux_like
from fairway.traces.registry import FORMATS, read_trace

__all__ = [
    "FORMATS",
    "GENERATORS",
    "describe",
    "gavel_like",
    "generate",
    "philly_like",
    "pollux_like",
    "read_cluster",
    "read_trace",
    "shockwave_like",
    "write_trace",
]
