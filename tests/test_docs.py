"""The documents are true: their code runs, and their tables stand in committed files."""

import contextlib
import csv
import io
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def blocks_of(name: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert found
    return found


NUMBER = r"-?\d+(?:\.\d+)?"


def test_readme_code_runs_and_prints_what_the_page_shows(capsys):
    """From top to bottom; numbers up to two units of their last digit, as CPUs round."""
    made: dict[str, object] = {}
    for block in blocks_of("README.md"):
        exec(compile(block, "README.md", "exec"), made)
    printed = capsys.readouterr().out
    [shown] = re.findall(r"```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert re.sub(NUMBER, "#", printed) == re.sub(NUMBER, "#", shown)
    for found, text in zip(re.findall(NUMBER, printed), re.findall(NUMBER, shown), strict=True):
        unit = 10.0 ** -len(text.partition(".")[2])
        assert float(found) == pytest.approx(float(text), abs=2.01 * unit)


@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
@pytest.mark.parametrize("name", ["quickstart", "deploying", "uncertainty", "likelihood_free"])
def test_a_page_of_code_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    for block, said in printed_blocks(f"docs/{name}.md"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, name, "exec"), made)
        if said:
            agrees(printed.getvalue(), said)
    plt.close("all")
    if "share" in made:
        assert 0.8 < float(made["share"]) < 1  # as the page says


def printed_blocks(name: str) -> list[tuple[str, str]]:
    """Blocks of code, and what the page says that each prints: a block of text right after it."""
    pattern = r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    return re.findall(pattern, (ROOT / name).read_text(), re.DOTALL)


def agrees(printed: str, said: str) -> None:
    """Words are the same; numbers are, but for the last digits, times, sizes and tiny ridges."""
    number = re.compile(r"-?\d+\.?\d*(?:e[-+]\d+)?")
    free = ("eta", "lam_transition", "memory", "fit")
    for one, other in zip(printed.strip().splitlines(), said.strip().splitlines(), strict=True):
        words = [" ".join(number.sub("#", line).split()) for line in (one, other)]
        assert words[0] == words[1]
        if not one.strip().startswith(free):
            found, expected = ([float(v) for v in number.findall(line)] for line in (one, other))
            assert found == pytest.approx(expected, rel=0.05, abs=0.02)


def test_printed_output_that_differs_is_seen():
    agrees("rms 0.131\nfit 3 s", "rms 0.1293\nfit 7 s")
    for other in ("rms 0.33\nfit 7 s", "mse 0.1293\nfit 7 s"):
        with pytest.raises(AssertionError):
            agrees("rms 0.131\nfit 3 s", other)


def tables(text: str) -> list[list[list[str]]]:
    """Markdown tables as lists of rows of cells."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [[c.strip() for c in row.strip("|").split("|")] for row in t.splitlines()] for t in found
    ]


@pytest.mark.parametrize(
    ("number", "file", "data", "x"),
    [
        (0, "posterior_mean", "gaussian", "dim"),
        (1, "posterior_mean_tuned", "gaussian", "dim"),
        (2, "low_dim", "rotation", "n_train"),
        (3, "low_dim", "oscillatory", "n_train"),
        (4, "dsprites", "dsprites", "n_train"),
        (5, "dmlab", "dmlab", "n_train"),
        (6, "dmlab_captured", "dmlab", "n_train"),
    ],
)
def test_result_tables_stand_in_committed_files(number, file, data, x):
    """Every number of a table is the mean of its row in the summary."""
    with (RESULTS / f"{file}.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    means = {(r["data"], r["model"], int(r[x])): float(r["mean"]) for r in rows}
    head, _, *body = tables((ROOT / "docs" / "results.md").read_text())[number]
    columns = [int(re.sub(r"\D", "", cell)) for cell in head[1:]]
    checked = 0
    for model, *cells in body:
        for at, cell in zip(columns, cells, strict=True):
            if cell == "-":
                assert (data, model, at) not in means
                continue
            assert float(cell) == pytest.approx(means[data, model, at], abs=6e-5)
            checked += 1
    assert checked == len([key for key in means if key[0] == data])


def test_every_measured_number_stands_in_a_committed_file():
    """Every number with three decimals or more on the page of results or in README.

    Those after model.<key>= are settings.
    """
    columns = ("mean", "stderr", "median", "p_value", "p_holm")
    known = []
    for path in RESULTS.glob("*.csv"):
        with path.open() as handle:
            rows = list(csv.DictReader(handle))
        known += [float(row[c]) for row in rows for c in columns if row.get(c)]
    for name in ("README.md", "docs/results.md"):
        words = re.sub(r"model\.\w+=\S+", "", (ROOT / name).read_text())
        for text in re.findall(r"(?<![\w.])\d*\.\d{3,}(?![\w.])", words):
            if text == ".001":  # a level, p < .001
                continue
            unit = 10.0 ** -len(text.split(".")[1])
            assert any(abs(float(text) - value) <= 0.6 * unit for value in known), (name, text)


def test_commands_commits_and_times_are_those_of_the_recorded_runs():
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    with (RESULTS / "runs.csv").open() as handle:
        runs = list(csv.DictReader(handle))
    assert len(runs) == 6
    for run in runs:
        expected = f"`{run['command']}` ({run['commit']}, {run['seconds']} s)"
        assert expected in text, expected
    stated = re.findall(r"\(([0-9a-f]{7}), (\d+) s\)", text)
    assert sorted(stated) == sorted((run["commit"], run["seconds"]) for run in runs)


def benchmark(name):
    """A script of benchmarks, as a module."""
    path = ROOT / "benchmarks" / f"{name}.py"
    script = module_from_spec(spec := spec_from_file_location(name, path))
    spec.loader.exec_module(script)
    return script


def test_tables_beside_other_filters_stand_in_a_committed_file(tmp_path):
    """They are what benchmarks/peers.py writes from the rows that it kept."""
    script = benchmark("peers")
    rows, page = script.read(RESULTS / "peers.csv"), (ROOT / "docs" / "peers.md").read_text()
    assert script.fill(page, rows) == page
    places = [found.groups()[1:5] for found in script.TABLE.finditer(page)]
    kept = {tuple(row[key] for key in script.KEY[:4]) for row in rows}
    assert set(places) == kept
    for place in kept:  # each table is of all its rows
        changed = [
            {**row, "mse": "12345", "db": "12345"}
            if tuple(row[key] for key in script.KEY[:4]) == place
            else row
            for row in rows
        ]
        assert script.fill(page, changed) != page
    (tmp_path / "results").mkdir()
    (tmp_path / "peers.md").write_text(page)
    script.keep(rows, tmp_path)
    script.keep([{**rows[0], "db": "-1.5"}], tmp_path)
    again = script.read(tmp_path / "results" / "peers.csv")
    assert len(again) == len(rows)
    assert sum(one != two for one, two in zip(again, rows, strict=True)) == 1


def test_the_figure_of_data_efficiency_shows_the_committed_rows(tmp_path):
    """Curves of benchmarks/data_efficiency.py: models trained on several numbers of sequences."""
    script = benchmark("data_efficiency")
    rows = benchmark("peers").read(RESULTS / "peers.csv")
    page = (ROOT / "docs" / "peers.md").read_text()
    for length in script.LENGTHS:
        found = script.curves(rows, "0.1", length)
        for model in ("moving_readout", "gru", "rkn"):
            assert [count for count, _ in found[model]] == [25, 50, 100, 200]
        ends = [points[-1][1] for points in found.values()]
        assert ends == sorted(ends)
        other = [{**row, "steps": "9"} for row in rows]  # of another training
        assert script.curves([*rows, *other], "0.1", length) == found
    script.draw(rows, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 10_000
    assert "](results/peers.png)" in page
    for name, values in script.PUBLISHED.items():  # as the page's table of published values
        lines = [line.split("|") for line in page.splitlines() if line.startswith(f"| {name}")]
        assert [tuple(float(line[2]) for line in lines)] == [values["0.5"]]
        assert [tuple(float(line[3]) for line in lines)] == [values["0.1"]]


def test_tables_of_real_recordings_stand_in_a_committed_file():
    """They are what benchmarks/real_tables.py writes from the sweep's summary: row by row."""
    script = benchmark("real_tables")
    with (RESULTS / "real.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    page = (ROOT / "docs" / "real_data.md").read_text()
    assert script.fill(page, rows) == page
    places = [found[2] for found in script.TABLE.finditer(page)]
    assert len(places) == 5
    filled = {row["data"] for row in rows}
    assert filled <= set(places)
    for data in filled:
        assert (RESULTS / f"real_{data}.png").is_file()
        assert f"](results/real_{data}.png)" in page
    changed = [{**row, "error": "12345"} for row in rows]
    assert script.fill(page, changed) != page
    models = list(dict.fromkeys(row["model"] for row in rows))
    assert script.joined(rows, changed[:1], models)[:2] == [changed[0], rows[1]]
    assert len(script.joined(rows, changed[:1], [])) == len(rows)
