"""What a run noted while it chose: hyper-parameters on the edge of a grid, and sentences."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from kbr.core.filters.kernel.choosing.search import Edge

# Run folders that hold no edges as values tell them in their sentences.
SENTENCE = re.compile(r"(\w+) at the (lower|upper) edge \((.+)\) in (\d+) of (\d+)")


@dataclass(frozen=True)
class Notes:
    """Edges that were chosen, and sentences about anything else."""

    edges: tuple[Edge, ...] = ()
    sentences: tuple[str, ...] = ()

    @classmethod
    def of_run(cls, sentences: Sequence[str], edges: Sequence[Edge] | None = None) -> Self:
        """`edges` is None of runs that recorded sentences alone."""
        told = [(text, told_edge(text)) for text in sentences]
        if edges is None:
            edges = [edge for _, edge in told if edge is not None]
        return cls(tuple(edges), tuple(text for text, edge in told if edge is None))

    @classmethod
    def joined(cls, notes: Iterable["Notes"]) -> Self:
        every = list(notes)
        edges = tuple(edge for one in every for edge in one.edges)
        return cls(edges, tuple(text for one in every for text in one.sentences))


def told_edge(sentence: str) -> Edge | None:
    """The edge that a sentence tells of, if it does."""
    match = SENTENCE.match(sentence)
    with suppress(ValueError):  # of something that is no number
        if match is not None:
            name, end, value, count, of = match.groups()
            return Edge(name=name, end=end, value=float(value), count=int(count), of=int(of))
    return None
