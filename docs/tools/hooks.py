"""What the site needs beyond docs/: pages of the root, notebooks, scripts, versions."""

import json
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from notebook_pages import as_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {  # of the repository's root, by their place in the site
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "data_files.md": "data/README.md",
}
NOTEBOOKS = ROOT / "notebooks"
SCRIPTS = {  # loaded only by pages that have something to draw
    'class="mermaid"': ("assets/mermaid.min.js",),
    'class="arithmatex"': ("assets/katex/katex.min.js", "theme/math.js"),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A choice of versions where mike builds one of several; elsewhere there is no list of them."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that do not stand in docs/."""
    for place, name in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        place, source = f"notebooks/{path.name}", str(path)
        files.append(File.generated(config, place, abs_src_path=source))
        page, pictures = as_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        made: dict[str, str | bytes] = {f"{path.stem}.md": page, **pictures}
        for name, content in made.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ on GitHub stay inside the site."""
    for place, name in PAGES.items():
        markdown = markdown.replace(f"](../{name})", f"]({place})")
    return re.sub(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adds the scripts that draw what the page holds."""
    wanted = [name for mark, names in SCRIPTS.items() if mark in html for name in names]
    places = [get_relative_url(name, page.url) for name in wanted]
    return html + "".join(f'<script src="{place}"></script>\n' for place in places)
