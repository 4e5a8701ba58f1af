"""Pictures as SVG inside a page, in the page's own colours: readable in light and dark mode."""

import io
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib.pyplot as plt

from kbr.app.figures.style import OTHERS, STYLE, STYLES

SVG, LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
PAGE_STYLE = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
COLOURS = {
    style["color"].lower(): f"var(--model-{name}, {style['color'].lower()})"
    for name, style in [*STYLES.items(), *((f"other{i}", s) for i, s in enumerate(OTHERS))]
} | {"#000000": "currentColor"}


def inline_svg(draw: Callable[[Any], None], *, size: tuple[float, float], label: str) -> str:
    """An <svg> of what `draw` puts on an axis; text stays text, `label` is read aloud."""
    with plt.style.context([STYLE, PAGE_STYLE]):
        figure, axis = plt.subplots(figsize=size, layout="constrained")
        draw(axis)
        buffer = io.BytesIO()
        with warnings.catch_warnings():  # letters that the page's font will have
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
        plt.close(figure)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")  # which a page implies
        if element.tag == "g":
            element.attrib.pop("id", None)  # every picture has the same names
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        if style := element.get("style"):
            for colour, variable in COLOURS.items():
                style = style.replace(f": {colour}", f": {variable}")
            element.set("style", style)
    for parent in root.findall("defs[style]"):  # a style would hold for the whole page
        root.remove(parent)
    root.attrib = {"class": "plot", "viewBox": root.attrib["viewBox"]}
    root.attrib |= {"role": "img", "aria-label": label}
    return ElementTree.tostring(root, "unicode")
