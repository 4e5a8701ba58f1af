"""Do 90 % regions hold 90 % of the truths: at ordinary steps, in gaps, smoothed, ahead, adapted.

    python benchmarks/coverage.py --seeds 0 1 2 3 4 5 6 7 8 9 --csv docs/results/coverage.csv

Every case is trained and tested anew for every seed, with default settings: the kernel filter on
the low-dimensional tasks, learned features on dSprites. Noise of the sensor (of dSprites: of the
position) is Gaussian, or Student's t with 3 degrees of freedom times the same scale sigma_x; the
training data have the same. `adapted` is `filter(x, truth=z, adapt=True)` over a sequence whose
sensor (also its pixels) is twice as noisy in its second half.
"""

import argparse
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Generator, Tensor

from kbr import KernelBayesFilter
from kbr.app.run.folder import write_rows
from kbr.core.datasets.drawing import normal
from kbr.core.datasets.dsprites import DSprites
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.base import BaseFilter
from kbr.core.filters.result import FilterResult
from kbr.core.uncertainty.calibration import WAKING
from kbr.core.uncertainty.regions import credible_region

GAP = 20
OBSERVED = 15  # steps before and after each gap
PLAIN = 60  # steps of a sequence without one
DOF = 3
NOISES = ("gaussian", "student")


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    task: Oscillatory | DSprites
    n_train: int

    @property
    def model(self) -> str:
        return "iw_nn" if isinstance(self.task, DSprites) else "iw"

    def sample(
        self, steps: int, noise: str, generator: Generator, *, times: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Observations, the sensor's noise `times` as large, and latents."""
        task = self.task
        z = task.latents(steps, generator)
        draws = normal((steps, 2), generator)
        if noise == "student":
            squares = normal((steps, DOF), generator).square().mean(-1, keepdim=True)
            draws = draws / squares.sqrt()
        x = z + task.sigma_x * times * draws
        if isinstance(task, DSprites):
            x = task.frames(x).double()
            pixels = torch.as_tensor(times).reshape(-1, 1, 1, 1) * task.pixel_noise
            x = x + pixels * normal(tuple(x.shape), generator)
        return x, z

    def fit(self, x: Tensor, z: Tensor, seed: int, *, quick: bool) -> BaseFilter:
        if self.model == "iw":
            return KernelBayesFilter().fit(x, z)
        from kbr.training.filters.learned import LearnedFilter

        filt = LearnedFilter(epochs=20) if quick else LearnedFilter()
        trainer = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
        with tempfile.TemporaryDirectory() as folder:
            filt.fit(x.float(), z, seed=seed, folder=Path(folder), trainer=trainer)
        return filt


CASES = (
    Case(name="rotation", task=Rotation(), n_train=300),
    Case(name="rotation", task=Rotation(), n_train=900),
    Case(name="oscillatory", task=Oscillatory(), n_train=300),
    Case(name="oscillatory", task=Oscillatory(), n_train=900),
    Case(name="dsprites", task=DSprites(), n_train=300),
)


@dataclass(frozen=True)
class Sizes:
    """Sequences without and with a gap, forecasts, and steps of an adapted half, of a trial."""

    plain: int = 10
    gaps: int = 40
    forecasts: int = 40
    adapted: int = 400


Count = tuple[str, int, int, int]  # what, horizon, truths inside, truths


def counts(case: Case, noise: str, seed: int, sizes: Sizes, *, quick: bool) -> Iterator[Count]:
    """Truths inside their regions, for everything a filter answers."""
    generator = Generator().manual_seed(seed)
    x, z = case.sample(case.n_train, noise, generator)
    filt = case.fit(x, z, seed, quick=quick)
    yield from _plain(case, filt, noise, sizes, generator)
    yield from _gaps(case, filt, noise, sizes, generator)
    yield from _ahead(case, filt, noise, sizes, generator)
    yield from _adapted(case, filt, noise, sizes, generator)


def _plain(
    case: Case, filt: BaseFilter, noise: str, sizes: Sizes, generator: Generator
) -> Iterator[Count]:
    x, z = _sequences(*case.sample(sizes.plain * PLAIN, noise, generator), sizes.plain)
    filtered = filt.filter(x)
    assert filtered.raw_cov is not None
    weights = credible_region(filtered.mean, filtered.raw_cov, level=0.9).contains(z)
    yield _count("ordinary", 0, _inside(filt, filtered, z)[:, WAKING:])
    yield _count("weights alone", 0, weights[:, WAKING:])
    yield _count("with evidence", 0, filtered.evidence)
    yield _count("smoothed", 0, _inside(filt, filt.smooth(x), z)[:, WAKING:-WAKING])


def _gaps(
    case: Case, filt: BaseFilter, noise: str, sizes: Sizes, generator: Generator
) -> Iterator[Count]:
    """Observations missing for a while, in the middle of every sequence."""
    steps = OBSERVED + GAP + OBSERVED
    x, z = _sequences(*case.sample(sizes.gaps * steps, noise, generator), sizes.gaps)
    x[:, OBSERVED : OBSERVED + GAP] = torch.nan
    filtered, smoothed = (_inside(filt, run(x), z) for run in (filt.filter, filt.smooth))
    for h in range(1, GAP + 1):
        yield _count("gap", h, filtered[:, OBSERVED + h - 1])
        yield _count("smoothed gap", h, smoothed[:, OBSERVED + h - 1])
    for k in range(WAKING):
        yield _count("after a gap", k + 1, filtered[:, OBSERVED + GAP + k])


def _ahead(
    case: Case, filt: BaseFilter, noise: str, sizes: Sizes, generator: Generator
) -> Iterator[Count]:
    """Forecasts from beliefs of a stream, at random times."""
    x, z = case.sample(5 * sizes.forecasts + GAP + 5, noise, generator)
    starts = torch.randperm(5 * sizes.forecasts, generator=generator)[: sizes.forecasts] + 5
    chosen, belief = set(starts.tolist()), filt.init()
    found: dict[int, list[Tensor]] = defaultdict(list)
    for t in range(len(z) - GAP):
        belief = filt.step(belief, x[t])
        ahead = belief
        for h in range(1, GAP + 1 if t in chosen else 1):
            ahead = filt.forecast(ahead)
            found[h].append(filt.credible_region(ahead).contains(z[t + h]))
    for h, inside in found.items():
        yield _count("forecast", h, torch.stack(inside))


def _adapted(
    case: Case, filt: BaseFilter, noise: str, sizes: Sizes, generator: Generator
) -> Iterator[Count]:
    times = torch.ones(2 * sizes.adapted, 1, dtype=torch.float64)
    times[sizes.adapted :] = 2.0
    x, z = case.sample(len(times), noise, generator, times=times)
    adapted = filt.filter(x, truth=z, adapt=True)
    for what, some in (("fixed", replace(adapted, stretch=None)), ("adapted", adapted)):
        inside = _inside(filt, some, z)
        yield _count(f"{what}, before", 0, inside[: sizes.adapted])
        yield _count(f"{what}, noisier", 0, inside[sizes.adapted :])


def _sequences(x: Tensor, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cut into so many sequences of equal length."""
    return x.reshape(count, -1, *x.shape[1:]), z.reshape(count, -1, z.shape[-1])


def _inside(filt: BaseFilter, result: FilterResult, z: Tensor) -> Tensor:
    return filt.credible_region(result).contains(z)


def _count(what: str, horizon: int, inside: Tensor) -> Count:
    return what, horizon, int(inside.sum()), inside.numel()


Row = dict[str, str | int]


def share(rows: Sequence[Row], what: str) -> float:
    """Over all seeds, and all horizons."""
    some = [row for row in rows if row["what"] == what]
    return sum(int(row["inside"]) for row in some) / sum(int(row["truths"]) for row in some)


def least(rows: Sequence[Row], what: str) -> float:
    """The share at the horizon where it is smallest."""
    horizons = {row["horizon"] for row in rows if row["what"] == what}
    return min(share([row for row in rows if row["horizon"] == h], what) for h in horizons)


SHOWN = (
    ("plain", "ordinary", share),
    ("raw", "weights alone", share),
    ("gaps", "gap", share),
    ("least", "gap", least),
    ("woken", "after a gap", share),
    ("smoo.", "smoothed", share),
    ("gaps", "smoothed gap", share),
    ("least", "smoothed gap", least),
    ("ahead", "forecast", share),
    ("least", "forecast", least),
    ("noisy", "fixed, noisier", share),
    ("adapt", "adapted, noisier", share),
)


def main() -> None:
    names = sorted({case.name for case in CASES})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=names, choices=names)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900], help="n_train")
    parser.add_argument("--noise", nargs="+", default=list(NOISES), choices=NOISES)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--csv", type=Path, help="write a row for each seed and horizon here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    sizes = Sizes(2, 4, 4, 50) if options.quick else Sizes()
    print("least: at the worst of 20 steps; noisy: the sensor's noise doubled, then adapted")
    print("data    n     " + " ".join(f"{head:>5}" for head, _, _ in SHOWN))
    every: list[Row] = []
    for case in CASES:
        if case.name not in options.data or case.n_train not in options.sizes:
            continue
        for noise in options.noise:
            rows: list[Row] = [
                {
                    "data": case.name,
                    "n_train": case.n_train,
                    "model": case.model,
                    "noise": noise,
                    "seed": seed,
                    "what": what,
                    "horizon": horizon,
                    "inside": inside,
                    "truths": truths,
                }
                for seed in options.seeds
                for what, horizon, inside, truths in counts(
                    case, noise, seed, sizes, quick=options.quick
                )
            ]
            head = f"{case.name[:6]:6} {case.n_train} {noise[0]} "
            print(head, *(f"{show(rows, what):5.3f}" for _, what, show in SHOWN), flush=True)
            every += rows
            if options.csv is not None:
                write_rows(options.csv, every)


if __name__ == "__main__":
    main()
