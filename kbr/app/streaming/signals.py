"""SIGTERM and SIGINT end a stream between two steps, never inside one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """A signal asked the command to end; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class Stopping:
    """While `waiting` for input a signal ends the wait; else the step under way is finished."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_waiting = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handlers in place; other threads than the main one cannot have any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.is_waiting = True
        try:
            if self.received is not None:
                raise Stopped(self.received)
            yield
        finally:
            self.is_waiting = False

    def _handle(self, number: int, frame: FrameType | None, /) -> Any:
        self.received = number
        if self.is_waiting:
            raise Stopped(number)
