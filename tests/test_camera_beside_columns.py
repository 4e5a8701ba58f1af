"""Frames beside columns: each sensor with a kernel or an encoder of its own, absent by itself."""

import json
import pickle
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from recordings import command, write_csv

import kbr
from kbr import KbrError, KernelBayesFilter, Laplace
from kbr.app.inspect_data import inspect
from kbr.app.streaming.command import Options, stream
from kbr.core.filters.refined.filter import RefinedFilter
from kbr.training import MLP, GRUFilter, LearnedFilter, SensorEncoder, SoftArgmaxCNN

SIDE = 10
QUICK = {"scales": (0.5,), "lams": (1e-2,)}
CPU = {"accelerator": "cpu", "enable_progress_bar": False}


def world(rows, seed, *, absent=0.3):
    """A spot [T, 10, 10], numbers [T, 3] of about 1e6, each absent at times; its place [T, 2]."""
    rng = np.random.default_rng(seed)
    turn = np.cumsum(0.3 + 0.1 * rng.normal(size=rows)) + rng.uniform(0, 6)
    z = np.stack([np.cos(turn), np.sin(turn)], 1)
    at, (u, v) = np.arange(SIDE), (SIDE / 2 + 2.5 * z.T)[..., None, None]
    frames = 200 * np.exp(-((at[None, None] - u) ** 2 + (at[None, :, None] - v) ** 2) / 4)
    frames = np.clip(frames + 10 * rng.normal(size=frames.shape), 0, 255).round()
    imu = 1e6 + 100 * np.stack([z[:, 0], z[:, 1], z[:, 0] * z[:, 1]], 1)
    imu += 30 * rng.normal(size=imu.shape)
    for part in (frames, imu):
        part[rng.random(rows) < absent] = np.nan
    return {"camera": frames, "imu": imu}, z


def error(result, z):
    return float(np.square(result.mean.numpy() - z).sum(1).mean())


def close(a, b):
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-9, atol=1e-6)
    torch.testing.assert_close(a.cov, b.cov, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def trained():
    """A filter of each kind, by name."""
    x, z = world(200, 1000)
    small = partial(SoftArgmaxCNN, channels=4, n_maps=4)
    each = partial(SensorEncoder, encoders={"camera": small}, hidden=32)
    iw_nn = LearnedFilter(encoder=small, epochs=50, lr=1e-2, val_every=50, **QUICK)
    gru = GRUFilter(encoder=each, epochs=60, lr=2e-2, val_every=30, noise=0.3, hidden=16, chunk=50)
    iw = KernelBayesFilter(**QUICK, fusion="product", sensor_kernels={"camera": Laplace()})
    networks = {"iw_nn": iw_nn, "gru": gru}
    return {"iw": iw.fit(x, z)} | {k: net.fit(x, z, trainer=CPU) for k, net in networks.items()}


@pytest.mark.parametrize("name", ["iw", "iw_nn", "gru"])
def test_every_way_in_gives_one_answer(trained, name, tmp_path):
    filt, (x, z) = trained[name], world(60, 1001)
    whole = filt.filter(x)
    absent = {key: np.isnan(part).reshape(60, -1).any(1) for key, part in x.items()}
    assert whole.evidence.tolist() == (~(absent["camera"] & absent["imu"])).tolist()
    assert error(whole, z) < 0.15
    belief = filt.init()
    for t in range(20):
        row = {key: None if absent[key][t] else part[t] for key, part in x.items()}
        belief = filt.step(belief, {"imu": row["imu"], "note": "on", "camera": row["camera"]})
        torch.testing.assert_close(belief.mean, whole.mean[t], rtol=1e-9, atol=1e-6)
    frames = [None if gone else f for f, gone in zip(x["camera"], absent["camera"], strict=True)]
    close(filt.filter({"imu": x["imu"], "camera": frames}), whole)
    close(filt.filter({**x, "camera": x["camera"][:, None]}), whole)  # with its one channel
    filt.save(tmp_path / "filter.ckpt")
    close(kbr.load_filter(tmp_path / "filter.ckpt").filter(x), whole)
    if name == "iw":
        close(pickle.loads(pickle.dumps(filt)).filter(x), whole)
        summary = filt.summary()
        widths = [one.column for one in summary.bandwidths if one.of == "x"]
        assert widths == ["camera", "imu_1", "imu_2", "imu_3"]
        assert "camera (Laplace, bandwidth" in str(summary)


@pytest.mark.parametrize("name", ["iw", "iw_nn", "gru"])
def test_what_is_absent_drops_out_and_the_rest_counts(trained, name):
    filt, (x, z) = trained[name], world(100, 1002, absent=0.0)
    whole = filt.filter(x)
    assert error(whole, z) < 0.1  # of a variance of one
    for gone in x:
        rest = filt.filter({**x, gone: np.full_like(x[gone], np.nan)})
        assert rest.evidence.all()
        assert error(rest, z) < 0.2
        assert (rest.mean - whole.mean).abs().max() > 1e-3
    nothing = filt.filter({key: np.full_like(part, np.nan) for key, part in x.items()})
    assert not nothing.evidence.any()


def test_the_kernel_is_that_of_pixels_scaled_by_channel():
    """The same rows made flat by hand, colours and all."""
    x, z = world(60, 1003)
    colours = np.stack([x["camera"], 3 * x["camera"][:, ::-1] + 7], 1)  # [T, 2, h, w]
    quick = {**QUICK, "fusion": "product"}
    ours = KernelBayesFilter(**quick).fit({"camera": colours, "imu": x["imu"]}, z)
    centred = (colours - np.nanmean(colours, (0, 2, 3), keepdims=True)) / np.nanstd(
        colours, (0, 2, 3), keepdims=True
    )
    scaled = (x["imu"] - np.nanmean(x["imu"], 0)) / np.nanstd(x["imu"], 0)
    flat = np.concatenate([centred.reshape(60, -1), scaled], 1)
    pixels = 2 * SIDE**2
    sensors = {"camera": list(range(pixels)), "imu": [pixels, pixels + 1, pixels + 2]}
    plain = KernelBayesFilter(**quick, standardize=False)
    plain.fit(flat, (z - z.mean(0)) / z.std(0), sensors=sensors)
    expected = plain.filter(flat).mean.numpy() * z.std(0) + z.mean(0)
    found = ours.filter({"imu": x["imu"], "camera": colours}).mean.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_sequences_numbers_angles_and_groups():
    parts = [world(35, seed) for seed in (1004, 1005)]
    tables = [
        {
            "camera": x["camera"],
            "yaw": np.degrees(np.arctan2(z[:, 1], z[:, 0])),
            "ax": x["imu"][:, 0],
            "rest": x["imu"][:, 1:],
        }
        for x, z in parts
    ]
    sensors = {"eye": "camera", "imu": ["ax", "rest"], "compass": ["yaw"]}
    filt = KernelBayesFilter(**QUICK, fusion="product")
    filt.fit(tables, [z for _, z in parts], sensors=sensors, circular=["yaw"])
    known = filt.choice.sensors
    assert known.names == ("eye", "imu", "compass")
    assert known.frames == {"eye": (1, SIDE, SIDE)}
    assert [len(columns) for columns in known.columns] == [SIDE**2, 3, 2]
    assert known.columns[2] == (SIDE**2, SIDE**2 + 1)  # cos and sin, after the pixels
    out = filt.filter(tables[0])
    turned = filt.filter({**tables[0], "yaw": tables[0]["yaw"] + 360})
    torch.testing.assert_close(out.mean, turned.mean, rtol=1e-6, atol=1e-6)
    row = {"camera": None, "yaw": 30.0, "ax": np.nan, "rest": [1e6, 1e6]}
    assert bool(filt.step(filt.init(), row).evidence)


def test_what_cannot_be_is_refused_in_python(trained):
    x, z = world(60, 1006)
    filt = KernelBayesFilter(**QUICK)
    wrong = (
        ({"a": "camera", "b": "gyro"}, "'gyro', which is no column of x: camera, imu"),
        ({"a": ["camera", "imu"]}, "Give frames a sensor of their own"),
        ({"a": "imu"}, "no sensor for camera"),
        ({"a": "camera", "b": ["imu_1", "imu_2"]}, "no sensor for imu_3"),
    )
    for sensors, words in wrong:
        with pytest.raises(KbrError, match=words):
            filt.fit(x, z, sensors=sensors)
    with pytest.raises(KbrError, match="circular names 'camera'"):
        filt.fit(x, z, circular=["camera"])
    with pytest.raises(KbrError, match="as many rows; got camera"):
        filt.fit({**x, "imu": x["imu"][:50]}, z)
    with pytest.raises(KbrError, match="the same parts"):
        filt.fit([x, {**x, "camera": x["camera"][:, :8]}], [z, z])
    with pytest.raises(KbrError, match="camera must be numbers"):
        filt.fit({**x, "camera": x["camera"][:, None, None]}, z)
    with pytest.raises(KbrError, match="RefinedFilter takes columns, or frames; not both"):
        RefinedFilter().fit(x, z)
    other = partial(SensorEncoder, encoders={"lidar": MLP})
    with pytest.raises(KbrError, match="'lidar', which is no sensor; there are camera, imu"):
        LearnedFilter(encoder=other).fit(x, z, trainer=CPU)
    with pytest.raises(KbrError, match="SensorEncoder is for x of several sensors"):
        LearnedFilter(encoder=SensorEncoder).fit(z, z, trainer=CPU)
    for known in trained.values():
        with pytest.raises(KbrError, match="camera must have shape"):
            known.filter({**x, "camera": x["camera"][:, :8]})
        with pytest.raises(KbrError, match="no column 'camera'"):
            known.filter({"imu": x["imu"]})
        with pytest.raises(KbrError, match=r"trained on camera \[1, 10, 10\], imu \[3\]"):
            known.step(known.init(), x["imu"][0])


def record(folder, rows, seed):
    """A folder with frames, and a table of their names, of an IMU and of the place."""
    x, z = world(rows, seed)
    folder.mkdir()
    names = []
    for t, frame in enumerate(x["camera"]):
        names.append(None if np.isnan(frame).any() else f"{t:04d}.png")
        if names[-1]:
            Image.fromarray(frame.astype(np.uint8)).save(folder / names[-1])
    imu = {f"a{k}": [None if np.isnan(v) else v for v in x["imu"][:, k]] for k in range(3)}
    place = {"east": (5e6 + z[:, 0]).tolist(), "north": z[:, 1].tolist()}
    table = {"photo": names, **imu, **place, "word": ["on"] * rows}
    write_csv(folder / "log.csv", table, list(table))
    return x, np.stack([place["east"], place["north"]], 1)


KEYS = ["data.sensors={camera:photo,imu:[a0,a1,a2]}", "data.z=[east,north]", "logger=csv"]
MODELS = {
    "iw": ["model.scales=[0.5]", "model.lams=[0.01]", "model.fusion=product"],
    "iw_nn": [
        "model.filter.epochs=20",
        "model.filter.lr=0.02",
        "model.filter.val_every=20",
        "model.filter.scales=[0.5]",
        "model.filter.lams=[0.01]",
        "model.compare_raw=false",
        "encoder.channels=4",
    ],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with two drives, the runs of both models on the first, and what they said."""
    folder, said = tmp_path_factory.mktemp("drives"), {}
    record(folder / "drive", 140, 1007)
    for model, quick in MODELS.items():
        where = [f"data.path={folder / 'drive'}", f"hydra.run.dir={folder / model}"]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
            command(patch, "train", "data=recording", *where, f"model={model}", *KEYS, *quick)
        said[model] = out.getvalue()
    return folder, record(folder / "new", 30, 1008), said


@pytest.mark.parametrize("model", list(MODELS))
def test_from_an_empty_folder_to_a_stream(recorded, model, tmp_path, monkeypatch):
    at, (x, truth), said = recorded
    assert "of x are there: photo " in said[model]
    chosen = "encoder=sensors is used, with SoftArgmaxCNN for camera"
    assert (chosen in said[model]) == (model == "iw_nn")
    run, new = at / model, at / "new" / "log.csv"
    filt = kbr.load_filter(str(run))
    expected = filt.filter(kbr.read_recording(new, filt))
    by_hand = {"photo": x["camera"], **{f"a{k}": x["imu"][:, k] for k in range(3)}}
    close(filt.filter(by_hand), expected)
    assert error(expected, truth) < 0.5
    belief = filt.init()
    for t in range(5):
        belief = filt.step(belief, {name: values[t] for name, values in by_hand.items()})
        torch.testing.assert_close(belief.mean, expected.mean[t], rtol=1e-9, atol=1e-6)
    rows = [
        {
            name: np.where(np.isnan(v), None, v).tolist()
            for name, v in zip(by_hand, row, strict=True)
        }
        for row in zip(*by_hand.values(), strict=True)
    ]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows))
    for source in (new, at / "new", lines) if model == "iw" else (lines,):
        output = tmp_path / "beliefs.jsonl"
        stream(Options(run=str(run), input=str(source), output=str(output)))
        means = [json.loads(line)["mean"] for line in output.read_text().splitlines()]
        np.testing.assert_allclose(means, expected.mean.numpy(), rtol=1e-9)
    command(monkeypatch, "evaluate", f"run={run}", f"data.path={new}")
    with np.load(run / "evaluation" / "log" / "posterior.npz") as answer:
        np.testing.assert_allclose(answer["mean"][0], means, rtol=1e-9)
    command(monkeypatch, "evaluate", f"run={run}")


def test_arrays_of_an_npz_file(tmp_path, monkeypatch, capsys):
    (x, z), (seen, _) = world(120, 1009), world(20, 1010)
    np.savez(tmp_path / "drive.npz", eye=x["camera"].astype(np.float32), imu=x["imu"], z=z)
    np.savez(tmp_path / "new.npz", eye=seen["camera"], imu=seen["imu"])
    where = [f"data.path={tmp_path / 'drive.npz'}", f"hydra.run.dir={tmp_path / 'run'}"]
    keys = ["data.sensors={camera:eye,imu:imu}", "logger=csv", "model=iw", *MODELS["iw"]]
    kernel = "model.sensor_kernels={camera:{_target_:kbr.Laplace}}"
    command(monkeypatch, "train", "data=recording", *where, *keys, kernel)
    filt = kbr.load_filter(str(tmp_path / "run"))
    assert isinstance(filt.sensor_kernels["camera"], Laplace)
    found = filt.filter(kbr.read_recording(tmp_path / "new.npz", filt))
    close(filt.filter({"eye": seen["camera"], "imu": seen["imu"]}), found)
    capsys.readouterr()
    monkeypatch.setattr("kbr.app.figures.columns.inspect_figures", lambda *_: [])
    inspect([str(tmp_path / "drive.npz")], ["sensors={camera:eye,imu:imu}"])
    said = capsys.readouterr().out
    assert "eye [1, 10, 10], imu [3]" in said
    assert "x: imu_3" in said


def test_bad_recordings_are_named(recorded, tmp_path, monkeypatch, capsys):
    at, run = recorded[0], recorded[0] / "iw"

    def refused(words, *keys, script="train"):
        with pytest.raises(SystemExit):
            command(monkeypatch, script, *keys)
        assert words in " ".join(capsys.readouterr().err.split())

    drive = ["data=recording", f"data.path={at / 'drive'}", f"hydra.run.dir={tmp_path / 'bad'}"]
    refused("model=iw_refined takes whole rows", *drive, *KEYS, "model=iw_refined")
    refused("model=knn takes whole rows", *drive, *KEYS, "model=knn")
    unknown = ["data.sensors={camera:foto,imu:[a0,a1,a2]}", *KEYS[1:]]
    refused("has no column 'foto'. Did you mean 'photo'?", *drive, *unknown, "model=iw")
    kernels = "model.sensor_kernels={lidar:{_target_:kbr.Laplace}}"
    refused(
        "'lidar', which is no sensor; there are camera, imu", *drive, *KEYS, "model=iw", kernels
    )
    for name, side in (("other", SIDE + 2), ("lost", None), ("dark", None)):
        record(tmp_path / name, 12, 1011)
        for picture in sorted((tmp_path / name).glob("*.png")):
            if side is not None:
                Image.open(picture).resize((side, side)).save(picture)
        if name == "lost":
            picture.unlink()
    evaluate = [f"run={run}", f"data.path={tmp_path / 'other'}"]
    refused("photo in", *evaluate, script="evaluate")
    refused(
        "[1, 12, 12] in each row; the filter was trained on [1, 10, 10]",
        *evaluate,
        script="evaluate",
    )
    refused("which is no file", f"run={run}", f"data.path={tmp_path / 'lost'}", script="evaluate")
    text = (tmp_path / "dark" / "log.csv").read_text().splitlines()
    blank = [text[0], *("," + line.partition(",")[2] for line in text[1:])]
    (tmp_path / "dark" / "log.csv").write_text("\n".join(blank))
    filt = kbr.load_filter(str(run))  # a camera that is off throughout is absent
    assert filt.filter(kbr.read_recording(tmp_path / "dark", filt)).evidence.any()
