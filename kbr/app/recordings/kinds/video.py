"""A video as named columns (PyAV): its frames are x, and a CSV file beside it has their states."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbr.app.recordings.columns import Columns
from kbr.app.recordings.kinds.frames import PIXEL, checked_size
from kbr.app.recordings.kinds.table import read_table
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

FRAMES = "(frames)"  # the column of x
# The format goes by the ending, never by the content: playlists could name other files.
FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".avi": "avi", ".mkv": "matroska"}
FORMATS |= {".webm": "matroska"}
SOME = 100  # frames, after which memory is looked at again


def read_video(source: "Source", path: Path) -> Columns:
    """clip.mp4 with clip.csv, a row for each frame; without it, where z may be absent."""
    states = path.with_suffix(".csv")
    if not states.is_file():
        if source.needs_z:
            raise KbrError(f"{path} needs {states.name} beside it, with z of every frame in a row.")
        return Columns(
            kind="frames", path=path, names=(FRAMES,), get=lambda _: _frames(source, path),
            x=FRAMES, z=tuple(source.z or ()),
        )  # fmt: skip
    table = read_table(states, source)
    taken = [source.column(key, table.names) for key in ("sequence", "time")]
    columns = table.z or tuple(name for name in table.names if name not in taken)

    def column(name: str) -> Any:
        return _frames(source, path) if name == FRAMES else table.get(name)

    names = (*table.names, FRAMES)
    return replace(table, kind="frames", names=names, get=column, x=FRAMES, z=columns)


def _frames(source: "Source", path: Path) -> np.ndarray:
    """Frames [T, 3, h, w] of the first stream, resized as data.resize says."""
    try:
        import av
    except ImportError:
        raise KbrError(
            f'{path} needs PyAV: pip install "kbr[video]"; or write its frames as pictures '
            "(ffmpeg -i video frames/%06d.png) with a states.csv."
        ) from None
    height, width = checked_size(source.resize) or (None, None)
    frames: list[np.ndarray] = []
    try:
        with av.open(str(path), format=FORMATS[path.suffix.lower()]) as clip:
            stream = next(iter(clip.streams.video), None)
            if stream is None:
                raise KbrError(f"{path} holds no video.")
            for frame in clip.decode(stream):
                pixels = frame.width * frame.height
                if PIXEL * pixels > source.max_bytes:
                    raise KbrError(
                        f"{path} has frames of {pixels / 1e6:,.1f} million pixels. Raise "
                        "data.max_gb, or shrink it."
                    )
                shown = frame.reformat(width=width, height=height, format="rgb24").to_ndarray()
                frames.append(np.moveaxis(shown, -1, 0))
                if len(frames) % SOME == 1:
                    check_memory(
                        5.0 * frames[0].size * (len(frames) + SOME),  # bytes, then float32
                        what=f"{path} from frame {len(frames)} on",
                        advice="Set data.resize=[height,width], or save the frames as x.npy.",
                    )
            if not frames:
                raise KbrError(f"{path} holds no frames.")
            return np.stack(frames).astype(np.float32)
    except (av.FFmpegError, ValueError, MemoryError) as error:
        if isinstance(error, KbrError):
            raise
        said = " ".join(str(error).split())[:120]
        raise KbrError(f"{path} is damaged or no video: {said}.") from error
