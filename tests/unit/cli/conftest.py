from __future__ import annotations

from pathlib import Path

import pytest
from cli_samples import Shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)
