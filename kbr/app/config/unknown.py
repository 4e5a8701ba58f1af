"""Keys and words that nothing knows: what was probably meant."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

BESIDE, ELSEWHERE = 0.6, 0.8  # likeness from which a key of the same part, or another, is named


def unknown_key(key: str, keys: Iterable[str], choices: Mapping[str, str | None]) -> str:
    """One line for a key that is not among `keys`."""
    group = key.partition(".")[0]
    owner = f" of {group}={choices[group]}" if choices.get(group) and "." in key else ""
    ours = sorted(one for one in keys if not one.rpartition(".")[2].startswith("_"))
    meant = did_you_mean(key, ours) or "--help lists the keys."
    return f"{key} is no key{owner}. {meant}"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A question that names the likeliest word: the same name further down, or a like one."""
    parent, _, last = word.rpartition(".")
    group = word.partition(".")[0] + "." if parent else ""
    shortest_last = sorted(known, key=lambda key: -key.count("."))
    below = {key.rpartition(".")[2]: key for key in shortest_last if key.startswith(group)}
    if last in below:
        return f"Did you mean {below[last]}?"
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
    for names, cutoff in ((beside, BESIDE), (below, ELSEWHERE)):
        if close := get_close_matches(last, names, n=1, cutoff=cutoff):
            return f"Did you mean {names[close[0]]}?"
    return ""
