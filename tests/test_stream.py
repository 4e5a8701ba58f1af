"""kbr-filter: the batch filter's numbers, one line at a time, whatever the lines hold."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.app.stream import Options, main, parse, stream
from kbr.core.datasets.dynamics import Rotation

DATA = Rotation().generate(n_train=80, n_test=20, seed=0)
RULE = ImportanceWeightedRule(lam=1e-2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    filt = KernelBayesFilter(rule=RULE, eta=1e-4, scales=(1.0,)).fit(DATA.x_train, DATA.z_train)
    path = tmp_path_factory.mktemp("filter") / "filter.ckpt"
    assert bool((filt.calibration.factor > 0).all())
    filt.save(path)
    return filt, str(path)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(x):
    return "\n".join("null" if np.isnan(row).any() else json.dumps(row.tolist()) for row in x)


def observations():
    x = DATA.x_test.double().numpy().copy()
    x[[0, 5, 6]] = np.nan
    x[12] = 1e7
    return x


@pytest.mark.parametrize("kind", ["jsonl", "csv", "npz", "objects"])
def test_lines_equal_the_batch_filter(saved, tmp_path, kind):
    filt, run = saved
    x = observations()
    source = tmp_path / f"in.{'jsonl' if kind == 'objects' else kind}"
    if kind == "npz":
        np.savez(source, x=x)
    elif kind == "csv":
        cells = [",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in x]
        source.write_text("\n".join(["a,b", *cells]))
    elif kind == "objects":
        source.write_text("\n".join(json.dumps({"t": 1, "x": r.tolist()}) for r in x))
    else:
        source.write_text(rows_of(x))
    target = tmp_path / "out.jsonl"
    assert stream(Options(run=run, input=str(source), output=str(target), cov="raw")) == 20
    batch = filt.filter(x)
    for t, line in enumerate(read(target)):
        assert line["step"] == t + 1
        assert line["evidence"] == bool(batch.evidence[t])
        np.testing.assert_allclose(line["mean"], batch.mean[t], rtol=0, atol=1e-10)
        np.testing.assert_allclose(line["cov"], batch.raw_cov[t], rtol=0, atol=1e-10)


def test_covariances_are_calibrated_unless_raw(saved, tmp_path):
    filt, run = saved
    (tmp_path / "in.jsonl").write_text(rows_of(observations()))
    target = tmp_path / "out.jsonl"
    stream(Options(run=run, input=str(tmp_path / "in.jsonl"), output=str(target)))
    expected = filt.calibrated(filt.filter(observations())).cov
    found = torch.tensor([line["cov"] for line in read(target)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_csv_out_has_a_header_and_a_row_a_step(saved, tmp_path):
    (tmp_path / "in.jsonl").write_text("[0.1, 0.2]\nnull\n")
    target = tmp_path / "out.csv"
    stream(Options(run=saved[1], input=str(tmp_path / "in.jsonl"), output=str(target), to="csv"))
    head, *rows = target.read_text().splitlines()
    assert head == "step,mean_0,mean_1,cov_0_0,cov_0_1,cov_1_0,cov_1_1,evidence"
    assert [row.split(",")[0] for row in rows] == ["1", "2"]
    assert rows[1].endswith(",0")


def test_state_carries_the_belief_over(saved, tmp_path):
    x, state = observations(), str(tmp_path / "belief.ckpt")
    (tmp_path / "all.jsonl").write_text(rows_of(x))
    stream(
        Options(run=saved[1], input=str(tmp_path / "all.jsonl"), output=str(tmp_path / "all.out"))
    )
    lines = []
    for part in (x[:7], x[7:]):
        (tmp_path / "part.jsonl").write_text(rows_of(part))
        target = tmp_path / "part.out"
        source = str(tmp_path / "part.jsonl")
        stream(Options(run=saved[1], input=source, output=str(target), state=state))
        lines += read(target)
    assert lines == read(tmp_path / "all.out")
    other = KernelBayesFilter(rule=RULE, eta=1e-4, scales=(1.0,))
    other.fit(DATA.x_train[:30], DATA.z_train[:30]).save(tmp_path / "other.ckpt")
    with pytest.raises(KbrError, match="another filter"):
        stream(Options(run=str(tmp_path / "other.ckpt"), input=source, state=state))


@pytest.mark.parametrize(
    "bad", ["{oops", '"text"', "[1, 2, 3]", "[[1, 2]]", '{"y": 1}', "[1, [2]]", '["a", "b"]', "7"]
)
def test_a_bad_line_is_named_or_skipped(saved, tmp_path, bad, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"[0.1, 0.2]\n{bad}\n[0.3, 0.4]\n")
    options = {"run": saved[1], "input": str(source), "output": str(target)}
    with pytest.raises(KbrError, match="line 2: "):
        stream(Options(**options))
    assert len(read(target)) == 1  # what came before has been written
    assert stream(Options(**options, on_error="skip")) == 2
    assert "line 2 skipped" in capsys.readouterr().err


def test_images_stream_from_npz_and_nested_lists(tmp_path):
    x, z = np.random.default_rng(0).normal(size=(30, 3, 4)), np.linspace(0, 1, 30)[:, None]
    filt = KernelBayesFilter(rule=RULE, eta=1e-3, scales=(1.0,)).fit(x, z)
    filt.save(tmp_path / "f.ckpt")
    np.savez(tmp_path / "in.npz", frames=x[:5].astype(np.float32))
    (tmp_path / "in.jsonl").write_text(rows_of(x[:5].astype(np.float32)))
    made = []
    for name in ("in.npz", "in.jsonl"):
        target = tmp_path / "out.jsonl"
        options = {"input": str(tmp_path / name), "output": str(target)}
        assert stream(Options(run=str(tmp_path / "f.ckpt"), **options)) == 5
        made.append(read(target))
    assert made[0] == made[1]


def test_hostile_npz_is_not_unpickled(saved, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(KbrError, match="never unpickled"):
        stream(Options(run=saved[1], input=str(tmp_path / "in.npz")))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "in.npz").read_bytes()[:50])
    with pytest.raises(KbrError, match="cannot be read as npz"):
        stream(Options(run=saved[1], input=str(tmp_path / "cut.npz")))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "which filter"),
        (["run=a", "outptu=b"], "outptu=b"),
        (["run=a", "to=xml"], "to must be"),
        (["run=a", "from=xml"], "from must be"),
        (["run=a", "cov=big"], "cov must be"),
        (["run=a", "on_error=panic"], "on_error must be"),
        (["run=a", "trial=first"], "trial must be"),
        (["filter.ckpt"], "no key=value"),
    ],
)
def test_mistakes_on_the_command_line_are_named(words, says):
    with pytest.raises(KbrError, match=says):
        parse(words)


def test_missing_and_unknown_inputs_are_named(saved, tmp_path):
    with pytest.raises(KbrError, match="no input file"):
        stream(Options(run=saved[1], input=str(tmp_path / "absent.jsonl")))
    (tmp_path / "in.xml").write_text("")
    with pytest.raises(KbrError, match=r"must end in \.jsonl"):
        stream(Options(run=saved[1], input=str(tmp_path / "in.xml")))


def test_the_command_reads_a_pipe_and_exits_with_a_message(saved, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0.1, 0.2]\nnull\n"))
    monkeypatch.setattr(sys, "argv", ["kbr-filter", f"run={saved[1]}"])
    main()
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(sys, "argv", ["kbr-filter", "run=nowhere"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "no checkpoint at nowhere" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["kbr-filter", "--help"])
    main()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_each_line_is_answered_at_once_and_a_closed_reader_is_no_error(saved):
    command = [sys.executable, "-m", "kbr.app.stream", f"run={saved[1]}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:
        for _ in range(3):  # the answer comes before the next question
            process.stdin.write("[0.1, 0.2]\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        assert answer["step"] == 3
        process.stdout.close()
        process.stdin.write("[0.1, 0.2]\n" * 50)
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


NUMBERS = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**400), 10**400),
    st.sampled_from([1e-308, 1e308, -1e300, 0.0]),
)
LINES = st.one_of(
    st.text(max_size=20),
    NUMBERS.map(json.dumps),
    st.lists(NUMBERS, max_size=3).map(json.dumps),
    st.lists(NUMBERS, min_size=2, max_size=2).map(json.dumps),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(LINES, max_size=8), kind=st.sampled_from(["jsonl", "csv"]))
def test_any_lines_give_finite_beliefs_or_are_skipped(saved, tmp_path, lines, kind):
    source, target = tmp_path / f"in.{kind}", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    options = {"run": saved[1], "input": str(source), "output": str(target)}
    steps = stream(Options(**options, on_error="skip"))
    made = read(target)
    assert len(made) == steps
    for line in made:
        assert np.isfinite(line["mean"]).all()
        assert np.isfinite(line["cov"]).all()
