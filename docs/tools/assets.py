"""Fetches KaTeX and Mermaid, which draw formulas and diagrams in the browser, into docs/assets.

They are copied from their npm packages, checked against the hashes below, and are not committed:
the site then needs no other host. `npm` (Node) must be installed.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "assets"
PACKAGES = {  # version: (sha512 of the package, {file of it: place of the copy})
    "katex@0.19.1": (
        "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
        {
            "dist/katex.min.js": "katex/katex.min.js",
            "dist/katex.min.css": "katex/katex.min.css",
            "dist/fonts": "katex/fonts",
            "LICENSE": "katex/LICENSE",
        },
    ),
    "mermaid@12.3.0": (
        "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==",
        {"dist/mermaid.min.js": "mermaid.min.js", "LICENSE": "mermaid.LICENSE"},
    ),
}


def main() -> None:
    """Fetches what is not there yet; a file notes which versions are."""
    note, wanted = ASSETS / "versions.txt", "\n".join(PACKAGES)
    if note.is_file() and note.read_text() == wanted:
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"the site needs {', '.join(PACKAGES)}: install npm (Node), which fetches them.")
    with tempfile.TemporaryDirectory() as folder:
        for package, (digest, files) in PACKAGES.items():
            _fetch(npm, package, digest, files, Path(folder))
    note.write_text(wanted)


def _fetch(npm: str, package: str, digest: str, files: dict[str, str], folder: Path) -> None:
    """One package: downloaded, compared with its hash, unpacked, and the files copied."""
    subprocess.run([npm, "pack", "--silent", package], cwd=folder, check=True, stdout=sys.stderr)
    packed = folder / f"{package.replace('@', '-')}.tgz"
    found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if found != digest:
        sys.exit(f"{package} has sha512 {found}, expected {digest}: set PACKAGES in {__file__}.")
    target = folder / package
    with tarfile.open(packed) as archive:
        archive.extractall(target, filter="data")
    for name, place in files.items():
        source, copy = target / "package" / name, ASSETS / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, dirs_exist_ok=True, ignore=_old_formats)
        else:
            shutil.copyfile(source, copy)


def _old_formats(_: str, names: list[str]) -> list[str]:
    """Fonts in formats that no browser needs beside woff2."""
    return [name for name in names if not name.endswith(".woff2")]


if __name__ == "__main__":
    main()
