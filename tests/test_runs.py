"""Run folders: claimed by one run, resumed with their own settings, never trained over."""

import csv
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import call
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from kbr.app import cli
from kbr.app.config.resolvers import flat
from kbr.app.run import claim as claim_module
from kbr.app.run import train as train_module
from kbr.app.run.claim import claim
from kbr.app.run.folder import write_json
from kbr.app.run.record import fingerprint, manifest, why_unfinished
from kbr.app.run.resume import use_saved_settings
from kbr.app.run.train import objective, trial_seeds
from kbr.app.sweep.callback import begin_run
from kbr.app.text.commands import command, resume_command, setting
from kbr.core.errors import KbrError

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "data=dsprites",
    "data.n_train=40",
    "data.n_test=10",
    "model.compare_raw=false",
    "model.filter.n_fourier=16",
    "model.filter.checkpoint_every=5",
    "model.filter.patience=1000",
    "encoder.channels=2",
    "encoder.n_maps=2",
    "trials=2",
    "logger=csv",
    "trainer=cpu",
]


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", overrides=list(overrides), return_hydra_config=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def wait_for(found, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not found() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def by_clock(monkeypatch, tmp_path):
    """A process that named its run by the time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBR_RUN_ID", "noon")
    monkeypatch.setenv("KBR_RUN_ID_BY_CLOCK", str(os.getpid()))
    yield
    for lock in claim_module._held:
        lock.release()
    claim_module._held.clear()


def test_runs_of_the_same_second_get_different_folders(by_clock):
    config = composed("data=rotation", "model=iw")
    made = []
    for _ in range(3):
        os.environ["KBR_RUN_ID"] = "noon"  # as another process has it
        made.append(claim(config, "hydra.run.dir"))
        assert str(made[-1]) == config.hydra.run.dir  # where Hydra will write
    assert [folder.name for folder in made] == [
        f"n500_seed0_noon{number}" for number in ("", "_2", "_3")
    ]
    sweeps = []
    for _ in range(2):
        os.environ["KBR_RUN_ID"] = "noon"
        sweeps.append(claim(config, "hydra.sweep.dir").name)
    assert sweeps == ["sweep_noon", "sweep_noon_2"]


def test_ids_by_the_clock_are_told_from_those_of_launchers(monkeypatch):
    for name in ("KBR_RUN_ID", "KBR_RUN_ID_BY_CLOCK", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cli._prepare()
    assert os.environ["KBR_RUN_ID_BY_CLOCK"] == str(os.getpid())
    for name in ("KBR_RUN_ID", "KBR_RUN_ID_BY_CLOCK"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    cli._prepare()
    assert os.environ["KBR_RUN_ID"] == "1.0"
    assert "KBR_RUN_ID_BY_CLOCK" not in os.environ
    monkeypatch.delenv("KBR_RUN_ID")


def written(folder: Path, *overrides: str) -> None:
    """A folder as Hydra leaves it when a run has begun."""
    config = composed(*overrides)
    del config._content["hydra"]
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config))


def test_a_folder_that_is_in_use_or_holds_another_run_is_refused(by_clock, tmp_path):
    given = ["data=rotation", "model=iw", f"hydra.run.dir={tmp_path}/run"]
    claim(composed(*given), "hydra.run.dir")
    with pytest.raises(KbrError, match=r"run is in use by another run.*hydra\.run\.dir"):
        claim(composed(*given), "hydra.run.dir")
    claim_module._held.pop().release()
    written(tmp_path / "run", *given[:2])
    claim(composed(*given, "trainer=cpu", "logger=csv"), "hydra.run.dir")  # goes on, or begins anew
    claim_module._held.pop().release()
    with pytest.raises(KbrError, match=r"another run: seed was 0, is 1"):
        claim(composed(*given, "seed=1"), "hydra.run.dir")
    with pytest.raises(KbrError, match="holds a single run"):
        claim(composed(*given, f"hydra.sweep.dir={tmp_path}/run"), "hydra.sweep.dir")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(KbrError, match="holds a finished run"):
        claim(composed(*given), "hydra.run.dir")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "results.csv").write_text("")
    with pytest.raises(KbrError, match=r"holds results\.csv of another run or sweep"):
        claim(composed(*given[:2], f"hydra.run.dir={tmp_path}/sweep"), "hydra.run.dir")


def test_an_experiment_without_m_is_refused_with_the_command(by_clock, tmp_path):
    config = composed("experiment=low_dim", "quick=true")
    config.hydra.overrides.task = ["experiment=low_dim", "quick=true", "data.n_train=10,20"]
    with pytest.raises(KbrError, match=r"-m experiment=low_dim quick=true data.n_train=10,20$"):
        begin_run(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["plain/x", "a b", "it's", 'a"b', "a=b", "a,b", "null", "17", "x\\y", "{a}"]
)
def test_commands_can_be_pasted(name):
    line = resume_command(Path(name), ["mine.nets"])
    shell = ["sh", "-c", f"python() {{ printf '%s\\n' \"$@\"; }}; {line}"]
    _, typed, trust = subprocess.run(
        shell, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    (parsed,) = OverridesParser.create().parse_overrides([typed])
    assert parsed.value() == name
    assert trust == "trust=[mine.nets]"
    assert setting("run", "outputs/a_b-1+c") == "run=outputs/a_b-1+c"


def test_commands_are_those_the_user_knows(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kbr-train"])
    assert command("evaluate", "run=x") == "kbr-evaluate run=x"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert command("evaluate", "run=x") == "python evaluate.py run=x"


def test_long_names_of_cells_are_shortened_and_stay_apart():
    long = ["data.x-" + "[abc]" * 80 + end for end in "ab"]
    short = [flat(name) for name in long]
    assert all(len(name.encode()) <= 255 for name in short)
    assert short[0] != short[1]
    assert len(flat("ä" * 300).encode()) <= 255
    assert flat("a/b") == "a_b"


def finished(folder: Path, config) -> str:
    folder.mkdir()
    write_json(folder / "metrics.json", {"test/mse": 1.0, "val/mse": 2.0})
    (folder / "results.csv").write_text("seed,mse\n0,1.0\n")
    mark = fingerprint(config)
    write_json(folder / "run.json", manifest(folder, mark))
    return mark


def test_a_cell_is_finished_only_with_its_data_version_and_results(tmp_path, monkeypatch):
    recording = tmp_path / "log.csv"
    recording.write_text("x,z\n1,2\n")
    config = composed("data=recording", f"data.path={recording}", "model=iw")
    del config._content["hydra"]
    mark = finished(tmp_path / "cell", config)
    assert why_unfinished(tmp_path / "cell", mark) is None
    assert why_unfinished(tmp_path / "none", mark) == ""
    recording.write_text("x,z\n1,3\n")
    assert "changed" in why_unfinished(tmp_path / "cell", fingerprint(config))
    recording.write_text("x,z\n1,2\n")
    assert fingerprint(config) == mark
    monkeypatch.setattr("kbr.__version__", "99")
    assert fingerprint(config) != mark
    for name in ("metrics.json", "results.csv"):
        before = (tmp_path / "cell" / name).read_text()
        for text in ("5", before.replace("1.0", "0.1"), ""):
            (tmp_path / "cell" / name).write_text(text)
            assert name in why_unfinished(tmp_path / "cell", mark)
        (tmp_path / "cell" / name).write_text(before)
    (tmp_path / "cell" / "checkpoints").mkdir()
    (tmp_path / "cell" / "checkpoints" / "best.ckpt").write_bytes(b"of another run")
    assert "best.ckpt" in why_unfinished(tmp_path / "cell", mark)
    (tmp_path / "cell" / "run.json").write_text("[1]")
    assert "run.json" in why_unfinished(tmp_path / "cell", mark)


def test_folders_of_frames_count_with_their_content(tmp_path):
    (tmp_path / "frames" / "deep").mkdir(parents=True)
    (tmp_path / "frames" / "deep" / "1.png").write_bytes(b"a")
    config = composed("data=dmlab", f"data.frames={tmp_path}/frames", "model=iw")
    del config._content["hydra"]
    before = fingerprint(config)
    (tmp_path / "frames" / "deep" / "1.png").write_bytes(b"bc")
    assert fingerprint(config) != before


def test_seeds_that_no_generator_takes_are_refused():
    for key, value in (("seed", 2**70), ("seed", -1), ("trials", 0)):
        with pytest.raises(KbrError, match=rf"{key} must be .* got {value}"):
            trial_seeds(composed(f"{key}={value}"))
    assert trial_seeds(composed("seed=9223372036854775805", "trials=2"))[1] == 2**63 - 2


def test_sweepers_minimise_the_validation_error():
    assert objective({"test/mse": 1.0, "val/mse": 2.0}) == 2.0
    assert objective({"test/mse": 1.0, "val/mse_standardised": 3.0}) == 3.0
    assert objective({"test/mse": 1.0, "chosen/lam": 3.0}) is None


def cell(folder: Path, *overrides: str) -> float | None:
    """What a sweeper that searches gets from one of its cells."""
    config = composed(*overrides, "debug=smoke", "trainer=cpu", f"hydra.sweep.dir={folder}")
    OmegaConf.set_readonly(config.hydra, False)
    config.hydra.sweeper = {"_target_": "some.Search"}
    HydraConfig.instance().set_config(config)
    del config._content["hydra"]
    try:
        return train_module._run(config, folder, sweeping=True)
    finally:
        HydraConfig.instance().cfg = None


def test_a_search_gets_the_validation_error_or_is_refused(by_clock, tmp_path):
    found = cell(tmp_path / "iw", "data=rotation", "model=iw")
    metrics = json.loads((tmp_path / "iw" / "metrics.json").read_text())
    assert found == metrics["val/mse"] != metrics["test/mse"]
    with pytest.raises(KbrError, match=r"model=ekf on data=rotation has no validation error"):
        cell(tmp_path / "ekf", "data=rotation", "model=ekf")
    assert not (tmp_path / "ekf" / "run.json").exists()


def begun(folder: Path, *overrides: str) -> None:
    """A folder of a training that was killed after its first checkpoint."""
    written(folder, *overrides)
    choices = OmegaConf.to_container(composed(*overrides).hydra.runtime.choices)
    hydra = {"hydra": {"runtime": {"choices": choices}}}
    (folder / ".hydra" / "hydra.yaml").write_text(OmegaConf.to_yaml(hydra))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"")


def resumed(folder: Path, *overrides: str):
    config = composed(f"resume={folder}", *overrides)
    use_saved_settings(config)
    return config


def test_settings_of_a_resumed_run_are_those_of_its_folder(by_clock, tmp_path):
    begun(tmp_path / "run", "model=lstm", "model.filter.window=5", "seed=7", "trainer.threads=2")
    config = resumed(tmp_path / "run")
    assert (config.model.name, config.model.filter.window, config.seed) == ("lstm", 5, 7)
    assert config.trainer.threads == 2
    assert config.hydra.run.dir == config.resume == str(tmp_path / "run")
    assert config.hydra.output_subdir is None  # so Hydra does not write its files again
    assert config.hydra.runtime.choices.model == "lstm"
    config = resumed(tmp_path / "run", "model=lstm", "seed=7", "trainer=ddp_cpu", "logger=csv")
    assert config.trainer.timeout == 600
    assert config.logger.name == "csv"
    assert resumed(tmp_path / "run", "trainer.precision=64-true").trainer.threads == 2


def test_a_resume_that_is_refused_changes_nothing(by_clock, tmp_path):
    folder = tmp_path / "run"
    begun(folder, "seed=7")
    before = contents(tmp_path)
    for changed, words in {
        "model=iw": "model was iw_nn, is iw",
        "seed=3": "seed was 7, is 3",
        "model.filter.lr=1.0": r"model.filter.lr was 0.003, is 1.0",
        "+data.more=1": "data.more was None, is 1",
        "~model.filter.lr": "model.filter.lr was 0.003, is None",
        "debug=smoke": "debug was None, is smoke",
        f"hydra.run.dir={tmp_path}/other": "Leave out hydra.run.dir",
    }.items():
        with pytest.raises(KbrError, match=words):
            resumed(folder, changed)
    with pytest.raises(KbrError, match="no run folder"):
        resumed(tmp_path / "absent")
    with pytest.raises(KbrError, match="is no run folder"):
        resumed(tmp_path)
    (folder / "checkpoints" / "last.ckpt").rename(tmp_path / "kept")
    with pytest.raises(KbrError, match="no checkpoint to go on from"):
        resumed(folder)
    (tmp_path / "kept").rename(folder / "checkpoints" / "last.ckpt")
    assert contents(tmp_path) == before
    (folder / "run.json").write_text("{}")
    with pytest.raises(KbrError, match="is finished"):
        resumed(folder)


def test_ctrl_c_and_the_printed_command_goes_on(tmp_path):
    """A name that needs quotes, two trials, and settings that only the folder has."""
    folder = tmp_path / "a b,c=d"
    stopped = start(*SMALL, "model.filter.epochs=40", setting("hydra.run.dir", folder))
    wait_for(lambda: list(folder.glob("seed_1/checkpoints/last.ckpt")), stopped)
    os.killpg(stopped.pid, signal.SIGINT)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, errors
    assert "Traceback" not in errors
    line = errors.strip().splitlines()[-1]
    assert line.startswith("kbr: stopped by Ctrl-C. The last checkpoint is ")
    before = contents(folder / ".hydra")
    python, script, *typed = shlex.split(line.partition("Go on: ")[2])
    assert python == "python"
    again = call(*typed, script=script)
    assert again.returncode == 0, again.stderr
    assert contents(folder / ".hydra") == before
    page = (folder / "report.html").read_text()  # its commands are those of a new run
    assert "resume=" not in page
    assert "data.n_train=40" in page
    assert json.loads((folder / "metrics.json").read_text())["test/trials"] == 2
    with (folder / "seed_1" / "csv" / "metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps)
    assert min(steps) < 10


@pytest.mark.parametrize("launcher", [None, "side_by_side"])
def test_ctrl_c_ends_a_sweep_with_the_command_that_goes_on(tmp_path, launcher):
    given = ["-m", "data=rotation", "model=iw", "data.n_train=1500,1600", "trials=30"]
    given += [f"hydra.sweep.dir={tmp_path}"]
    given += [f"hydra/launcher={launcher}"] if launcher else []
    stopped = start(*given)
    wait_for(lambda: list(tmp_path.glob("*/.hydra/config.yaml")), stopped)
    time.sleep(1)
    os.killpg(stopped.pid, signal.SIGINT)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, errors
    lines = errors.strip().splitlines()
    ours = [line for line in lines if line.startswith("kbr: stopped by Ctrl-C.")]
    assert len(ours) == 1, errors
    assert launcher or lines == ours, errors  # a worker that is killed may say a word of its own
    (line,) = ours
    assert "train.py -m data=rotation model=iw data.n_train=1500,1600 trials=30" in line
    assert f"hydra.sweep.dir={tmp_path}" in line


def test_ctrl_c_before_anything_is_saved_leaves_no_folder(tmp_path):
    folder = tmp_path / "run"
    stopped = start(
        "data=rotation", "model=iw", "data.n_train=1500", "trials=40", f"hydra.run.dir={folder}"
    )
    wait_for(lambda: (folder / ".hydra" / "config.yaml").is_file(), stopped)
    time.sleep(1)
    os.killpg(stopped.pid, signal.SIGINT)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130
    (line,) = errors.strip().splitlines()
    assert line.startswith("kbr: stopped by Ctrl-C. Nothing was saved yet")
    assert not folder.exists()


def test_a_damaged_cell_is_run_again_and_said(tmp_path):
    given = ["-m", "data=rotation", "data.n_train=30", "data.n_test=10", "model=ekf,ukf"]
    given += [f"hydra.sweep.dir={tmp_path}"]
    assert call(*given).returncode == 0
    first = results(tmp_path)
    cell = next(tmp_path.glob("*model-ekf*"))
    (cell / "metrics.json").write_text("5")
    again = call(*given)
    assert again.returncode == 0, again.stderr
    assert "is run again: metrics.json is missing, damaged or altered" in again.stdout
    assert again.stdout.count("already finished") == 1
    assert "test/mse" in json.loads((cell / "metrics.json").read_text())
    assert results(tmp_path) == first


def results(folder):
    """The rows of a sweep, without what differs from run to run."""
    with (folder / "results.csv").open() as file:
        every = csv.DictReader(file)
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in every]


def test_auto_avoids_devices_without_float64(monkeypatch, capsys):
    from kbr.app.run.trainer import trainer_settings

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert trainer_settings(composed("trainer=auto"))["accelerator"] == "cpu"
    assert "MPS has no float64" in capsys.readouterr().out
    with pytest.raises(KbrError, match="no float64"):
        trainer_settings(composed("trainer=auto", "trainer.accelerator=mps"))
