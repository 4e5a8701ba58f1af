"""`kbr-filter`: observations in, beliefs out, one line at a time as they arrive.

kbr-filter run=outputs/... input=new.csv output=beliefs.csv
tail -f sensor.jsonl | kbr-filter run=filter.ckpt | your-program
tail -f sensor.jsonl | kbr-filter run=filter.ckpt --serve > beliefs.jsonl
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from glob import has_magic
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import kbr
from kbr.app.live.page import LivePage
from kbr.app.live.view import View
from kbr.app.recordings.columns import DECIMALS
from kbr.app.recordings.kinds.table import read_csv
from kbr.app.recordings.read import READERS
from kbr.app.streaming.csv_rows import csv_rows
from kbr.app.streaming.options import USAGE, Options, parse
from kbr.app.streaming.output import Unwritten, Writer, opened
from kbr.app.streaming.range_watch import RangeWatch
from kbr.app.streaming.rows import Format, Row, json_rows, recording_rows, trend_rows
from kbr.app.streaming.sensor_watch import SensorWatch
from kbr.app.streaming.signals import Stopped, Stopping
from kbr.app.streaming.state import read_belief, save_belief
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief
from kbr.core.units.trend import Trend
from kbr.loading import checkpoint_of, identity, load_filter


def main() -> None:
    """The console command."""
    arguments = sys.argv[1:]
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(USAGE, flush=True)
        elif arguments[0] in ("-V", "--version", "version"):
            print(f"kbr {kbr.__version__}", flush=True)
        else:
            torch.set_num_threads(_threads())
            stream(parse(arguments))
    except BrokenPipeError:  # the reader has gone: that is an end, not an error
        _let_go_of_output()
    except (KbrError, OSError) as error:
        say(str(error))
        if isinstance(error, Unwritten | OSError):
            _let_go_of_output()
        raise SystemExit(2) from None
    except Stopped as stopped:
        say(str(stopped))
        raise SystemExit(stopped.code) from None


def stream(options: Options) -> int:
    """Filter all of the input; returns the number of steps.

    However it ends, an output file holds all that was answered, and the state is that after the
    last answer; where nothing was answered, both stay as they were.
    """
    stopping = Stopping()
    with stopping.listening():
        _check_paths(options)
        with stopping.waiting():
            filt = _load(options)
        with _page(options, filt) as page:
            done = _answer_all(options, filt, stopping, page)
            if page is not None:
                with suppress(Stopped), stopping.waiting():  # all is written: no error
                    page.stay()
    return done


def _answer_all(options: Options, filt: Any, stopping: Stopping, page: LivePage | None) -> int:
    """The number of steps; output and state are in their files, also where an error ends it."""
    state, done = Path(options.state) if options.state else None, 0
    owner = "" if state is None else identity(options.run, trial=options.trial)
    belief = filt.init() if state is None else read_belief(filt, state, owner)
    failed: KbrError | Stopped | BrokenPipeError | None = None
    watch, sensor = RangeWatch(filt.units, say), SensorWatch(say)
    with ExitStack() as stack:
        rows = _rows(options, filt, stack)
        out = stack.enter_context(opened(options.output))
        write = Writer(
            out, options.written, filt.units, dz=belief.mean.shape[-1], raw=options.cov == "raw"
        )
        left: set[str] = set()  # sequences that have ended
        try:
            while True:
                with stopping.waiting():
                    row = next(rows, None)
                if row is None:
                    break
                started = perf_counter()
                try:
                    after = _step(filt, belief, row, left)
                except KbrError as error:
                    if options.on_error == "stop":
                        raise KbrError(f"line {row.line}: {error}") from error
                    say(f"line {row.line} skipped: {error}")
                    continue
                write(after, row.shown)
                belief, done = after, done + 1
                watch(row.value, moved=after.steps > 1)
                sensor(after)
                if page is not None:
                    page(after, row.shown, perf_counter() - started)
        except (KbrError, Stopped, BrokenPipeError) as error:
            failed = error
        if failed is None:
            write.header([])
        elif done == 0:
            raise failed  # what was in the output before stays there
    watch.end()
    sensor.end()
    if state is not None:
        save_belief(belief, state, owner)
    if isinstance(failed, Stopped):
        kept = f"; the state is in {state}" if state is not None else ""
        failed.args = (f"{failed} after {done} steps{kept}",)
    if failed is not None:
        raise failed
    return done


def _page(options: Options, filt: Any) -> LivePage | nullcontext[None]:
    """The live page, where one is asked for."""
    if options.serve is None:
        return nullcontext()
    view = View(
        title=f"{type(filt).__name__} of {Path(options.run).resolve().name}",
        units=filt.units,
        shape=tuple(filt.shape),
        dz=filt.init().mean.shape[-1],
        raw=options.cov == "raw",
    )
    return LivePage(options.serve, view, say)


def say(message: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"kbr: {message}\n")


def _step(filt: Any, belief: Belief, row: Row, left: set[str]) -> Belief:
    """The belief after a row; a sequence that comes back after others is refused."""
    if isinstance(row.value, KbrError):
        raise row.value
    before, now = belief.place[0], filt.units.place(row.value)[0]
    if now is not None and now in left:
        raise KbrError(
            f"sequence '{now}' comes back after others. Sort the rows by sequence, or evaluate the "
            "file as a whole: python evaluate.py run=... data.path=..."
        )
    after: Belief = filt.step(belief, row.value)
    if before is not None and now is not None and before != now:
        left.add(before)
    return after


def _load(options: Options) -> Any:
    if options.trust:
        sys.path.append(os.getcwd())  # where the user's modules are
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        filt = load_filter(options.run, trial=options.trial, trust=options.trust)
    for warning in caught:
        say(str(warning.message))
    return filt


def _rows(options: Options, filt: Any, stack: ExitStack) -> Iterator[Row]:
    """The input's rows, as they arrive."""
    expected, path = Format(filt.units, tuple(filt.shape)), Path(options.input)
    step, trend = filt.units.source.get("resample"), Trend.of_source(filt.units.source)
    if trend is not None and options.state is not None:
        raise KbrError(
            "state keeps a belief, not the rows of a trend (data.trend). Leave state out."
        )
    decimal = options.decimal or str(filt.units.source.get("decimal", "point"))
    if decimal not in DECIMALS:
        raise KbrError(f"{options.run} has decimal={decimal!r}. Set decimal=point or comma.")
    if options.input == "-":
        file, is_csv = sys.stdin, options.source == "csv"
        if file is None:
            raise KbrError("standard input is closed. Set input=<file>.")
        if step is not None:
            say(f"the filter was trained on steps of {step}: rows must come at that step")
    elif not path.exists() and not has_magic(options.input):
        raise KbrError(f"there is no input file {path}. Set input=..., or - for the pipe.")
    else:
        ending = path.suffix.lower()
        is_csv = READERS.get(ending) is read_csv
        whole = step is not None or trend is not None or not is_csv or not path.exists()
        whole = whole or filt.units.layout is not None
        if path.is_dir() or (ending in READERS and whole):
            keys = {"decimal": options.decimal, "max_gb": options.max_gb}
            return _plain_words(recording_rows(path, expected, keys, say))
        if not is_csv and ending not in (".jsonl", ".json"):
            known = ", ".join(sorted(READERS))
            raise KbrError(f"input must end in .jsonl, {known}; got {options.input!r}.")
        try:
            file = stack.enter_context(path.open(encoding=_encoding(path), errors="replace"))
        except OSError as error:
            raise KbrError(f"cannot read {path}: {error.strerror}.") from error
    if trend is not None:
        expected = expected.before(trend)
    if is_csv:
        rows = csv_rows(file, expected, decimal, say, live=options.input == "-")
    else:
        rows = json_rows(file, expected, say)
    return rows if trend is None else trend_rows(rows, trend, expected)


def _encoding(path: Path) -> str:
    """UTF-16 where a regular file says so; a pipe cannot be asked without reading it."""
    if not path.is_file():
        return "utf-8"
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8"


def _plain_words(rows: Iterator[Row]) -> Iterator[Row]:
    """Errors that name the keys of this command, not those of data=recording."""
    try:
        yield from rows
    except KbrError as error:
        raise KbrError(str(error).replace("data.", "")) from error


def _check_paths(options: Options) -> None:
    """No two of input, output, state and the filter's file are the same file."""
    named = {"run": str(checkpoint_of(options.run, options.trial)), "input": options.input}
    named |= {"output": options.output, "state": options.state or "-"}
    paths = {key: Path(os.path.realpath(path)) for key, path in named.items() if path != "-"}
    for (key, path), (other, second) in combinations(paths.items(), 2):
        both = path.is_file() and second.is_file()
        if path == second or (both and os.path.samefile(path, second)):
            raise KbrError(f"{key} and {other} are the same file, {second}. Name two files.")


def _threads() -> int:
    """Steps are small: one thread, unless OMP_NUM_THREADS says otherwise."""
    setting = os.environ.get("OMP_NUM_THREADS") or "1"
    first = setting.split(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        raise KbrError(f"OMP_NUM_THREADS must be a whole number above 0; got {setting!r}.")
    return int(first)


def _let_go_of_output() -> None:
    """What is left in the buffer goes nowhere, so that the end raises no second error."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
