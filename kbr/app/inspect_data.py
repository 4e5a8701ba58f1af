"""`kbr-inspect my.npz [key=value ...]`: what kbr understands of a recording, before training.

Several files may be named one after the other, or by a pattern, or by their folder.

The keys are those of data=recording: kbr-inspect log.csv x=[ax,ay] z=[px,py] time=t. `output` is
the folder of the plots.
"""

import math
import sys
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from kbr.app.config.resolvers import CONFIGS
from kbr.app.config.unknown import did_you_mean
from kbr.app.terminal import one_line_errors, piped, version_line
from kbr.app.text.commands import quoted
from kbr.core.errors import KbrError

WIDTH = 80
SHOWN = 24  # columns in the table
FRAMES = 500  # whose pixels the table is about


def main(arguments: list[str] | None = None) -> None:
    """The console command."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        print(version_line())
        return
    if not words or words[0] in ("-h", "--help"):
        piped(lambda: print(__doc__.strip()))
        return
    with one_line_errors():
        paths = [words[0], *takewhile(lambda word: Path(word).exists(), words[1:])]
        piped(lambda: inspect(paths, words[len(paths) :]))


def inspect(paths: list[str], settings: list[str]) -> None:
    """Print what was understood and what may be wrong; plots go into a folder."""
    from kbr.app.figures.columns import inspect_figures
    from kbr.app.recordings.checks import some_of, warnings_about

    path = paths[0] if len(paths) == 1 else f"[{','.join(paths)}]"
    problem, output = _problem(paths, settings)
    recording, parts = problem.recording, problem.parts
    print(f"{path}: {recording.kind}, {len(recording)} rows\n")
    for note in recording.notes:
        _say("read", note)
    _say("x", f"{list(recording.x.shape)}, {recording.dtypes[0]}")
    _say("z", f"{list(recording.z.shape)}, {recording.dtypes[1]}")
    _say("sequences", _sequences(problem))
    for name, text in zip(("time", ""), _time(problem), strict=False):
        _say(name, text)
    _say("missing", f"x in {recording.x_missing.sum()} rows, z in {recording.z_missing.sum()} rows")
    train, test = len(parts.train_rows), len(parts.test_rows)
    pieces = f"{train} rows in {len(parts.train)} pieces to train on"
    _say("split", f"{parts.kind}: {pieces}, {test} rows in {len(parts.test)} to test on")
    if recording.unused:
        _say("not used", some_of(recording.unused))
    print()
    _table(problem)
    print("\nwarnings" if (found := warnings_about(problem)) else "\nno warnings")
    for line in found:
        print(textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    "))
    _ = problem.filter_units  # what training would refuse is refused here
    pictures = inspect_figures(output, problem)
    print(f"\nplots: {output}/ ({', '.join(picture.name for picture in pictures)})")
    print(_command(path, settings))


def _command(path: str, settings: list[str]) -> str:
    """The training command for the same settings, to paste into a shell."""
    words = [f"data.path={path}"]
    for setting in settings:
        word = f"data.{setting.removeprefix('data.')}"
        words += [] if word.startswith("data.output=") else [word]
    lines, line = [], "train: python train.py data=recording"
    for word in map(quoted, words):
        if len(line) + len(word) + 3 > WIDTH:
            lines.append(line + " \\")
            line = "   "
        line += f" {word}"
    return "\n".join([*lines, line])


def _problem(paths: list[str], settings: list[str]) -> tuple[Any, Path]:
    """The problem that train.py would build from the same keys, and the folder for plots."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from kbr.app.building.trusted import construct
    from kbr.app.config.check import check_value, hints
    from kbr.app.config.errors import in_our_words
    from kbr.app.config.schema import OwnData
    from kbr.app.recordings.files import title_of

    config = OmegaConf.create({"data": OmegaConf.load(Path(CONFIGS) / "data" / "recording.yaml")})
    own = ("_target_", "_convert_", "path", "name")
    known = [str(key) for key in config.data if key not in own]
    output = Path("outputs") / "inspect" / title_of(paths[0] if len(paths) == 1 else paths)
    for setting in settings:
        key, mark, value = setting.removeprefix("data.").partition("=")
        if key == "output" and mark:
            output = Path(value)
        elif key in known and mark:
            with in_our_words([setting]):
                found = OverridesParser.create().parse_overrides([setting])[0].value()
            check_value(f"data.{key}", found, hints(OwnData)[key])
            config.data[key] = found
        else:
            meant = did_you_mean(key, known) if mark else ""
            listed = f"Give key=value with {', '.join(known)}."
            raise KbrError(" ".join(filter(None, [f"'{setting}' is no setting.", meant, listed])))
    config.data.path = paths[0] if len(paths) == 1 else paths
    return construct(config.data), output


def _sequences(problem: Any) -> str:
    lengths = np.bincount(problem.recording.sequence)
    if len(lengths) == 1:
        return f"1, of {lengths[0]} rows"
    return f"{len(lengths)}, of {lengths.min()} to {lengths.max()} rows"


def _time(problem: Any) -> Iterator[str]:
    """The span and the steps of time, and how they cut the recording."""
    from kbr.app.recordings.checks import gap_summary

    recording, sampling = problem.recording, problem.parts.sampling
    if recording.time is None or sampling is None:
        yield "no time stamps: every row counts as one step"
        return
    unit = f" {recording.time_unit}" if recording.time_unit else ""
    first, last = recording.time.min(), recording.time.max()
    yield (
        f"{first:.10g} to {last:.10g}{unit} (span {last - first:.4g}); steps of "
        f"{sampling.shortest:.4g} to {sampling.longest:.4g}{unit}, usually {sampling.usual:.4g}"
    )
    yield gap_summary(sampling, int(recording.sequence[-1]) + 1, recording.time_unit)


def _say(name: str, text: str) -> None:
    indent = " " * 14
    print(textwrap.fill(text, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=indent))


def _table(problem: Any) -> None:
    """A row for each column: its range and what is missing."""
    recording = problem.recording
    print(f"  {'column':<26}{'min':>11}{'mean':>11}{'max':>11}{'sd':>11}{'missing':>8}")
    names, columns = [("z", name) for name in recording.z_names], [*recording.z.T]
    some = recording.x[:: max(1, len(recording) // FRAMES)] if recording.has_images else recording.x
    seen = [*zip(recording.x_names, np.moveaxis(some, 1, 0), strict=False)]
    for name, values in seen if recording.has_images else recording.numbers:
        names.append(("x", name))
        columns.append(values)
    for (letter, name), values in list(zip(names, columns, strict=True))[:SHOWN]:
        there = values[np.isfinite(values)].astype(np.float64)
        label = textwrap.shorten(f"{letter}: {problem.label(name)}", 25, placeholder="...")
        cells = _cells(there, angle=name in problem.circular)
        print(f"  {label:<26}{cells}{np.size(values) - len(there):>8}")
    if len(names) > SHOWN:
        print(f"  ... and {len(names) - SHOWN} more columns of x")
    if len(some) < len(recording):
        print(f"  (pixels of {len(some)} of the {len(recording)} frames)")


def _cells(values: np.ndarray, *, angle: bool) -> str:
    """Minimum, mean, maximum and sd; angles have no plain mean."""
    if not len(values):
        return f"{'-':>11}" * 4
    peak = float(np.abs(values).max()) or 1.0  # so that squares of large numbers do not overflow
    mean, sd = peak * float((values / peak).mean()), peak * float((values / peak).std())
    digits = 3 + math.ceil(math.log10(peak / sd)) if sd > 0 else 4
    low, high = (_short(float(end), digits) for end in (values.min(), values.max()))
    middle, spread = ("-", "-") if angle else (_short(mean, digits), _short(sd, 4))
    return f"{low:>11}{middle:>11}{high:>11}{spread:>11}"


def _short(value: float, digits: int) -> str:
    """As many digits as tell values of the column apart, in ten characters."""
    wanted = (f"{value:.{count}g}" for count in range(max(digits, 4), 2, -1))
    return next((text for text in wanted if len(text) <= 10), f"{value:.3g}")


if __name__ == "__main__":
    main()
