"""A small made-up folder with the files of the real recordings, in their format."""

from pathlib import Path

import numpy as np
from scipy.io import savemat

from kbr.app.real import rtt_canteen as walks
from kbr.app.real.battery import TEST_CYCLES, TRAIN_CYCLES

BEACONS = np.array([[0.0, 0.0], [20.0, 0.0], [20.0, 15.0], [0.0, 15.0]])


def write_folder(root: Path) -> Path:
    rng = np.random.default_rng(1000)
    for name, write in {
        "rtt_canteen": _canteen,
        "battery_25degC": _battery,
        "turbofan_fd001": _turbofan,
        "uwb_plaza": _plaza,
    }.items():
        (root / name).mkdir(parents=True)
        write(root / name, rng)
    return root


def loop(rows: int, start: float = 0.0) -> np.ndarray:
    """Positions [T, 2] along a ring in the room of the beacons."""
    angle = start + np.linspace(0, 4 * np.pi, rows)
    return np.stack([10 + 7 * np.cos(angle), 7.5 + 5 * np.sin(angle)], 1)


def _canteen(folder: Path, rng: np.random.Generator) -> None:
    places = rng.uniform(0, 20, (walks.POINTS, 2))
    for walk in (*walks.TRAIN_WALKS, *walks.TEST_WALKS):
        for path, m in walks.PATHS.items():
            z = loop(40, start=walk + int(path))
            true = np.linalg.norm(z[:, None] - places, axis=-1)
            seen = true + 1 + 0.3 * rng.normal(size=true.shape)
            signals = np.stack([seen, 0.1 + 0 * seen, -50 - seen], -1)
            signals[rng.random((40, walks.POINTS)) < 0.03] = 0  # no answer
            table = dict(zip(walks.RANGES, signals.reshape(40, -1).T, strict=True))
            table |= {f"AP{k + 1} True Distance (m)": column for k, column in enumerate(true.T)}
            table |= {name: rng.normal(size=40) for name in (*walks.INERTIAL, "Pitch", "Roll")}
            table |= {"Azimuth": rng.uniform(-np.pi, np.pi, 40)}
            table |= {f"{m} Time Stamp (ms)": 250.0 * np.arange(40)}
            lines = [",".join([*table, f"{m} Ground Truth"])]
            for row, place in zip(zip(*table.values(), strict=True), z, strict=True):
                lines.append(",".join([*map(repr, map(float, row)), f'"[{place[0]}, {place[1]}]"']))
            (folder / f"walk_{walk}_{path}.csv").write_text("\n".join(lines))


def _battery(folder: Path, rng: np.random.Generator) -> None:
    names = "Timestamp,Time [s],Voltage [V],Current [A],Temperature [degC],Capacity [Ah],SOC [-]"
    for cycle in (*TRAIN_CYCLES, *TEST_CYCLES):
        current = -np.abs(rng.normal(3, 1, 60)).repeat(60)  # a new load every minute
        charge = np.cumsum(current) / 3600
        soc = 1 + charge / 3.5
        volts = 3 + 1.2 * soc + 0.03 * current + 0.005 * rng.normal(size=3600)
        warm = 25 + 3 * (1 - soc)
        lines = [names]
        for t in range(3600):
            row = (t, volts[t], current[t], warm[t], charge[t], soc[t])
            lines.append(",".join(["2018-10-28 17:44:00", *(f"{value:.6f}" for value in row)]))
        (folder / f"551_{cycle}.csv").write_text("\n".join(lines))


def _turbofan(folder: Path, rng: np.random.Generator) -> None:
    def lives(ends: list[int], cut: list[int]) -> np.ndarray:
        rows = []
        for engine, (end, rest) in enumerate(zip(ends, cut, strict=True), 1):
            for cycle in range(1, end - rest + 1):
                wear = np.exp(-(end - cycle) / 40)
                sensors = wear * np.linspace(-1, 1, 21) + 0.05 * rng.normal(size=21)
                rows.append([engine, cycle, 0, 0, 100, *(500 + sensors)])
        return np.array(rows)

    ends, cut = [60, 80, 70, 90, 65, 75], [30, 10, 50, 20, 5, 40]
    np.savetxt(folder / "train_FD001.txt", lives(ends, [0] * 6))
    np.savetxt(folder / "test_FD001.txt", lives(ends, cut))
    np.savetxt(folder / "RUL_FD001.txt", cut)


def _plaza(folder: Path, rng: np.random.Generator) -> None:
    for site, shift in (("Plaza1", 0.0), ("Plaza2", 2.0)):
        time = 1e6 + 0.5 * np.arange(300)
        z = loop(300, start=shift)
        which = np.arange(300) % 4
        ranges = np.linalg.norm(z - BEACONS[which], axis=1) + 1 + 0.3 * rng.normal(size=300)
        way = np.linalg.norm(np.diff(z, axis=0, prepend=z[:1]), axis=1)
        heading = np.unwrap(np.arctan2(*np.diff(z, axis=0, append=z[-1:] + 1e-3).T[::-1]))
        savemat(
            folder / f"{site}.mat",
            {
                "TD": np.stack([time, 0 * time, which, ranges], 1),
                "DR": np.stack([time, way, np.diff(heading, prepend=heading[0])], 1),
                "GT": np.column_stack([time, z]),
                "TL": np.column_stack([np.arange(4), BEACONS]),
            },
        )
