"""Tables over trials: mean, standard error, median, and paired tests between models."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

STARS = ((1e-4, "****"), (1e-3, "***"), (1e-2, "**"), (5e-2, "*"))
TEST_FROM = 6  # with fewer pairs the signed-rank test cannot reach p < .05


def summarize(
    rows: Sequence[dict[str, str]], x: str, reference: str | None
) -> list[dict[str, Any]]:
    """One row for each data set, x and model; p-values are paired by seed against `reference`."""
    cells: dict[tuple[str, float, str], dict[int, float]] = {}
    for row in rows:
        key = (row["data"], float(row[x]), row["model"])
        cells.setdefault(key, {})[int(row["seed"])] = float(row["mse"])
    table = []
    for (data, at, model), by_seed in cells.items():
        errors = np.array(list(by_seed.values()))
        entry: dict[str, Any] = {
            "data": data,
            x: int(at) if at == int(at) else at,
            "model": model,
            "trials": len(errors),
            "mean": float(errors.mean()),
            "stderr": float(errors.std(ddof=1) / len(errors) ** 0.5) if len(errors) > 1 else 0.0,
            "median": float(np.median(errors)),
        }
        against = cells.get((data, at, reference)) if reference else None
        if against is not None and model != reference:
            entry["p_value"] = paired_p(by_seed, against)
        table.append(entry)
    return table


def paired_p(a: dict[int, float], b: dict[int, float]) -> float | None:
    """Two-sided Wilcoxon signed-rank p-value over the common seeds; None where it cannot tell."""
    seeds = sorted(a.keys() & b.keys())
    differences = np.array([a[s] - b[s] for s in seeds])
    if len(seeds) < TEST_FROM or not differences.any():
        return None
    return float(wilcoxon(differences).pvalue)


def stars(p: float | None) -> str:
    """The paper's marks: * p < .05, ** p < .01, *** p < .001, **** p < .0001."""
    return "" if p is None else next((mark for limit, mark in STARS if p < limit), "")


def format_table(table: Sequence[dict[str, Any]], x: str, reference: str | None) -> str:
    """Models as rows, x as columns, 80 characters wide; stars are against `reference`."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in table):
        mine = [row for row in table if row["data"] == data]
        columns = sorted({row[x] for row in mine})
        lines.append(f"\n{data}: mean MSE by {x}")
        lines.append(f" {'':<13}" + "".join(f"{c:>11}" for c in columns))
        for model in dict.fromkeys(row["model"] for row in mine):
            values = {row[x]: row for row in mine if row["model"] == model}
            cells = [_cell(values.get(c)) for c in columns]
            lines.append(f" {model:<13}" + "".join(f"{cell:>11}" for cell in cells))
    if reference and any("p_value" in row for row in table):
        lines.append(f"\n  stars: differs from {reference}, paired Wilcoxon signed-rank test")
        lines.append("  * p < .05, ** p < .01, *** p < .001, **** p < .0001")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{row['mean']:.4f}"[:6] + stars(row.get("p_value"))
