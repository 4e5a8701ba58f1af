"""A signal asks training to stop: a cluster that wants its machine back, or Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kbr.core.errors import Preempted

SIGNALS = ("SIGTERM", "SIGUSR1")  # the second is what Slurm jobs ask for: --signal=USR1@120


class StopRequest:
    """Which of the signals has come since `listen`, if any; training saves its state and ends."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def received(self) -> bool:
        return self.number is not None

    def listen(self) -> None:
        """Take the signals over from Lightning, which puts back what was there when it ends.

        Its own handlers would talk to other workers in the middle of a step, or requeue the job.
        """
        if _in_main_thread():
            for name in SIGNALS:
                if hasattr(signal, name):  # Windows has no SIGUSR1
                    signal.signal(getattr(signal, name), self._note)

    @contextmanager
    def on_ctrl_c(self) -> Iterator[None]:
        """Take Ctrl-C over from Lightning, which would end the process; twice: stop at once."""
        self.number = None
        if not _in_main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            yield  # ignored on purpose, as in the background of a script
            return
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.number == number:
            raise Preempted("stopped in the middle of an epoch", number=number)
        self.number = number


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
