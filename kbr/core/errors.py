"""The one exception that kbr raises for input it cannot use, and how training may be stopped."""

import signal


class KbrError(ValueError):
    """Says what was expected, what came, and which setting to change."""


class WorkerLost(KbrError):
    """Another process of the same training has ended; training can go on from its checkpoint."""


class Diverged(KbrError):
    """Training has left finite or solvable numbers: the learning rate is too high."""


class Preempted(Exception):
    """Training was asked to stop by the signal `number`; it can go on from its checkpoint."""

    def __init__(self, message: str, *, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.number = int(number)
