"""The site: pages in its navigation, public names in its reference, docstrings that read well."""

import base64
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import kbr
import kbr.training

ROOT = Path(__file__).resolve().parent.parent
DOCS, TOOLS = ROOT / "docs", ROOT / "docs" / "tools"


class Plain(yaml.SafeLoader):
    """Reads mkdocs.yml without importing what it names."""


Plain.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _, suffix, __: suffix)


def tool(name: str, monkeypatch: pytest.MonkeyPatch, **packages: ModuleType) -> ModuleType:
    """A script of docs/tools, with stand-ins for packages of the extra `docs`."""
    for package, module in packages.items():
        monkeypatch.setitem(sys.modules, package, module)
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def pages(nav: list) -> list[str]:
    """Files of the navigation, in its order."""
    found: list[str] = []
    for entry in nav:
        for target in entry.values():
            found += [target] if isinstance(target, str) else pages(target)
    return found


def test_every_page_is_in_the_navigation():
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Plain)
    named = pages(config["nav"])
    hooks = (TOOLS / "hooks.py").read_text()
    generated = dict(re.findall(r'"(\w+\.md)": "([\w/]+\.md)"', hooks))
    assert all((ROOT / source).is_file() for source in generated.values())
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert sorted(named) == sorted(there | set(generated) | notebooks)


def test_every_public_name_is_in_the_reference():
    """Once each."""
    text = "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    public = [f"kbr.{name}" for name in kbr.__all__]
    public += [f"kbr.training.{name}" for name in kbr.training.__all__]
    shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted(public) == sorted(name for name in shown if not name.startswith("kbr.core."))


def test_formulas_and_tables_of_docstrings_read_well(monkeypatch):
    griffe = SimpleNamespace(Extension=object, Object=object)
    made = tool("docstrings", monkeypatch, griffe=griffe).as_markdown(
        "Weights [*b n] of x_t\nin `a_b`.\n\n"
        "Math: w = r_i psi_i,\n      s * t.\nRef:  A, B* 2022.\n\n"
        "cov      calibrated;\n         never None;\nmean_of_x not yet;\nlam, eta, etas   of it.\n"
    )
    assert made == (
        "Weights \\[\\*b n\\] of x\\_t in `a_b`.\n\n"
        "```text\nw = r_i psi_i,\ns * t.\n```\n\n"
        "Reference:  A, B\\* 2022.\n\n"
        "- **cov**: calibrated; never None;\n- **mean\\_of\\_x**: not yet;\n"
        "- **lam, eta, etas**: of it."
    )


def test_notebooks_are_pages_with_their_pictures(monkeypatch):
    dot = base64.b64encode(b"dot").decode()
    text = "[a](../docs/a.md#b) [c](c.ipynb) <details>"
    code = {"cell_type": "code", "source": ["f()\n", "g();"]}
    html = ["<div><style></style>\n", '<table border="1" class="frame"><tr></tr></table></div>']
    outputs = [
        {"text": ["one\n", "two\n"]},
        {"data": {"image/png": dot}},
        {"data": {"text/html": html, "text/plain": ["a"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "markdown",
            "source": ["![p](attachment:opening.png)"],
            "attachments": {"opening.png": {"image/png": dot}},
        },
        {"cell_type": "markdown", "source": [text]},
        {**code, "outputs": outputs},
        {**code, "source": ["!kbr-inspect x.csv\n", "!kbr-filter a=b"], "outputs": []},
        {**code, "source": ["# your turn"], "outputs": []},
    ]
    page, pictures = tool("notebook_pages", monkeypatch).as_page({"cells": cells}, "n")
    assert page == (
        "# Title\n\n"
        "![p](n_opening.png)\n\n"
        '!!! note ""\n    This page is a notebook: [download it](n.ipynb) and run it.\n\n'
        "[a](../a.md#b) [c](c.md) <details markdown>\n\n"
        "```python\nf()\ng();\n```\n\n``` { .text .output }\none\ntwo\n```\n\n"
        "![what this cell draws](n_3_1.png)\n\n<table><tr></tr></table>\n\n"
        "```sh\nkbr-inspect x.csv\nkbr-filter a=b\n```\n"
    )
    assert pictures == {"n_opening.png": b"dot", "n_3_1.png": b"dot"}


@pytest.mark.slow
def test_the_site_is_sound_in_chromium(tmp_path):
    """Built with warnings as errors, every page opened; needs the extras `docs` and `check`."""
    for package in ("mkdocs", "mkdocstrings", "playwright"):
        pytest.importorskip(package, reason=f"{package} is not installed: kbr[docs,check]")
    if shutil.which("chromium") is None:
        pytest.skip("no chromium on the path")
    if shutil.which("npm") is None:
        pytest.skip("no npm on the path, which fetches KaTeX and Mermaid")
    site = str(tmp_path / "site")
    for command in (
        [str(TOOLS / "assets.py")],
        ["-m", "mkdocs", "build", "--strict", "--site-dir", site],
        [str(TOOLS / "check_site.py"), "--site", site],
    ):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
