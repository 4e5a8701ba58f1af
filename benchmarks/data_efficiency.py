"""Error on the Lorenz images against the number of training sequences, from docs/results/peers.csv.

    python benchmarks/data_efficiency.py

Draws docs/results/peers.png: a row of panels for each share p of noisy pixels at which a model was
trained on three numbers of sequences or more, a panel for each length of the test sequences. Grey
lines are published values, of 1000 training sequences.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbr.app.figures.style import handles_of, picture, styles_of

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TRAINING = {"data": "lorenz_images", "steps": "1500", "seed": "0"}  # what is shown
LENGTHS = ("200", "2000")
PUBLISHED = {  # docs/peers.md: dB by p, for each length
    "RKN": {"0.1": (-4.2, -0.2), "0.5": (-1.0, 5.7)},
    "Latent-KalmanNet": {"0.1": (-4.92, -5.45), "0.5": (-1.91, -2.4)},
}
LINES = {"RKN": ":", "Latent-KalmanNet": (0, (6, 3))}
LEAST = 3  # numbers of sequences that make a curve
TOP = 4.0  # dB
Curves = dict[str, list[tuple[int, float]]]


def curves(rows: Sequence[Mapping[str, str]], p: str, length: str) -> Curves:
    """(sequences, dB) of each model with enough of them; the best at the end is first."""
    wanted, found = {**TRAINING, "p": p, "length": length}, Curves()
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            found.setdefault(row["model"], []).append((int(row["sequences"]), float(row["db"])))
    enough = {model: sorted(points) for model, points in found.items() if len(points) >= LEAST}
    return dict(sorted(enough.items(), key=lambda pair: pair[1][-1][1]))


def panel(axis: Any, made: Curves) -> None:
    styles = styles_of(list(made))
    for model, points in made.items():
        axis.plot(*zip(*points, strict=True), label=model, **styles[model])
    ticks = sorted({count for points in made.values() for count, _ in points})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def draw(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """All panels; those of one p share their axis of errors."""
    shown = [p for p in PUBLISHED["RKN"] if curves(rows, p, LENGTHS[0])]
    size = {"figsize": (9.2, 3.3 * len(shown) + 0.3), "sharey": "row", "sharex": True}
    with picture(path, len(shown), len(LENGTHS), **size) as (_, axes):
        for p, row in zip(shown, axes, strict=True):
            for place, (axis, length) in enumerate(zip(row, LENGTHS, strict=True)):
                panel(axis, curves(rows, p, length))
                for name, values in PUBLISHED.items():
                    label, look = f"{name}, published", {"color": "#777777", "ls": LINES[name]}
                    axis.axhline(values[p][place], lw=1.2, label=label, **look)
                axis.set_title(f"p = {p}, test sequences of {length} steps", fontsize="medium")
            low, high = row[0].get_ylim()
            row[0].set_ylim(low, min(high, TOP))
            row[0].set_ylabel("squared error [dB]")
        for axis in axes[-1]:
            axis.set_xlabel("training sequences of 200 steps")
        handles, names = handles_of(axes)
        axes[0, -1].legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.png")
    out = parser.parse_args().out
    with (RESULTS / "peers.csv").open() as file:
        draw(list(csv.DictReader(file)), out)
    print(out)


if __name__ == "__main__":
    main()
