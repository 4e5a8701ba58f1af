"""Pictures as SVG inside a page: they take the page's ink, so light and dark both read well."""

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib.pyplot as plt

from kbr.app.figures.style import OTHERS, STYLE, STYLES

COLORS = {
    style["color"].lower(): f"var(--model-{name}, {style['color'].lower()})"
    for name, style in [*STYLES.items(), *((f"other{i}", s) for i, s in enumerate(OTHERS))]
} | {"#000000": "currentColor"}


def inline_svg(draw: Callable[[Any], None], *, size: tuple[float, float], label: str) -> str:
    """An <svg> of what `draw` puts on an axis; text stays text, `label` is read aloud."""
    with plt.style.context([STYLE, {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}]):
        figure, axis = plt.subplots(figsize=size, layout="constrained")
        draw(axis)
        buffer = io.StringIO()
        with warnings.catch_warnings():  # letters that the page's font will have
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return _for_page(buffer.getvalue(), label)


def _for_page(text: str, label: str) -> str:
    """Without what only a file needs: prologue, metadata, global styles, fixed size, group ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    text = text.replace("xlink:href", "href")
    for color, variable in COLORS.items():
        text = re.sub(
            rf"(fill|stroke): {color}(?![0-9a-f])", rf"\1: {variable}", text, flags=re.IGNORECASE
        )
    head = f'<svg class="plot" {box[0]} role="img" aria-label="{escape(label)}">'
    text = head + text[text.index(">") + 1 :]  # the label last: it may look like anything
    return re.sub(r"\n\s*", "\n", text).strip()
