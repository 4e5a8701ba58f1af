"""Notebooks as pages of the site: Markdown, and the pictures beside it."""

import base64
import re
from typing import Any

LINKS = {r"\]\(\.\./docs/": "](../", r"\]\((\w+)\.ipynb\)": r"](\1.md)"}
WIDTH = 80  # of text that is laid out in lines; longer ones are sentences
TABLE = re.compile(r"<table.*?>(.*)</table>", re.DOTALL)


def as_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and its pictures by their file names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}

    def picture(data: str, label: str, what: str = "what this cell draws") -> str:
        pictures[f"{name}_{label}.png"] = base64.b64decode(data)
        return f"![{what}]({name}_{label}.png)"

    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for file, kinds in cell.get("attachments", {}).items():
                label = file.removesuffix(".png")
                picture(kinds["image/png"], label)
                text = text.replace(f"attachment:{file}", f"{name}_{label}.png")
            parts.append(_linked(text))
        elif any(line and line[0] != "#" for line in text.splitlines()):
            parts.append(_code(text))
            for place, output in enumerate(cell["outputs"]):
                data = output.get("data", {})
                if "image/png" in data:
                    parts.append(picture(data["image/png"], f"{number}_{place}"))
                else:
                    parts.append(_answer(output))
    note = f'!!! note ""\n    This page is a notebook: [download it]({name}.ipynb) and run it.'
    return "\n\n".join([*parts[:2], note, *parts[2:]]) + "\n", pictures


def _linked(text: str) -> str:
    """Links that lead through the repository lead through the site; folded parts are Markdown."""
    for pattern, instead in LINKS.items():
        text = re.sub(pattern, instead, text)
    return text.replace("<details>", "<details markdown>")


def _code(text: str) -> str:
    if text.startswith("!"):
        return f"```sh\n{re.sub('^!', '', text, flags=re.MULTILINE)}\n```"
    return f"```python\n{text}\n```"


def _answer(output: dict[str, Any]) -> str:
    """What a cell prints or returns: a table, or text."""
    data = output.get("data", {})
    if "text/html" in data and (table := TABLE.search("".join(data["text/html"]))):
        return f"<table>{table[1]}</table>"
    text = "".join(output.get("text") or data["text/plain"]).rstrip("\n")
    wrapped = " .wrapped" if max(map(len, text.splitlines()), default=0) > WIDTH else ""
    return f"``` {{ .text .output{wrapped} }}\n{text}\n```"
