"""Cells of a sweep end with it: a killed sweep leaves no process that goes on writing."""

import os
import signal
import threading
import time

EVERY = 1.0  # seconds between two looks


def end_with(parent: int) -> None:
    """Ask this process to stop once `parent`, which started it, is gone. One thread does for all.

    A training saves its state first, as it does whenever it is asked to stop.
    """
    if any(thread.name == end_with.__name__ for thread in threading.enumerate()):
        return
    threading.Thread(target=_watch, args=(parent,), name=end_with.__name__, daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY)
    while True:  # once more for each cell that was waiting its turn
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(EVERY)
