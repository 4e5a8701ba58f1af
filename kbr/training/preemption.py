"""A cluster that wants its machine back sends a signal: training saves its state and ends."""

import signal
import threading
from types import FrameType

SIGNALS = ("SIGTERM", "SIGUSR1")  # the second is what Slurm jobs ask for: --signal=USR1@120


class StopRequest:
    """Whether one of the signals has come since `listen`."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Take the signals over from Lightning, which puts back what was there when it ends.

        Its own handlers would talk to other workers in the middle of a step, or requeue the job.
        """
        self.received = False
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                if hasattr(signal, name):  # Windows has no SIGUSR1
                    signal.signal(getattr(signal, name), self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
