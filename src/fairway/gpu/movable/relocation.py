"""Directs the calls that a loaded library makes to other functions, by its table of addresses (ELF, 64 bits)."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_STRINGS, _SYMBOLS, _JUMPS, _JUMP_BYTES = 5, 6, 23, 2
_ENTRY_BYTES, _SYMBOL_BYTES = 24, 24


def redirect(library: str, functions: dict[str, int]) -> None:
    """Let a library call these functions, given by their addresses, instead of those with these names.

    `OSError` if the library is not loaded or does not call one of them in this way.
    """
    base = _base(library)
    places = _places(base)
    for name, address in functions.items():
        if name not in places:
            raise OSError(f"{library} does not call {name}")
        _write(places[name], address)


def _base(library: str) -> int:
    path = str(Path(library).resolve())
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(f" {path}"):
                return int(line.split("-", 1)[0], 16)
    raise OSError(f"{library} is not loaded")


def _places(base: int) -> dict[str, int]:
    """Where the addresses of called functions are, by the names of the functions."""
    table = _dynamic(base)
    jumps, strings, symbols = (_absolute(base, table[tag]) for tag in (_JUMPS, _STRINGS, _SYMBOLS))
    places = {}
    for at in range(jumps, jumps + table[_JUMP_BYTES], _ENTRY_BYTES):
        offset, info = (ctypes.c_uint64.from_address(at + shift).value for shift in (0, 8))
        name_at = ctypes.c_uint32.from_address(symbols + (info >> 32) * _SYMBOL_BYTES).value
        places[ctypes.string_at(strings + name_at).decode("ascii", "replace")] = base + offset
    return places


def _dynamic(base: int) -> dict[int, int]:
    """The library's dynamic section, found by its program headers."""
    headers = base + ctypes.c_uint64.from_address(base + 32).value
    size, count = (ctypes.c_uint16.from_address(base + shift).value for shift in (54, 56))
    for at in range(headers, headers + size * count, size):
        if ctypes.c_uint32.from_address(at).value == 2:
            section = base + ctypes.c_uint64.from_address(at + 16).value
            break
    else:
        raise OSError("the library has no dynamic section")
    table: dict[int, int] = {}
    while True:
        tag, value = (ctypes.c_uint64.from_address(section + shift).value for shift in (0, 8))
        if not tag:
            return table
        table[tag] = value
        section += 16


def _absolute(base: int, value: int) -> int:
    """Loaders replace offsets by addresses, but not all of them do."""
    return value if value > base else base + value


def _write(place: int, address: int) -> None:
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(place // page * page, page, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "the table of a library cannot be written")
    ctypes.c_uint64.from_address(place).value = address
