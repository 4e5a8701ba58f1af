"""Who adds up the pieces: this process, processes that it starts, or those of torch.distributed."""

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from kbr.core.errors import KbrError

Piece = tuple[int, int]
Task = Callable[[Piece], np.ndarray]
Value = TypeVar("Value")


class Team(ABC):
    """Those who take pieces."""

    leads = True  # whether this process writes

    @abstractmethod
    def map(self, task: Task, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        """The sums of the pieces, in their order."""

    def once(self, make: Callable[[], Value]) -> Value:
        """What one process makes for all of them."""
        return make()


class Alone(Team):
    """This process."""

    def map(self, task: Task, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        return map(task, pieces)


class Pool(Team):
    """Processes of this machine."""

    def __init__(self, executor: ProcessPoolExecutor, workers: int) -> None:
        self.executor = executor
        for _ in range(workers):
            executor.submit(_ready)  # they start while settings are chosen

    def map(self, task: Task, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        try:
            yield from self.executor.map(task, pieces)
        except BrokenProcessPool as error:
            raise KbrError(
                "a worker has died (out of memory, or killed), or could not start: a script that "
                "uses workers=... calls fit_files below `if __name__ == '__main__':`. The same "
                "call goes on from the last piece."
            ) from error


class Group(Team):
    """The processes of torch.distributed, as torchrun starts them: each calls the same fit."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0

    def map(self, task: Task, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        for start in range(0, len(pieces), self.world):
            together = pieces[start : start + self.world]
            mine = task(together[self.rank]) if self.rank < len(together) else None
            found: list[Any] = [None] * self.world
            dist.all_gather_object(found, mine)
            yield from found[: len(together)]

    def once(self, make: Callable[[], Value]) -> Value:
        made: list[Any] = [make() if self.leads else None]
        dist.broadcast_object_list(made)
        value: Value = made[0]
        return value


@contextmanager
def team_of(workers: int) -> Iterator[Team]:
    """So many processes; those of torch.distributed, where it is in use."""
    if type(workers) is not int or workers < 1:
        raise KbrError(f"workers must be a whole number, at least 1; got {workers!r}.")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        if workers > 1:
            raise KbrError(
                f"torch.distributed has {dist.get_world_size()} processes already: leave out "
                f"workers; got {workers}."
            )
        yield Group()
    elif workers == 1:
        yield Alone()
    else:
        threads = max(1, torch.get_num_threads() // workers)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (threads,)) as executor:
            try:
                yield Pool(executor, workers)
            finally:
                executor.shutdown(cancel_futures=True)


def _ready() -> None:
    """Nothing: what a worker imports is there then."""
