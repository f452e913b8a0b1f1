"""Tiny inputs for the tests of the command line, and one way to call it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fairway.cli.main import main

JOBS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,1,vgg19,164,0
1,4,10,1,vgg19,300,0
2,2,20,1,vgg19,50,0
3,1,30,1,vgg19,400,0
4,4,40,1,vgg19,20,0
"""
VOLATILE = ("cpu_s", "wall_s", "decide_cpu_s", "peak_rss_bytes")


@dataclass(frozen=True)
class Call:
    code: int
    out: str
    err: str

    @property
    def err_lines(self) -> list[str]:
        return self.err.splitlines()


class Shell:
    """Calls the command line in a directory with a small trace."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.trace = self.write("jobs.csv", JOBS)

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def __call__(self, *argv: str) -> Call:
        self.capsys.readouterr()
        code = main(list(argv))
        captured = self.capsys.readouterr()
        return Call(code, captured.out, captured.err)

    def simulate(self, *more: str, policy: str = "srtf", cluster: str = "v100:1x4") -> Call:
        return self("simulate", self.trace, "--cluster", cluster, "--policy", policy, *more)

    def compare(self, *more: str, cluster: str = "v100:1x4") -> Call:
        return self("compare", self.trace, "--cluster", cluster, *more)
