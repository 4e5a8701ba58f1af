"""The keys of `kbr-filter`, as they are typed and as the command uses them."""

from dataclasses import dataclass, fields
from typing import Any

from kbr.app.live.address import PORT, Address
from kbr.app.recordings.columns import DECIMALS
from kbr.core.errors import KbrError
from kbr.core.units.units import did_you_mean

USAGE = """usage: kbr-filter run=<run folder or .ckpt> [key=value ...]

  run        a run folder, its best.ckpt, or a file written by filt.save
  input      .jsonl, .csv, .npz, .parquet, .mat or video, a pattern
             (logs/*.csv), a folder of such, of x.npy or of frames
             with states.csv; - for standard input                [-]
  output     a file; - for standard output                        [-]
  from       jsonl or csv: what standard input holds              [jsonl]
  to         jsonl or csv: what is written      [as output ends, or jsonl]
  cov        calibrated or raw covariances                        [calibrated]
  decimal    point or comma in CSV                                [as trained]
  on_error   stop or skip a line that cannot be read              [stop]
  state      a file that keeps the belief between two calls       [none]
  trial      which trial of a run with several                    [0]
  trust      modules of yours that the filter is of: [mine,more]  [none]
  max_gb     the most that one array of an npz may take           [0.5]
  serve      a live page in the browser: a port, or address:port  [none]
             --serve alone: port 8765 of this machine

Columns are found by name: a CSV header, or JSON objects {"column": value}.
Without names, numbers stand in the order of training: 0.1,0.2 or [0.1, 0.2]
or {"x": [0.1, 0.2]}, nested lists for frames. A missing observation is null,
nan or an empty cell: the belief is predicted. Where rows state a sequence or
a time, another sequence and a gap in time start the belief anew.
An output file appears when all is written; to follow it, use > or tee.
The live page stays until Ctrl-C if standard error is a terminal."""
CHOICES = {
    "from": ("jsonl", "csv"),
    "to": ("jsonl", "csv"),
    "cov": ("calibrated", "raw"),
    "decimal": tuple(DECIMALS),
    "on_error": ("stop", "skip"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keys of the command."""

    run: str
    input: str = "-"
    output: str = "-"
    source: str = "jsonl"  # the key `from`
    to: str | None = None  # as the output's ending says, or jsonl
    cov: str = "calibrated"
    decimal: str | None = None
    on_error: str = "stop"
    state: str | None = None
    trial: int = 0
    trust: tuple[str, ...] = ()
    max_gb: float = 0.5
    serve: Address | None = None

    def __post_init__(self) -> None:
        for key, values in CHOICES.items():
            value = getattr(self, "source" if key == "from" else key)
            if value is not None and value not in values:
                raise KbrError(f"{key} must be {' or '.join(values)}; got {value!r}.")

    @property
    def written(self) -> str:
        """What is written: jsonl or csv."""
        return self.to or ("csv" if self.output.lower().endswith(".csv") else "jsonl")


def parse(arguments: list[str]) -> Options:
    """key=value words as options; a misspelt key is named."""
    known = {"from" if f.name == "source" else f.name: f.name for f in fields(Options)}
    options: dict[str, Any] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if key == "--serve":
            key, equals, value = "serve", "=", value if equals else str(PORT)
        if not equals or key not in known:
            raise KbrError(
                f"{word!r} is no key=value of {', '.join(sorted(known))}."
                f"{did_you_mean([key.lstrip('-')], list(known))}"
            )
        if known[key] in options:
            raise KbrError(f"{key} is given twice. Give it once.")
        options[known[key]] = value
    if not options.get("run"):
        raise KbrError("say which filter to run: kbr-filter run=<run folder or .ckpt> ...")
    for key, kind, what in (("trial", int, "a whole number"), ("max_gb", float, "a number")):
        try:
            if key in options:
                options[key] = kind(options[key])
        except ValueError:
            raise KbrError(f"{key} must be {what}; got {options[key]!r}.") from None
    if "trust" in options:
        names = options["trust"].strip("[]").split(",")
        options["trust"] = tuple(name.strip() for name in names if name.strip())
    if "serve" in options:
        options["serve"] = Address.read(options["serve"])
    return Options(**options)
