"""Where a request comes from: whose process has connected, and which page a browser shows that sends it.

A browser sends requests for any page that asks it to, and with our cookie if that page is on the same host, whatever
its port. So a request that a foreign page has caused is refused, whoever it seems to come from. A foreign page that has
got itself our address (DNS rebinding) is known by the header `Host`, which must name loopback.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import suppress
from typing import Any

from fairway.api.web_sessions import NOBODY

TCP = "tcp:"
"""How the address of a TCP client begins whose user the kernel has told; the user id follows."""
PEER = "uid:"
"""How the address of a peer on the Unix socket begins; its user id follows."""
_MOST_COOKIE = 4096
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ESTABLISHED = 4, 20, 1, 1
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_NUMBER = struct.Struct("=I")
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_STATE_AT, _UID_AT = _HEAD.size + 1, _HEAD.size + 4 + 48 + 12


def tcp_uid(accepted: socket.socket) -> int:
    """The user whose process is at the other end of a TCP connection on this machine; `NOBODY` if it is not known."""
    with suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as asking:
        client, server = accepted.getpeername()[:2], accepted.getsockname()[:2]
        hosts = (socket.inet_pton(accepted.family, one[0]).ljust(16, b"\0") for one in (client, server))
        asked = _ASKED.pack(accepted.family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        asked += _ENDS.pack(client[1], server[1], *hosts) + _ANY
        asking.settimeout(0.1)
        asking.sendto(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0))
        told = asking.recv(4096)
        if _HEAD.unpack_from(told)[1] == _BY_FAMILY and told[_STATE_AT] == _ESTABLISHED:
            return int(_NUMBER.unpack_from(told, _UID_AT)[0])
    return NOBODY


def peer_of(scope: Any) -> int:
    """The user whose process sends a request; `NOBODY` if that is not known."""
    host = str((scope.get("client") or ("",))[0])
    return next((int(host[len(one) :]) for one in (TCP, PEER) if host.startswith(one)), NOBODY)


def header_of(scope: Any, name: bytes) -> bytes:
    """A header of a request, or nothing."""
    return next((bytes(value) for one, value in scope.get("headers") or () if one == name), b"")


def cookie_name(scope: Any) -> str:
    """Our cookie has the port that the browser sees in its name: cookies of a host are shared by all of its ports."""
    _, port = _parts(header_of(scope, b"host").decode("latin-1"))
    return f"fairway_{port if port.isdecimal() else 80}"


def cookie_of(scope: Any) -> str:
    """The secret in our cookie, or ""."""
    wanted = cookie_name(scope)
    for one in header_of(scope, b"cookie")[:_MOST_COOKIE].decode("latin-1").split(";"):
        name, _, value = one.strip().partition("=")
        if name == wanted:
            return value
    return ""


def why_foreign(scope: Any) -> str:
    """Why a request is refused that a foreign page may have caused; "" if it is none."""
    host, origin = header_of(scope, b"host").decode("latin-1"), header_of(scope, b"origin").decode("latin-1")
    site = header_of(scope, b"sec-fetch-site")
    if origin and origin.lower() != f"http://{host}".lower():
        return "a page from elsewhere may not send requests here"
    if site not in (b"", b"same-origin", b"none") and not _opens_page(scope):
        return "a page from elsewhere may not send requests here"
    # Who has a token is no page: it knows what it does. On the socket the host has no meaning, unless it is a domain.
    if header_of(scope, b"authorization") or _is_loopback(host):
        return ""
    on_socket = str((scope.get("client") or ("",))[0]).startswith(PEER)
    return "" if on_socket and "." not in host else "the address of this page is not one of this machine (header Host)"


def _opens_page(scope: Any) -> bool:
    """Whether somebody follows a link to the page, from wherever that is. It holds no data."""
    return scope["method"] == "GET" and scope["path"] == "/" and header_of(scope, b"sec-fetch-mode") == b"navigate"


def _is_loopback(host: str) -> bool:
    name, _ = _parts(host)
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _parts(host: str) -> tuple[str, str]:
    """The name and the port of a header `Host`."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port
