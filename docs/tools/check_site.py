"""Opens every page of the built site in Chromium, as a phone and as a desk see it, light and dark.

    python docs/tools/check_site.py [--site build/site] [--chromium PATH] [--pictures FOLDER]

A page is sound if it answers, prints no error, asks no other host, has drawn its formulas and
diagrams, is no wider than the window, and all its links lead to a page and an anchor of the site.
Links to other hosts are only listed. The search must find something.
"""

import argparse
import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

WIDTHS = {390: "light", 1280: "dark"}  # pixels, and the scheme looked at
LOOK = """() => ({
  wide: document.documentElement.scrollWidth,
  links: [...document.querySelectorAll("a[href]")].map(a => a.href),
  ids: [...document.querySelectorAll("[id]")].map(a => a.id),
  broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
  formulas: [...document.querySelectorAll(".arithmatex")].filter(f => !f.querySelector(".katex")
    || f.querySelector(".katex-error")).map(f => f.textContent),
  undrawn: document.querySelectorAll("pre.mermaid").length,
})"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def check(site: Path, chromium: str, pictures: Path | None = None) -> tuple[list[str], int]:
    """What is wrong, one line each, and the number of pages looked at."""
    pages = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    names = [page.removesuffix("index.html") for page in pages if page != "404.html"]
    wrong: list[str] = []
    anchors: dict[str, set[str]] = {}
    links: list[tuple[str, str]] = []
    with served(site) as root, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, scheme in WIDTHS.items():
            context = _context(browser, width, scheme)
            for name in names:
                said = f"{name or 'index'} at {width} pixels"
                page = _opened(context, root, name, said, wrong)
                seen = page.evaluate(LOOK)
                if seen["wide"] > width:
                    wrong.append(f"{said}: {seen['wide']} pixels wide")
                wrong += [f"{said}: no picture {source}" for source in seen["broken"]]
                wrong += [f"{said}: no formula {text}" for text in seen["formulas"]]
                wrong += [f"{said}: a diagram is not drawn"] * bool(seen["undrawn"])
                anchors[root + name] = {"", *seen["ids"]}
                links += [(name, link) for link in seen["links"]]
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    file = f"{name.strip('/').replace('/', '_') or 'index'}_{width}.png"
                    page.screenshot(path=pictures / file, full_page=True)
                page.close()
        wrong += _search(_context(browser, 1280, "light"), root)
        browser.close()
        wrong += [
            f"{name or 'index'}: a link to {link.removeprefix(root)}, which is not there"
            for name, link in sorted(set(links))
            if link.startswith(root) and not _leads(site, root, link, anchors)
        ]
    return wrong, len(names)


def _context(browser: Browser, width: int, scheme: str) -> BrowserContext:
    """A window of this width, with nothing remembered."""
    size = {"width": width, "height": 900}
    return browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")


def _opened(context: BrowserContext, root: str, name: str, said: str, wrong: list[str]) -> Page:
    """A page once all its parts are there; what its console and its requests say is noted."""
    page = context.new_page()
    page.on("console", lambda m: wrong.append(f"{said}: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"{said}: {error}"))
    page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith((root, "data:", "blob:"))
            else wrong.append(f"{said}: asks {urlsplit(r.url).netloc}")
        ),
    )
    answer = page.goto(root + name, wait_until="networkidle")
    if answer is None or not answer.ok:
        wrong.append(f"{said}: does not open")
    if page.locator("pre.mermaid").count():
        page.wait_for_timeout(2000)
    return page


def _leads(site: Path, root: str, link: str, anchors: dict[str, set[str]]) -> bool:
    """Whether a link of the site leads somewhere: to a page and a place on it, or to a file."""
    address, anchor = urldefrag(link)
    if address in anchors:
        return unquote(anchor) in anchors[address]
    return (site / unquote(address.removeprefix(root))).is_file()


def _search(context: BrowserContext, root: str) -> list[str]:
    """The search finds the filter's class."""
    wrong: list[str] = []
    page = _opened(context, root, "", "search", wrong)
    page.locator("input.md-search__input").click()
    page.keyboard.type("KernelBayesFilter")
    found = page.locator("a.md-search-result__link")
    found.first.wait_for(timeout=10_000)
    if not any("api/filters" in (one.get_attribute("href") or "") for one in found.all()):
        wrong.append("search: KernelBayesFilter does not lead to its reference")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, default=Path("build/site"))
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chrome"))
    parser.add_argument("--pictures", type=Path, help="folder for a picture of every page")
    given = parser.parse_args()
    if given.chromium is None:
        sys.exit("no Chromium found: install it, or name it with --chromium.")
    if not (given.site / "index.html").is_file():
        sys.exit(f"{given.site} holds no site: `make docs` builds it, or name it with --site.")
    wrong, pages = check(given.site, given.chromium, given.pictures)
    print("\n".join(wrong))
    print(f"{pages} pages at {len(WIDTHS)} widths: {len(wrong)} faults")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
