"""Text of other users on a terminal: what cannot be printed is escaped, so that it can neither hide nor pretend.

Control characters could move the cursor or change colours, and marks of direction could show a command backwards.
"""

from __future__ import annotations


def visible(text: str) -> str:
    """A text in which unprintable characters are escaped as in Python."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def visible_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def line(text: str) -> str:
    """A text on one line, without control characters."""
    return visible(" ".join(text.split()))


def visible_json(text: str) -> str:
    """A JSON text in which unprintable characters are escaped as in JSON. It means the same."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
