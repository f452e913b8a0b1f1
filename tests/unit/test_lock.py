"""The lock: what `make setup` installs is pinned with hashes and lies in the ranges that pyproject.toml promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TEXT = (ROOT / "requirements.lock").read_text("utf-8")
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = sorted(
    {
        *PROJECT["project"]["dependencies"],
        *EXTRAS["fast"],
        *EXTRAS["dev"],
        *PROJECT["dependency-groups"]["setup"],
        *PROJECT["build-system"]["requires"],
    }
)
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
MACHINES = ["x86_64", "aarch64"]


def entries() -> list[tuple[Requirement, list[str]]]:
    """Each pinned requirement with its hashes. A line that ends in a backslash goes on in the next."""
    lines = (
        line
        for line in TEXT.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith(("#", "-"))
    )
    parts = (re.split(r"\s+--hash=", line.strip()) for line in lines)
    return [(Requirement(pin), hashes) for pin, *hashes in parts]


ENTRIES = entries()


def version_of(name: str, python: str, machine: str) -> str:
    """The version that pip takes from the lock on a Linux machine."""
    about = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    about |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    pins = [
        pin
        for pin, _ in ENTRIES
        if canonicalize_name(pin.name) == canonicalize_name(name) and (pin.marker is None or pin.marker.evaluate(about))
    ]
    assert len(pins) == 1, f"{name} is pinned {len(pins)} times for Python {python} on {machine}"
    return str(pins[0].specifier).removeprefix("==")


def test_every_line_is_one_version_with_hashes() -> None:
    assert ENTRIES
    for pin, hashes in ENTRIES:
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), f"{pin} is not one version"
        assert pin.url is None
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), f"{pin}: {hashes}"


@pytest.mark.parametrize("wanted", WANTED)
def test_what_is_asked_for_is_pinned_in_its_range(wanted: str) -> None:
    asked = Requirement(wanted)
    for python in PYTHONS:
        for machine in MACHINES:
            version = version_of(asked.name, python, machine)
            assert version in asked.specifier, f"{asked} but the lock has {version}: run `make lock`"


def test_large_extras_stay_out() -> None:
    pinned = {canonicalize_name(pin.name) for pin, _ in ENTRIES}
    assert not pinned & {canonicalize_name(Requirement(one).name) for one in [*EXTRAS["torch"], *EXTRAS["ray"]]}


def test_no_registry_is_named() -> None:
    """Where packages come from is for each machine to say."""
    assert "://" not in TEXT
    options = set(re.findall(r"--[a-z-]+", TEXT))
    assert options == {"--hash"}
    assert not re.findall(r"\b[a-z][a-z0-9-]*\.(?:org|com|net|io|dev)\b", TEXT)
