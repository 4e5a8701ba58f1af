"""The statistics of tables: against scipy, and against a calculation by hand."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon

from kbr.app.report import summary
from kbr.app.report.summary import format_table, holm, paired_test, stars

ROOT = Path(__file__).resolve().parent.parent


def summarize(trials, x, reference):
    """The rows of summary.csv."""
    return [one.row() for one in summary.summarize(trials, x, reference)]


def rows(model, errors, *, data="ring", n=100, seeds=None):
    seeds = range(len(errors)) if seeds is None else seeds
    return [
        {"data": data, "n_train": str(n), "model": model, "seed": str(s), "mse": repr(float(e))}
        for s, e in zip(seeds, errors, strict=True)
    ]


@pytest.mark.parametrize("n", [6, 10, 30, 60])
@pytest.mark.parametrize("decimals", [2, 12])
def test_p_values_are_scipys_on_the_same_columns(n, decimals):
    """Rounded columns have ties among the differences, and equal pairs."""
    generator = np.random.default_rng(n)
    a = generator.normal(0.5, 0.1, n).round(decimals)
    b = (a + generator.normal(0.05, 0.1, n)).round(decimals)
    found = summarize([*rows("old", a), *rows("new", b)], "n_train", "old")
    assert found[0]["p_value"] is None
    assert found[0]["pairs"] is None
    assert found[1]["p_value"] == pytest.approx(wilcoxon(b, a).pvalue, rel=1e-12)
    assert found[1]["pairs"] == n


def test_mean_standard_error_and_median():
    entry = summarize(rows("iw", [1, 2, 6]), "n_train", None)[0]
    assert (entry["mean"], entry["median"], entry["trials"]) == (3, 2, 3)
    assert entry["stderr"] == pytest.approx((7 / 3) ** 0.5)  # variance 7 over 3 trials
    assert summarize(rows("iw", [1]), "n_train", None)[0]["stderr"] == 0


def test_holm_by_hand():
    """m = 4: .005 x 4, .01 x 3, then .03 x 2 = .06, and .04 x 1 is lifted to .06."""
    assert holm([0.03, 0.005, 0.04, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_holm_is_over_one_data_set():
    generator = np.random.default_rng(0)
    base = generator.normal(1, 0.1, 10)
    table = []
    for data, ns in (("a", (1, 2, 3)), ("b", (1,))):
        for n in ns:
            table += rows("old", base, data=data, n=n)
            table += rows("new", base - generator.uniform(0.1, 0.2, 10), data=data, n=n)
    found = [row for row in summarize(table, "n_train", "old") if row["model"] == "new"]
    lowest = 2 / 2**10
    assert [row["p_value"] for row in found] == pytest.approx([lowest] * 4)
    assert [row["p_holm"] for row in found] == pytest.approx([3 * lowest] * 3 + [lowest])


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6], "fewer than 6 pairs"),
        ([1] * 8, [1] * 8, "all equal"),
        ([1] * 8, [2] * 8, "the trials are copies"),
        ([1, 1, 1, 1, 1, 1, 2, 3], [1] * 8, "fewer than 6 pairs differ"),
    ],
)
def test_what_cannot_be_tested_is_said(a, b, note):
    test = paired_test(dict(enumerate(a)), dict(enumerate(b)))
    assert test.p is None
    assert test.note == note
    table = summary.summarize([*rows("old", b), *rows("new", a)], "n_train", "old")
    assert f"1 of 1 comparisons: {note}" in format_table(table, "n_train", "old")


def test_a_missing_reference_is_said():
    table = summarize([*rows("old", [1, 2], n=1), *rows("new", [1, 2], n=2)], "n_train", "old")
    assert [(row["pairs"], row["note"]) for row in table] == [(None, ""), (0, "no trials of old")]


def test_equal_pairs_are_dropped_and_counted():
    a, b = [1, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1]
    test = paired_test(dict(enumerate(a)), dict(enumerate(b)))
    assert test.p is not None
    assert test.note == "2 of 8 equal, dropped"


def test_pairs_are_by_seed_not_by_place():
    a = {seed: float(seed) for seed in range(8)}
    b = {seed: float(seed) + 1 for seed in reversed(range(2, 12))}
    test = paired_test(a, b)
    assert test.pairs == 6
    assert test.difference == -1
    assert "seeds differ" in test.note


def test_stars_use_the_corrected_value():
    base = np.linspace(1, 2, 6)
    table = [
        row
        for n in (1, 2)
        for row in (*rows("old", base, n=n), *rows("new", base - np.arange(1, 7) / 10, n=n))
    ]
    text = format_table(summary.summarize(table, "n_train", "old"), "n_train", "old")
    assert "Holm-corrected" in text
    assert "1.1500*" not in text  # p = .03125, corrected .0625
    assert stars(0.04) == "*"
    assert stars(0.0625) == ""
    one = format_table(summary.summarize(table[:12], "n_train", "old"), "n_train", "old")
    assert "1.1500*" in one


def test_tables_are_80_wide_whatever_is_swept():
    table = [
        row
        for n in range(1, 15)
        for name in ("iw", "iw_nn encoder=resnet noise=0.5")
        for row in rows(name, [0.1, 0.2], n=n)
    ]
    for x in ("n_train", None):
        text = format_table(summary.summarize(table, x, "iw"), x, "iw")
        assert max(map(len, text.splitlines())) <= 80


def test_committed_summaries_keep_their_columns():
    """New summaries have the columns of those in docs/results."""
    with (ROOT / "docs" / "results" / "low_dim.csv").open() as file:
        committed = next(csv.reader(file))
    made = list(summarize(rows("iw", [0.1, 0.2]), "n_train", None)[0])
    assert made == committed
