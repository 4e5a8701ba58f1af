"""What stands around the code agrees with it: versions, hosted checks, lower bounds, the image."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import kbr

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FREE = {"ruff", "mypy", "hatchling"}  # tools whose findings change with their version


def test_all_files_name_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    wheels = re.findall(r"kbr-([\d.]+)-py3", (ROOT / "README.md").read_text())
    assert {kbr.__version__, PROJECT["version"], str(citation["version"]), *wheels} == {"0.2.0"}
    assert citation["license"] == PROJECT["license"]
    assert f"## {kbr.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_whole_and_calls_what_is_there(path):
    workflow = yaml.safe_load(path.read_text())
    assert {"name", True, "permissions", "jobs"} <= set(workflow)  # YAML reads `on` as True
    for job in workflow["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            continue
        assert job["timeout-minutes"] <= 350
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            called = re.findall(r"^make (.*)$", step.get("run", ""), re.MULTILINE)
            assert set(" ".join(called).split()) <= TARGETS


def test_the_workflows_cover_what_they_should():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests", "weekly"]
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["tests"]
    cells = tests["strategy"]["matrix"]["include"]
    assert {cell["python"] for cell in cells} == {"3.11", "3.12", "3.13"}
    assert {cell["packages"] for cell in cells} == {"minimum", "pinned", "latest"}
    for cell in cells:
        assert set(cell["extras"].split(",")) <= set(PROJECT["optional-dependencies"])
        for name in re.findall(r"-c (\S+)", cell["options"]):
            assert (ROOT / name).is_file()


def lines_of(name: str) -> dict[str, str]:
    """Packages and versions of a file of constraints, without its comments."""
    text = (ROOT / name).read_text()
    return dict(line.split()[0].split("==") for line in text.splitlines() if line[0] != "#")


def test_the_minimum_is_what_the_project_asks_for():
    """Torch is the one that was there: older ones have not been tried."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["dev"], *extras["tune"], *extras["maze"]]
    bounds = dict(one.split(">=") for one in asked)
    minimum, pinned = lines_of("constraints-min.txt"), lines_of("constraints.txt")
    for name in ("torch", "torchvision"):
        assert minimum[name] == pinned[name]
        del bounds[name]
    assert {name: minimum.get(name) for name in bounds.keys() - FREE} == {
        name: bound for name, bound in bounds.items() if name not in FREE
    }


def test_forms_image_and_container_name_what_is_there():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
    for line in re.findall(r"^COPY (.*) /source", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    extras = re.search(r"/source\[(.*)\]", (ROOT / "Dockerfile").read_text())[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make .venv/.installed"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
