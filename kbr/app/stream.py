"""`kbr-filter`: observations in, beliefs out, one line at a time as they arrive.

kbr-filter run=outputs/... input=stream.jsonl output=beliefs.jsonl
tail -f sensor.jsonl | kbr-filter run=filter.ckpt | your-program
"""

import csv
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from kbr.core import checkpoint
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief
from kbr.core.filters.refined import RefinedFilter
from kbr.loading import load_filter

BELIEF = "kbr.belief"
Row = tuple[int, Tensor | KbrError]  # line number, and the observation or what is wrong with it
USAGE = """usage: kbr-filter run=<run folder or .ckpt> [key=value ...]

  run        a run folder, its best.ckpt, or a file written by filt.save
  input      .jsonl, .csv or .npz (array x); - for standard input [-]
  output     a file; - for standard output                        [-]
  from       jsonl or csv: what standard input holds              [jsonl]
  to         jsonl or csv: what is written                        [jsonl]
  cov        calibrated or raw covariances                        [calibrated]
  on_error   stop or skip a line that cannot be read              [stop]
  state      a file that keeps the belief between two calls       [none]
  trial      which trial of a run with several                    [0]

A missing observation is null, nan or an empty cell: the belief is predicted."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keys of the command."""

    run: str
    input: str = "-"
    output: str = "-"
    source: str = "jsonl"
    to: str = "jsonl"
    cov: str = "calibrated"
    on_error: str = "stop"
    state: str | None = None
    trial: int = 0

    def __post_init__(self) -> None:
        allowed = {
            "source": ("jsonl", "csv"),
            "to": ("jsonl", "csv"),
            "cov": ("calibrated", "raw"),
            "on_error": ("stop", "skip"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                shown = "from" if name == "source" else name
                raise KbrError(
                    f"{shown} must be {' or '.join(values)}; got {getattr(self, name)!r}."
                )


def parse(arguments: list[str]) -> Options:
    """key=value words as options; a misspelt key is named."""
    known = {"from" if f.name == "source" else f.name for f in fields(Options)}
    given: dict[str, Any] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise KbrError(f"{word!r} is no key=value of {', '.join(sorted(known))}.")
        given["source" if key == "from" else key] = value
    if "run" not in given:
        raise KbrError("say which filter to run: kbr-filter run=<run folder or .ckpt> ...")
    if not given.get("trial", "0").isdigit():
        raise KbrError(f"trial must be a whole number; got {given['trial']!r}.")
    return Options(**{**given, "trial": int(given.get("trial", 0))})


def main() -> None:
    """The console command."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # steps are small
    try:
        stream(parse(arguments))
    except KbrError as error:
        sys.stderr.write(f"kbr: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has gone: that is an end, not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def stream(options: Options) -> int:
    """Filter all of the input; returns the number of steps. The state is saved however it ends."""
    filt = load_filter(Path(options.run), trial=options.trial)
    if not hasattr(filt, "step"):
        raise KbrError(
            f"{type(filt).__name__} looks at a window of frames and has no belief to carry on. "
            "Use a kernel Bayes filter (model=iw, iw_nn, ...)."
        )
    state = Path(options.state) if options.state else None
    if state is not None and isinstance(filt, RefinedFilter):
        raise KbrError("a refined filter's belief is not kept between calls: leave state= out.")
    belief = filt.init() if state is None else read_belief(filt, state)
    calibrate = filt.calibration.cov if options.cov == "calibrated" else lambda cov: cov
    nothing = torch.full(tuple(filt.shape), torch.nan, dtype=torch.float64)
    steps = 0
    with ExitStack() as stack:
        out: TextIO = sys.stdout
        if options.output != "-":
            out = stack.enter_context(Path(options.output).open("w", encoding="utf-8"))
        write = writer(out, options.to, int(belief.mean.shape[-1]))
        try:
            for line, x in observations(options, stack):
                try:
                    if isinstance(x, KbrError):
                        raise x
                    missing = x.ndim == 0 and bool(x.isnan())
                    belief = filt.step(belief, nothing if missing else x)
                except KbrError as error:
                    if options.on_error == "stop":
                        raise KbrError(f"line {line}: {error}") from error
                    sys.stderr.write(f"kbr: line {line} skipped: {error}\n")
                    continue
                write(belief, calibrate(belief.cov))
                steps += 1
        finally:
            if state is not None:
                save_belief(belief, state)
    return steps


def writer(out: TextIO, kind: str, dz: int) -> Callable[[Belief, Tensor], None]:
    """A function that writes one belief as one line and flushes it."""
    if kind == "csv":
        means = [f"mean_{i}" for i in range(dz)]
        covs = [f"cov_{i}_{j}" for i in range(dz) for j in range(dz)]
        out.write(",".join(["step", *means, *covs, "evidence"]) + "\n")

    def write(belief: Belief, cov: Tensor) -> None:
        mean, seen = belief.mean.tolist(), bool(belief.evidence)
        if kind == "csv":
            row = [belief.steps, *mean, *cov.flatten().tolist(), int(seen)]
            text = ",".join(map(str, row))
        else:
            made = {"step": belief.steps, "mean": mean, "cov": cov.tolist(), "evidence": seen}
            text = json.dumps(made)
        out.write(text + "\n")
        out.flush()

    return write


def observations(options: Options, stack: ExitStack) -> Iterator[Row]:
    """Numbered observations of the input, as they arrive."""
    path, kind = options.input, options.source
    if path != "-":
        kind = Path(path).suffix.lstrip(".").lower()
        if not Path(path).is_file():
            raise KbrError(f"there is no input file {path}. Set input=..., or - for the pipe.")
    if kind == "npz":
        return _from_npz(Path(path))
    if kind not in ("jsonl", "json", "csv"):
        raise KbrError(f"input must end in .jsonl, .csv or .npz; got {path!r}.")
    lines = _from_csv if kind == "csv" else _from_json
    if path == "-":
        return lines(sys.stdin)
    return lines(stack.enter_context(Path(path).open(encoding="utf-8", errors="replace")))


def _from_json(file: TextIO) -> Iterator[Row]:
    """A line is a list, nested for images, a number, null, or an object with such an x."""
    for number, text in enumerate(iter(file.readline, ""), 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
            value = value["x"] if isinstance(value, dict) else value
            yield number, _array(value)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            yield number, KbrError(f'expected numbers, null or {{"x": ...}}; {_short(error)}')


def _from_csv(file: TextIO) -> Iterator[Row]:
    """A row of numbers for each step; a first row of names is passed over."""
    for number, text in enumerate(iter(file.readline, ""), 1):
        if not text.strip("\r\n"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([text]))]
        try:
            yield number, _array([float(cell) if cell else None for cell in cells])
        except ValueError as error:
            if number > 1:
                yield number, KbrError(f"expected numbers and commas; {_short(error)}")


def _from_npz(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            name = "x" if "x" in archive.files else (archive.files or ["x"])[0]
            rows = archive[name]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise KbrError(f"{path} is no npz of numbers with an array x ({error}).") from error
    if rows.dtype.kind not in "fiub" or rows.ndim < 1:
        raise KbrError(f"{path}: x must be numbers, one row a step; got {rows.dtype} {rows.shape}.")
    for number, row in enumerate(rows, 1):
        yield number, torch.as_tensor(row.astype(np.float64))


def _array(value: object) -> Tensor:
    """Numbers and nulls (NaN) as a tensor; a lone null stands for a whole missing observation."""
    array = np.asarray(value, dtype=np.float64)  # None becomes NaN
    return torch.as_tensor(array)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def save_belief(belief: Belief, path: Path) -> None:
    content = {"state": belief.state, "weights": belief.weights, "evidence": belief.evidence}
    checkpoint.save(path, {"kind": BELIEF, **content, "steps": belief.steps})


def read_belief(filt: Any, path: Path) -> Belief:
    """The saved belief, or the filter's start where there is no file yet."""
    start: Belief = filt.init()
    if not path.exists():
        return start
    content = checkpoint.load(path, kind=BELIEF)
    names = ("state", "weights", "evidence")
    found = [getattr(content.get(name), "shape", None) for name in names]
    if found != [getattr(start, name).shape for name in names]:
        raise KbrError(f"{path} is the state of another filter. Remove it, or set state=...")
    state, weights, evidence = (content[name] for name in names)
    return Belief(start.points, weights, state, evidence, int(content["steps"]))


if __name__ == "__main__":
    main()
