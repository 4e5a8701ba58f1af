"""Reports over folders that were damaged, altered, copied or made to do harm: no traceback."""

import hashlib
import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest
import yaml
from run_folders import write_run

from kbr.app.evaluate.compare import compare_runs
from kbr.app.evaluate.report import rebuild_report
from kbr.app.report import page as report
from kbr.app.report.comparison import report_of
from kbr.app.report.svg import inline_svg
from kbr.app.runs import finished as runs
from kbr.app.runs.files import DamagedFile, read_yaml
from kbr.app.runs.finished import collect
from kbr.app.text.plain import LONGEST, one_line
from kbr.core.errors import KbrError

FILES = ("run.json", "metrics.json", "results.csv", ".hydra/config.yaml", ".hydra/hydra.yaml")
FIGURE = {"name": "f", "x": "n_train", "label": "n", "reference": "original", "models": ["iw"]}
ODD = (
    None, True, 5, -1, 0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 10**400, 2**70, "",
    "nan", "1e308", "inf", " ", "\x00\u202e\n", r"\1", r"$\foo$", "$", "<script>x</script>",
    "x" * 5000, "\ud800", [], [[]], [None, 3, {}], {}, {"a": {"b": [1]}}, {"name": ["x"]},
)  # fmt: skip


def deep(levels: int, ends: str = "[]") -> str:
    return ends[0] * levels + ends[1] * levels


def pair(folder: Path) -> Path:
    """Two models, eight seeds, with all that a run's files can hold."""
    for model, gain in (("original", 0.0), ("iw", 0.01)):
        at = write_run(
            folder / model,
            model=model,
            errors={s: 0.06 + s / 1000 - gain * (1 + s / 10) for s in range(8)},
            overrides=("data.sigma_x=0.2",),
            config={"figure": FIGURE, "trials": 8, "seed": 0},
            notes=("lam at the upper edge (0.1) in 3 of 8",),
        )
        edit(at / "run.json", fingerprint=model, finished="2026-01-01 00:00:00", machine="x, 2")
    return folder


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def problems_of(folder: Path) -> list[str]:
    return report_of(collect([folder])).problems


@pytest.fixture
def plain_pictures(monkeypatch):
    """Pictures cost half a second a page; their labels have tests of their own."""
    monkeypatch.setattr(report, "inline_svg", lambda draw, *, size, label: f"<svg>{len(label)}")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.json", '{"seconds": null}', "seconds is None, not a number of seconds"),
        ("run.json", '{"seconds": 1e999}', "seconds is inf"),
        ("run.json", '{"seconds": %s}' % ("9" * 400), "more than 300 digits"),
        ("run.json", '{"seconds": %s}' % ("9" * 5000), "damaged"),
        ("run.json", '{"notes": 5, "finished": 7, "kbr": []}', "notes is 5, not a list of texts"),
        ("run.json", f'{{"a": {deep(100_000)}}}', "nested more than 50 deep"),
        ("run.json", f'{{"a": {deep(60)}}}', "nested more than 50 deep"),
        ("run.json", "\x00\x01\x02", "damaged"),
        ("run.json", " " * 250_001, "larger than 250,000 bytes"),
        ("metrics.json", "5", "damaged"),
        ("metrics.json", '{"test/trials": "8"}', "test/trials is '8', not a number of trials"),
        (".hydra/config.yaml", "figure: 5", "figure is 5, not named values"),
        (".hydra/config.yaml", "figure: {models: 5, x: [1]}", "figure.models is 5, not a list"),
        (".hydra/config.yaml", "a: " + deep(60), "nested more than 50 deep"),
        (".hydra/config.yaml", "a: " + deep(100_000), "config.yaml"),
        (".hydra/config.yaml", "a: 0x" + "f" * 100_000, "more than 300 digits"),
        (".hydra/config.yaml", "a: &x [1, 2]\nb: [*x, *x]", "has aliases (*x)"),
        (".hydra/config.yaml", "a: !!python/name:os.system ''", "has tags"),
        (".hydra/config.yaml", "a: !!timestamp x", "has tags"),
        (".hydra/config.yaml", "a: 2026-99-99", "damaged"),
        (".hydra/hydra.yaml", "hydra: {overrides: {task: 3}}", "damaged"),
        ("results.csv", "data,model,seed,mse\nr,iw,0,1e308\n", "mse is 1e308 (seed 0)"),
        ("results.csv", "data,model,seed,mse\nr,iw,0,-1\n", "mse is -1 (seed 0)"),
        ("results.csv", "data,model,seed,mse\nr,iw,%s,1\n" % (10**30), "more than 63 bits"),
        ("results.csv", "data,model,seed,mse\nr, ,0,1\n", "it has no model"),
        ("results.csv", "mse,mse\n1,2\n", "column 'mse' stands there twice"),
        ("results.csv", ",".join(map(str, range(600))), "at most 500 are read"),
        ("results.csv", "data,model,seed,mse\n" + "r,iw,0,1\n" * 20_001, "more than 20,000 trials"),
        ("results.csv", "a" * 8_000_001, "larger than 8,000,000 bytes"),
        ("results.csv", 'data,"' + "x" * 200_000, "damaged"),
        ("results.csv", "", "holds no trials"),
    ],
)  # fmt: skip
def test_an_odd_file_is_named_in_one_line_and_the_rest_is_shown(
    tmp_path, capsys, plain_pictures, file, content, said
):
    folder = pair(tmp_path)
    (folder / "iw" / file).write_text(content)
    text = rebuild_report([folder], None).read_text()
    lines = [line for line in capsys.readouterr().err.splitlines() if said in line]
    assert len(lines) == 1
    assert f"iw/{file}: " in lines[0]
    assert len(lines[0]) < 300 + len(str(tmp_path))
    assert "All numbers" in text
    assert "original" in text


def test_many_bad_rows_are_a_few_lines(tmp_path):
    folder = pair(tmp_path)
    with (folder / "iw" / "results.csv").open("a") as file:
        file.write("bad\n" * 500)
    said = [problem for problem in problems_of(folder) if "results.csv" in problem]
    assert len(said) == 4
    assert "497 more row(s) left out" in said[-1]


def test_rows_of_another_model_are_left_out(tmp_path):
    folder = pair(tmp_path)
    path = folder / "iw" / "results.csv"
    path.write_text(path.read_text().replace("iw,3", "original,3"))
    (problem, count) = problems_of(folder)
    assert "seed 3 left out: rotation, original, 100 is not what the others are of" in problem
    assert "7 of 8 trials" in count


def test_a_few_aliases_that_stand_for_billions_are_refused_at_once(tmp_path):
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(bomb))
    began = time.perf_counter()
    with pytest.raises(DamagedFile, match="has aliases"):
        read_yaml(path)
    assert time.perf_counter() - began < 1


NAMES = (
    r"a\1\g<0>",
    r"$\foo$",
    "$",
    "<script>x</script>",
    "x" * 3000,
    "\u202eabc",
    "a\nb",
    "#000000",
    "_a",
)


def test_any_name_can_be_drawn_and_shown(tmp_path):
    for i, name in enumerate(NAMES):
        write_run(
            tmp_path / f"{i}", model=name, data="d $x_", errors={s: 1.0 + s for s in range(3)}
        )
    text = rebuild_report([tmp_path], None).read_text()
    assert "<script>x" not in text
    assert r"a\1\g&lt;0&gt;" in text
    assert r"$\foo$" in text
    assert "\u202e" not in text
    assert r"\u202eabc" in text
    assert r"a\nb" in text
    assert "#000000</text>" in text  # a name, no colour
    assert "x" * (LONGEST + 1) not in text


@pytest.mark.parametrize("errors", [{0: 0.0}, {0: 0.0, 1: 1e-50, 2: 1e50}])
def test_any_error_that_is_a_number_can_be_drawn(tmp_path, errors):
    for n in (-1, 0, 1e50):
        write_run(tmp_path / f"{n}", n_train=n, model="_hidden", errors=errors)
    text = rebuild_report([tmp_path], None).read_text()
    assert "_hidden</text>" in text  # in the legend, where Matplotlib leaves out such names
    assert "Problems" not in text


def test_long_names_stay_apart():
    one, two = one_line("x" * 5000 + "a"), one_line("x" * 5000 + "b")
    assert one != two
    assert len(one) <= LONGEST


def test_a_label_is_not_read_as_a_pattern():
    label = r'\1 \g<9> "<'
    text = inline_svg(lambda axis: axis.plot([0, 1], [0, 1]), size=(2, 2), label=label)
    assert r'aria-label="\1 \g&lt;9&gt; &quot;&lt;"' in text


def test_folders_of_any_kind_are_walked(tmp_path, plain_pictures):
    folder = pair(tmp_path / "all")
    (folder / "loop").symlink_to(folder)
    (folder / "self").symlink_to("self")
    os.mkfifo(folder / "iw" / "failure.fifo")
    odd = folder / os.fsdecode(b"\xff\n\x1b[31m")
    shutil.copytree(folder / "iw", odd, ignore=lambda *_: ["failure.fifo"])
    (odd / "metrics.json").unlink()
    os.mkfifo(odd / "metrics.json")
    edit(odd / "run.json", fingerprint="another")
    for name in FILES[:3]:
        (folder / "empty" / name).mkdir(parents=True)
    (folder / "bad").mkdir()
    (folder / "bad" / "failure.txt").write_bytes(b"\xff\x00" + b"y" * 10_000_000)
    page = rebuild_report([folder], tmp_path / "page.html")
    problems = "\n".join(problems_of(folder))
    assert "no ordinary file" in problems
    assert "empty/results.csv: cannot be read (Is a directory)" in problems
    assert len(collect([folder]).failures[str(folder / "bad")]) < 30_000
    assert "All numbers" in page.read_text()


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    folder, scan = pair(tmp_path), os.scandir

    def refuse(path):
        if Path(path).name == "iw":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(runs.os, "scandir", refuse)
    assert f"{folder / 'iw'}: cannot be read (Permission denied)" in problems_of(folder)
    assert len(collect([folder]).runs) == 1


def test_a_copy_of_a_run_is_read_once(tmp_path):
    folder = pair(tmp_path)
    shutil.copytree(folder / "iw", folder / "iw (copy)")
    found = collect([folder])
    assert len(found.runs) == 2
    assert found.problems == [
        f"{folder / 'iw (copy)'}: a copy of {folder / 'iw'}, the same run; read once"
    ]


@pytest.mark.parametrize("file", ["results.csv", "metrics.json"])
def test_altered_results_are_named_and_the_run_left_out(tmp_path, file):
    folder = pair(tmp_path)
    for name in ("iw", "original"):
        digests = {
            one: hashlib.sha256((folder / name / one).read_bytes()).hexdigest()
            for one in ("results.csv", "metrics.json")
        }
        edit(folder / name / "run.json", digests=digests)
    assert len(collect([folder]).runs) == 2
    path = folder / "iw" / file
    path.write_text(path.read_text() + " ")
    found = collect([folder])
    assert [run.folder.name for run in found.runs] == ["original"]
    assert f"iw/{file}: changed since the run ended" in found.problems[0]


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    folder = pair(tmp_path)
    (folder / "report.html").mkdir()
    for out in (None, folder / "iw" / "run.json" / "below"):  # a folder, and below a file
        with pytest.raises(KbrError, match=r"cannot write .*report.html"):
            rebuild_report([folder], out)


def test_comparing_odd_folders_names_each_of_them(tmp_path):
    folder = pair(tmp_path)
    (folder / "iw" / ".hydra" / "config.yaml").write_text("a: &x [1]\nb: *x")
    (folder / "original" / ".hydra" / "config.yaml").write_text("5")
    with pytest.raises(KbrError) as refused:
        compare_runs([folder / "iw", folder / "original"], None)
    assert "iw/.hydra/config.yaml: has aliases" in str(refused.value)
    assert "original/.hydra/config.yaml: damaged" in str(refused.value)
    assert "\n" not in str(refused.value)


def places(value, path=()):
    """The path of keys to every value inside."""
    yield path
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    for key, one in inner.items() if isinstance(inner, dict) else ():
        yield from places(one, (*path, key))


def with_value(whole, path, value):
    if not path:
        return value
    copy = dict(whole) if isinstance(whole, dict) else list(whole)
    copy[path[0]] = with_value(whole[path[0]], path[1:], value)
    return copy


def dumped(file: str, value) -> str:
    return json.dumps(value) if file.endswith("json") else yaml.safe_dump(value)


def mutations(file: str, content: bytes, dice: random.Random):
    """Bytes flipped and cut anywhere; settings and cells of tables with values of another kind."""
    for _ in range(15):
        place = dice.randrange(len(content))
        yield content[:place]
        flipped = bytearray(content)
        for _ in range(dice.choice((1, 1, 5))):
            flipped[dice.randrange(len(content))] = dice.randrange(256)
        yield bytes(flipped)
    if file.endswith("csv"):
        for _ in range(40):
            cells = [line.split(b",") for line in content.splitlines()]
            row = dice.choice(cells)
            row[dice.randrange(len(row))] = str(dice.choice(ODD)).encode(errors="replace")
            yield b"\n".join(map(b",".join, cells))
        return
    whole = yaml.safe_load(content)
    for path in places(whole):
        for value in dice.sample(ODD, 3):
            yield dumped(file, with_value(whole, path, value)).encode(errors="replace")


@pytest.mark.parametrize("file", FILES)
def test_no_mutation_of_a_file_ends_in_a_traceback(tmp_path, plain_pictures, file):
    """Whatever a file holds, a page is made and the other run is in it."""
    folder, dice = pair(tmp_path), random.Random(1000)
    path = folder / "iw" / file
    for mutated in mutations(file, path.read_bytes(), dice):
        path.write_bytes(mutated)
        text = report.page(report_of(collect([folder])))
        text.encode()  # as it is written: no half characters
        assert "original" in text
        assert "<script>x" not in text
