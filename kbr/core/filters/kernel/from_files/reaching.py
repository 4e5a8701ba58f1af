"""From where to where the rows of files reach: one look at all of them, which adds nothing up."""

from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.kernel.from_files.passes import PIECE, whole_rows
from kbr.core.tables import blocks
from kbr.core.units.ranges import Ranges
from kbr.core.units.training_range import ranges_of
from kbr.core.units.units import Units


def ranges_in(pairs: FilePairs, units: Units) -> Ranges | None:
    """Of all rows without a missing number; None where x are frames, or have many columns."""
    if units.ranges is None or units.ranges.x is None:
        return None
    found = units.ranges
    for part in blocks(pairs.n, PIECE):
        x, z = whole_rows(pairs.x(part.start, part.stop), pairs.z(part.start, part.stop))
        if len(z):
            found = found.joined(ranges_of(units, x.reshape(len(x), -1), z))
    return found
