"""Sweeps: how far one is, and the estimate of the time left."""

import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import kbr.app.cli  # noqa: F401  (registers the resolvers)
from kbr.app.sweep.grid import grid_of
from kbr.app.sweep.progress import Cells, Part, SweepProgress, cells_done, seconds_left
from kbr.app.text.numbers import duration, in_digits

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def ran(start: float, end: float, cell: str = "a", share: float = 1.0) -> Part:
    return Part(cell=cell, share=share, start=start, end=end)


def skipped(at: float, cell: str) -> Part:
    return Part(cell=cell, share=1.0, start=at, end=at, skipped=True)


ALIKE = dict.fromkeys("abcdef", 1.0)


def test_the_estimate_is_the_time_of_a_cell_times_those_left():
    assert seconds_left([ran(0, 10, "a"), ran(10, 30, "b")], ALIKE) == pytest.approx(60)


def test_skipped_cells_do_not_spoil_the_estimate():
    parts = [skipped(0, "a"), skipped(1, "b"), skipped(2, "c"), ran(3, 13, "d")]
    assert seconds_left(parts, ALIKE) == pytest.approx(20)
    assert seconds_left(parts[:3], ALIKE) is None


def test_cells_side_by_side_share_the_clock():
    assert seconds_left([ran(0, 10, "a"), ran(0, 10, "b")], ALIKE) == pytest.approx(20)


def test_long_cells_weigh_more_in_the_estimate():
    assert seconds_left([ran(0, 60, "a")], {"a": 6.0, "b": 2.0, "c": 1.0}) == pytest.approx(30)


def test_trials_of_a_cell_count_before_it_ends():
    parts = [ran(0, 10, "a", 0.25), ran(10, 20, "a", 0.25)]
    assert seconds_left(parts, {"a": 1.0, "b": 1.0}) == pytest.approx(60)
    assert cells_done(parts) == 0
    assert cells_done([*parts, ran(20, 40, "a", 0.5)]) == 1


def test_without_a_plan_there_is_no_estimate():
    assert seconds_left([ran(0, 1)], None) is None


def test_a_cell_costs_as_its_model_and_its_length():
    grid = {"model": ["lstm", "iw"], "data.n_train": ["900", "300"], "seed": ["0"]}
    plan = Cells.of(grid, {"lstm": 6})
    assert plan.varied == ["model", "data.n_train"]
    assert plan.costs == {
        "lstm n_train=900": 5400,
        "lstm n_train=300": 1800,
        "iw n_train=900": 900,
        "iw n_train=300": 300,
    }


def test_long_trials_are_said_with_the_time_left(tmp_path, capsys):
    progress = SweepProgress(path=tmp_path / ".progress", cell="lstm")
    progress.begin(Cells.of({"model": ["lstm", "iw"]}, {}))
    now = time.time()
    progress.trial_ended(now - 20, 1, 4, skipped=False)
    said = " ".join(capsys.readouterr().out.split())
    assert said == "[0/2] lstm trial 1 of 4 20 s ~2 min left"
    progress.trial_ended(now - 1, 2, 4, skipped=False)  # short: counted, not said
    assert capsys.readouterr().out == ""
    progress.cell_ended(now - 40, "0.1000", skipped=False)
    assert capsys.readouterr().out.startswith("[1/2] lstm ")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.42, "0.4 s"), (40, "40 s"), (720, "12 min"), (12600, "3.5 h")]
)
def test_times_in_words(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        (0.05071, "0.0507"),
        (12.3456, "12.346"),
        (1234.56, "1234.6"),
        (1234567.9, "1.2e+06"),
        (1.2e-5, "1.2e-05"),
        (0.0, "0.0000"),
    ],
)
def test_errors_in_few_digits(value, digits):
    assert in_digits(value) == digits


def test_a_standard_error_has_the_digits_of_its_mean():
    assert in_digits(0.00031, like=0.0085) == "0.0003"


def test_a_line_that_is_being_written_does_not_stop_a_run(tmp_path):
    timeline = SweepProgress(path=tmp_path / ".progress")
    timeline.begin(Cells(varied=["model"], costs={"a": 1.0}))
    with timeline.path.open("a") as file:
        file.write('{"cell": "a", "sha')
    cells, parts = timeline.read()
    assert cells.varied == ["model"]
    assert parts == []
    timeline.path.unlink()
    timeline.path.mkdir()  # nothing can be written or read there
    assert timeline.add(ran(0, 1)) == (Cells(), [])


def test_a_clock_set_back_gives_no_negative_time():
    assert seconds_left([ran(100, 10)], ALIKE) == 0


def test_globs_are_left_to_hydra():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", return_hydra_config=True)
    OmegaConf.set_readonly(config, False)
    config.hydra.overrides.task = ["model=glob(iw*)"]
    assert grid_of(config.hydra) is None


def test_the_timeline_is_shared_through_its_file(tmp_path):
    one, two = (SweepProgress(path=tmp_path / "progress") for _ in range(2))
    plan = Cells(varied=["model"], costs={"a": 1.0, "b": 2.0})
    one.begin(plan)
    one.add(ran(0, 1))
    assert two.read()[0] == plan
    assert two.add(skipped(2, "b")) == (plan, [ran(0, 1), skipped(2, "b")])


@pytest.mark.parametrize(
    ("overrides", "total"),
    [
        (["experiment=low_dim"], 50),
        (["experiment=low_dim", "model=iw", "data.n_train=10,20,30"], 6),
        (
            ["data=rotation,oscillatory", "seed=range(0,5)", "model.scales=[1.0,2.0]", "model=iw"],
            10,
        ),
        (["data=rotation"], 1),
    ],
)
def test_the_number_of_cells_is_known_beforehand(overrides, total):
    """Overrides on the command line take the place of the experiment's own."""
    experiment = [text for text in overrides if text.startswith("experiment")]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=experiment, return_hydra_config=True)
    OmegaConf.set_readonly(config, False)
    config.hydra.overrides.task = overrides
    costs = Cells.of(grid_of(config.hydra), {}).costs
    assert costs is not None
    assert len(costs) == total
