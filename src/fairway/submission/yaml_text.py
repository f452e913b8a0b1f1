"""YAML that somebody wrote: what is wrong with it is one line, whatever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairway.core.errors import InputError

MOST_DEPTH = 50
"""How deeply values may be nested. To read deeper ones takes very long."""


def yaml_documents(text: str, path: Path, *, aliases: bool, what: str = "this") -> list[Any]:
    """The documents of a text. Without `aliases` a short text cannot stand for a huge one."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            wrong = "aliases cannot be used here" if not aliases and self.check_event(yaml.AliasEvent) else ""
            wrong = wrong or ("it is nested too deeply" if self.depth > MOST_DEPTH else "")
            if wrong:
                raise yaml.composer.ComposerError(None, None, wrong, self.peek_event().start_mark)
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        return list(yaml.load_all(text, Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"{what} is not YAML: {error.problem}", path=str(path), line=line) from None
    except (yaml.YAMLError, ValueError, AttributeError, TypeError) as error:
        # A number, a date or a key may look like one and be none.
        raise InputError(f"{what} is not YAML: {str(error)[:200]}", path=str(path)) from None
