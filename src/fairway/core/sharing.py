"""Which guest becomes the host when a host leaves. State and engines must agree on it."""

from __future__ import annotations

from collections.abc import Mapping


def heirs(guests: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """The new host of each guest, by job number; -1 for a guest that becomes a host itself.

    Guests of one host are nested or apart. So of those that overlap, the largest (among equals, the first) holds all
    GPUs of the others.
    """
    hosts: dict[int, int] = {}
    seats: dict[int, set[int]] = {}
    for job in sorted(guests, key=lambda job: (-len(guests[job]), job)):
        mine = set(guests[job])
        hosts[job] = next((heir for heir, held in seats.items() if mine <= held), -1)
        if hosts[job] < 0:
            seats[job] = mine
    return hosts
