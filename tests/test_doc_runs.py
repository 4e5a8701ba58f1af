"""Every command of README and docs runs, on little data; pages of code run in test_docs.py.

The fast tests take the page on extensions, whose code and commands need each other. The rest is
slow; that all commands compose is checked fast, in test_doc_commands.py.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from test_doc_commands import NOTEBOOKS, PAGES, ROOT, commands, text_of

from kbr.loading import RECURRENT

SMALL = ("data.n_train=40", "data.n_test=10")
BRIEF = ("model.filter.epochs=2", "model.filter.val_every=2")
# What a reader fills in, and what the desk below has for it.
FILLED = {"run=outputs/...": "run=run1", "outputs/low_dim": "swept", "seed=range(0,10)": "seed=0,1"}
SEARCH = re.compile(r"^(kbr-tune(?:.*\\\n)*.*)$", re.MULTILINE)
ELSEWHERE = ("submitit_slurm", "report=outputs/...", "data.root=")  # a cluster; a placeholder; data


def run(script: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / f"{script}.py"), *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_extensions_run_from_the_users_own_folder(tmp_path):
    """One module, three yamls and six commands, as the page gives them."""
    (tmp_path / "mine.py").write_text("\n".join(blocks("extending.md", "python")))
    names = ("encoder/flat", "data/pendulum", "model/nearest")
    for name, text in zip(names, blocks("extending.md", "yaml"), strict=True):
        path = tmp_path / "my_configs" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    given = blocks("extending.md", "sh")
    assert len(given) == 6
    for number, line in enumerate(given):
        brief = BRIEF if "encoder=flat" in line else ()
        words = shlex.split(line)[2:]
        made = f"hydra.run.dir={tmp_path}/made{number}"
        done = call(*words, *SMALL, *brief, made, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"made{number}" / "metrics.json").is_file()
    # The encoder and the model are the user's own: evaluate finds them through the run's config.
    for own in ("made3", "made5"):
        again = call(f"run={own}", "trust=[mine]", script="evaluate.py", folder=tmp_path)
        assert again.returncode == 0, again.stderr


def test_a_ratio_and_an_engine_of_ones_own_serve_rules_and_filters():
    made: dict[str, object] = {}
    exec(compile("\n".join(blocks("extending.md", "python")), "extending.md", "exec"), made)
    import torch

    from kbr import Embedding, ImportanceWeightedRule, KernelBayesFilter

    x, z = torch.randn(40, 2), torch.randn(40, 2)
    rule = ImportanceWeightedRule(ratio=made["Tempered"](), lam=0.1)
    assert rule.fit(x, z).posterior(x[0], prior=Embedding.from_samples(z)).mean.isfinite().all()
    filt = KernelBayesFilter(rule=rule, engine=made["WholeGram"](), scales=(1.0,)).fit(x, z)
    assert filt.filter(x).mean.isfinite().all()
    assert filt.operators.update.name == "whole_gram"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with what the commands name: two runs, a sweep, own data, captured frames."""
    folder = tmp_path_factory.mktemp("desk")
    rng = np.random.default_rng(0)
    z = np.cumsum(rng.normal(size=(120, 2)), axis=0)
    np.savez(folder / "my.npz", x=z + 0.1 * rng.normal(size=z.shape), z=z)
    np.savez(
        folder / "frames.npz",
        images=rng.integers(0, 255, (72, 36, 48, 3), dtype=np.uint8),
        yaw=np.arange(72) * 5.0,
    )
    tiny = ["data=rotation", *SMALL]
    for name, model in (("run1", "iw"), ("run2", "original")):
        done = run("train", [*tiny, f"model={model}", f"hydra.run.dir={name}"], folder)
        assert done.returncode == 0, done.stderr
    swept = run("train", ["-m", *tiny, "model=iw,original", "hydra.sweep.dir=swept"], folder)
    assert swept.returncode == 0, swept.stderr
    return folder


def runnable() -> list[tuple[str, str]]:
    """Commands that no other test runs."""
    found = {(script, arguments) for _, script, arguments in commands()}
    text = " ".join([*blocks("own_data.md", "sh"), *blocks("extending.md", "sh")])
    return sorted(
        (script, arguments)
        for script, arguments in found
        if arguments not in text and not any(word in arguments for word in ELSEWHERE)
    )


def shortened(script: str, arguments: str) -> list[str]:
    """The command with little data, few epochs and few seeds."""
    for said, meant in FILLED.items():
        arguments = arguments.replace(said, meant)
    words = [word for word in shlex.split(arguments) if word != "..."]
    if script == "evaluate" or "--help" in words:
        return words
    keep = [w for w in words if not w.startswith(("trials=", "data.n_train=", "data.n_test="))]
    gaussian = any("posterior_mean" in word for word in words)
    model = next((w for w in words if w.startswith("model=")), "")
    experiment = any(w.startswith("experiment=") for w in words)
    trained = set(model.removeprefix("model=").split(",")) <= {"iw_nn", *RECURRENT, ""}
    brief = BRIEF if trained and not (experiment and not model) else ()
    few = ["data.dim=2"] if gaussian else []
    return [*keep, *SMALL, *few, *brief, "trials=2" if "-m" in words else "trials=1"]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "arguments"), runnable())
def test_command_runs(desk, script, arguments):
    done = run(script, shortened(script, arguments), desk)
    if re.search(r"trainer=(gpu|ddp)\b", arguments):
        assert done.returncode == 2
        assert "CUDA" in done.stderr  # no such device here: said so, and what to do instead
    else:
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_streams_of_the_page_on_deploying_run(desk):
    """A run folder and a saved filter, from a file and from a pipe."""
    rng = np.random.default_rng(1)
    lines = [json.dumps(row) for row in rng.normal(size=(5, 2)).tolist()]
    (desk / "stream.jsonl").write_text("\n".join(lines) + "\n")
    tool = str(Path(sys.executable).parent / "kbr-filter")
    said = ["run=run1", "input=stream.jsonl", "output=beliefs.jsonl"]
    subprocess.run([tool, *said], cwd=desk, check=True)
    assert len((desk / "beliefs.jsonl").read_text().splitlines()) == 5
    piped = subprocess.run(
        [tool, "run=run1", "state=belief.ckpt"],
        cwd=desk,
        input=(desk / "stream.jsonl").read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert piped.stdout == (desk / "beliefs.jsonl").read_text()
    assert (desk / "belief.ckpt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for page in PAGES for line in SEARCH.findall(text_of(page))])
def test_searches_of_the_pages_run(desk, line):
    """Two trials of few epochs each."""
    words = shlex.split(re.sub(r"--trials \d+", "--trials 2", line.replace("\\\n", " ")))
    tool = str(Path(sys.executable).parent / words[0])
    keep = [word for word in words[1:] if not word.startswith("trials=")]
    done = subprocess.run(
        [tool, *keep, *SMALL, *BRIEF], cwd=desk, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "python train.py" in done.stdout


def test_no_page_is_left_out():
    assert {page.name for page in PAGES} >= {"README.md", "quickstart.md", "extending.md"}
    assert len(runnable()) > 15
    assert len(NOTEBOOKS) == 6
    assert "\nkbr-inspect boat.csv x=" in text_of(NOTEBOOKS[1])  # a command of a cell
