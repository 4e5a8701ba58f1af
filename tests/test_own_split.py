"""Where a recording is cut, which rows train and which test."""

import numpy as np
import pytest
from recordings import own, saved, table, turning

from kbr.app.recordings.checks import reading_notes
from kbr.core.errors import KbrError


def jittered(kind: str, rows: int = 600) -> np.ndarray:
    rng = np.random.default_rng(1000)
    steps = {
        "none": np.ones(rows),
        "normal": np.abs(1 + 0.3 * rng.normal(size=rows)) + 1e-3,
        "uniform": 0.05 + 2 * rng.random(rows),
        "two rates": rng.choice([1.0, 2.0], size=rows),
        "exponential": rng.exponential(size=rows) + 1e-3,
    }
    return np.cumsum(steps[kind])


@pytest.mark.parametrize("kind", ["none", "normal", "uniform", "two rates"])
def test_jitter_in_time_cuts_nothing_and_true_gaps_do(tmp_path, kind):
    x, z = turning(600)
    time = jittered(kind)
    recording = own(saved(tmp_path, x=x, z=z, time=time)).recording
    assert recording.sampling().gaps == 0
    assert recording.sampling().irregular == (kind != "none")
    time[300:] += 50
    problem = own(saved(tmp_path, x=x, z=z, time=time))
    assert list(np.flatnonzero(problem.recording.starts())) == [0, 300]
    notes = reading_notes(problem.recording, problem.parts)
    assert "1 gap cuts it into 2 pieces" in notes[0]
    assert "data.max_gap" in notes[0]
    assert any("sampling is irregular" in note for note in notes) == (kind != "none")


def test_random_arrivals_are_not_shredded(tmp_path):
    x, z = turning(600)
    recording = own(saved(tmp_path, x=x, z=z, time=jittered("exponential"))).recording
    assert recording.sampling().gaps < 0.03 * 600


def test_many_cuts_are_said_with_what_to_do(tmp_path):
    """A tenth of the rows of an even grid is lost: these are gaps, and so many that it warns."""
    x, z = turning(600)
    time = np.delete(np.arange(660.0), np.arange(5, 655, 11)[:59])[:600]
    problem = own(saved(tmp_path, x=x, z=z, time=time))
    (note,) = reading_notes(problem.recording, problem.parts)
    assert "into 60 pieces: steps of time longer than 1.5" in note
    assert "10% of the steps are cut: raise data.max_gap" in note
    wide = own(saved(tmp_path, x=x, z=z, time=time), max_gap=2.5)
    assert len(wide.parts.train) == 1
    (note,) = reading_notes(wide.recording, wide.parts)
    assert "sampling is irregular: steps of time from 1 to 2" in note


@pytest.mark.parametrize(
    ("keys", "words"), [({"max_gap": 3}, "no time stamps"), ({"max_gap": 0}, "greater than 0")]
)
def test_a_gap_that_cannot_be_is_refused(tmp_path, keys, words):
    x, z = turning(60)
    with pytest.raises(KbrError, match=words):
        _ = own(saved(tmp_path, x=x, z=z), **keys).parts


def test_what_was_left_out_is_said(tmp_path):
    x, z = turning(120)
    lines = [f"{a},{b},7,{c},{'word'},{9 if t else ''}" for t, (a, b, c) in enumerate(np.c_[x, z])]
    lines[3] = "inf,1,7,2,word,9"
    lines[50] = lines[51] = lines[52]
    path = table(tmp_path, "a,b,fixed,yaw,note,\n" + "\n".join(lines) + "\n")
    problem = own(path, x=["a", "b", "fixed"], z=["yaw"])
    notes = reading_notes(problem.recording, problem.parts)
    assert [note.split(":")[0] for note in notes] == [
        "1 rows have a missing or infinite x",
        "2 rows repeat an earlier row exactly (x and z)",
        "'fixed' of x is constant over the training rows",
        "columns not used",
    ]
    assert notes[-1] == "columns not used: note, (column 6, without a name)"
    both = own(path, x=["a", "yaw"], z=["yaw"])
    assert any("x holds the answer" in n for n in reading_notes(both.recording, both.parts))


def test_training_pieces_cross_no_sequence_gap_or_missing_row(tmp_path):
    x, z = turning(120)
    x[10], z[20] = np.nan, np.nan
    time = np.arange(120.0)
    time[30:] += 5
    sequence = np.repeat([7, 3], 60)
    problem = own(saved(tmp_path, x=x, z=z, time=time, sequence=sequence), split="time")
    pieces = [list(piece) for piece in problem.parts.train]
    assert pieces == [
        list(range(10)),
        list(range(11, 20)),
        list(range(21, 30)),
        list(range(30, 45)),
        list(range(60, 105)),
    ]
    assert [list(p) for p in problem.parts.test] == [list(range(45, 60)), list(range(105, 120))]
    data = problem.data(0)
    assert [len(part) for part in data.z_train] == [10, 9, 9, 15, 45]


def test_interleaved_sequences_are_taken_apart(tmp_path):
    x, z = turning(80)
    ids = np.tile(["b", "a"], 40)
    recording = own(saved(tmp_path, x=x, z=z, sequence=ids)).recording
    np.testing.assert_array_equal(recording.x[:40], x[::2])
    np.testing.assert_array_equal(recording.x[40:], x[1::2])
    assert list(np.flatnonzero(recording.starts())) == [0, 40]


@pytest.mark.parametrize(
    ("split", "sequences", "share", "first_test", "kind"),
    [
        ("time", 1, 0.25, [90], "time"),
        ("auto", 2, 0.5, [30, 90], "time"),
        ("auto", 4, 0.25, [90], "sequence"),
        ("sequence", 4, 0.3, [60, 90], "sequence"),
        ("sequence", 2, 0.9, [60], "sequence"),
    ],
)
def test_splits(tmp_path, split, sequences, share, first_test, kind):
    x, z = turning(120)
    ids = np.arange(120) // (120 // sequences)
    problem = own(saved(tmp_path, x=x, z=z, sequence=ids), split=split, test_share=share)
    assert [int(piece[0]) for piece in problem.parts.test] == first_test
    assert problem.parts.kind == kind
    assert not set(problem.parts.train_rows) & set(problem.parts.test_rows)


def test_the_numbers_of_rows_can_be_limited(tmp_path):
    x, z = turning(120)
    problem = own(saved(tmp_path, x=x, z=z), n_train=40, n_test=7)
    assert list(problem.parts.train_rows) == list(range(50, 90))
    assert list(problem.parts.test_rows) == list(range(90, 97))
