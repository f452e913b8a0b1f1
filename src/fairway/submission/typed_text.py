"""Jobs as somebody types them elsewhere: a command line, an sbatch script or a SkyPilot task. Nothing is looked up.

Whoever types is not at this machine's shell: no file, directory, account or variable of this machine is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from fairway.core.errors import InputError
from fairway.submission.draft import Draft, far_folder
from fairway.submission.exported import NOTHING
from fairway.submission.sbatch import from_sbatch_text
from fairway.submission.skypilot import from_task_text
from fairway.submission.torchrun import from_torchrun, is_torchrun

Kind = Literal["command", "sbatch", "skypilot"]
MOST_TYPED = 32_768
"""The most characters of a command or a task. To take apart long words, or YAML, takes long."""
_NAMES: dict[Kind, str] = {"command": "command", "sbatch": "script", "skypilot": "task.yaml"}
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{)")
_MARKS = frozenset("();<>|&")


class Remark(NamedTuple):
    """Something about a text, in one of its lines if that is known, or about a field."""

    line: int | None
    field: str | None
    text: str


def typed_draft(kind: Kind, text: str, terms: Mapping[str, Any], now: datetime) -> Draft:
    """The job that a text describes. Terms that are given beside it count more."""
    given = _with_gpus(terms)
    if kind != "sbatch" and len(text) > MOST_TYPED:
        raise InputError(f"this is longer than {MOST_TYPED:,} characters", path=_NAMES[kind])
    if kind == "command":
        draft = _from_command(text, given)
    elif kind == "sbatch":
        draft = from_sbatch_text(text, (), now, source=_NAMES[kind], folder=far_folder)
    else:
        env = terms.get("env")
        draft = from_task_text(text, env if isinstance(env, dict) else {}, source=_NAMES[kind], folder=far_folder)
    remarks = list(draft.remarks)
    if draft.export not in (None, NOTHING):
        remarks.append(f"--export={draft.export}: variables of your shell do not go along from here")
    made = draft.over(given)
    if "cwd" not in made.fields:
        remarks.append("no directory is given; it runs in /")
    return Draft(made.fields, made.array, NOTHING, tuple(remarks))


def _with_gpus(terms: Mapping[str, Any]) -> dict[str, Any]:
    """A number of GPUs among terms says all about them, whatever the text says."""
    if "gpus" not in terms:
        return dict(terms)
    gpus = terms["gpus"]
    some = {"gpus": gpus, "gpus_min": terms.get("gpus_min") or gpus, "gpus_max": terms.get("gpus_max") or gpus}
    return {**terms, **some, "gpu_share": terms.get("gpu_share", 1.0)}


def _from_command(text: str, given: Mapping[str, Any]) -> Draft:
    try:
        words = _words(text)
    except ValueError as error:
        raise InputError(f"this cannot be read: {str(error).lower()}") from None
    if not words:
        raise InputError("there is no command")
    if _words(text, "\n") != words:
        lines = text.strip().splitlines()
        raise InputError(
            f"a command is one line, and this has {len(lines)}; several are an sbatch script, or the words of bash -c"
        )
    draft = from_torchrun(words, given) if is_torchrun(words) else Draft({"command": tuple(words)})
    meant = _meant_for_a_shell(text)
    if meant:
        told = f"no shell runs this, so {', '.join(meant)} mean nothing special; bash -c '…' would be one"
        return Draft(draft.fields, remarks=(*draft.remarks, told))
    return draft


def _words(text: str, apart: str = "") -> list[str]:
    """The words of a command line; `apart` are the blanks that separate no words."""
    lexer = shlex.shlex(text.replace("\\\n", " ").strip(), posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.whitespace = "".join(blank for blank in lexer.whitespace if blank not in apart)
    return list(lexer)


def _meant_for_a_shell(text: str) -> list[str]:
    """Marks and variables that only a shell understands, outside of quotes."""
    lexer = shlex.shlex(text, posix=False, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    marks = dict.fromkeys(word for word in words if word and set(word) <= _MARKS)
    names = dict.fromkeys(found[0] for word in words if not word.startswith("'") for found in _VARIABLE.finditer(word))
    return [*marks, *names][:5]


def remark_of(text: str, line: int | None = None, fields: frozenset[str] = frozenset()) -> Remark:
    """A remark or an error about a text, with the line or the field that it names."""
    for name in _NAMES.values():
        found = re.match(rf"{re.escape(name)}(?::(\d+))?: ", text)
        if found is not None:
            return Remark(int(found[1]) if found[1] else line, None, text[found.end() :])
    field, colon, _ = text.partition(": ")
    field = field.partition(".")[0]
    return Remark(line, field if colon and field in fields else None, text)
