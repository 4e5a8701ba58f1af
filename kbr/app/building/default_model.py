"""The model of own data where none is named: kernels for vectors, learned features for frames."""

from collections.abc import Sequence
from pathlib import Path

from kbr.app.recordings.recording import are_frames
from kbr.core.errors import KbrError
from kbr.core.io.npy import Npz, file_header

DECIDED = ("model", "experiment", "resume")  # with any of these there is nothing to choose


def default_model(arguments: Sequence[str]) -> str | None:
    """`iw` or `iw_nn` for own data; None where the user says it, or the file is not readable."""
    words = (word.partition("=") for word in arguments)
    typed = {key.lstrip("+"): value for key, _, value in words}
    if any(key in typed for key in DECIDED):
        return None
    paths = [Path(part) for part in typed.get("data.path", "").strip("'\"").split(",") if part]
    try:
        frames = [holds_frames(path, typed.get("data.channels", "auto")) for path in paths]
    except (KbrError, KeyError, OSError):
        return None  # the run says what is wrong with the file
    return "iw_nn" if frames and all(frames) else "iw"


def holds_frames(path: Path, channels: str = "auto") -> bool:
    """Whether x of a recording are images, by what its files say of themselves."""
    if path.is_dir():
        arrays = path / "x.npy"
        return not arrays.is_file() or are_frames(file_header(arrays).shape, channels)
    return path.suffix.lower() == ".npz" and are_frames(Npz(path).header("x").shape, channels)
