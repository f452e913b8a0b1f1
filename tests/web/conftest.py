"""The browser tests draw the same made-up results as the unit tests of the report."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "report"))
