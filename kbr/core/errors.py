"""The one exception that kbr raises for input it cannot use."""


class KbrError(ValueError):
    """Says what was expected, what came, and which setting to change."""


class Diverged(KbrError):
    """Training has left finite or solvable numbers: the learning rate is too high."""


class Preempted(Exception):
    """Training was asked to stop by a signal; its state is saved, and it can go on."""
