"""The way into a filter for recordings that stay in their files."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from kbr.core.filters.kernel.from_files.fitting import fitted_to_files
from kbr.core.filters.kernel.growing.partial import GrowingFilter

OfFiles = TypeVar("OfFiles", bound="FileFilter")


class FileFilter(GrowingFilter):
    """A filter that learns from .npy files of any size."""

    def fit_files(
        self: OfFiles,
        folder: str | Path,
        *,
        n_landmarks: int = 1000,
        workers: int = 1,
        circular: Sequence[str] | str = (),
        angle_unit: str = "degrees",
        resume: bool | str | Path = True,
        progress: Any = None,
    ) -> OfFiles:
        """Learn from the pairs in a folder of .npy files, which are read in blocks, twice.

        The folder holds x.npy [T, ...] and z.npy [T, dz], and sequence.npy with an id for each row
        where there are several sequences; or x_000.npy and z_000.npy, x_001.npy and z_001.npy and
        so on, each pair a sequence. Rows with missing values are left out, and said.

        The filter that comes out is carried by at most `n_landmarks` weighted pairs, as one of
        `compress`: a step costs the same, however long the recording. What is approximated:
        bandwidths, lam and eta are chosen on the last 10,000 rows, units and medians are those of
        20,000 evenly spaced rows. From a million rows on, narrower bandwidths and other lams are
        tried once more, in filters of landmarks. Among the evenly spaced rows are the landmarks,
        with masses under which the leading features of k_X k_Z have the averages of all rows. The
        dynamics are those of all steps. `compression` tells the error on held-out steps beside that
        of a filter of the last rows.

        So many `workers` are processes that share the reading; under torchrun, with
        torch.distributed initialised, its processes do. The numbers are the same for any number.
        What is done is kept in a small file in the folder, or in the file that `resume` names: the
        same call goes on from there if it was stopped. False keeps nothing.
        """
        began = perf_counter()
        self._fitted = fitted_to_files(
            self.settings,
            folder,
            n_landmarks=n_landmarks,
            workers=workers,
            resume=resume,
            progress=progress,
            circular=circular,
            angle_unit=angle_unit,
        )
        self.seconds = perf_counter() - began
        return self
