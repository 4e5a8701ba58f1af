"""Checkpoints from before filters kept their units: they load, or say what to do.

tests/data/run_before_units is a run of commit ae4c1ec on own data, with answers of that commit.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import numpy as np
import pytest
import torch

from kbr import KbrError, load_filter
from kbr.app.streaming.command import Options, stream
from kbr.core.io import checkpoint

RUN = Path(__file__).parent / "data" / "run_before_units"


def test_a_run_on_own_data_answers_in_the_units_of_its_file(tmp_path, capsys):
    with np.load(RUN / "answers.npz") as known:
        x, mean = known["x"], known["mean"]
    with pytest.warns(UserWarning, match=r"scaling are those of its data\.json"):
        filt = load_filter(str(RUN))
    np.testing.assert_allclose(filt.filter(x).mean, mean, rtol=1e-6)
    named = {"b": x[:, 1], "other": ["word"] * len(x), "a": x[:, 0]}
    np.testing.assert_allclose(filt.filter(named).mean, mean, rtol=1e-6)
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(row) for row in x.tolist()))
    target = tmp_path / "out.jsonl"
    stream(Options(run=str(RUN), input=str(tmp_path / "in.jsonl"), output=str(target)))
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    np.testing.assert_allclose([line["mean"] for line in lines], mean, rtol=1e-6)
    assert lines[0]["names"] == ["yaw [deg]", "v"]
    assert "before filters kept their units" in capsys.readouterr().err


def test_without_its_record_or_with_a_damaged_one_it_is_said(tmp_path):
    shutil.copy(RUN / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")
    with pytest.warns(UserWarning, match="load the whole run folder, or train again"):
        load_filter(tmp_path / "alone.ckpt")
    shutil.copytree(RUN, tmp_path / "run")
    for text in ("{}", "5", "{", json.dumps({"shape": [2], "scale_x": {}, "scale_z": {}})):
        (tmp_path / "run" / "data.json").write_text(text)
        with pytest.raises(KbrError, match=r"data\.json cannot be read .* Train again"):
            load_filter(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize("kind", ["learned", "lstm"])
def test_networks_take_the_scaling_of_the_record(tmp_path, kind):
    """The same run with the units taken out of its checkpoint."""
    from kbr.training.encoders import MLP
    from kbr.training.filters.learned import LearnedFilter
    from kbr.training.filters.lstm import LSTMFilter

    rng = np.random.default_rng(0)
    z = np.cumsum(rng.normal(size=(80, 2)), 0) * [1e-3, 1e4]
    x = z[:, ::-1] + 0.1 * z.std(0)[::-1] * rng.normal(size=z.shape)
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    made = {"learned": LearnedFilter, "lstm": LSTMFilter}[kind](
        encoder=partial(MLP, hidden=(8,)), epochs=2, val_every=2
    )
    made.fit(x, z, folder=tmp_path, trainer=quiet)
    best = tmp_path / "checkpoints" / "best.ckpt"
    content = checkpoint.read(best)
    units = content.pop("units")
    checkpoint.save(best, content)
    plain = {
        side: {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in units[side].items()}
        for side in ("x", "z")
    }
    record = {"shape": [2], "x": ["a", "b"], "z": ["c", "d"], "labels": ["c", "d"]}
    for side, scaling in plain.items():
        record[f"scale_{side}"] = {k: v for k, v in scaling.items() if k != "batch"}
    (tmp_path / "data.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="before filters kept"):
        filt = load_filter(tmp_path)
    torch.testing.assert_close(filt.filter(x).mean, made.filter(x).mean, rtol=1e-6, atol=1e-9)
