"""A belief between two calls: saved with the identity of its filter, and read back only for it."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief
from kbr.core.io import checkpoint

KIND = "kbr.belief"
FILTERS = ("answering", "points", "table", "share", "usual")  # fields that the filter itself has


def save_belief(belief: Belief, path: Path, identity: str) -> None:
    checkpoint.save(path, {"kind": KIND, "identity": identity, "belief": _content(belief)})


def read_belief(filt: Any, path: Path, identity: str) -> Belief:
    """The saved belief, or the filter's start where there is no file yet."""
    start: Belief = filt.init()
    if not path.exists():
        return start
    content = checkpoint.load(path, kind=KIND)
    if content.get("identity") != identity:
        raise KbrError(
            f"{path} is the state of another filter, or of this one before it was trained anew. "
            "Remove it, or set state=..."
        )
    saved = content.get("belief")
    if isinstance(saved, dict):  # a file from before has none of these
        new = {"recent": None, "off": getattr(start, "off", None)}
        saved = {**{name: value for name, value in new.items() if hasattr(start, name)}, **saved}
    if not isinstance(saved, dict) or not _fits(start, saved):
        raise KbrError(f"{path} is damaged: it holds no belief of finite numbers. Remove it.")
    return _restored(start, saved)


def _restored(start: Belief, saved: dict[str, Any]) -> Belief:
    sequence, time = saved["place"]
    clouds = {name: replace(getattr(start, name), **saved[name]) for name in _clouds(start)}
    inner = {name: _restored(getattr(start, name), saved[name]) for name in _beliefs(start)}
    return replace(start, **{**saved, **clouds, **inner, "place": (sequence, time)})


def _content(belief: Belief) -> dict[str, Any]:
    """What the filter does not have itself."""
    names = [each.name for each in fields(belief) if each.name not in FILTERS]
    found = {name: getattr(belief, name) for name in names}
    for name in _clouds(belief):
        found[name] = {each.name: getattr(found[name], each.name) for each in fields(found[name])}
    inner = {name: _content(found[name]) for name in _beliefs(belief)}
    return {**found, **inner, "place": list(belief.place)}


def _clouds(belief: Belief) -> list[str]:
    """Fields that hold points with weights: as many as there are at a step."""
    names = [each.name for each in fields(belief) if each.name not in FILTERS]
    parts = {name: getattr(belief, name) for name in names}
    return [k for k, part in parts.items() if is_dataclass(part) and not isinstance(part, Belief)]


def _beliefs(belief: Belief) -> list[str]:
    """Fields that hold beliefs of their own, those that are averaged."""
    return [each.name for each in fields(belief) if isinstance(getattr(belief, each.name), Belief)]


def _fits(start: Belief, saved: dict[str, Any]) -> bool:
    """Whether these are the fields of such a belief, of the same shapes and finite."""
    expected = _content(start)
    if saved.keys() != expected.keys() or type(saved["steps"]) is not int or saved["steps"] < 0:
        return False
    if not isinstance(saved["place"], list) or len(saved["place"]) != 2:
        return False
    inner = _beliefs(start)
    for name in inner:
        if not isinstance(saved[name], dict) or not _fits(getattr(start, name), saved[name]):
            return False
    for name in expected.keys() - {"place", "steps", *inner}:
        value, first = saved[name], expected[name]
        if isinstance(first, dict):
            if not _is_cloud(value, first):
                return False
            continue
        if value is None and (first is None or name == "stretch"):
            continue
        if not isinstance(value, Tensor):
            return False
        if name != "recent" and not bool(value.isfinite().all()):  # recent rows may be missing
            return False
        if isinstance(first, Tensor) and (value.shape, value.dtype) != (first.shape, first.dtype):
            return False
    return True


def _is_cloud(value: Any, first: dict[str, Tensor]) -> bool:
    """Whether these are finite numbers of so many points, each like those of `first`."""
    if not isinstance(value, dict) or value.keys() != first.keys():
        return False
    parts = [(value[name], first[name]) for name in first]
    if not all(isinstance(now, Tensor) and now.ndim == then.ndim for now, then in parts):
        return False
    alike = all((n.shape[1:], n.dtype) == (t.shape[1:], t.dtype) for n, t in parts)
    counts = {len(now) for now, _ in parts}
    finite = all(bool(now.isfinite().all()) for now, _ in parts)
    return alike and finite and len(counts) == 1 and counts != {0}
