"""Runs as the sections of a report: what is varied, and what may be paired with what."""

import pytest
from run_folders import write_run

from kbr.app.report.comparison import Report, report_of
from kbr.app.runs.finished import collect


def report(folder) -> Report:
    return report_of(collect([folder]))


def test_duplicate_seeds_are_said_and_the_first_kept(tmp_path):
    write_run(tmp_path / "a", errors={0: 1.0, 1: 2.0})
    write_run(tmp_path / "b", errors={1: 5.0, 2: 3.0})
    made = report(tmp_path)
    (section,), problems = made.comparisons, made.problems
    assert [float(row["mse"]) for row in section.rows] == [1.0, 2.0, 3.0]
    assert len(problems) == 1
    assert "seed(s) 1 twice, with different errors" in problems[0]


def test_a_key_that_is_varied_is_the_x_axis_or_part_of_the_name(tmp_path):
    for sigma in (0.1, 0.2):
        for encoder in ("cnn", "mlp"):
            folder = write_run(
                tmp_path / f"{sigma}{encoder}",
                errors={0: sigma, 1: sigma},
                overrides=(f"data.sigma_x={sigma}", f"encoder={encoder}", "trainer=cpu"),
                config={"data": {"name": "rotation", "n_train": 100, "sigma_x": sigma}},
            )
            path = folder / ".hydra" / "hydra.yaml"
            path.write_text(path.read_text().replace("encoder: cnn", f"encoder: {encoder}"))
    made = report(tmp_path)
    (section,), problems = made.comparisons, made.problems
    assert problems == []
    assert section.x == "data.sigma_x"
    assert section.models == ["iw encoder=cnn", "iw encoder=mlp"]
    assert len(section.rows) == 8


def test_other_test_sequences_are_not_paired(tmp_path):
    """A second varied key of the data makes sections, as it changes the test sequences."""
    for n in (100, 300):
        for sigma in (0.1, 0.9, 1.0):
            for model in ("iw", "ekf"):
                write_run(
                    tmp_path / f"{n}{sigma}{model}",
                    model=model,
                    n_train=n,
                    errors={seed: sigma + seed for seed in range(7)},
                    overrides=(f"data.sigma_x={sigma}",),
                    config={"data": {"name": "rotation", "n_train": n, "sigma_x": sigma}},
                )
    made = report(tmp_path)
    sections, problems = made.comparisons, made.problems
    assert problems == []
    names = ["rotation sigma_x=0.1", "rotation sigma_x=0.9", "rotation sigma_x=1"]
    assert sorted(section.data for section in sections) == names
    for section in sections:
        assert section.x == "n_train"
        assert section.models == ["iw", "ekf"]
        assert len(section.rows) == 28


@pytest.mark.parametrize("lengths", [(100, 100), (100, 200)])
def test_recordings_are_data_sets_of_their_own(tmp_path, lengths):
    for path, n in zip(("a.npz", "b.npz"), lengths, strict=True):
        write_run(
            tmp_path / path,
            data="npz",
            n_train=n,
            errors={0: float(n)},
            overrides=(f"data.path={path}",),
            config={"data": {"name": "npz", "n_train": n, "path": path}},
        )
    made = report(tmp_path)
    sections, problems = made.comparisons, made.problems
    assert problems == []
    assert [(section.data, len(section.rows)) for section in sections] == [
        ("npz a.npz", 1),
        ("npz b.npz", 1),
    ]


def test_the_reference_is_found_where_varied_keys_are_part_of_names(tmp_path):
    """original lam=0.01 comes first; the figure asks for iw, which is now iw lam=0.1."""
    for model, lam in (("original", 0.01), ("iw", 0.1)):
        write_run(
            tmp_path / model,
            model=model,
            errors={seed: lam + seed for seed in range(6)},
            overrides=(f"model.lam={lam}", f"model.rule={model}"),
            config={
                "model": {"name": model, "lam": lam, "rule": model},
                "figure": {"reference": "iw", "models": ["original", "iw"]},
            },
        )
    (section,) = report(tmp_path).comparisons
    assert len(section.models) == 2
    assert section.reference is not None
    assert section.reference.startswith("iw ")
