"""Runs the notebooks and writes them back: `make notebooks`.

    python docs/tools/notebooks.py [notebooks/1_first_filter.ipynb ...]

Each runs from top to bottom in a kernel and a folder of its own. A warning, or anything else on
standard error, ends the command. What would change from run to run is taken out, pictures get a
palette, and the picture that a notebook opens with is the output of its cell tagged `opening`.
"""

import base64
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
OPENING = "opening"  # tag of the cell whose picture stands on top
COLOURS = 64
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CHANGING = {  # what differs between two runs, and what stands in its place
    r"(?m)^(  fit +)[\d.]+ s$": r"\1... s",
    r" at 0x[0-9a-f]+": "",
}


def main(names: list[str]) -> None:
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of !commands
    )
    for path in [Path(name) for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                notebook,
                resources={"metadata": {"path": folder}},
                coalesce_streams=True,
                extra_arguments=["--log-level=40"],
            ).execute()
        write(path, cleaned(json.loads(nbformat.writes(notebook))))
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook without what changes from run to run, with its opening picture."""
    notebook["metadata"] = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    shown: list[str] = []
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        cell["metadata"] = {"tags": tags} if tags else {}
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                sys.exit(f"a cell writes to standard error: {''.join(output['text'])}")
            _clean(output)
            if OPENING in tags and "image/png" in output.get("data", {}):
                shown.append(output["data"]["image/png"])
    if len(shown) != 1:
        sys.exit(f"one picture must come from the cell tagged {OPENING!r}; got {len(shown)}.")
    notebook["cells"][1]["attachments"] = {"opening.png": {"image/png": shown[0]}}
    return notebook


def _clean(output: dict[str, Any]) -> None:
    """Texts without times and addresses; pictures with a palette and without a description."""
    if "text" in output:
        text = "".join(output["text"]).replace("\r\n", "\n")  # of a command
        output["text"] = _stable(text).splitlines(keepends=True)
    for kind, data in output.get("data", {}).items():
        if kind == "image/png":
            output["metadata"] = {}
            output["data"][kind] = _small("".join(data))
        else:
            output["data"][kind] = _stable("".join(data)).splitlines(keepends=True)
    if "image/png" in output.get("data", {}):
        output["data"].pop("text/plain", None)  # <Figure size ...>


def _stable(text: str) -> str:
    for pattern, instead in CHANGING.items():
        text = re.sub(pattern, instead, text)
    return text


def _small(encoded: str) -> str:
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
        flat = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    file = io.BytesIO()
    flat.save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def write(path: Path, notebook: dict[str, Any]) -> None:
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
