"""A filter on parts of the training rows of real recordings: test rows stay unseen.

    python benchmarks/real_splits.py --root real battery uwb_plaza uwb_plaza2
    python benchmarks/real_splits.py --root real --model iw battery

Prints for each part that is left out the error in the units of docs/real_data.md, the share of its
truths in 90 % regions, the CPU seconds of the fit, and what was chosen. Of a recording of many
sequences, some of these are left out; of a single one, the rows after the first 60 and 75 %.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kbr import KernelBayesFilter, MovingFilter
from kbr.app.building.trusted import build
from kbr.app.sweep.tune import composed

PLAZA = ["data.hold=0", "data.controls=true", "data.sensors=true", "data.max_gap=500"]
NAMES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "battery": ([], {}),
    "turbofan": ([], {}),
    "rtt_canteen": ([], {"velocity": True}),
    "uwb_plaza": (PLAZA, {"restart": 0.0}),
    "uwb_plaza2": (PLAZA, {"restart": 0.0}),
}
SHARES = (0.6, 0.75)  # of the rows of a single sequence that are trained on
PARTS = 3  # of many sequences, each of which is left out
Rows = dict[str, list[torch.Tensor]]  # of x, z and, where there is one, u


def splits(rows: Rows) -> Iterator[tuple[str, Rows, Rows]]:
    """A name, training rows, and those left out."""
    count = len(rows["z"])
    if count >= 2 * PARTS:
        for part in range(PARTS):
            out = range(part * count // PARTS, (part + 1) * count // PARTS)
            kept = [k for k in range(count) if k not in out]
            yield f"{out.start + 1} to {out.stop}", _some(rows, kept), _some(rows, out)
        return
    total = sum(map(len, rows["z"]))
    for share in SHARES:
        cut = int(share * total)
        yield f"after {share:.0%}", _cut(rows, 0, cut), _cut(rows, cut, total)


def _some(rows: Rows, which: Sequence[int]) -> Rows:
    return {name: [several[k] for k in which] for name, several in rows.items()}


def _cut(rows: Rows, first: int, last: int) -> Rows:
    """Rows first .. last of all sequences end to end; pieces of one row are left out."""
    kept: Rows = {name: [] for name in rows}
    for name, several in rows.items():
        begun = 0
        for one in several:
            part = one[max(first - begun, 0) : max(last - begun, 0)]
            kept[name] += [part] if len(part) > 1 else []
            begun += len(one)
    return kept


def measured(name: str, root: str, model: str) -> Iterator[str]:
    """A line for each part that is left out."""
    words, settings = NAMES[name] if model == "moving" else ([], {})
    problem, method = build(
        composed([f"data={name}", f"model={model}", f"data.root={root}", *words]), trusted=None
    )
    problem = problem.suited(method)
    data = problem.data(0)
    given = {"x": data.x_train, "z": data.z_train, "u": getattr(data, "u_train", None)}
    rows = {k: v if isinstance(v, list) else [v] for k, v in given.items() if v is not None}
    for part, train, test in splits(rows):
        started = time.process_time()
        filt: Any = MovingFilter(**settings) if model == "moving" else KernelBayesFilter()
        filt.fit(**train, units=problem.filter_units)
        spent = time.process_time() - started
        errors, inside = [], []
        for k, truth in enumerate(test["z"]):
            moves = {"u": test["u"][k]} if "u" in test else {}
            out = filt.filter(test["x"][k], **moves)
            errors.append(out.mean - truth.double())
            inside.append(filt.credible_region(out).contains(truth.double()))
        held = torch.cat(inside).double().mean()
        yield (
            f"{name}, {part} left out: {problem.measure} "
            f"{float(problem.measure.of(torch.cat(errors))):.3g}, in 90 % {held:.0%}, "
            f"fit {spent:.0f} CPU s; {_chosen(filt)}"
        )


def _chosen(filt: Any) -> str:
    if isinstance(filt, KernelBayesFilter):
        return f"scale={float(filt.choice.scale_z):g} lam={float(filt.choice.lam):g}"
    values = " ".join(f"{key}={value:g}" for key, value in filt.chosen.items())
    return f"{filt.model.sensing.kind} {values}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="the folder of the recordings")
    parser.add_argument("--model", choices=("moving", "iw"), default="moving")
    parser.add_argument("names", nargs="*", default=list(NAMES), help=", ".join(NAMES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        for line in measured(name, options.root, options.model):
            print(line, flush=True)


if __name__ == "__main__":
    main()
