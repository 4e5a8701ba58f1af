"""Time and error of the search for hyper-parameters beside those of fixed lists, in one run.

The lists are those tried before there was a search. Prints CPU seconds of `tune`, their ratio, and
the test errors of both, paired over seeds:

    python benchmarks/tuning.py --n_train 300 --seeds 10
"""

import argparse
import time

import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter, OriginalRule
from kbr.core.datasets.dynamics import Oscillatory, Rotation

NARROW = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
WIDE = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
ETAS = tuple(10.0 ** (k / 2) for k in range(-14, -5))
MODELS = {
    "iw": (ImportanceWeightedRule(), 2.0, NARROW),
    "iw_paper": (ImportanceWeightedRule(normalize=False), 1.0, WIDE),
    "original": (OriginalRule(), 1.0, WIDE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n_train", type=int, default=300)
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    names = ("x_train", "z_train", "x_test", "z_test")
    for task in (Rotation(), Oscillatory()):
        seeds = range(options.first, options.first + options.seeds)
        made = [task.generate(n_train=options.n_train, n_test=200, seed=seed) for seed in seeds]
        x, z, x_test, z_test = (torch.stack([getattr(d, k) for d in made]) for k in names)
        for name, (rule, width, scales) in MODELS.items():
            lists = {"scales": scales, "lams": rule.LAMS, "etas": ETAS}
            seconds, errors, edges = [], [], []
            for given in (lists, {}):
                filt = KernelBayesFilter(rule=rule, widths=(width,), standardize=False, **given)
                started = time.process_time()
                filt.tune(x, z)
                seconds.append(time.process_time() - started)
                mean = filt.fit(x, z).filter(x_test).mean
                errors.append((mean - z_test).square().sum(-1).mean(-1))
                edges.append(sum(edge.count for edge in filt.choice.edges))
            ratio = (errors[1] / errors[0]).log()
            spread = float(ratio.std()) / len(ratio) ** 0.5
            print(
                f"{type(task).__name__:<12} {name:<9} tune {seconds[0]:.2f} -> {seconds[1]:.2f} s "
                f"({seconds[1] / seconds[0]:.2f}), error {float(errors[0].mean()):.4f} -> "
                f"{float(errors[1].mean()):.4f} ({float(ratio.mean().exp()):.3f} +- {spread:.3f}), "
                f"edges {edges[0]} -> {edges[1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
