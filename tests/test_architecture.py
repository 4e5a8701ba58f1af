"""The arrows of the package: core knows nothing of training or app, training nothing of app."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kbr

ROOT = Path(kbr.__file__).parent
OUTER = {"lightning", "pytorch_lightning", "torchmetrics", "hydra", "omegaconf", "tensorboard"}
HEAVY = {"matplotlib", "scipy", "torchvision", "pandas", "tqdm", "sklearn"}
# What the core loads only when it is asked for: the module works without, until then.
WHEN_ASKED = {
    "core/showing/plotting.py": {"matplotlib"},
    "core/showing/tables.py": {"pandas"},
    "core/showing/progress.py": {"tqdm"},
    "core/filters/conventions.py": {"sklearn"},
}
FORBIDDEN = {
    "core": {"kbr.training", "kbr.app", *OUTER, *HEAVY},
    "training": {"kbr.app", "hydra", "omegaconf"},
}


def imported(file):
    """Full names of everything a file imports, also inside functions."""
    package = [ROOT.name, *file.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(name, forbidden):
    return any(name == f or name.startswith(f + ".") for f in forbidden)


@pytest.mark.parametrize("layer", sorted(FORBIDDEN))
def test_imports_point_inwards_only(layer):
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if is_within(name, FORBIDDEN[layer])
        and not is_within(name, WHEN_ASKED.get(str(file.relative_to(ROOT)), ()))
    ]
    assert wrong == []


def test_the_package_itself_exports_the_core_only():
    names = [name for name in imported(ROOT / "__init__.py") if name.startswith("kbr")]
    assert names
    assert all(name.startswith("kbr.core.") for name in names)


def test_no_folder_is_called_utils():
    assert [
        p for p in ROOT.rglob("*") if p.name in {"utils", "utils.py", "common", "helpers"}
    ] == []


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT.parent
    )


def test_importing_kbr_loads_neither_lightning_nor_hydra_nor_matplotlib():
    done = run("import sys, kbr; print(*{name.split('.')[0] for name in sys.modules})")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & (OUTER | HEAVY)


def test_the_core_works_where_the_outer_packages_are_not_installed():
    done = run(
        f"""
import sys
for name in {sorted(OUTER | HEAVY)}:
    sys.modules[name] = None  # importing it raises ImportError
import pkgutil, importlib, kbr.core
for module in pkgutil.walk_packages(kbr.core.__path__, "kbr.core."):
    importlib.import_module(module.name)
rule = kbr.ImportanceWeightedRule(lam=0.1)
post = rule.fit([[0.0], [1.0]], [[0.0], [1.0]]).posterior([0.5], kbr.Embedding.from_samples([0.5]))
print(post.mean.isfinite().all().item())
"""
    )
    assert done.stdout.strip() == "True", done.stderr


def test_the_style_of_figures_knows_neither_run_folders_nor_hydra():
    done = run("import sys, kbr.app.figures.style; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    outside = ("hydra", "omegaconf", "kbr.app.run", "kbr.app.sweep")
    assert [name for name in done.stdout.split() if is_within(name, outside)] == []


def test_every_public_name_exists():
    assert all(hasattr(kbr, name) for name in kbr.__all__)


@pytest.mark.parametrize("part", ["app", "core/filters"])
def test_no_room_is_crowded(part):
    rooms = {file.parent for file in (ROOT / part).rglob("*.py")}
    crowded = {
        room.name: len(found)
        for room in rooms
        if len(found := [file for file in room.glob("*.py") if file.name != "__init__.py"]) > 10
    }
    assert crowded == {}


DRAWING = ROOT.parent / "docs" / "architecture.md"


def drawn():
    """Arrows of the drawings, as pairs of modules."""
    for block in re.findall(r"```mermaid\n(.*?)```", DRAWING.read_text(), flags=re.S):
        names = dict(re.findall(r'(\w+)\["(kbr[\w.]*)"\]', block))
        bare = re.sub(r'\["kbr[\w.]*"\]', "", block)
        for line in bare.splitlines()[1:]:
            ids = [part.strip() for part in line.split("-->")]
            yield from ((names[a], names[b]) for a, b in itertools.pairwise(ids))


@pytest.mark.parametrize(("tail", "head"), [*drawn()])
def test_arrows_of_the_drawings_are_imports(tail, head):
    files = [ROOT.parent / f"{name.replace('.', '/')}.py" for name in (tail, head)]
    assert all(file.is_file() for file in files)
    assert head in set(imported(files[0]))
    assert tail not in set(imported(files[1])), "the way goes back"


def test_paths_on_the_page_exist():
    paths = re.findall(r"`((?:kbr|configs|tests)/[\w./]+)`", DRAWING.read_text())
    assert paths
    assert [path for path in paths if not (ROOT.parent / path).exists()] == []


def test_runs_without_a_network_load_no_lightning():
    """Each process of a sweep pays for its imports."""
    done = run(
        "import sys, kbr.app.run.train, kbr.app.models.kernel, kbr.app.models.classical;"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"lightning", "torchvision", "torchmetrics", "scipy"}
