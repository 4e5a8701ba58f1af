"""A recorded data set as an npz: the season of the year from the air's carbon dioxide.

Weekly means at Mauna Loa, 1958 to 2001 (statsmodels' `co2`; Keeling and Whorf). The biosphere
breathes once a year, so the concentration tells the season; 59 weeks were never measured. x is what
a causal sensor would report (difference from the mean of the last year, change over four weeks),
z the season as an angle in degrees. Run with:

    python examples/own_recording.py
"""

import argparse
from pathlib import Path

import numpy as np
from statsmodels.datasets import co2

YEAR = 52  # weeks


def recording() -> dict[str, np.ndarray]:
    """x [T, 2] in ppm with NaN where a week is missing, z [T, 1] in degrees."""
    table = co2.load_pandas().data
    level = table["co2"]
    anomaly = level - level.rolling(YEAR + 1, min_periods=YEAR // 2).mean()
    x = np.stack([anomaly, level - level.shift(4)], axis=1)[YEAR:]
    days = table.index.day_of_year.to_numpy(dtype=float)[YEAR:]
    return {"x": x, "z": 360 * (days[:, None] - 1) / 365.25}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("co2.npz"))
    parser.add_argument("--rows", type=int, default=None, help="the first so many weeks only")
    arguments = parser.parse_args()
    arrays = {name: values[: arguments.rows] for name, values in recording().items()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.output, **arrays)
    names = "data.x=[anomaly,change] data.z=[season] data.circular=[season]"
    print(f"wrote {arguments.output}: {len(arrays['z'])} weeks\n")
    print(f"  kbr-inspect {arguments.output} {names.replace('data.', '')}")
    print(f"  python train.py data=recording data.path={arguments.output} \\\n    {names} \\")
    print("    'data.units={anomaly:ppm,change:ppm}' model=iw")


if __name__ == "__main__":
    main()
