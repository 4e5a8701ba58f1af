"""report.html: what it says, what it does with damaged folders, and that it works in a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import write_run

from kbr.app.evaluate.report import rebuild_report
from kbr.app.report.choices import edge_counts
from kbr.app.report.comparison import Comparison, report_of
from kbr.app.report.page import render
from kbr.app.runs.finished import collect
from kbr.app.runs.notes import Notes
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import Edge

SEEDS = range(8)


def sweep(folder: Path, data: str = "rotation") -> Path:
    """Two models at two n, eight seeds; iw is better by a little, always."""
    for n in (100, 300):
        for model, gain in (("original", 0.0), ("iw", 0.004)):
            write_run(
                folder / f"n={n},{model}",
                data=data,
                model=model,
                n_train=n,
                errors={s: 0.06 + s / 1000 - gain * (1 + s / 10) for s in SEEDS},
                notes=("lam at the upper edge (0.1) in 3 of 8",) if model == "iw" else (),
            )
    return folder


def choices_html(comparison: Comparison) -> str:
    return render("choices.html", comparison=comparison)


def built(*folders: Path) -> str:
    return rebuild_report(folders, None).read_text()


class Outline(HTMLParser):
    """Headings, and every address the page could ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag in ("h1", "h2", "h3")
        self.addresses += [v for k, v in attrs if k in ("src", "href", "srcset", "action")]

    def handle_data(self, data):
        if self.inside:
            self.headings.append(data.strip())


def test_the_page_shows_numbers_tests_figures_settings_and_edges(tmp_path):
    text = built(sweep(tmp_path))
    headings = Outline(text).headings
    for part in ("rotation", "All numbers, tested against original", "What was run"):
        assert part in headings
    assert "Seed by seed, against original" in headings
    assert text.count("<svg") == 2  # the figure and iw's scatter
    assert "0.0078" in text  # p of eight pairs, all one way
    assert "0.016*" in text  # Holm over two comparisons
    assert "abc1234" in text
    assert "lam upper (0.1): 3 of 8" in text
    assert "A grid edge was chosen in 2 of 4 cells" in text
    assert "Problems" not in headings


def test_the_page_asks_for_nothing(tmp_path):
    text = built(sweep(tmp_path))
    wanted = [a for a in Outline(text).addresses if not a.startswith(("#", "data:"))]
    assert wanted == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_text_is_escaped(tmp_path):
    nasty = "<script>alert(1)</script>"
    folder = write_run(tmp_path / "run", model=nasty, errors={0: 1.0, 1: 2.0})
    write_run(tmp_path / "other", model="b", errors={0: 1.0, 1: 2.0}, notes=(nasty,))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "failure.txt").write_text(nasty)
    text = built(tmp_path)
    assert nasty not in text
    assert "&lt;script&gt;alert" in text
    assert folder.is_dir()


def test_a_folder_without_runs_is_said_and_the_rest_is_shown(tmp_path):
    (tmp_path / "empty").mkdir()
    full = sweep(tmp_path / "full")
    text = built(full, tmp_path / "empty", tmp_path / "nowhere")
    assert "empty: no finished runs" in text
    assert "nowhere: there is no such folder" in text
    assert "All numbers" in text


def test_nothing_at_all_is_an_error_and_the_page_says_why(tmp_path):
    with pytest.raises(KbrError, match="no finished runs"):
        built(tmp_path)
    assert "no finished runs" in (tmp_path / "report.html").read_text()
    with pytest.raises(KbrError, match="there is no"):
        built(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_different_tasks_get_sections_of_their_own(tmp_path):
    one, two = sweep(tmp_path / "a"), sweep(tmp_path / "b", data="oscillatory")
    headings = Outline(built(one, two)).headings
    assert headings.index("oscillatory") < headings.index("rotation")


@pytest.mark.parametrize(
    "file", ["metrics.json", "run.json", ".hydra/config.yaml", ".hydra/hydra.yaml"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_file_is_named_and_its_trials_are_kept(tmp_path, file, damage):
    folder = sweep(tmp_path)
    path = folder / "n=100,iw" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_text('{"a": [')
    found = collect([folder])
    kept = damage == "truncated" or file != "run.json"  # a run without run.json has not finished
    assert len(found.runs) == (4 if kept else 3)
    assert any(("not finished" if not kept else file) in problem for problem in found.problems)
    assert "<h2>Problems</h2>" in built(folder)


def test_settings_cut_off_anywhere_leave_a_report(tmp_path):
    """Cut YAML is often still YAML, with nothing where a list or mapping was."""
    figure = {"name": "f", "x": "n_train", "label": "n", "reference": "iw", "models": ["iw"]}
    folder = write_run(tmp_path / "run", errors={0: 1.0}, config={"figure": figure})
    for name in ("config.yaml", "hydra.yaml"):
        path = folder / ".hydra" / name
        whole = path.read_text()
        for end in range(len(whole)):
            path.write_text(whole[:end])
            (section,) = report_of(collect([tmp_path])).comparisons
            assert [row["mse"] for row in section.rows] == ["1.0"]
        path.write_text(whole)


def test_a_failure_in_no_known_letters_is_shown(tmp_path):
    folder = write_run(tmp_path / "run", errors={0: 1.0})
    (folder / "failure.txt").write_bytes(b"lam \xff")
    assert collect([tmp_path]).failures[str(folder)].startswith("lam ")


def test_a_truncated_results_file_loses_only_its_last_row(tmp_path):
    folder = sweep(tmp_path)
    path = folder / "n=100,iw" / "results.csv"
    whole = path.read_text()
    path.write_text(whole[: whole.rindex(",")])
    found = collect([folder])
    assert sum(len(run.rows) for run in found.runs) == 31
    assert any("row 8 left out: it has no mse" in problem for problem in found.problems)
    assert any("7 of 8 trials" in problem for problem in found.problems)
    path.unlink()
    found = collect([folder])
    assert len(found.runs) == 3
    assert any("results.csv: cannot be read" in problem for problem in found.problems)


def test_an_error_that_is_no_number_is_left_out(tmp_path):
    write_run(tmp_path / "run", errors={0: 1.0, 1: float("nan")})
    found = collect([tmp_path])
    assert [row["seed"] for row in found.runs[0].rows] == ["0"]
    assert "mse is nan (seed 1)" in found.problems[0]


def test_what_was_given_is_no_choice_and_duplicates_are_not_counted(tmp_path):
    edge = ("lam at the upper edge (0.1) in 2 of 2",)
    for name in ("a", "b"):
        write_run(tmp_path / name, errors={0: 1.0, 1: 2.0}, notes=edge)
    (section,) = report_of(collect([tmp_path])).comparisons
    assert "lam upper (0.1): 2 of 2" in choices_html(section)


def test_quick_runs_are_marked(tmp_path):
    write_run(tmp_path / "run", errors={0: 1.0}, config={"quick": 1})
    assert "quick: fewer trials" in built(tmp_path)


def test_failures_and_unfinished_runs_are_shown(tmp_path):
    folder = sweep(tmp_path)
    (folder / "n=100,iw" / "failure.txt").write_text("lam must be positive")
    (folder / "n=300,iw" / "run.json").unlink()
    text = built(folder)
    assert "Failed runs" in text
    assert "lam must be positive" in text
    assert "1 run(s) not finished: n=300,iw" in text


def test_errors_of_columns_are_no_choices():
    row = {"data": "npz", "model": "iw", "seed": "0", "lam": "0.1", "rmse yaw [deg]": "3"}
    notes = Notes.of_run(["x are vectors: encoder=mlp is used"])
    section = Comparison(data="npz", models=["iw"], rows=[row], notes={("iw", ""): notes})
    text = choices_html(section)
    assert "lam" in text
    assert "yaw" not in text
    assert "in 0 of 1 cells" in text


def test_edges_of_several_runs_add_up():
    notes = [
        "lam at the upper edge (0.1) in 1 of 1",
        "lam at the upper edge (0.1) in 1 of 1",
        "eta at the lower edge (1e-07) in 1 of 1",
        "features collapsed",
    ]
    expected = "lam upper (0.1): 2 of 5; eta lower (1e-07): 1 of 5; features collapsed"
    assert edge_counts(Notes.of_run(notes), 5) == expected
    assert edge_counts(Notes(), 5) == ""


def test_the_page_can_go_elsewhere(tmp_path):
    folder = sweep(tmp_path / "sweep")
    assert rebuild_report([folder], tmp_path / "out") == tmp_path / "out" / "report.html"
    assert rebuild_report([folder], tmp_path / "page.html") == tmp_path / "page.html"


def test_the_page_of_a_run_is_not_written_over(tmp_path):
    folder = write_run(tmp_path / "run", errors={0: 1.0})
    (folder / "report.html").write_text("its own")
    assert rebuild_report([folder], None) == folder / "comparison.html"
    assert (folder / "report.html").read_text() == "its own"


# What the browser is asked to do on the page: count errors and refused requests, sort a table.
WATCH = """<script>window.faults = [];
addEventListener("error", (e) => faults.push(String(e.message)));
document.addEventListener("securitypolicyviolation", (e) => faults.push(e.blockedURI));
</script>"""
CHECK = """<script>
const table = [...document.querySelectorAll("table")].find((t) => t.textContent.includes("pairs"));
const heads = [...table.tHead.rows[0].cells];
const place = heads.findIndex((h) => h.textContent.trim() === "p (Holm)");
const mean = heads.findIndex((h) => h.textContent.trim() === "mean");
const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i].dataset.value ?? "");
const seen = {};
heads[mean].querySelector("button").click();
seen.up = column(mean).map(Number);
heads[mean].querySelector("button").click();
seen.down = column(mean).map(Number);
seen.order = heads[mean].getAttribute("aria-sort");
heads[place].querySelector("button").click();
seen.empty = column(place);
seen.faults = faults;
seen.requests = performance.getEntriesByType("resource").map((r) => r.name);
seen.overflow = document.documentElement.scrollWidth - innerWidth;
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script></body>"""


@pytest.fixture
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine to open the page in")
    return found


def in_browser(text: str, check: str, folder: Path, chromium: str) -> dict:
    """What the `check` at the end of the page has seen there; nothing is on the console."""
    page = folder / "page.html"
    page.write_text(text.replace("<title>", WATCH + "<title>").replace("</body>", check))
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    assert "CONSOLE" not in done.stderr
    return json.loads(found[1])


def test_in_a_browser_it_sorts_and_makes_neither_errors_nor_requests(tmp_path, chromium):
    text = built(sweep(tmp_path / "sweep"))
    seen = in_browser(text, CHECK, tmp_path, chromium)
    assert seen["faults"] == []
    assert seen["requests"] == []
    assert seen["up"] == sorted(seen["up"])
    assert seen["down"] == sorted(seen["down"], reverse=True)
    assert seen["order"] == "descending"
    assert seen["empty"][:2] != ["", ""]  # the reference has no p-value: its rows come last
    assert seen["empty"][2:] == ["", ""]
    assert seen["overflow"] <= 0


def test_edges_recorded_as_values_need_no_sentences(tmp_path):
    edge = {"name": "lam", "end": "upper", "value": 0.1, "count": 2, "of": 2}
    said = ("lam at the upper edge (0.1) in 2 of 2; try others", "features collapsed")
    folder = write_run(tmp_path / "run", errors={0: 1.0, 1: 2.0}, notes=said)
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "edges": [edge]}))
    (run,) = collect([tmp_path]).runs
    assert run.notes == Notes((Edge(**edge),), ("features collapsed",))
    path.write_text(json.dumps({"notes": [], "edges": [{"name": "lam"}]}))
    found = collect([tmp_path])
    assert "edges is" in found.problems[0]
    assert found.runs[0].notes == Notes()
