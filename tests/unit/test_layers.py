"""Rules of the code: imports go downward, functions fit a screen, files hold one idea, modules say what they do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fairway.policies import policies

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fairway"
TESTS = ROOT / "tests"
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 800

# What each room (a folder, or a module beside them) may import of Fairway beside itself. `testing` may import all.
BELOW: dict[str, set[str]] = {
    "core": set(),
    "models": {"core"},
    "solvers": {"core"},
    "policies": {"core", "models", "solvers"},
    "placement": {"core", "models"},
    "traces": {"core"},
    "train": set(),
    "gpu": {"core", "train"},
    "report": {"core", "models", "policies", "placement", "traces", "simulator"},
    "simulator": {"core", "models", "solvers", "policies", "placement", "traces"},
    "published": {"core", "models", "solvers", "policies", "placement", "traces", "simulator"},
    "reproduce": {
        "core",
        "models",
        "solvers",
        "policies",
        "placement",
        "traces",
        "simulator",
        "published",
        "report",
        "testing",
    },
    "runtime": {"core", "models", "solvers", "policies", "placement", "traces"},
    "web": set(),
    "wire": {"core"},
    "client": {"core", "wire"},
    "api": {
        "core",
        "models",
        "policies",
        "placement",
        "traces",
        "simulator",
        "report",
        "runtime",
        "submission",
        "client",
    },
    "submission": {"core", "runtime"},
    "cli": {
        "core",
        "models",
        "policies",
        "placement",
        "traces",
        "simulator",
        "report",
        "reproduce",
        "runtime",
        "submission",
        "api",
        "client",
        "testing",
    },
}
# What each room of the live scheduler may import of the others: rooms, or single modules. `daemon` may import all.
RUNTIME_BELOW: dict[str, set[str]] = {
    "processes": {"jobs.records"},
    "jobs": {"processes"},
    "guard": {"jobs", "daemon.config"},
    "journal": {"jobs", "processes", "daemon.clock", "daemon.engine"},
}
# The only modules that load the room of published simulators, and only inside a function.
SEAMS = {"src/fairway/policies/registry.py", "src/fairway/simulator/engines.py"}
SNAPSHOT_CIRCLE = {"fairway.core.oracle", "fairway.core.snapshot", "fairway.core.snapshot_json"}
"""A snapshot makes its oracle and its plain form, and both are about snapshots."""
HEAVY = {"torch", "ray", "fastapi", "uvicorn", "flask", "pandas", "scipy", "highspy"}
BRIDGE = "src/fairway/runtime/processes/ray_bridge.py"
"""The only module that loads Ray. It is a program of its own."""
PURE_ROOMS = ("core", "models", "solvers", "policies", "placement", "published")
IMPURE = {"os", "time", "random", "logging", "socket", "subprocess", "datetime", "threading"}
MAY_SAY_SIMULATE = {"simulator", "cli", "testing", "report", "reproduce", "__init__"}


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Every imported module by its full name."""
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Modules that run in the Python of a job are loaded by their place, so they do not know their full name.
            assert node.level == 0 or "movable" in path.parts, f"{_name(path)}: imports are absolute"
            base = node.module or ""
            found += (f"fairway.{alias.name}" for alias in node.names) if base == "fairway" else (base,)
    return tuple(found)


def test_imports_go_downward_only() -> None:
    for path in _modules():
        room = _room(path)
        if room not in BELOW:
            continue
        below = BELOW[room] | {room} | ({"published"} if _name(path) in SEAMS else set())
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "fairway" and len(parts) > 1 and parts[1] in BELOW.keys() | {"testing"}:
                assert parts[1] in below, f"{_name(path)} imports {name}: {room} is not above {parts[1]}"


@pytest.mark.parametrize("room", RUNTIME_BELOW)
def test_a_room_of_the_live_scheduler_imports_only_what_it_may(room: str) -> None:
    below = RUNTIME_BELOW[room] | {room}
    for path in sorted((SOURCE / "runtime" / room).rglob("*.py")):
        for name in _imports(path):
            parts = name.split(".")[2:] if name.startswith("fairway.runtime") else []
            # `from fairway.runtime.room import module` names the room only.
            assert not parts or {parts[0], ".".join(parts)} & below, f"{_name(path)} imports {name}"


def _imported_modules(path: Path, names: set[str]) -> set[str]:
    """The modules of Fairway that a module imports, wherever in it, without the seams to the published room."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if _name(path) in SEAMS and base.startswith("fairway.published"):
                continue
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= (inner & names) or ({base} & names)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & names
    return found


def test_modules_import_one_another_in_no_circle() -> None:
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in _modules()}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imports = {name: _imported_modules(path, set(paths)) - {name} for name, path in paths.items()}
    # What imports nothing that is left, or is imported by nothing that is left, is in no circle.
    while True:
        wanted = set().union(*imports.values())
        free = {name for name, others in imports.items() if not others or name not in wanted}
        if not free:
            break
        imports = {name: others - free for name, others in imports.items() if name not in free}
    assert imports.keys() <= SNAPSHOT_CIRCLE


def test_every_room_has_its_place() -> None:
    rooms = {_room(path) for path in _modules()}
    assert rooms == BELOW.keys() | {"testing", "__init__", "__main__"}


def test_published_simulators_are_loaded_only_where_asked_for() -> None:
    """A run by Fairway's own rules, of every kind of policy, needs nothing of that room; a published run does."""
    code = """
import sys, fairway
from fairway.cli.main import app
jobs = [fairway.JobSpec(name, 0.0, gpus=1, duration_s=900.0, user=name) for name in "abc"]
names = sys.argv[2].split()
for name in names:
    fairway.simulate(fairway.Workload.of(jobs), cluster="v100:1x2", policy=name, rules=sys.argv[1])
print(any(name.startswith("fairway.published") for name in sys.modules))
"""

    def loads_it(rules: str, names: str) -> bool:
        run = [sys.executable, "-c", code, rules, names]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split() == ["True"]

    assert not loads_it("native", " ".join(sorted(policies())))
    assert loads_it("native", "max_min_fairness:published=on")
    assert loads_it("gavel", "fifo")


def test_no_heavy_import() -> None:
    for path in _modules():
        found = {name.split(".")[0] for name in _imports(path)} & HEAVY
        if _room(path) == "api":
            # It is only loaded by whoever serves it.
            found -= {"fastapi", "uvicorn"}
        if _room(path) == "gpu":
            # Its modules run beside torch, and load it where they use it.
            found -= {"torch"} if not re.search(r"^(import|from) torch", path.read_text(), re.MULTILINE) else set()
        if _name(path) == BRIDGE:
            found -= {"ray"}
        # SciPy and HiGHS are dependencies, but slow to load, so they are loaded where they are used.
        if not re.search(r"^(import|from) (scipy|highspy)", path.read_text(), re.MULTILINE):
            found -= {"scipy", "highspy"}
        assert not found, f"{_name(path)} imports {found}"


def test_the_daemon_never_loads_ray() -> None:
    """Ray ends the processes that use it. The bridge to it is a program of its own, which no other module loads."""
    bridge = ".".join(Path(BRIDGE).with_suffix("").parts[1:])
    for path in _modules():
        assert _name(path) == BRIDGE or bridge not in _imported_modules(path, {bridge}), f"{_name(path)} loads {bridge}"


def test_the_core_needs_only_numpy_and_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"numpy", "fairway", "numba"}
    for path in sorted((SOURCE / "core").rglob("*.py")):
        for name in _imports(path):
            assert name.split(".")[0] in allowed, f"{_name(path)} imports {name}"


def test_the_training_library_needs_only_the_standard_library() -> None:
    # It is loaded into other people's training scripts, so it brings nothing along, not even NumPy.
    for path in sorted((SOURCE / "train").rglob("*.py")):
        for name in _imports(path):
            assert name.split(".")[0] in sys.stdlib_module_names | {"fairway"}, f"{_name(path)} imports {name}"


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_read_no_clock_and_no_environment(room: str) -> None:
    for path in sorted((SOURCE / room).rglob("*.py")):
        found = {name.split(".")[0] for name in _imports(path)} & IMPURE
        assert not found, f"{_name(path)} imports {found}"


def test_hypothesis_is_needed_by_the_strategies_only() -> None:
    users = [_name(path) for path in _modules() if any(name.startswith("hypothesis") for name in _imports(path))]
    assert users == ["src/fairway/testing/strategies.py"]


def test_the_word_simulate_stays_where_it_belongs() -> None:
    for path in _modules():
        if _room(path) not in MAY_SAY_SIMULATE:
            assert not re.search(r"\bsimulate\b", path.read_text()), f"{_name(path)} says `simulate`"


def test_the_loop_reads_no_policy_name() -> None:
    assert "policy.name" not in (SOURCE / "core" / "round.py").read_text()


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_a_function_fits_a_screen_and_a_file_holds_one_idea() -> None:
    for path in (*_modules(), *sorted(TESTS.rglob("*.py"))):
        lines = path.read_text().count("\n")
        assert lines <= MAX_FILE_LINES, f"{_name(path)} has {lines} lines"
        for name, length in _functions(path):
            assert length <= MAX_FUNCTION_LINES, f"{_name(path)}: {name} has {length} lines"


def test_a_module_says_what_it_is() -> None:
    for path in _modules():
        assert ast.get_docstring(_tree(path)), f"{_name(path)} has no docstring"


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in _modules():
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(_name(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_importing_fairway_is_cheap() -> None:
    code = "import sys, fairway; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & (HEAVY | {"numpy", "typer", "rich", "numba", "hypothesis"})


def test_every_public_name_can_be_had() -> None:
    import fairway
    import fairway.testing

    for module in (fairway, fairway.testing):
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError):
            _ = module.nonsense
