"""Takes the picture of the live page in docs/deploying.md: a stream with lost rows, in Chromium.

    python docs/tools/live_picture.py [--output docs/results/live.png] [--width 1280] [--dark]

A filter learns an oscillating point from 300 rows, and `kbr-filter --serve` filters 400 more as
they are piped in. Needs the extra `check` and Chromium.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from kbr import KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory

NAMES = ("chromium", "google-chrome", "chrome")  # of the browser
LOST = (*range(240, 252), *range(330, 350))  # rows that are missing
COLOURS = 200  # of the picture: a small file


def lines(folder: Path, rows: int) -> Iterator[str]:
    """Saves a filter and yields rows as the sensor sends them."""
    data = Oscillatory().generate(n_train=300, n_test=rows, seed=1000)
    x = dict(zip(("mx", "my"), data.x_train.T, strict=True))
    z = dict(zip(("px", "py"), data.z_train.T, strict=True))
    KernelBayesFilter().fit(x, z).save(folder / "point.ckpt")
    for k, row in enumerate(data.x_test.tolist()):
        yield json.dumps([None, None] if k in LOST else row) + "\n"


@contextmanager
def filtering(run: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """kbr-filter with a live page, and the address that it printed."""
    command = [sys.executable, "-m", "kbr.app.streaming.command", f"run={run}", "serve=0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        yield process, process.stderr.readline().split()[-1]
        process.communicate()


def take(output: Path, *, chromium: str, width: int, scheme: str, rows: int) -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as player:
        texts = list(lines(Path(name), rows))
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 400}, color_scheme=scheme)
        with filtering(Path(name) / "point.ckpt") as (process, url):
            page.goto(url)
            for text in texts:
                process.stdin.write(text)
                process.stdin.flush()
                process.stdout.readline()
            expect(page.locator("#step")).to_have_text(str(rows))
            page.screenshot(path=output, full_page=True)
        browser.close()
    with Image.open(output) as picture:
        picture.convert("RGB").quantize(COLOURS).save(output, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("docs/results/live.png"))
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, NAMES)), None))
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--rows", type=int, default=400, help="that are streamed")
    given = parser.parse_args()
    if given.chromium is None:
        sys.exit("no Chromium found: install it, or name it with --chromium.")
    scheme = "dark" if given.dark else "light"
    keys = {"chromium": given.chromium, "width": given.width, "rows": given.rows}
    take(given.output, scheme=scheme, **keys)
    print(f"wrote {given.output}: {given.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
