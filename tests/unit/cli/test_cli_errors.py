"""Whatever a user gets wrong is one line on stderr, exit code 2, and leaves no file behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_samples import Shell

from fairway.cli import simulate as simulate_module
from fairway.cli.simulation_options import Scene

SIMULATE = ("simulate", "{trace}", "--cluster", "v100:1x4", "--policy", "fifo")
COMPARE = ("compare", "{trace}", "--cluster", "v100:1x4")
OUT = ("--json", "{dir}/out.json", "--timeline", "{dir}/t.json")
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "no policy": (("simulate", "{trace}", "--cluster", "v100:4"), "--policy"),
    "no cluster": (("simulate", "{trace}", "--policy", "fifo"), "--cluster"),
    "no trace": (("simulate", "--cluster", "v100:4", "--policy", "fifo"), "TRACE"),
    "unknown command": (("simulat",), "simulat"),
    "unknown option": ((*SIMULATE, "--polcy", "x"), "did you mean --policy?"),
    "unknown option, nothing close": ((*SIMULATE, "--qqqqq"), "no such option: --qqqqq"),
    "option without value": ((*SIMULATE, "--seed"), "--seed"),
    "too many arguments": ((*SIMULATE, "more"), "more"),
    "round no number": ((*SIMULATE, "--round", "x"), "--round"),
    "round nan": ((*SIMULATE, "--round", "nan"), "--round must be"),
    "round negative": ((*SIMULATE, "--round", "-5"), "--round must be"),
    "restart inf": ((*SIMULATE, "--restart-cost", "inf"), "--restart-cost must be"),
    "min run negative": ((*SIMULATE, "--min-run", "-1"), "--min-run must be"),
    "unknown switching": ((*SIMULATE, "--switching", "warp"), "unknown switching 'warp'; known: restart, pipelined"),
    "switching negative": ((*SIMULATE, "--switching", "-5ms"), "unknown switching '-5ms'"),
    "switching without file": ((*COMPARE, "--switching", "resident:"), "the switching 'resident:' names no file"),
    "switching missing file": ((*SIMULATE, "--switching", "restart:{dir}/no.csv"), "no.csv: cannot be read"),
    "switching bad file": ((*COMPARE, "--switching", "restart:{trace}"), "jobs.csv:1: column model, restart_ms"),
    "switching beside a restart cost": ((*SIMULATE, "--switching", "0", "--restart-cost", "1"), "not both"),
    "switching by rounds": ((*SIMULATE, "--switching", "0", "--rules", "gavel"), "the gavel rules charge by rounds"),
    "replan negative": ((*SIMULATE, "--replan-interval", "-1"), "--replan-interval must be"),
    "mtbf zero": ((*SIMULATE, "--mtbf-hours", "0"), "--mtbf-hours"),
    "mtbf negative": ((*SIMULATE, "--mtbf-hours", "-1"), "--mtbf-hours"),
    "mtbf nan": ((*SIMULATE, "--mtbf-hours", "nan"), "--mtbf-hours"),
    "repair alone": ((*SIMULATE, "--repair-hours", "1"), "--mtbf-hours"),
    "repair negative": ((*SIMULATE, "--mtbf-hours", "1", "--repair-hours", "-1"), "--repair-hours"),
    "seed negative": ((*SIMULATE, "--seed", "-1"), "--seed"),
    "seed fraction": ((*SIMULATE, "--seed", "1.5"), "--seed"),
    "seed huge": ((*SIMULATE, "--seed", "99999999999999999999999"), "--seed"),
    "unknown rules": ((*SIMULATE, "--rules", "x"), "unknown rules"),
    "unknown placement": ((*SIMULATE, "--placement", "x"), "unknown placement"),
    "unknown format": ((*SIMULATE, "--format", "x"), "unknown trace format"),
    "wrong format": ((*SIMULATE, "--format", "gavel"), "jobs.csv:1:"),
    "missing trace": (("simulate", "{dir}/no.csv", "--cluster", "v100:4", "--policy", "fifo"), "no.csv"),
    "trace is a directory": (("simulate", "{dir}", "--cluster", "v100:4", "--policy", "fifo"), "directory"),
    "empty trace": (("simulate", "{dir}/empty", "--cluster", "v100:4", "--policy", "fifo"), "empty"),
    "binary trace": (("simulate", "{dir}/binary", "--cluster", "v100:4", "--policy", "fifo"), "binary"),
    "bad line": (("simulate", "{dir}/bad.csv", "--cluster", "v100:4", "--policy", "fifo"), "bad.csv:3:"),
    "bad cluster": (("simulate", "{trace}", "--cluster", "v100:0", "--policy", "fifo"), "v100:0"),
    "unknown GPU": (("simulate", "{trace}", "--cluster", "x:4", "--policy", "fifo"), "unknown GPU type"),
    "unknown policy": (("simulate", "{trace}", "--cluster", "v100:4", "--policy", "x"), "unknown policy"),
    "unknown knob": (("simulate", "{trace}", "--cluster", "v100:4", "--policy", "las:x=1"), "no knob 'x'"),
    "bad knob": (("simulate", "{trace}", "--cluster", "v100:4", "--policy", "las:levels=x"), "levels"),
    "gang too large": (("simulate", "{trace}", "--cluster", "v100:2", "--policy", "fifo"), "--skip-impossible"),
    "missing profile": ((*SIMULATE, "--profile", "{dir}/no.json"), "no.json"),
    "missing plugin": ((*SIMULATE, "--plugin", "{dir}/no.py"), "no.py"),
    "broken plugin": ((*SIMULATE, "--plugin", "{dir}/broken.py"), "broken.py"),
    "plugin that ends": ((*SIMULATE, "--plugin", "{dir}/ends.py"), "ends.py"),
    "missing faults": ((*SIMULATE, "--faults", "{dir}/no.csv"), "no.csv"),
    "faults header": ((*SIMULATE, "--faults", "{trace}"), "jobs.csv:1: the header must be"),
    "faults time": ((*SIMULATE, "--faults", "{dir}/f-time.csv"), "f-time.csv:3: time_s"),
    "faults node": ((*SIMULATE, "--faults", "{dir}/f-node.csv"), "f-node.csv:2: unknown node"),
    "faults down": ((*SIMULATE, "--faults", "{dir}/f-down.csv"), "f-down.csv:2: down_s"),
    "faults columns": ((*SIMULATE, "--faults", "{dir}/f-columns.csv"), "f-columns.csv:2: 2 columns"),
    "output is a directory": ((*SIMULATE, "--json", "{dir}"), "is a directory"),
    "output in no directory": ((*SIMULATE, "--json", "{dir}/no/out.json"), "there is no directory"),
    "output twice": ((*SIMULATE, "--json", "{dir}/a", "--timeline", "{dir}/../{name}/a"), "the same file"),
    "output is the trace": ((*SIMULATE, "--json", "{trace}"), "the same file is an input"),
    "timeline to stdout": ((*SIMULATE, "--timeline", "-"), "standard output"),
    "timeline to a device": ((*SIMULATE, "--timeline", "/dev/full"), "/dev/full"),
    "disk full": ((*SIMULATE, "--json", "/dev/full"), "No space left on device"),
    "compare duplicate": ((*COMPARE, "--policy", "las", "--policy", "las"), "given twice"),
    "compare same by default": ((*COMPARE, "--policy", "las", "--policy", "las:metric=gpu_time"), "given twice"),
    "compare unknown policy": ((*COMPARE, "--policy", "fifo", "--policy", "x"), "unknown policy 'x'"),
    "compare no seeds": ((*COMPARE, "--seeds", "0"), "--seeds"),
    "compare no processes": ((*COMPARE, "--jobs", "0"), "--jobs"),
    "compare same outputs": ((*COMPARE, "--html", "{dir}/a", "--csv", "{dir}/a"), "the same file"),
    "compare no directory": ((*COMPARE, "--csv", "{dir}/no/a"), "there is no directory"),
    "compare impossible": (
        ("compare", "{trace}", "--cluster", "v100:2", "--policy", "fifo", "--csv", "{dir}/a"),
        "job '1' can never run",
    ),
    "compare html full": ((*COMPARE, "--policy", "fifo", "--html", "/dev/full"), "No space left on device"),
    "report of nothing": (("report", "{trace}"), "--html"),
    "report without results": (("report", "--html", "{dir}/r.html"), "RESULT"),
    "report of a trace": (("report", "{trace}", "--html", "{dir}/r.html"), "jobs.csv:1: not JSON"),
    "report twice": (("report", "{trace}", "{trace}", "--html", "{dir}/r.html"), "given twice"),
    "generate unknown": (("trace", "generate", "x", "-o", "{dir}/x"), "unknown generator"),
    "generate without output": (("trace", "generate", "philly-like"), "--output"),
    "generate no jobs": (("trace", "generate", "philly-like", "--jobs", "0", "-o", "{dir}/x"), "jobs 0"),
    "generate seed": (("trace", "generate", "philly-like", "--seed", "-1", "-o", "{dir}/x"), "seed -1"),
    "generate no key": (("trace", "generate", "philly-like", "--set", "load", "-o", "{dir}/x"), "KEY=VALUE"),
    "generate unknown key": (("trace", "generate", "philly-like", "--set", "x=1", "-o", "{dir}/x"), "no parameter"),
    "generate twice": (
        ("trace", "generate", "philly-like", "--jobs", "3", "--set", "jobs=4", "-o", "{dir}/x"),
        "given twice",
    ),
    "convert onto itself": (("trace", "convert", "{trace}", "{trace}"), "the same file is an input"),
    "convert missing": (("trace", "convert", "{dir}/no.csv", "{dir}/x"), "no.csv"),
    "describe missing": (("trace", "describe", "{dir}/no.csv"), "no.csv"),
    "unknown trace command": (("trace", "descibe", "x"), "descibe"),
    "demo no jobs": (("demo", "--jobs", "0", "--out", "{dir}/demo"), "jobs 0"),
    "demo seed": (("demo", "--seed", "-1", "--out", "{dir}/demo"), "--seed"),
    "demo into a file": (("demo", "--out", "{trace}"), "cannot be created"),
    "policies broken plugin": (("policies", "--plugin", "{dir}/broken.py"), "broken.py"),
}
FILES = {
    "empty": "",
    "bad.csv": "job_id,num_gpu,submit_time,duration\n0,1,0,5\n1,1,0,-5\n",
    "broken.py": "raise RuntimeError('first\\nsecond')\n",
    "ends.py": "import sys\nsys.exit(0)\n",
    "f-time.csv": "time_s,node,down_s\n0,0,5\nnan,0,5\n",
    "f-node.csv": "time_s,node,down_s\n0,v100-1,5\n",
    "f-down.csv": "time_s,node,down_s\n0,0,0\n",
    "f-columns.csv": "time_s,node,down_s\n0,0\n",
}


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    for name, text in FILES.items():
        shell.write(name, text)
    (shell.folder / "binary").write_bytes(b"\x00\x01\xff" * 50)
    return shell


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_code_2(furnished: Shell, case: str) -> None:
    argv, expected = CASES[case]
    names = {"trace": furnished.trace, "dir": str(furnished.folder), "name": furnished.folder.name}
    before = furnished.files()
    call = furnished(*(part.format(**names) for part in argv))
    assert call.code == 2
    assert len(call.err_lines) == 1
    assert call.err.startswith("fairway: error: ")
    assert expected in call.err
    assert call.out == ""
    assert {name for name in furnished.files() if "__pycache__" not in name} == before
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("option", ["--json", "--timeline"])
def test_a_bad_output_is_found_before_the_run(shell: Shell, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "run", lambda *_: pytest.fail("simulated in vain"))
    assert shell.simulate(option, shell.path("no/out")).code == 2


def test_a_policy_that_fails_is_named(shell: Shell) -> None:
    plugin = shell.write("fails.py", FAILING_POLICY)
    for processes in ("1", "2"):
        more = ("--plugin", plugin, "--policy", "fifo", "--policy", "fails", "--jobs", processes)
        call = shell.compare(*more, "--csv", shell.path("out.csv"))
        assert call.code == 2
        assert len(call.err_lines) == 1
        assert "policy 'fails'" in call.err
        assert "out.csv" not in shell.files()
    call = shell.simulate("--plugin", plugin, "--json", shell.path("out.json"), policy="fails")
    assert (call.code, len(call.err_lines)) == (2, 1)
    assert "policy 'fails'" in call.err


def test_an_interrupt_is_one_line_and_code_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate_module, "check_outputs", interrupt)
    call = shell.simulate()
    assert (call.code, call.err) == (130, "fairway: interrupted\n")


def test_a_bug_is_code_1_and_debugging_shows_where(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_module, "check_outputs", lambda *_: 1 / 0)
    call = shell.simulate()
    assert (call.code, len(call.err_lines)) == (1, 1)
    assert "ZeroDivisionError" in call.err
    monkeypatch.setenv("FAIRWAY_DEBUG", "1")
    assert "Traceback" in shell.simulate().err


def test_strange_names_stay_on_one_line(shell: Shell) -> None:
    call = shell("simulate", "no\nsuch\x1b[31mfile", "--cluster", "v100:4", "--policy", "fifo")
    assert (call.code, len(call.err_lines)) == (2, 1)
    assert "\x1b" not in call.err


FAILING_POLICY = '''
from dataclasses import dataclass
from typing import ClassVar
import fairway

@fairway.register
@dataclass(frozen=True)
class Fails:
    """Fails."""
    name: ClassVar[str] = "fails"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    def decide(self, snapshot):
        raise RuntimeError("no idea")
'''
