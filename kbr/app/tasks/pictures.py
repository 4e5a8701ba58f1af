"""Picture files of unknown origin: size and kind are looked at before a pixel is decoded."""

import struct
import warnings
from pathlib import Path

from PIL import Image

from kbr.core.errors import KbrError

# Pixels only: others, such as EPS, are handed to programs of their own.
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM", "GIF")
MAX_PIXELS = 50_000_000
DAMAGE = (OSError, EOFError, SyntaxError, ValueError, LookupError, TypeError, OverflowError)


def read_picture(path: Path, *, max_pixels: int = MAX_PIXELS, setting: str = "") -> Image.Image:
    """One decoded picture of at most so many pixels; `setting` is what raises the limit."""
    with warnings.catch_warnings():
        # Our own limit comes before any pixel is decoded; Pillow's would only warn.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=FORMATS) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise KbrError(
                        f"{path} has {pixels / 1e6:,.1f} million pixels; at most "
                        f"{max_pixels / 1e6:,.1f} are decoded: "
                        f"{f'raise {setting} or ' if setting else ''}shrink it."
                    )
                if getattr(image, "is_animated", False):
                    raise KbrError(f"{path} holds several pictures; expected one. Split it.")
                image.load()
                return image.copy()
        except KbrError:
            raise
        except Image.DecompressionBombError as error:
            raise KbrError(f"{path} is too large to be decoded: {error} Shrink it.") from error
        except (*DAMAGE, struct.error) as error:
            raise KbrError(
                f"{path} is damaged or no image of a kind that is read ({', '.join(FORMATS)}): "
                f"{' '.join(str(error).split())}. Copy it again, or convert it."
            ) from error


def inside(folder: Path, name: str, where: str) -> Path:
    """The file `name` of a folder; an absolute path, or one that leads out of it, is refused."""
    path = folder / name
    if "\x00" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise KbrError(
            f"{where} names {name!r}, which lies outside the folder {folder}. Put the file into "
            "the folder, and write its name relative to it."
        )
    if not path.is_file():
        raise KbrError(f"{where} names the frame {path}, which is no file.")
    return path
