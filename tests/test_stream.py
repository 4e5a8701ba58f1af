"""kbr-filter: the batch filter's numbers, one line at a time, whatever the lines hold."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import kbr._torchvision

# isort: split
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kbr
from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter, MovingFilter
from kbr.app.streaming.command import Options, main, parse, stream
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.refined.filter import RefinedFilter
from kbr.core.io import checkpoint
from kbr.loading import RECURRENT

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


@pytest.mark.parametrize(("name", "keys"), [("out.csv", {}), ("out", {"to": "csv"})])
def test_csv_out_has_a_header_and_a_row_a_step(saved, tmp_path, name, keys):
    (tmp_path / "in.jsonl").write_text("[0.1, 0.2]\nnull\n")
    target = tmp_path / name
    stream(Options(run=saved[1], input=str(tmp_path / "in.jsonl"), output=str(target), **keys))
    head, *rows = target.read_text().splitlines()
    assert head == "step,mean_0,mean_1,cov_0_0,cov_0_1,cov_1_0,cov_1_1,evidence"
    assert [row.split(",")[0] for row in rows] == ["1", "2"]
    assert rows[1].endswith(",0")


@pytest.mark.parametrize(
    "bad", ["{oops", '"text"', "[1, 2, 3]", "[[1, 2]]", '{"y": 1}', "[1, [2]]", '["a", "b"]', "7"]
)
def test_a_bad_line_is_named_or_skipped(saved, tmp_path, bad, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"[0.1, 0.2]\n{bad}\n[0.3, 0.4]\n")
    options = {"run": saved[1], "input": str(source), "output": str(target)}
    with pytest.raises(KbrError, match="line 2: "):
        stream(Options(**options))
    assert len(read(target)) == 1  # what came before is there
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
        (["run=a", "outptu=b"], "Did you mean 'output'"),
        (["run=a", "max_gb=much"], "max_gb must be"),
        (["run=a", "run=b"], "run is given twice"),
        (["run=a", "decimal=dot"], "decimal must be point or comma"),
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


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A filter that knows its columns, and one of a single column."""
    folder = tmp_path_factory.mktemp("named")
    x, z = DATA.x_train.double().numpy(), DATA.z_train.double().numpy()
    rule = {"rule": RULE, "eta": 1e-4, "scales": (1.0,)}
    table = {"left": 1e-4 * x[:, 0], "right": 1e6 * x[:, 1]}
    KernelBayesFilter(**rule).fit(table, {"u": z[:, 0], "v": z[:, 1]}).save(folder / "two.ckpt")
    KernelBayesFilter(**rule).fit({"left": x[:, 0]}, z).save(folder / "one.ckpt")
    return folder


def answers(run, text, tmp_path, **options):
    """Lines of the answers to a CSV text."""
    (tmp_path / "in.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    target = tmp_path / "answers.jsonl"
    paths = {"run": str(run), "input": str(tmp_path / "in.csv"), "output": str(target)}
    stream(Options(**paths, **options))
    return read(target)


def test_columns_are_found_by_name_however_they_are_written(named, tmp_path, capsys):
    run = named / "two.ckpt"
    expected = answers(run, "left,right\n1e-4,-2e5\n3e-5,\n", tmp_path)
    assert [line["evidence"] for line in expected] == [True, False]
    assert expected[0]["names"] == ["u", "v"]
    semicolons = 'right;"note; no number";left\r\n-2e5;a;0,0001\r\n;"b ""c""";0,00003\r\n'
    for text, keys in [
        ("1e-4,-2e5\n3e-5,\n", {}),
        ("right,note,left,\n-2e5,words,1e-4,\n,,3e-5,\n", {}),
        (b"\xef\xbb\xbfright\tleft\n-2e5\t1e-4\nnan\t3e-5\n", {}),
        ("right,left\n-2e5,1e-4\nNA,3e-5\n".encode("utf-16"), {}),
        (semicolons, {"decimal": "comma"}),
    ]:
        assert answers(run, text, tmp_path, **keys) == expected
    said = capsys.readouterr().err
    assert said.count("columns not used") == 2
    assert "note; no number" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.1,0.2x\n0.1,0.2\n", "line 1: the first line must be numbers, or names .* '0.2x'"),
        ("left,rihgt\n1,2\n", "no 'right'. Did you mean 'rihgt'"),
        ("left,right,left\n1,2,3\n", "'left' more than once"),
        ("left,right\n1\n", "line 2: expected 2 cells; got 1"),
        ("left,right\n1,2,3\n", "line 2: expected 2 cells; got 3"),
        ('left;right\n1;"2,5"\n', "line 2: .*Set decimal=comma"),
        ('left,right\n1,"2\n', "line 2: .*quotation mark"),
        ("left,right\n1," + "9" * 200_000 + "0\n", "line 2: field larger than"),
        ("left,right\n1,2\x00\n", "line 2: expected a number"),
    ],
)
def test_a_csv_that_is_not_understood_is_refused(named, tmp_path, text, words):
    with pytest.raises(KbrError, match=words):
        answers(named / "two.ckpt", text, tmp_path)


def test_an_empty_line_of_one_column_is_a_missing_observation(named, tmp_path, monkeypatch):
    run = named / "one.ckpt"
    for text in ("left\n.1\n\n.3\n\n\n", '.1\n""\n.3\n', ".1\nnan\n.3"):
        seen = [line["evidence"] for line in answers(run, text, tmp_path)]
        assert seen == [True, False, True]
    monkeypatch.setattr(sys, "stdin", io.StringIO(".1\n\n"))  # answered as soon as it is there
    assert stream(Options(run=str(run), source="csv", output=str(tmp_path / "out"))) == 2


# Files


def test_nothing_is_lost_where_nothing_is_answered(saved, tmp_path):
    """Equal paths, a missing or an unreadable input: files stay as they were."""
    run, source = tmp_path / "filter.ckpt", tmp_path / "a.csv"
    run.write_bytes(Path(saved[1]).read_bytes())
    source.write_text("0.1,0.2\n")
    (tmp_path / "link.csv").symlink_to(source)
    (tmp_path / "hard.csv").hardlink_to(source)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "words.csv").write_text("what,is,this,line\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for names in [
        {"input": "a.csv", "output": "a.csv"},
        {"input": "a.csv", "output": "link.csv"},
        {"input": "a.csv", "output": "hard.csv"},
        {"input": "a.csv", "output": "filter.ckpt"},
        {"input": "a.csv", "state": "filter.ckpt"},
        {"input": "a.csv", "output": "out", "state": "out"},
        {"input": "absent.csv", "output": "a.csv"},
        {"input": "bad.npz", "output": "a.csv"},
        {"input": "words.csv", "output": "a.csv"},
        {"input": "a.csv", "output": "."},
    ]:
        paths = {key: str(tmp_path / name) for key, name in names.items()}
        with pytest.raises(KbrError):
            stream(Options(run=str(run), **paths))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    stream(Options(run=str(run), input=str(source), output="/dev/null"))
    assert Path("/dev/null").is_char_device()
    (tmp_path / "out").symlink_to(tmp_path / "beliefs")
    stream(Options(run=str(run), input=str(source), output=str(tmp_path / "out")))
    assert (tmp_path / "out").is_symlink()
    assert len(read(tmp_path / "beliefs")) == 1


# States


def learned(folder, kind):
    """A small trained filter of its own kind."""
    from functools import partial

    from networks import FILTERS

    from kbr.training import MLP, LearnedFilter, PairedFilter

    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    made = {"learned": LearnedFilter, "paired": PairedFilter, **FILTERS}[kind](
        encoder=partial(MLP, hidden=(8,)), epochs=2, val_every=2
    )
    made.fit(DATA.x_train, DATA.z_train, folder=folder, trainer=quiet)
    return folder / "checkpoints" / "best.ckpt"


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize("kind", ["kernel", "refined", "moving", "learned", "paired", *RECURRENT])
def test_state_carries_the_belief_over(saved, tmp_path, kind):
    base = {"rule": RULE, "eta": 1e-4, "scales": (1.0,)}
    if kind == "kernel":
        run = saved[1]
    elif kind == "refined":
        run = tmp_path / "refined.ckpt"
        made = RefinedFilter(base=KernelBayesFilter(**base), steps=1)
        made.fit(DATA.x_train, DATA.z_train).save(run)
    elif kind == "moving":
        run = tmp_path / "moving.ckpt"
        MovingFilter(n_particles=50, temper=1.0).fit(DATA.x_train, DATA.z_train).save(run)
    else:
        run = learned(tmp_path / "run", kind)
    rows = [
        {"sequence": "a", "x": None if np.isnan(r).any() else r.tolist()} for r in observations()
    ]
    rows[9:] = [{**row, "sequence": "b"} for row in rows[9:]]
    texts, state = [json.dumps(row) for row in rows], tmp_path / "belief.ckpt"
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    paths = {"run": str(run), "input": str(source), "output": str(target)}
    source.write_text("\n".join(texts))
    stream(Options(**paths))
    whole = read(target)
    assert [line["step"] for line in whole] == [*range(1, 10), *range(1, 12)]
    lines = []
    for part in (texts[:7], texts[7:]):
        source.write_text("\n".join(part))
        stream(Options(**paths, state=str(state)))
        lines += read(target)
    assert lines == whole
    content = checkpoint.read(state)
    for bad in ("since", "evidence"):
        wrong = {**content, "belief": {k: v for k, v in content["belief"].items() if k != bad}}
        checkpoint.save(state, wrong)
        with pytest.raises(KbrError, match="damaged"):
            stream(Options(**paths, state=str(state)))
    inner = ("cloud", "other")  # a cloud of points, or one of two beliefs that are averaged
    belief = next(
        (content["belief"][k] for k in inner if k in content["belief"]), content["belief"]
    )
    name = next(n for n, v in belief.items() if torch.is_tensor(v) and v.is_floating_point())
    belief[name] = belief[name] * torch.nan
    checkpoint.save(state, content)
    with pytest.raises(KbrError, match="damaged: it holds no belief of finite numbers"):
        stream(Options(**paths, state=str(state)))


def test_the_state_of_another_filter_is_refused(saved, tmp_path):
    """Even one with the same shapes, where one number of the training data differs."""
    state, source = str(tmp_path / "belief.ckpt"), tmp_path / "in.jsonl"
    source.write_text("[0.1, 0.2]\n")
    paths = {"input": str(source), "output": str(tmp_path / "out"), "state": state}
    stream(Options(run=saved[1], **paths))
    z = DATA.z_train.clone()
    z[0] += 1e-3
    other = KernelBayesFilter(rule=RULE, eta=1e-4, scales=(1.0,)).fit(DATA.x_train, z)
    other.save(tmp_path / "other.ckpt")
    with pytest.raises(KbrError, match="state of another filter"):
        stream(Options(run=str(tmp_path / "other.ckpt"), **paths))
    KernelBayesFilter.load(saved[1]).save(tmp_path / "same.ckpt")
    assert stream(Options(run=str(tmp_path / "same.ckpt"), **paths)) == 1
    assert read(tmp_path / "out")[0]["step"] == 2


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
    monkeypatch.setattr(sys, "argv", ["kbr-filter", "--version"])
    main()
    assert capsys.readouterr().out == f"kbr {kbr.__version__}\n"
    for threads in ("abc", "0", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr(sys, "argv", ["kbr-filter", f"run={saved[1]}"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert "OMP_NUM_THREADS" in capsys.readouterr().err


def test_closed_pipes_and_full_disks_are_one_line(saved, tmp_path):
    """One shell runs them all at once; each says one line and ends with 2."""
    command = f"{sys.executable} -m kbr.app.streaming.command run={saved[1]}"
    (tmp_path / "in.jsonl").write_text("[0.1, 0.2]\n" * 20)
    cases = {
        "stdin": f"{command} <&- >out1",
        "stdout": f"{command} input=in.jsonl >&-",
        "full": f"{command} input=in.jsonl >/dev/full",
        "full_file": f"{command} input=in.jsonl output=/dev/full state=s.ckpt",
    }
    lines = [f"({text}) 2>{name}.err; echo $? >{name}.code" for name, text in cases.items()]
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, check=True)
    for name, words in [
        ("stdin", "standard input is closed"),
        ("stdout", "standard output is closed"),
        ("full", "cannot write standard output: No space left"),
        ("full_file", "cannot write /dev/full: No space left"),
    ]:
        said = (tmp_path / f"{name}.err").read_text()
        assert words in said
        assert said.count("\n") == 1, said
        assert (tmp_path / f"{name}.code").read_text() == "2\n"
    assert not (tmp_path / "s.ckpt").exists()  # no answer arrived, so the state does not move on


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_keeps_output_and_state(saved, tmp_path, number, code):
    state, target = tmp_path / "belief.ckpt", tmp_path / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "kbr.app.streaming.command",
        f"run={saved[1]}",
        f"state={state}",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "to=csv"], text=True, bufsize=1, **pipes) as process:
        process.stdin.write("[0.1, 0.2]\n[0.2, 0.3]\n")
        process.stdin.flush()
        for _ in range(3):  # a header and two answers
            process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        said = process.stderr.read()
    assert said == f"kbr: stopped by {number.name} after 2 steps; the state is in {state}\n"
    (tmp_path / "in.jsonl").write_text("[0.3, 0.1]\n")
    paths = {"input": str(tmp_path / "in.jsonl"), "output": str(target), "state": str(state)}
    stream(Options(run=saved[1], **paths))
    assert read(target)[0]["step"] == 3


def test_each_line_is_answered_at_once_and_a_closed_reader_is_no_error(saved):
    command = [sys.executable, "-m", "kbr.app.streaming.command", f"run={saved[1]}"]
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


def test_folders_of_arrays_and_of_frames_stream(tmp_path):
    """x.npy, whose frames stay in their file, and pictures with states.csv, one of them missing."""
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 255, size=(40, 1, 6, 5)).astype(np.uint8)
    filt = KernelBayesFilter(rule=RULE, eta=1e-3, scales=(1.0,)).fit(x, np.linspace(0, 1, 40))
    filt.save(tmp_path / "f.ckpt")
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "x.npy", x[:5])
    (tmp_path / "frames").mkdir()
    for k in range(5):
        Image.fromarray(x[k, 0]).save(tmp_path / "frames" / f"{k}.png")
    files = ["file,time", *(f"{k}.png,{k}" for k in range(4)), ",4"]
    (tmp_path / "frames" / "states.csv").write_text("\n".join(files))
    seen = x[:5].astype(np.float64)
    for name in ("arrays", "frames"):
        seen[4] = x[4] if name == "arrays" else np.nan
        expected = filt.filter(seen)
        paths = {"input": str(tmp_path / name), "output": str(tmp_path / "out")}
        assert stream(Options(run=str(tmp_path / "f.ckpt"), **paths)) == 5
        lines = read(tmp_path / "out")
        np.testing.assert_allclose([line["mean"] for line in lines], expected.mean, rtol=1e-9)
        assert [line["evidence"] for line in lines] == expected.evidence.tolist()
