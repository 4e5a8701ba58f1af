"""Synthetic data like an inertial sensor's: heading and speed of a small vehicle.

Several drives around a track. The sensor measures forward and sideways acceleration, the turn rate
(with a bias of its own in every drive) and two axes of a disturbed compass, all noisy; now and then
it drops out. The state is the heading, an angle, and the speed. Run with:

    python examples/imu.py
"""

import argparse
from pathlib import Path

import numpy as np

STEP = 0.1  # seconds
HEADER = ["drive", "t", "ax", "ay", "gyro", "mx", "my", "yaw", "speed"]


def drive(rng: np.random.Generator, rows: int) -> np.ndarray:
    """One drive as rows [t, ax, ay, gyro, mx, my, yaw, speed]; yaw in degrees, in (-180, 180]."""
    t = STEP * np.arange(rows)
    start, sense = rng.uniform(-np.pi, np.pi), rng.choice([-1.0, 1.0])
    rate = sense * (0.5 + 0.3 * np.sin(0.7 * t + rng.uniform(0, 6))) + _wander(rng, rows, 0.1)
    yaw = start + np.cumsum(rate) * STEP
    speed = 3 + np.cos(2 * yaw) + _wander(rng, rows, 0.15)
    ahead = np.gradient(speed, STEP)
    sensed = np.stack([ahead, speed * rate, rate + rng.normal(0, 0.05), np.cos(yaw), -np.sin(yaw)])
    sensed += rng.normal(size=sensed.shape) * np.array([0.5, 0.3, 0.05, 0.35, 0.35])[:, None]
    sensed[:, rng.random(rows) < 0.02] = np.nan  # drop-outs
    degrees = np.degrees(np.angle(np.exp(1j * yaw)))
    return np.column_stack([t, *sensed, degrees, speed])


def _wander(rng: np.random.Generator, rows: int, size: float) -> np.ndarray:
    """Noise with a memory of about two seconds."""
    keep, path = np.exp(-STEP / 2), [0.0]
    for shock in size * np.sqrt(1 - keep**2) * rng.normal(size=rows - 1):
        path.append(keep * path[-1] + shock)
    return np.array(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("imu.csv"))
    parser.add_argument("--drives", type=int, default=8)
    parser.add_argument("--rows", type=int, default=150, help="of each drive")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    lines = [",".join(HEADER)]
    for number in range(arguments.drives):
        for row in drive(rng, arguments.rows):
            cells = ["" if np.isnan(value) else f"{value:.5g}" for value in row]
            lines.append(",".join([f"drive{number}", *cells]))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(lines) + "\n")
    names = "data.x=[ax,ay,gyro,mx,my] data.z=[yaw,speed] data.circular=[yaw]"
    borders = "data.sequence=drive data.time=t"
    print(f"wrote {arguments.output}: {arguments.drives} drives of {arguments.rows} rows\n")
    print(f"  kbr-inspect {arguments.output} \\")
    print(f"    {names.replace('data.', '')} {borders.replace('data.', '')}")
    print(f"  python train.py data=recording data.path={arguments.output} \\\n    {names} \\")
    print(f"    {borders} 'data.units={{speed:m/s}}' model=iw")


if __name__ == "__main__":
    main()
