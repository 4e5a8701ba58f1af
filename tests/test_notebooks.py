"""The notebooks run from top to bottom, say what their committed outputs say, and are small.

Here their cells run in the test's process, without drawing; `make notebooks` runs them in kernels.
"""

import ast
import base64
import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from command_line import call
from PIL import Image
from test_doc_commands import NOTEBOOKS, ROOT
from test_site import tool

NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]\d+)?")
FREE = re.compile(r", at the (?:lower|upper) end[^\n]*|^  (?:fit|memory) .*$", re.MULTILINE)
SOLUTION = re.compile(r"<summary>Solution</summary>\n\n```python\n(.*?)```", re.DOTALL)
LARGEST = 4000  # characters that a cell prints

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "text": "".join(cell["source"])} for cell in cells]


def run(text: str, made: dict, folder: Path) -> str:
    """A cell: what it prints, and the value of its last line unless a semicolon ends it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if text.startswith("!"):
            for line in text.splitlines():
                script, *words = shlex.split(line[1:])
                done = call(*words, script=script, folder=folder)
                assert (done.returncode, done.stderr) == (0, ""), line
                print(done.stdout, end="")
            return printed.getvalue()
        tree, value = ast.parse(text), None
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "a cell", "exec"), made)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "a cell", "eval"), made)
        if value is not None and not text.endswith(";"):
            print(repr(value))
    return printed.getvalue()


def shown(cell: dict) -> str:
    """The text among a cell's committed outputs."""
    outputs = [o.get("text") or o["data"].get("text/plain", []) for o in cell["outputs"]]
    return "".join("".join(lines) for lines in outputs)


def words(text: str) -> str:
    """Without numbers, space and what a CPU's rounding may change."""
    return re.sub(r"\s", "", NUMBER.sub("#", FREE.sub("", text)))


@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
@each
def test_a_notebook_runs_and_says_what_it_shows(path, tmp_path, monkeypatch, capfd):
    """With the solution of its exercise; numbers are not compared, as CPUs round."""
    monkeypatch.chdir(tmp_path)
    plt.close("all")  # of earlier tests
    made: dict[str, object] = {}
    as_in_a_notebook = pd.option_context("display.max_columns", 20, "display.width", 80)
    with mpl.rc_context(), as_in_a_notebook:
        for cell in cells_of(path):
            if cell["cell_type"] == "code":
                said = run(cell["text"], made, tmp_path)
                assert words(said) == words(shown(cell)), cell["text"]
                assert bool(plt.get_fignums()) == pictured(cell), cell["text"]
                plt.close("all")
        [solution] = SOLUTION.findall(cell["text"])
        assert run(solution, made, tmp_path)
        plt.close("all")
    assert capfd.readouterr().err == ""


def pictured(cell: dict) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_words_that_differ_are_seen():
    assert words("rms 0.13\n  fit    3 s") == words("rms  -1e-05\n  fit    ... s")
    assert words("eta 1, at the lower end, by design") == words("eta 2")
    assert words("rms 0.13") != words("mse 0.13")


@each
def test_a_notebook_opens_with_its_picture_and_ends_with_an_exercise(path):
    title, opening, *cells = cells_of(path)
    assert title["text"].startswith("# ")
    drawn = [c for c in cells if "opening" in c["metadata"].get("tags", ())]
    [picture] = [o["data"]["image/png"] for c in drawn for o in c["outputs"] if "data" in o]
    assert opening["attachments"] == {"opening.png": {"image/png": picture}}
    assert re.fullmatch(r"!\[[^]]{20,}\]\(attachment:opening\.png\)", opening["text"])
    asked, own, folded = cells[-3:]
    assert "## Exercise\n" in asked["text"]
    assert own["text"] == "# your turn"
    assert folded["text"].startswith("<details><summary>Hint</summary>")
    assert folded["text"].count("<details>") == folded["text"].count("</details>") == 2


@each
def test_a_notebook_is_small_and_clean(path):
    assert path.stat().st_size < 200_000
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    counts = []
    for cell in cells_of(path):
        assert set(cell["metadata"]) <= {"tags"}
        if cell["cell_type"] == "code":
            counts.append(cell["execution_count"])
            kinds = {(o["output_type"], o.get("name", "stdout")) for o in cell["outputs"]}
            assert kinds <= {
                (kind, "stdout") for kind in ("stream", "execute_result", "display_data")
            }
            assert len(shown(cell)) < LARGEST
            assert not re.search(r"0x[0-9a-f]{6}|/(home|tmp|usr|root)/", shown(cell))
    assert counts == [*range(1, len(counts) + 1)]


def test_all_notebooks_together_are_small():
    assert len(NOTEBOOKS) == 6
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 800_000


@each
def test_links_of_a_notebook_lead_somewhere(path):
    for cell in cells_of(path):
        for target in re.findall(r"\]\((?!attachment:)([^)#]+)", cell["text"]):
            if cell["cell_type"] == "markdown":
                assert (path.parent / target).is_file(), target


def test_readme_and_the_first_page_lead_to_every_notebook():
    for page, folder in (("README.md", "notebooks"), ("docs/index.md", "../notebooks")):
        text = (ROOT / page).read_text()
        assert all(f"]({folder}/{path.name})" in text for path in NOTEBOOKS)


def test_what_changes_from_run_to_run_is_taken_out(monkeypatch):
    """And what is on standard error ends the command; so does a notebook without its picture."""
    parts = {"nbformat": SimpleNamespace(), "nbclient": SimpleNamespace(NotebookClient=None)}
    cleaned = tool("notebooks", monkeypatch, **parts).cleaned
    file = io.BytesIO()
    Image.new("RGBA", (3, 2), "red").save(file, "png")
    png = base64.b64encode(file.getvalue()).decode()
    picture = {"output_type": "display_data", "metadata": {"size": 1}}
    picture["data"] = {"image/png": png, "text/plain": "<Figure>"}
    text = ["<f at 0x7f00aa>\r\n", "  fit    1.23 s\n"]
    printed = {"output_type": "stream", "name": "stdout", "text": text}
    code = {"cell_type": "code", "source": [], "metadata": {"tags": ["opening"], "execution": 1}}
    code["outputs"] = [printed, picture]
    top = {"cell_type": "markdown", "source": [], "metadata": {}}
    made = cleaned({"metadata": {"machine": "mine"}, "cells": [{**top}, {**top}, code]})
    assert "machine" not in made["metadata"]
    assert code["metadata"] == {"tags": ["opening"]}
    assert printed["text"] == ["<f>\n", "  fit    ... s\n"]
    [shown_on_top] = made["cells"][1]["attachments"].values()
    assert picture["data"] == shown_on_top
    with Image.open(io.BytesIO(base64.b64decode(picture["data"]["image/png"]))) as small:
        assert (small.size, small.mode) == ((3, 2), "P")
    for bad in ({**code, "outputs": []}, {**code, "outputs": [{**printed, "name": "stderr"}]}):
        with pytest.raises(SystemExit, match=r"picture must come|standard error"):
            cleaned({"metadata": {}, "cells": [{**top}, {**top}, bad]})
