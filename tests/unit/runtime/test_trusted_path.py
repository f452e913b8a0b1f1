"""A state directory is used only if nobody else can decide what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairway.runtime.processes.trusted_path import UntrustedPathError, refuse_untrusted

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
OTHER = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    made = tmp_path / "home" / "state"
    made.mkdir(parents=True)
    for one in (made, made.parent):
        one.chmod(0o755)
    return made


def test_a_directory_of_ones_own_is_trusted_and_so_is_one_that_is_still_to_be_made(place: Path) -> None:
    refuse_untrusted(place)
    refuse_untrusted(place / "deep" / "er")


@AS_ROOT
def test_a_directory_of_another_user_is_refused(place: Path) -> None:
    os.chown(place, OTHER, OTHER)
    with pytest.raises(UntrustedPathError, match="belongs to nobody"):
        refuse_untrusted(place)


@AS_ROOT
def test_a_parent_of_another_user_is_refused(place: Path) -> None:
    os.chown(place.parent, OTHER, OTHER)
    with pytest.raises(UntrustedPathError, match="on the way to it, belongs to nobody"):
        refuse_untrusted(place)
    with pytest.raises(UntrustedPathError):
        refuse_untrusted(place.parent / "not there yet")


@pytest.mark.parametrize("mode", [0o757, 0o777])
def test_a_parent_that_others_can_write_to_is_refused(place: Path, mode: int) -> None:
    place.parent.chmod(mode)
    with pytest.raises(UntrustedPathError, match="others can write to"):
        refuse_untrusted(place)
    place.parent.chmod(mode | 0o1000)
    refuse_untrusted(place)


@AS_ROOT
def test_a_link_of_another_user_is_refused_and_so_is_one_that_leads_to_another_user(place: Path) -> None:
    link = place.parent / "link"
    link.symlink_to(place)
    refuse_untrusted(link)
    refuse_untrusted(link / "below")
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(UntrustedPathError):
        refuse_untrusted(link)
    theirs = place.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    (place / "away").symlink_to("../theirs")
    with pytest.raises(UntrustedPathError, match="belongs to nobody"):
        refuse_untrusted(place / "away")


def test_a_link_to_itself_ends(place: Path) -> None:
    (place / "loop").symlink_to("loop")
    with pytest.raises(UntrustedPathError, match="too many links"):
        refuse_untrusted(place / "loop")
