"""The commands in README and docs are ones the command line takes."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from kbr.app.config.check import check_config
from kbr.app.config.resolvers import CONFIGS

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *NOTEBOOKS]
OWN = ("=mine.",)  # classes that the reader writes; run in test_doc_runs.py
SCRIPT = re.compile(r"python (train|evaluate)\.py((?: (?!#)[^\s`]+)*)")


def text_of(page: Path) -> str:
    """What a reader sees of a page, or of a notebook's cells; `!` before a command is left out."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(re.sub("^!", "", "".join(c["source"]), flags=re.M) for c in cells)


def commands() -> list[tuple[str, str, str]]:
    """(page, script, arguments) of every command, in blocks and in running text."""
    return [
        (page.name, script, arguments.strip())
        for page in PAGES
        for script, arguments in SCRIPT.findall(re.sub(r"\\\n\s*", "", text_of(page)))
    ]


def first_values(arguments: str) -> list[str]:
    """Overrides for one cell of a sweep; `...` stands for what a reader fills in."""
    words = [word for word in shlex.split(arguments) if word not in ("-m", "--help", "...")]
    chosen = []
    for one in OverridesParser.create().parse_overrides([w.replace("...", "x") for w in words]):
        key, prefix = one.get_key_element(), "+" if one.is_add() else ""
        sweep = one.is_sweep_override()
        value = next(iter(one.sweep_string_iterator())) if sweep else one.get_value_element_as_str()
        chosen.append(f"{prefix}{key.lstrip('+')}={value}")
    return [text for text in chosen if not text.startswith("hydra")]


# Configs of the reader's own are written and run in test_doc_runs.py.
@pytest.mark.parametrize(
    ("page", "script", "arguments"),
    sorted(c for c in set(commands()) if "--config-dir" not in c[2]),
)
def test_command_composes(page, script, arguments, monkeypatch):
    monkeypatch.setenv("KBR_RUN_ID", "test")
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose(script, overrides=first_values(arguments), return_hydra_config=True)
    if not any(words in arguments for words in OWN):
        check_config(config, config.hydra, script=script)


def test_commands_are_found_and_a_wrong_one_is_noticed():
    assert len(commands()) > 10
    with (
        initialize_config_dir(CONFIGS, version_base="1.3"),
        pytest.raises(Exception, match="modle"),
    ):
        compose(config_name="train", overrides=first_values("modle=iw"))
