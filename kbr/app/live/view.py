"""What the page shows: of a filter its names and units, of each belief its moments, as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbr.app.text.plain import one_line
from kbr.core.filters.belief import Belief
from kbr.core.uncertainty.regions import chi2_quantile
from kbr.core.units.units import Units

LEVEL = 0.9  # of bands and ellipses
MOST = 8  # latents that are drawn
NAMED = 12  # columns of x that are named
LONGEST = 60  # characters of a name


@dataclass(frozen=True, kw_only=True)
class View:
    """Of one filter. `raw` covariances are those of the weights, else calibrated ones."""

    title: str
    units: Units
    shape: tuple[int, ...]
    dz: int
    raw: bool

    def facts(self) -> dict[str, Any]:
        """What stays the same over the stream."""
        z, labels = self.units.z, self.units.latent_labels(self.dz)
        marks, lows = z.circular or (False,) * self.dz, z.low or (0.0,) * self.dz
        latents = [
            {"label": _short(label), "turn": z.turn if mark else None, "low": low}
            for label, mark, low in zip(labels, marks, lows, strict=True)
        ]
        return {
            "filter": _short(self.title),
            "observed": self._observed(),
            "latents": latents[:MOST],
            "unseen": max(self.dz - MOST, 0),
            "level": LEVEL,
            "covariances": "raw" if self.raw else "calibrated",
            "plane": self.dz == 2 and not any(marks),
            "radius": math.sqrt(chi2_quantile(LEVEL, 2)),
        }

    def step(self, belief: Belief, shown: Mapping[str, Any], seconds: float) -> str:
        """One belief; `shown` is what its row says of itself."""
        cov = belief.raw_cov if self.raw else belief.cov
        row = {
            "step": belief.steps,
            "mean": list(map(_finite, belief.mean[:MOST].tolist())),
            "half": [_half(value) for value in cov.diagonal()[:MOST].tolist()],
            "seen": bool(belief.evidence),
            "ms": round(1e3 * seconds, 3),
        }
        if self.dz == 2:
            row["cov"] = list(map(_finite, cov.flatten().tolist()))
        row |= {key: _short(str(value)) for key, value in shown.items()}
        return json.dumps(row, allow_nan=False, separators=(",", ":"))

    def _observed(self) -> str:
        """Names of the columns of x, or their shape."""
        names = list(map(_short, self.units.x_names or ()))
        if not names:
            size = " x ".join(map(str, self.shape)) or "1"
            columns = "1 column" if size == "1" else f"{size} columns"
            return f"frames {size}" if len(self.shape) > 1 else columns
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{', '.join(names[:NAMED])}{more}"


ROOT_QUANTILE = math.sqrt(chi2_quantile(LEVEL, 1))


def _half(variance: float) -> float | None:
    """Half the width of a latent's own band."""
    return _finite(ROOT_QUANTILE * math.sqrt(max(variance, 0.0)))


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _short(text: str) -> str:
    return one_line(text, LONGEST)
