"""`kbr-inspect my.npz [key=value ...]`: what kbr understands of a recording, before training.

The keys are those of data=npz: kbr-inspect log.csv x=[ax,ay] z=[px,py] time=t. `output` is the
folder of the plots.
"""

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from kbr.app.cli import CONFIGS, stop
from kbr.core.errors import KbrError

WIDTH = 80
SHOWN = 24  # columns in the table


def main(arguments: list[str] | None = None) -> None:
    """The console command."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print(__doc__.strip())
        return
    try:
        inspect(given[0], given[1:])
    except KbrError as error:
        stop(str(error))


def inspect(path: str, settings: list[str]) -> None:
    """Print what was understood and what may be wrong; plots go into a folder."""
    from kbr.app.own.findings import findings
    from kbr.app.own.inspect_figures import inspect_figures

    problem, output = _problem(path, settings)
    recording, parts = problem.recording, problem.parts
    print(f"{path}: {recording.kind}, {len(recording)} rows\n")
    _say("x", f"{list(recording.x.shape)}, {recording.dtypes[0]}")
    _say("z", f"{list(recording.z.shape)}, {recording.dtypes[1]}")
    _say("sequences", _sequences(problem))
    _say("missing", f"x in {recording.x_missing.sum()} rows, z in {recording.z_missing.sum()} rows")
    train, test = len(parts.train_rows), len(parts.test_rows)
    pieces = f"{train} rows in {len(parts.train)} pieces to train on"
    _say("split", f"{parts.kind}: {pieces}, {test} rows in {len(parts.test)} to test on")
    print()
    _table(problem)
    print("\nwarnings" if (found := findings(problem)) else "\nno warnings")
    for line in found:
        print(textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    "))
    _ = problem.scale_x, problem.scale_z  # what training would refuse is refused here
    pictures = inspect_figures(output, problem)
    print(f"\nplots: {output}/ ({', '.join(picture.name for picture in pictures)})")
    print(_command(path, settings))


def _command(path: str, settings: list[str]) -> str:
    """The training command for the same settings, to paste into a shell."""
    words = [f"data.path={path}"]
    for setting in settings:
        word = f"data.{setting.removeprefix('data.')}"
        words += [] if word.startswith("data.output=") else [word]
    quoted = [f"'{word}'" if re.search(r"[\s{};&|*?$]", word) else word for word in words]
    lines, line = [], "train: python train.py data=npz"
    for word in quoted:
        if len(line) + len(word) + 3 > WIDTH:
            lines.append(line + " \\")
            line = "   "
        line += f" {word}"
    return "\n".join([*lines, line])


def _problem(path: str, settings: list[str]) -> tuple[Any, Path]:
    """The problem that train.py would build from the same keys, and the folder for plots."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from kbr.app.job import construct

    config = OmegaConf.create({"data": OmegaConf.load(Path(CONFIGS) / "data" / "npz.yaml")})
    known = [str(key) for key in config.data if key not in ("problem", "path", "name")]
    output = Path("outputs") / "inspect" / (Path(path).stem or "data")
    for setting in settings:
        key, mark, value = setting.removeprefix("data.").partition("=")
        if key == "output" and mark:
            output = Path(value)
        elif key in known and mark:
            try:
                config.data[key] = OverridesParser.create().parse_override(setting).value()
            except HydraException as error:
                raise KbrError(f"{setting} cannot be read: {error}") from error
        else:
            raise KbrError(f"'{setting}' is no setting; give key=value with {', '.join(known)}.")
    config.data.path = path
    return construct(config.data.problem), output


def _sequences(problem: Any) -> str:
    recording = problem.recording
    lengths = np.bincount(recording.sequence)
    text = f"{len(lengths)}, of {lengths.min()} to {lengths.max()} rows"
    if recording.time is None:
        return text + "; no time stamps, every row is one step"
    gaps = int(recording.starts(problem.splitting.max_gap).sum()) - len(lengths)
    steps = np.diff(recording.time)[np.diff(recording.sequence) == 0]
    usual = f"{np.median(steps):g}" if len(steps) else "none"
    return f"{text}; usual step of time {usual}, {gaps} gaps"


def _say(name: str, text: str) -> None:
    indent = " " * 14
    print(textwrap.fill(text, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=indent))


def _table(problem: Any) -> None:
    """A row for each column: its range and what is missing."""
    recording = problem.recording
    print(f"  {'column':<26}{'min':>10}{'mean':>10}{'max':>10}{'sd':>10}{'missing':>9}")
    names = [*(("z", n) for n in recording.z_names), *(("x", n) for n in recording.x_names)]
    columns = [*recording.z.T, *np.moveaxis(recording.x, 1, 0)]
    for (letter, name), values in list(zip(names, columns, strict=True))[:SHOWN]:
        there = values[np.isfinite(values)]
        stats = (there.min(), there.mean(), there.max(), there.std()) if len(there) else ()
        mark = " (angle)" if name in problem.circular else ""
        label = textwrap.shorten(f"{letter}: {problem.label(name)}{mark}", 25, placeholder="...")
        cells = "".join(f"{value:>10.4g}" for value in stats) or f"{'-':>40}"
        print(f"  {label:<26}{cells}{np.size(values) - len(there):>9}")
    if len(names) > SHOWN:
        print(f"  ... and {len(names) - SHOWN} more columns of x")
