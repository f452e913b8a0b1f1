"""The TCP ports of a server: opened at its start, or later when somebody asks for the web page.

Only loopback is listened to. What comes over TCP needs a token, or the cookie of a page that has signed in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from fairway.core.errors import InputError

AUTO = "auto"
"""The default address of the page."""
PORT = 3247
"""The port of the page by default: FAIR on a telephone."""
BACKLOG = 1024
MOST = 8
"""The most ports."""

Address = tuple[str, int]


class PagePort:
    """Where the web page can be reached. `listen` has a server listen on one more socket; without one there is no port.

    `on_open` is told of the first port, if that was opened later, with the address that was asked for.
    """

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self.listen: Callable[[socket.socket], Awaitable[None]] | None = None
        self.on_open: Callable[[str], None] = lambda asked: None
        self._lock = asyncio.Lock()

    @property
    def address(self) -> Address | None:
        """The first address; None if there is no port."""
        return self.addresses[0] if self.addresses else None

    def known(self, asked: str | None) -> Address | None:
        """The open port at this address, or any if none is given."""
        if asked is None:
            return self.address
        return next((one for one in self.addresses if written(one) == written(parsed(asked, "--address"))), None)

    async def open(self, asked: str | None) -> Address:
        """Open a port, unless it is open."""
        async with self._lock:
            found = self.known(asked)
            if found is not None:
                return found
            if self.listen is None or len(self.addresses) >= MOST:
                raise InputError("this scheduler can open no more ports")
            made = page_socket(asked or AUTO, "--address")
            await self.listen(made)
            host, port = made.getsockname()[:2]
            self.addresses.append((host, port))
            if len(self.addresses) == 1:
                self.on_open(asked or AUTO)
            return host, port


def written(address: Address) -> str:
    """An address as in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parsed(text: str, option: str) -> Address:
    """A loopback address such as 127.0.0.1:8080; `InputError` naming the option if it is none."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InputError(f"{option} {text!r} is not an address like 127.0.0.1:8080") from None
    if not address.is_loopback:
        raise InputError(f"{option} {text!r}: only loopback addresses are allowed, such as 127.0.0.1:8080")
    if not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{option} {text!r}: {port!r} is not a port")
    return str(address), int(port)


def tcp_socket(listen: str, option: str = "--listen") -> socket.socket:
    """A listening socket on loopback; a port of 0 takes a free one."""
    host, port = parsed(listen, option)
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise InputError(f"{option} {listen!r}: {error.strerror}") from None
    return made


def page_socket(asked: str, option: str = "--web") -> socket.socket:
    """A listening socket for the page: at an address, or at the default one. If that is taken, at a free port."""
    if asked != AUTO:
        return tcp_socket(asked, option)
    try:
        return tcp_socket(f"127.0.0.1:{PORT}")
    except InputError:
        return tcp_socket("127.0.0.1:0", option)
