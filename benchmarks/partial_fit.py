"""Rows added to a fitted filter: what that costs beside the fit, and how close it comes.

    python benchmarks/partial_fit.py --n 100000 --rows 100

Times are CPU times on one thread. The difference is the largest, over means and covariances of
filter, step, smooth and forecast, to a filter with the same features and hyper-parameters whose
tables and sums are made from all rows at once. Products with tables in float32 round coordinates to
float32, so that sums which differ in their last digit move answers by 1e-7: differences are shown
with the tables of both filters widened to float64, and as they are, beside that of two filters made
from all rows in blocks of other sizes. `--task high_rank` takes the local engine.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kbr import KernelBayesFilter
from kbr.core import tables
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.features import Features
from kbr.core.filters.kernel.engine import Compressed, LowRank
from kbr.core.filters.kernel.engines.large import latent_table, tabulated
from kbr.core.filters.kernel.engines.local import Local, LocalOperators
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.operators import LearnedOperators, learned_operators

SEQUENCE = 10_000  # longest training sequence
STEPS, AHEAD = 50, 5  # of the test sequence, and of a forecast
COLUMNS = 8  # of the observations of high rank


def sample(task: str, n: int, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Sequences of about n rows; observations of high rank are a random map of noisy ones."""
    generator, length = torch.Generator().manual_seed(seed), min(n, SEQUENCE)
    dynamics = Oscillatory() if task == "oscillatory" else Rotation()
    x, z = dynamics.sample(length, generator, (-(-n // length),))
    if task == "high_rank":
        weights = torch.randn(x.shape[-1], COLUMNS, generator=torch.Generator().manual_seed(0))
        x = (x.float() @ weights).sin() + torch.randn(*x.shape[:-1], COLUMNS, generator=generator)
    return list(x.unbind()), list(z.unbind())


def made_anew(fitted: Fitted) -> Fitted:
    """The same features, with tables and sums of all rows from scratch, as a large fit has them."""
    data, operators, latents = fitted.data, fitted.operators, fitted.latents
    assert isinstance(operators, LearnedOperators)
    assert isinstance(latents, Features)
    update = operators.update
    if isinstance(update, Local):
        update = Local(update.kernel, data.observed.double())
    else:
        assert isinstance(update, LowRank)
        mixing, own = None, torch.zeros(0, dtype=torch.int64)
        if isinstance(update, Compressed):
            mixing = (update.pivots[: update.base], update.mix)
            own = update.mixing[:, update.base :].argmax(0)  # rows that are pivots themselves
        update = tabulated(update.features, mixing, data.observed)
        update = update.with_pivots(own) if isinstance(update, Compressed) else update
    phi, sums = latent_table(latents, data.z, data.lengths)
    ridges = {"eta": data.choice.eta, "lam_transition": data.choice.lam_transition}
    made = learned_operators(
        operators.rule, update, data.z, phi, sums, data.lengths, notes=operators.notes, **ridges
    )
    if isinstance(operators, LocalOperators):
        made = LocalOperators.of(made, latents)
    return replace(fitted, operators=made, latents=replace(latents, train=phi))


def widened(fitted: Fitted) -> Fitted:
    """The same numbers in tables of float64."""
    operators = fitted.operators
    assert isinstance(operators, LearnedOperators)
    update, parts = operators.update, {"phi": operators.phi.double()}
    if isinstance(update, LowRank):
        wide = replace(update.features, train=update.features.train.double())
        update = replace(update, features=wide)
    if isinstance(update, Compressed):
        update = replace(update, mixing=update.mixing.double())
    if isinstance(operators, LocalOperators):
        parts["near"] = operators.near.double()
    return replace(fitted, operators=replace(operators, update=update, **parts))


def in_other_blocks(fitted: Fitted) -> Fitted:
    rows, tables.ROWS = tables.ROWS, tables.ROWS // 3
    made = made_anew(fitted)
    tables.ROWS = rows
    return made


def differences(one: Fitted, other: Fitted, x: torch.Tensor) -> str:
    pairs = zip(answers(one, x).items(), answers(other, x).values(), strict=True)
    gaps = {
        name: max(float((a - b).abs().max()) for a, b in zip(made, parts, strict=True))
        for (name, made), parts in pairs
    }
    return ", ".join(f"{name} {gap:.0e}" for name, gap in gaps.items())


def answers(fitted: Fitted, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """Means and covariances of all that a filter answers."""
    filt = KernelBayesFilter.of(fitted)
    belief = filt.init()
    for row in x[:AHEAD]:
        belief = filt.step(belief, row)
    every = {
        "filter": filt.filter(x),
        "step": belief,
        "smooth": filt.smooth(x),
        "forecast": filt.forecast(belief, AHEAD),
    }
    return {name: [one.mean, one.cov, one.raw_cov] for name, one in every.items()}


def seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--task", choices=("rotation", "oscillatory", "high_rank"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = given.task or "rotation"
    x, z = sample(task, given.n, given.seed)
    new_x, new_z = sample(task, given.rows, given.seed + 1)
    test_x, _ = sample(task, STEPS, given.seed + 2)
    filt = KernelBayesFilter()
    fit = seconds(lambda: filt.fit(x, z))
    first = filt.filter(test_x[0])
    added = seconds(lambda: filt.partial_fit(new_x, new_z))
    print(f"{task}: {filt}")
    print(f"fit {fit:.2f} s, partial_fit of {given.rows} rows {added:.3f} s: {added / fit:.2%}")
    moved = float((filt.filter(test_x[0]).mean - first.mean).abs().max())
    print(f"largest change of a mean by the new rows {moved:.1e}")
    grown = filt.fitted.changed(smoothing=filt.calibration)  # any serves to compare
    anew = made_anew(grown)
    print("largest difference to a fit with the same features:")
    print(f"  in float64: {differences(widened(grown), widened(anew), test_x[0])}")
    print(f"  as they are: {differences(grown, anew, test_x[0])}")
    print(f"  of two such fits: {differences(in_other_blocks(grown), anew, test_x[0])}")


if __name__ == "__main__":
    main()
