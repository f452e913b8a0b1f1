"""How profiles name things: the key of an entry, and model names as people spell them.

Spelling differs between papers, traces and tools ("ResNet-18", "resnet18"), so names are compared only by their letters
and digits. A few models have two names in the literature; `SAME_MODEL` holds those and nothing that is merely alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairway.core.errors import InputError
from fairway.core.hardware import known_gpu

SAME_MODEL: tuple[frozenset[str], ...] = (
    frozenset({"lm", "lstm"}),
    frozenset({"recommendation", "autoencoder"}),
    frozenset({"bert", "bertbase"}),
    frozenset({"deepspeech2", "ds2"}),
    frozenset({"inception3", "inceptionv3"}),
    frozenset({"inception4", "inceptionv4"}),
)
"""Gavel calls its LSTM language model "LM" and its ML-20M autoencoder "Recommendation"; "BERT" in traces is the base
size; "DS2" is the usual short form of Deep Speech 2; Inception has its version with and without a "v"."""


class ProfileKey(NamedTuple):
    """What a profile is asked about: a model at a batch size (per GPU) on a gang."""

    model: str
    batch_size: int | None
    gpus: int


class ModelNames:
    """The model names of one profile, found again under another spelling or a second name."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: tuple[str, ...] = tuple(dict.fromkeys(names))
        self._by_spelling = {spelling: name for name in reversed(self.names) for spelling in _spellings(name)}
        self._by_spelling.update({_letters(name): name for name in self.names})
        self._by_spelling.update({name: name for name in self.names})

    def find(self, name: str) -> str | None:
        """The profile's own name of a model, or None."""
        return self._by_spelling.get(name) or self._by_spelling.get(_letters(name))

    def require(self, name: str, path: str | None = None) -> str:
        """The profile's own name of a model; an unknown one is an `InputError` that lists the known ones."""
        found = self.find(name)
        if found is None:
            raise InputError(f"unknown model {name!r}; known: {', '.join(self.names)}", path=path)
        return found


def gpu_spellings(gpu_type: str) -> tuple[str, ...]:
    """The names under which a profile may hold a GPU type: its own, then that of the catalogue."""
    known = known_gpu(gpu_type)
    lower = gpu_type.lower()
    return (lower,) if known is None or known.name == lower else (lower, known.name)


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _spellings(name: str) -> frozenset[str]:
    letters = _letters(name)
    return next((same for same in SAME_MODEL if letters in same), frozenset({letters}))
