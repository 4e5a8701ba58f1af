"""evaluate.py compare=[...]: finished runs side by side on the same test sequences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from kbr.app.evaluate.run import Evaluated, apply_model
from kbr.app.figures.style import picture
from kbr.app.figures.sweep import error_panel, folded, paired_panel
from kbr.app.report.comparison import Comparison
from kbr.app.report.summary import ModelSummary, legend
from kbr.app.run.folder import write_rows
from kbr.app.runs.files import DamagedFile, read_yaml
from kbr.app.runs.finished import CONFIG
from kbr.app.text.numbers import in_digits
from kbr.app.text.plain import one_line
from kbr.core.errors import KbrError

NAME_WIDTH = 26


def compare_runs(
    folders: Sequence[Path],
    out: Path | None,
    *,
    seed: int | None = None,
    device: str = "cpu",
    trusted: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Every model from its checkpoint; differences and p-values are against the first run."""
    if len(folders) < 2:
        raise KbrError(f"compare needs two runs or more: compare=[a,b]; got {len(folders)}.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise KbrError("compare was given the same run twice. Name each run once.")
    _check_readable(folders)
    done = [apply_model(folder, seed=seed, device=device, trusted=trusted) for folder in folders]
    seeds = _common_seeds(folders, done)
    for folder, other in zip(folders[1:], done[1:], strict=True):
        _check_same(folders[0], done[0], folder, other, seeds)
    names, data = _names(folders, done), done[0].problem.name
    rows = [
        {"data": data, "model": name, "seed": str(seed), "mse": repr(mse)}
        for name, one in zip(names, done, strict=True)
        for seed, mse in zip(one.seeds, one.outcome.mse.tolist(), strict=True)
        if seed in seeds
    ]
    comparison = Comparison(data=data, reference=names[0], models=names, rows=rows)
    table = [_row(*pair) for pair in zip(comparison.summary, folders, strict=True)]
    target = out or folders[0]
    try:
        write_rows(target / "comparison.csv", table)
        _figure(target / "comparison", comparison, seeds)
    except OSError as error:
        raise KbrError(f"cannot write into {target} ({error.strerror}). Set out=...") from None
    print(_text(comparison, seeds))
    if any(len(one.seeds) > len(seeds) for one in done):
        print(f"  the {len(seeds)} seed(s) that all runs have are compared")
    print(f"\n  written:  {target / 'comparison.csv'}, comparison.png, comparison.svg")
    return table


def _check_readable(folders: Sequence[Path]) -> None:
    """Before any model is built: every folder whose settings cannot be used, in one message."""
    faults = []
    for folder in folders:
        try:
            read_yaml(folder / CONFIG)
        except DamagedFile as error:
            faults.append(str(error))
    if faults:
        raise KbrError(f"compare needs run folders; {'; '.join(faults)}. Leave them out.")


def _common_seeds(folders: Sequence[Path], done: Sequence[Evaluated]) -> list[int]:
    seeds = sorted(set.intersection(*(set(one.seeds) for one in done)))
    if not seeds:
        pairs = zip(folders, done, strict=True)
        each = ", ".join(f"{folder} has {_span(one.seeds)}" for folder, one in pairs)
        raise KbrError(
            f"these runs have no seed in common, so there is nothing to pair: {each}. Run one "
            "again with the seed=... trials=... of another."
        )
    return seeds


def _check_same(
    first: Path, a: Evaluated, second: Path, b: Evaluated, seeds: Sequence[int]
) -> None:
    """The same data settings, and indeed the same latents. Recordings were checked by content."""
    ours, theirs = (_data_settings(one) for one in (a, b))
    differ = [
        f"data.{key} ({ours.get(key)} and {theirs.get(key)})"
        for key in sorted({**ours, **theirs})
        if ours.get(key) != theirs.get(key)
    ]
    if differ:
        raise KbrError(
            f"{first} and {second} were run on different data: {', '.join(differ)}. Compare runs "
            "whose data settings agree, or make a report of both: report=[a,b]."
        )
    if a.problem.is_recorded:
        return
    ours_true, theirs_true = (
        one.outcome.truth.double()[[one.seeds.index(seed) for seed in seeds]] for one in (a, b)
    )
    if not torch.equal(ours_true, theirs_true):
        raise KbrError(
            f"{first} and {second} have the same data settings, but the latents of their test "
            "sequences differ. Were their data files changed in between? Run them again."
        )


def _data_settings(one: Evaluated) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(one.config.data, resolve=False)
    return {key: plain[key] for key in plain if not key.startswith("_") and key != "problem"}


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _names(folders: Sequence[Path], done: Sequence[Evaluated]) -> list[str]:
    """The models' names; where one comes twice, with the folder's name, and a number if need be."""
    models = [one_line(one.method.name) for one in done]
    names = [
        model if models.count(model) == 1 else f"{model} {one_line(folder.resolve().name)}"
        for model, folder in zip(models, folders, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _row(one: ModelSummary, folder: Path) -> dict[str, Any]:
    """As a row of comparison.csv."""
    numbers = {name: value for name, value in one.row().items() if name not in ("data", "model")}
    difference = None if one.test is None else one.test.difference
    return {"model": one.model, "run": str(folder), **numbers, "difference": difference}


def _text(comparison: Comparison, seeds: Sequence[int]) -> str:
    """At most 80 characters wide."""
    head = f"{'':<{NAME_WIDTH}}{'mean':>9}{'std. err':>10}{'difference':>12}{'p':>9}{'p Holm':>9}"
    lines = [f"{comparison.data}, seeds {_span(seeds)}: MSE, paired by seed\n", f" {head}"]
    for one in comparison.summary:
        name, mean = one.model, one.mean
        name = name if len(name) < NAME_WIDTH else f"…{name[-NAME_WIDTH + 2 :]}"
        line = f" {name:<{NAME_WIDTH}}{in_digits(mean):>9}{in_digits(one.stderr, mean):>10}"
        if one.test is not None and one.test.difference is not None:
            difference = one.test.difference
            sign = "-" if difference < 0 else "+"
            line += f"{sign + in_digits(abs(difference), mean):>12}"
            for p in (one.test.p, one.p_holm):
                line += f"{'-' if p is None else f'{p:.2g}':>9}"
        lines.append(line + one.stars)
    return "\n".join([*lines, *legend(comparison.summary, comparison.reference)])


def _figure(path: Path, comparison: Comparison, seeds: Sequence[int]) -> None:
    """All models on one axis, and each against the first, seed by seed."""
    count = len(comparison.models)
    layout: dict[str, Any] = {"figsize": (1.3 + 2.9 * count, 2.9), "layout": "constrained"}
    with picture(path, 1, count, kinds=("png", "svg"), **layout) as (figure, axes):
        error_panel(axes[0, 0], comparison)
        for axis, name in zip(axes[0, 1:], comparison.models[1:], strict=True):
            paired_panel(axis, comparison, name)
        figure.suptitle(f"{folded(comparison.data)}, seeds {_span(seeds)}")
