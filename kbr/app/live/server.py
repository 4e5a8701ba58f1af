"""The page and its stream over HTTP, by threads beside the filter's own.

A reader's thread looks for new steps PACE times a second and sends the newest; the filter never
waits for it. Whoever reads slowly misses steps, whoever leaves frees his thread and socket.
"""

import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from itertools import islice
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from kbr.app.live.address import Address, Door
from kbr.app.live.ring import Ring
from kbr.core.errors import KbrError

READERS = 5  # pages that follow the stream at once; a browser has six connections to a host
CONNECTIONS = 32  # threads at most, those of readers among them
PACE = 20  # looks for new steps a second
BATCH = 200  # steps sent in one event
QUIET = 5.0  # seconds without a step after which a sign of life is sent
PATIENCE = 30.0  # seconds that a reader may take for one event
POLL = 0.1  # seconds that closing may take
BUFFER = 2**16  # bytes under way to a reader
FILES = {
    "": ("live.html", "text/html; charset=utf-8"),
    "live.css": ("live.css", "text/css; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
    "draw.js": ("draw.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LiveServer(ThreadingTCPServer):
    """Serves `ring` until it is closed; `facts` and `ending` are JSON texts."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS
    allow_reuse_address = os.name == "posix"  # elsewhere that would take a port in use

    def __init__(self, address: Address, ring: Ring, facts: str) -> None:
        self.ring, self.facts, self.ending = ring, facts, ""
        self.stream = secrets.token_hex(4)  # tells this stream from the next one on the port
        self.slots = threading.BoundedSemaphore(CONNECTIONS)
        self.changed = threading.Condition()  # of the number of readers
        self.readers = 0
        folder = files("kbr.app.live") / "files"
        self.files = {path: (folder / name).read_bytes() for path, (name, _) in FILES.items()}
        try:
            where, kind = (address.host, address.port), socket.SOCK_STREAM
            self.address_family, *_, at = socket.getaddrinfo(*where, type=kind)[0]
            super().__init__(at, _Handler)  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise KbrError(
                f"cannot serve the page at {address}: {why}. Set serve=<port or address:port>, 0 "
                "for any free port."
            ) from error
        bound, port = self.socket.getsockname()[:2]
        self.door = Door.of(address.host, bound)
        self.url = self.door.url(address.host, port)
        threading.Thread(target=self.serve_forever, args=(POLL,), daemon=True).start()

    def end(self, ending: str, patience: float = 0.0) -> None:
        """Tells all readers, and waits until they know: so many seconds at most."""
        self.ending = ending
        with self.changed:
            self.changed.wait_for(lambda: self.readers == 0, timeout=patience)

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Counts a reader; False where there are too many already."""
        with self.changed:
            free = self.readers < READERS
            self.readers += free
        try:
            yield free
        finally:
            with self.changed:
                self.readers -= free
                self.changed.notify_all()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a browser that has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection ends with its answer."""

    server: LiveServer
    server_version, sys_version = "kbr", ""
    timeout = 10.0  # seconds for the request to arrive

    def parse_request(self) -> bool:
        """Reads the request, and refuses what is not to be answered, before anything else."""
        if not super().parse_request():
            return False
        if not self.server.door.admits(self.path, self.headers.get_all("Host", [])):
            self._answer(403, "This address is not the one that kbr-filter printed.")
            return False
        if self.command not in ("GET", "HEAD"):
            self._answer(405, "Only GET and HEAD.", Allow="GET, HEAD")
            return False
        return True

    def do_GET(self) -> None:
        root, path = self.server.door.root, urlsplit(self.path).path
        if path == root.rstrip("/") and path:
            self._answer(308, "", Location=root)  # links of the page are relative to the slash
            return
        name = path[len(root) :]
        if name == "events":
            self._events()
        elif name in FILES:
            self._answer(200, self.server.files[name], FILES[name][1])
        else:
            self._answer(404, "There is no such page.")

    do_HEAD = do_GET

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing: standard error is the filter's."""

    def _answer(
        self,
        status: int,
        body: str | bytes,
        kind: str = "text/plain; charset=utf-8",
        **headers: str,
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _events(self) -> None:
        """The stream as server-sent events, from where the reader was."""
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self._answer(403, "Pages of other sites may not read the stream.")
            return
        with self.server.reading() as free:
            if not free:
                self._answer(503, f"{READERS} pages follow this stream already.")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("X-Accel-Buffering", "no")
            self.end_headers()
            if self.command == "GET":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                self._follow(self._resumed())

    def _follow(self, last: int) -> None:
        """Sends what the reader has missed, then the newest steps as they come, then the end."""
        ring, quiet = self.server.ring, 0.0
        self._send(f"retry: 1000\nevent: facts\ndata: {self._facts()}\n\n")
        missed = iter(ring.after(last))
        while rows := list(islice(missed, BATCH)):
            last = self._send_rows(rows)
        while True:
            ending = self.server.ending  # before the look: then no step comes after the end
            if rows := ring.after(last)[-BATCH:]:
                last, quiet = self._send_rows(rows), 0.0
            if ending:
                self._send(f"event: end\ndata: {ending}\n\n")
                return
            if self._has_left(1 / PACE):
                return
            quiet += 1 / PACE
            if quiet >= QUIET:
                self._send(": still here\n\n")
                quiet = 0.0

    def _facts(self) -> str:
        return f'{{"stream":"{self.server.stream}","facts":{self.server.facts}}}'

    def _send_rows(self, rows: list[tuple[int, str]]) -> int:
        """One event; the number of its last row."""
        (first, _), (last, _) = rows[0], rows[-1]
        texts = ",".join(text for _, text in rows)
        data = f'{{"first":{first},"rows":[{texts}]}}'
        self._send(f"id: {self.server.stream}-{last}\nevent: steps\ndata: {data}\n\n")
        return last

    def _send(self, text: str) -> None:
        self.connection.settimeout(PATIENCE)
        self.wfile.write(text.encode())

    def _resumed(self) -> int:
        """The number of the last step that this reader has seen of this stream; 0 of none."""
        stream, _, number = self.headers.get("Last-Event-ID", "").partition("-")
        known = stream == self.server.stream and number.isascii() and number.isdecimal()
        return int(number[:18]) if known else 0

    def _has_left(self, pause: float) -> bool:
        """Waits a moment; whether the reader has hung up meanwhile, or speaks out of turn."""
        self.connection.settimeout(pause)
        try:
            self.connection.recv(1)
        except TimeoutError:
            return False
        return True
