"""battery: the state of charge of an LG HG2 cell at 25 degC, from what can be measured outside.

x: voltage, current and temperature; u: the current, which moves the state; z: state of charge, in
[0, 1]. It was computed by counting charge, so that an integral of the current is close to it; the
counter itself (columns of capacity) is never read. Mixed1 to Mixed8 train; UDDS, LA92, US06 test.
"""

from pathlib import Path

from kbr.app.real.sequences import RealRecording, file_of, folder_of, named
from kbr.app.recordings.read import Source
from kbr.app.recordings.resample import resampled

SOURCE = (
    "Get it from GitHub: ArpanBiswas99/Battery-State-of-Charge-Estimation (MIT licence), folder "
    "dataset/LG_HG2_processed/25degC; data of Kollmeyer et al. 2020 (CC BY 4.0)."
)
X = ("Voltage [V]", "Current [A]", "Temperature [degC]")
U, Z, TIME = ("Current [A]",), ("SOC [-]",), "Time [s]"
TRAIN_CYCLES = tuple(f"Mixed{k}" for k in range(1, 9))
TEST_CYCLES = ("UDDS", "LA92", "US06")


def battery(root: str | Path | None, *, step: float | None = 30.0) -> RealRecording:
    """8 discharges to train on and 3 to test on, in steps of seconds (None: as recorded)."""
    folder = folder_of(root, "battery_25degC", SOURCE)
    cycles = (*TRAIN_CYCLES, *TEST_CYCLES)
    paths = [file_of(folder, SOURCE, f"*_{cycle}.csv") for cycle in cycles]
    found = Source(path=paths, x=X, z=Z, u=U, time=TIME).read()
    found = named(found, found.files[len(TRAIN_CYCLES) :])
    return RealRecording(recording=found if step is None else resampled(found, step))
