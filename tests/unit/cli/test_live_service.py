"""The unit of the user's service."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_samples import Shell

from fairway.cli.service import unit
from fairway.cli.up import UpOptions
from fairway.core.errors import InputError


def unit_of(settings: UpOptions) -> str:
    return unit(settings.folder, settings.words())


def test_only_the_scheduler_is_stopped_with_its_unit() -> None:
    text = unit_of(UpOptions(state="/s", policy="las", round="0.5", listen="127.0.0.1:1", gpus="4"))
    assert "KillMode=process\n" in text
    assert '"up" "--state" "/s" "--policy" "las" "--gpus" "4" "--round" "0.5" "--listen" "127.0.0.1:1"\n' in text


def test_the_unit_has_what_was_given_and_nothing_else() -> None:
    """What is not given is as last time, for a service as for anybody."""
    assert '"up" "--state" "/s"\n' in unit_of(UpOptions(state="/s"))
    given = UpOptions(
        state="/s", plugin=["a b.py", "c.py"], config="team.toml", round="0", placement="spread", open_to_all=True
    )
    here = Path.cwd()
    assert (
        f'"--plugin" "{here}/a b.py" "--plugin" "{here}/c.py" "--config" "{here}/team.toml" "--round" "0" '
        '"--placement" "spread" "--open-to-all"\n'
    ) in unit_of(given)
    usual = UpOptions(state="/s", plugin=["none"], config="none", round="auto", listen="none", open_to_all=False)
    expected = '"--plugin" "none" "--config" "none" "--round" "auto" "--listen" "none" "--no-open-to-all"\n'
    assert expected in unit_of(usual)


def test_systemd_replaces_nothing_in_a_path() -> None:
    text = unit_of(UpOptions(state='/a "b" %h $HOME'))
    assert '"/a \\"b\\" %%h $$HOME"' in text
    with pytest.raises(InputError):
        unit_of(UpOptions(state="/a\nExecStart=evil"))


def test_without_systemd_the_unit_is_printed(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    call = shell("up", "--service", "--state", str(tmp_path / "state"))
    assert call.code == 0
    assert call.out.startswith("[Unit]\n")
    assert "nothing was installed" in call.err
    assert not (tmp_path / "state").exists()


def test_with_systemd_it_is_installed_and_started(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    call = shell("up", "--service", "--state", str(tmp_path / "state"))
    assert call.code == 0
    assert (tmp_path / "config/systemd/user/fairway.service").read_text().startswith("[Unit]\n")
    told = (tmp_path / "calls").read_text().splitlines()
    assert told[1:] == ["--user daemon-reload", "--user enable fairway.service", "--user restart fairway.service"]


def test_what_systemd_refuses_is_one_line(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text('#!/bin/sh\n[ "$2" = enable ] && echo "no way" >&2 && exit 1\nexit 0\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    call = shell("up", "--service")
    assert call.code == 2
    assert len(call.err_lines) == 1
    assert "no way" in call.err


def test_a_configuration_with_an_error_is_refused_before_anything_is_installed(shell: Shell, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "fairway.toml").write_text("nonsense = 1\n")
    call = shell("up", "--service", "--state", str(state))
    assert (call.code, call.out) == (2, "")
    assert len(call.err_lines) == 1
    assert "fairway.toml: nonsense" in call.err
