"""What a run says about its choices, one line each."""

from collections.abc import Iterable
from dataclasses import replace

from kbr.core.filters.kernel.search import Edge


def edge_notes(edges: Iterable[Edge], keys: str) -> tuple[str, ...]:
    """Each edge once, counted over trials, with the key that widens it; `keys` is its group."""
    counted: dict[tuple[str, str, float], Edge] = {}
    for edge in edges:
        place = (edge.name, edge.end, edge.value)
        before = counted.get(place)
        counted[place] = replace(edge, count=edge.count + (before.count if before else 0))
    return tuple(
        f"{edge}; try others with {keys}.{edge.setting}=[...]" for edge in counted.values()
    )
