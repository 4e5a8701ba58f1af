"""Where the live page is served, and who may see it: this machine, or those who have the token."""

import ipaddress
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from kbr.core.errors import KbrError

HOST, PORT = "127.0.0.1", 8765
EXPECTED = "a port or address:port, such as 8000 or 0.0.0.0:8000"


@dataclass(frozen=True)
class Address:
    """The setting `serve`; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> "Address":
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if colon else HOST
        if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise KbrError(f"serve must be {EXPECTED}; got {text!r}.")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Door:
    """Who is let in, by the path and the host that a request names.

    On a loopback address: whoever asks for this machine by a name of its own. Pages of other sites
    cannot, even where their name has been made to lead here. On any other address: whoever has the
    token, which is the first part of every path.
    """

    hosts: frozenset[str] = frozenset()
    token: str = ""

    @classmethod
    def of(cls, host: str, bound: str) -> "Door":
        """For a setting and the numeric address that it led to."""
        if ipaddress.ip_address(bound).is_loopback:
            return cls(hosts=frozenset({"localhost", "127.0.0.1", "::1", bound, host.lower()}))
        return cls(token=secrets.token_urlsafe(24))

    @property
    def root(self) -> str:
        """The path of the page."""
        return f"/{self.token}/" if self.token else "/"

    def admits(self, path: str, hosts: list[str]) -> bool:
        """Whether a request with this path and these Host headers may be answered."""
        if self.token:
            given = path.encode(errors="replace")[1 : len(self.token) + 1]
            return secrets.compare_digest(given, self.token.encode())
        try:
            return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in self.hosts
        except ValueError:
            return False

    def url(self, host: str, port: int) -> str:
        """What to type in a browser, also on another machine where all of them are served."""
        everywhere = host in ("0.0.0.0", "::")
        return f"http://{Address(socket.gethostname() if everywhere else host, port)}{self.root}"
