"""The live page of kbr-filter: what it serves, to whom, and that the filter never waits for it."""

import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib.resources import files
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from command_line import ROOT, call
from PIL import Image

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.app.live import server
from kbr.app.live.address import PORT, Address, Door
from kbr.app.live.page import LivePage
from kbr.app.live.ring import Ring
from kbr.app.live.view import MOST, View
from kbr.app.streaming import command as streaming
from kbr.app.streaming.command import Options, parse, stream
from kbr.app.streaming.signals import Stopped
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.belief import Answering, Belief
from kbr.core.units.units import Units

DATA = Rotation().generate(n_train=80, n_test=20, seed=0)
LOCAL = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    rule = {"rule": ImportanceWeightedRule(lam=1e-2), "eta": 1e-4, "scales": (1.0,)}
    x = dict(zip(("left", "right"), DATA.x_train.T, strict=True))
    angle = torch.atan2(*DATA.z_train.T.flip(0)).rad2deg()
    folder = tmp_path_factory.mktemp("filter")
    KernelBayesFilter(**rule).fit(x, dict(zip("uv", DATA.z_train.T, strict=True))).save(
        folder / "two.ckpt"
    )
    KernelBayesFilter(**rule).fit(x, {"yaw": angle}, circular=["yaw"]).save(folder / "yaw.ckpt")
    return folder


def view_of(filt, raw=False):
    dz = filt.init().mean.shape[-1]
    return View(title="A", units=filt.units, shape=tuple(filt.shape), dz=dz, raw=raw)


@contextmanager
def served(filt, address=LOCAL):
    with LivePage(address, view_of(filt), lambda words: None) as page:
        yield page


@pytest.fixture(scope="module")
def two(saved):
    return KernelBayesFilter.load(saved / "two.ckpt")


@pytest.fixture
def page(two):
    with served(two) as made:
        yield made


def ask(page, path, method="GET", **headers):
    """Status, headers and body of one request."""
    url = urlsplit(page.server.url)
    connection = HTTPConnection("127.0.0.1", url.port, timeout=30)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read() if method == "HEAD" or answer.length is not None else b""
    connection.close()
    return answer.status, answer.headers, body


class Reader:
    """A page that follows the stream, over a socket of its own."""

    def __init__(self, url, last="", buffer=None):
        where = urlsplit(url)
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", where.port))
        resumed = f"Last-Event-ID: {last}\r\n" if last else ""
        request = f"GET {where.path}events HTTP/1.1\r\nHost: localhost\r\n{resumed}\r\n"
        self.socket.sendall(request.encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = dict(
            line.decode().strip().split(": ", 1) for line in iter(self.file.readline, b"\r\n")
        )

    def event(self):
        """The next event as (kind, id, content); None when the server has closed."""
        fields = {}
        for line in self.file:
            text = line.decode().rstrip("\n")
            if not text and "data" in fields:
                return fields["event"], fields.get("id"), strict(fields["data"])
            key, _, value = text.partition(": ")
            fields[key] = value
        return None

    def events(self):
        """All that are left, until the server closes."""
        found = list(iter(self.event, None))
        self.close()
        return found

    def close(self):
        self.file.close()
        self.socket.close()


def strict(text):
    """JSON as browsers read it: without NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def rows_of(events):
    """Rows by their number."""
    found = {}
    for kind, _, content in events:
        if kind == "steps":
            found |= dict(enumerate(content["rows"], content["first"]))
    return found


def until(condition):
    """Waits for other threads, as long as it takes up to a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The setting


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--serve"], Address("127.0.0.1", PORT)),
        (["--serve=8000"], Address("127.0.0.1", 8000)),
        (["serve=0"], LOCAL),
        (["serve=0.0.0.0:8000"], Address("0.0.0.0", 8000)),
        (["serve=[::1]:80"], Address("::1", 80)),
        ([], None),
    ],
)
def test_the_setting_is_a_port_or_an_address(words, expected):
    assert parse(["run=a", *words]).serve == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve="], "serve must be a port or address:port.*got ''"),
        (["--serve="], "serve must be"),
        (["serve=yes"], "got 'yes'"),
        (["serve=65536"], "serve must be"),
        (["serve=:80"], "serve must be"),
        (["serve=host:"], "serve must be"),
        (["serve=-1"], "serve must be"),
        (["--serve", "serve=1"], "serve is given twice"),
        (["--sreve"], "Did you mean 'serve'"),
    ],
)
def test_a_wrong_setting_is_named(words, says):
    with pytest.raises(KbrError, match=says):
        parse(["run=a", *words])


def test_the_help_names_it():
    said = call("--help", script="kbr-filter").stdout
    assert "--serve alone: port 8765 of this machine" in said
    assert str(PORT) in said


def test_commands_of_the_documents_are_taken():
    """From kbr-filter to the end of its words; `...` stands for what a reader fills in."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pattern = r"kbr-filter((?: +(?:--)?[a-z_]+(?:=[^\s`]+)?(?=[\s`]))+)"
    found = [words for page in pages for words in re.findall(pattern, page.read_text())]
    typed = [shlex.split(words) for words in found if "run=" in words]
    assert len(typed) > 6
    assert {"--serve", "serve=8000", "serve=0.0.0.0:8000"} <= {
        word for one in typed for word in one
    }
    for words in typed:
        parse(words)


def test_a_port_in_use_is_one_line_and_nothing_is_written(saved, two, page, tmp_path):
    (tmp_path / "in.csv").write_text("left,right\n1,2\n")
    port = urlsplit(page.server.url).port
    words = [f"run={saved}/two.ckpt", f"input={tmp_path}/in.csv", f"output={tmp_path}/out"]
    done = call(*words, f"serve={port}", script="kbr-filter")
    assert done.returncode == 2
    assert f"cannot serve the page at 127.0.0.1:{port}: " in done.stderr
    assert "Set serve=<port or address:port>" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    for host in ("256.1.1.1", "no such host", "a" * 70):
        with (
            pytest.raises(KbrError, match="cannot serve the page at"),
            served(two, Address(host, 0)),
        ):
            pass


# Who may see it


def test_files_are_local_and_headers_are_strict(page):
    for path in ("/", "/live.css", "/live.js", "/draw.js"):
        status, headers, body = ask(page, path)
        assert status == 200
        assert body
        assert b"//" not in body.replace(b"// ", b"")  # no other host; comments only
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        status, headers, empty = ask(page, path, "HEAD")
        assert (status, int(headers["Content-Length"]), empty) == (200, len(body), b"")
    assert {"live.html", "live.css", "live.js", "draw.js"} == {
        file.name for file in (files("kbr.app.live") / "files").iterdir()
    }


def test_only_known_paths_and_methods_are_answered(page):
    for path in ("/other", "/../ring.py", "/files/live.js", "/%2e%2e/ring.py"):
        assert ask(page, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        status, headers, _ = ask(page, "/", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert "Content-Security-Policy" in headers
    assert ask(page, "/events", "HEAD")[1]["Content-Type"] == "text/event-stream"


def test_a_foreign_host_is_refused(page):
    """A name of another site that leads to this machine, as DNS rebinding does."""
    for host in ("localhost:1", "127.0.0.1", "LOCALHOST:99", "[::1]:8765"):
        assert ask(page, "/", Host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "user@evil.example:1"):
        for path in ("/", "/events", "/live.js"):
            assert ask(page, path, Host=host)[0] == 403
    door = page.server.door
    assert not door.admits("/", [])
    assert not door.admits("/", ["localhost", "evil.example"])
    assert ask(page, "/events", Sec_Fetch_Site="cross-site")[0] == 403


def test_another_address_needs_the_token(two):
    with served(two, Address("0.0.0.0", 0)) as page:
        token = page.server.door.token
        assert len(token) >= 32
        assert page.server.url.endswith(f"/{token}/")
        wrong = ("A" if token[0] != "A" else "B") + token[1:]
        for bad in ("/", f"/?token={token}", f"/{wrong}/", f"/{token[:-1]}/", "/%C3%A9", "*"):
            for path in (bad, f"{bad}events", f"{bad}live.js"):
                assert ask(page, path)[0] == 403, path
        assert ask(page, "/", "POST")[0] == 403
        for path in ("", "live.js", "?a=b"):
            assert ask(page, f"/{token}/{path}", Host="some.name")[0] == 200
        status, headers, _ = ask(page, f"/{token}")
        assert (status, headers["Location"]) == (308, f"/{token}/")
        reader = Reader(page.server.url)
        assert (reader.status, reader.event()[0]) == (200, "facts")
        reader.close()
    assert Door.of("a", "10.0.0.1").token != Door.of("a", "10.0.0.1").token
    assert not Door.of("localhost", "::1").token


# What it shows


def test_events_hold_the_beliefs(two):
    """Missing observations and a new sequence among them."""
    x = [*DATA.x_test[:3].tolist(), [None, None], *DATA.x_test[4:6].tolist()]
    with served(two) as page:
        reader = Reader(page.server.url)
        assert reader.headers["Content-Type"] == "text/event-stream"
        kind, _, begin = reader.event()
        assert kind == "facts"
        facts = begin["facts"]
        assert facts["observed"] == "left, right"
        assert [one["label"] for one in facts["latents"]] == ["u", "v"]
        assert (facts["plane"], facts["unseen"], facts["covariances"]) == (True, 0, "calibrated")
        belief, expected = two.init(), []
        for k, (left, right) in enumerate(x):
            row = {"left": left, "right": right, "sequence": "ab"[k > 4]}
            belief = two.step(belief, {**row, "left": left or np.nan, "right": right or np.nan})
            page(belief, {"sequence": row["sequence"]}, 1e-3)
            expected.append(belief)
        page.stay()  # no terminal: it does not stay
        events = reader.events()
        assert events[-1] == ("end", None, {"words": "The input has ended.", "bad": False})
        assert events[-2][1] == f"{begin['stream']}-6"
        late = Reader(page.server.url)  # the end and what came before is there for others too
        assert rows_of(late.events()) == rows_of(events)
    rows = rows_of(events)
    assert [*rows] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows.values()] == [1, 2, 3, 4, 5, 1]
    assert [row["seen"] for row in rows.values()] == [True, True, True, False, True, True]
    assert [row["sequence"] for row in rows.values()] == [*"aaaaab"]
    for row, one in zip(rows.values(), expected, strict=True):
        assert row["mean"] == one.mean.tolist()
        assert row["cov"] == one.cov.flatten().tolist()
        # 90 % of a standard normal is within 1.6449
        np.testing.assert_allclose(row["half"], 1.6448536 * one.cov.diagonal().sqrt(), rtol=1e-6)
        assert row["ms"] == 1.0
    assert facts["radius"] == pytest.approx(np.sqrt(-2 * np.log(0.1)))


def test_angles_are_told(saved):
    filt = KernelBayesFilter.load(saved / "yaw.ckpt")
    facts = view_of(filt, raw=True).facts()
    assert facts["latents"] == [{"label": "yaw [deg]", "turn": 360.0, "low": -180.0}]
    assert not facts["plane"]
    assert facts["covariances"] == "raw"


@dataclass(frozen=True, eq=False, repr=False)
class Given(Belief):
    """A belief with these inner moments."""

    moments: tuple = ()

    def inner_moments(self):
        return self.moments


def test_many_latents_are_cut_and_no_json_holds_nan():
    units = Units.none(torch.zeros(1))
    mean, cov = torch.arange(12.0).double(), torch.eye(12).double()
    mean[1], cov[2, 2], cov[3, 3] = torch.nan, torch.inf, torch.nan
    common = {"evidence": torch.tensor(True), "since": torch.tensor(0), "steps": 1}
    answering = Answering(units, None)
    view = View(title="x" * 500, units=units, shape=(3, 4, 5), dz=12, raw=False)
    facts = view.facts()
    assert len(facts["filter"]) <= 60
    assert (len(facts["latents"]), facts["unseen"]) == (MOST, 12 - MOST)
    assert facts["observed"] == "frames 3 x 4 x 5"
    belief = Given(**common, answering=answering, moments=(mean, cov))
    odd = {"time": float("nan"), "sequence": "\u202e" + "a" * 500}
    row = strict(view.step(belief, odd, 1e-3))
    assert len(row["mean"]) == len(row["half"]) == MOST
    assert row["mean"][:3] == [0.0, None, 2.0]
    assert row["half"][2:4] == [None, None]
    assert row["time"] == "nan"
    assert len(row["sequence"]) <= 60
    assert "\u202e" not in row["sequence"]


def test_output_is_the_same_to_the_byte(saved, tmp_path, capfd):
    x = DATA.x_test.tolist()
    lines = [json.dumps({"left": a, "right": b, "sequence": k // 7}) for k, (a, b) in enumerate(x)]
    lines[4], lines[9] = "null", "{oops"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    for to in ("jsonl", "csv"):
        made = []
        for serve in (None, LOCAL):
            target = tmp_path / f"out.{to}"
            paths = {"input": str(tmp_path / "in.jsonl"), "output": str(target)}
            more = {"on_error": "skip", "to": to, "serve": serve}
            assert stream(Options(run=str(saved / "two.ckpt"), **paths, **more)) == 19
            made.append(target.read_bytes())
        assert made[0] == made[1]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("the live page is at http://127.0.0.1:") == 2


@pytest.mark.parametrize("ending", ["line", "signal"])
def test_what_ends_the_command_is_said_on_the_page(saved, tmp_path, monkeypatch, ending):
    """While the command reads a pipe, a reader follows in a thread of its own."""
    source, target = tmp_path / "pipe.jsonl", tmp_path / "out.jsonl"
    os.mkfifo(source)
    said, events = [], []
    monkeypatch.setattr(streaming, "say", said.append)

    def follow():
        with source.open("w") as pipe:
            pipe.write("[0.1, 0.2]\n")
            pipe.flush()
            until(lambda: said)
            reader = Reader(said[0].split()[-1])
            events.extend([reader.event(), reader.event()])
            if ending == "line":
                pipe.write("oops\n")
            else:
                os.kill(os.getpid(), signal.SIGTERM)
                events.extend(reader.events())
        if ending == "line":
            events.extend(reader.events())

    paths = {"run": str(saved / "two.ckpt"), "input": str(source), "output": str(target)}
    thread = threading.Thread(target=follow)
    thread.start()
    with pytest.raises((KbrError, Stopped)) as error:
        stream(Options(**paths, serve=LOCAL))
    thread.join(60)
    words = {"line": "line 2: expected numbers", "signal": "stopped by SIGTERM after 1 steps"}
    assert str(error.value).startswith(words[ending])
    assert getattr(error.value, "code", None) == (143 if ending == "signal" else None)
    assert [kind for kind, *_ in events] == ["facts", "steps", "end"]
    assert events[-1][2]["bad"]
    assert events[-1][2]["words"].startswith(f"The command has ended: {words[ending]}")
    assert len(target.read_text().splitlines()) == 1


# Readers come, go and lag behind


def test_the_ring_keeps_the_newest():
    ring = Ring(5)
    assert ring.after(0) == []
    for k in range(1, 13):
        ring.add(str(k))
        assert [number for number, _ in ring.after(0)] == [*range(max(1, k - 4), k + 1)]
    assert ring.after(10) == [(11, "11"), (12, "12")]
    assert ring.after(12) == ring.after(99) == []
    assert len(ring._slots) == 5


def test_a_reader_goes_on_where_it_was(page):
    for k in range(300):
        page.ring.add(json.dumps({"k": k}))
    stream_name = page.server.stream
    page.stay()
    for last, first in [
        ("", 1),
        (f"{stream_name}-250", 251),
        ("ffff-250", 1),  # of the stream before on this port
        (f"{stream_name}-", 1),
        (f"{stream_name}-²", 1),
        ("250", 1),
    ]:
        rows = rows_of(Reader(page.server.url, last).events())
        assert [*rows] == [*range(first, 301)]
        assert rows[300] == {"k": 299}
    assert rows_of(Reader(page.server.url, f"{stream_name}-300").events()) == {}


def test_a_slow_reader_skips_and_nobody_waits_for_it(page):
    """Far more than the buffers hold goes by while it reads nothing; then it has the newest."""
    text, total = json.dumps({"pad": "x" * 300}), 60_000
    slow, quick = Reader(page.server.url, buffer=4096), Reader(page.server.url)
    assert slow.event()[0] == quick.event()[0] == "facts"
    quick_rows = {}
    for k in range(1, total + 1):
        page.ring.add(text)
        if k % (total // 10) == 0:  # the quick one reads to here while the slow one stands still
            while max(quick_rows, default=0) < k:
                quick_rows |= rows_of([quick.event()])
    assert page.server.readers == 2
    assert len(page.ring._slots) == 2000
    page.stay()
    quick.close()
    rows = rows_of(slow.events())
    assert max(rows) == total
    assert len(rows) < 0.2 * total
    assert page.server.readers == 0


def test_who_leaves_frees_all(page, monkeypatch):
    monkeypatch.setattr(server, "QUIET", 0.1)
    threads = threading.active_count()
    for _ in range(3):
        readers = [Reader(page.server.url) for _ in range(server.READERS)]
        assert all(reader.status == 200 for reader in readers)
        assert page.server.readers == server.READERS
        late = Reader(page.server.url)
        assert late.status == 503
        late.close()
        assert ask(page, "/")[0] == 200  # the page itself is still there
        for reader in readers:
            reader.close()
        until(lambda: page.server.readers == 0)
    for _ in range(3):  # who never asks for anything is not waited for either
        socket.create_connection(("127.0.0.1", urlsplit(page.server.url).port)).close()
    until(lambda: page.server.slots._value == server.CONNECTIONS)
    until(lambda: threading.active_count() <= threads)


def test_who_reads_nothing_at_all_is_let_go(page, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    for _ in range(2000):
        page.ring.add(json.dumps({"pad": "x" * 1000}))
    reader = Reader(page.server.url, buffer=4096)
    assert reader.status == 200
    until(lambda: page.server.readers == 0)
    reader.close()


def test_a_quiet_stream_gives_signs_of_life(page, monkeypatch):
    monkeypatch.setattr(server, "QUIET", 0.1)
    reader = Reader(page.server.url)
    assert reader.event()[0] == "facts"
    assert [reader.file.readline() for _ in range(4)] == [b": still here\n", b"\n"] * 2
    reader.close()


def test_connections_are_limited(page):
    port = urlsplit(page.server.url).port
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(server.CONNECTIONS)]
    until(lambda: page.server.slots._value == 0)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one_more:
        assert one_more.recv(1) == b""  # closed at once
    for one in silent:
        one.close()
    until(lambda: page.server.slots._value == server.CONNECTIONS)


def test_a_reader_who_sends_more_is_let_go(page):
    reader = Reader(page.server.url)
    reader.socket.sendall(b"GET / HTTP/1.1\r\n")
    until(lambda: page.server.readers == 0)
    reader.close()


# The command


def command(run, *words):
    return [sys.executable, "-m", "kbr.app.streaming.command", f"run={run}", "serve=0", *words]


def test_at_a_terminal_the_page_stays_until_ctrl_c(saved, tmp_path):
    """Output and state are whole by then; the exit code is that of a finished command."""
    (tmp_path / "in.jsonl").write_text("[0.1, 0.2]\n" * 3)
    target, state = tmp_path / "out.csv", tmp_path / "state.ckpt"
    words = [f"input={tmp_path}/in.jsonl", f"output={target}", f"state={state}", "to=csv"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(saved / "two.ckpt", *words), stderr=theirs) as process:
        os.close(theirs)
        with os.fdopen(ours) as terminal:
            url = terminal.readline().split()[-1]
            assert "stays until Ctrl-C" in terminal.readline()
            assert len(target.read_text().splitlines()) == 4
            assert state.exists()
            assert len(rows_of(Reader(url).events())) == 3
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0


def chromium():
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine to open the page in")
    return found


def is_a_picture(path):
    with Image.open(path) as picture:
        return picture.format == "PNG" and picture.width == 1280


def test_the_picture_of_the_page_is_small_and_linked():
    path, page = ROOT / "docs" / "results" / "live.png", ROOT / "docs" / "deploying.md"
    assert is_a_picture(path)
    assert path.stat().st_size < 200_000
    assert "](results/live.png)" in page.read_text()


@pytest.mark.slow
def test_the_picture_of_the_page_is_made_by_its_tool(tmp_path):
    pytest.importorskip("playwright.sync_api", reason="needs kbr[check]")
    words = ["--rows", "60", "--output", str(tmp_path / "live.png"), "--chromium", chromium()]
    subprocess.run([sys.executable, ROOT / "docs/tools/live_picture.py", *words], check=True)
    assert is_a_picture(tmp_path / "live.png")


@pytest.mark.slow
def test_ten_thousand_steps_in_chromium(saved, tmp_path):
    """Drawn as they come, beside a reader that stands still and a page that leaves."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs kbr[check]")
    steps, x = 10_000, DATA.x_test.tolist()
    lines = [json.dumps(None if k % 50 > 44 else x[k % 20]) + "\n" for k in range(steps)]
    faults, pipe = [], subprocess.PIPE
    with (
        sync_api.sync_playwright() as player,
        subprocess.Popen(
            command(saved / "two.ckpt"), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        ) as process,
    ):
        url = process.stderr.readline().split()[-1]
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page, leaving = browser.new_page(), browser.new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: faults.append(r.url) if not r.url.startswith(url) else None)
        page.goto(url)
        leaving.goto(url)
        sync_api.expect(page.locator("#status")).to_have_text("Waiting for the first observation")
        slow = Reader(url, buffer=4096)
        seen, pictures = [], set()
        for k, line in enumerate(lines, 1):
            process.stdin.write(line)
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if k % 2000 == 0:
                seen.append(int(page.inner_text("#step").replace(",", "")))
                pictures.add(page.evaluate("document.querySelector('canvas.time').toDataURL()"))
                if k == 4000:
                    leaving.close()
        process.stdin.close()
        sync_api.expect(page.locator("#status")).to_have_text("The input has ended.")
        sync_api.expect(page.locator("#step")).to_have_text("10,000")
        assert process.wait(timeout=60) == 0
        assert seen == sorted(set(seen))  # it advances
        assert len(pictures) == len(seen)
        shown = [
            float(t.split()[0].replace("−", "-")) for t in page.locator("output").all_inner_texts()
        ]
        assert shown == pytest.approx(answer["mean"], abs=0.06)
        assert page.get_attribute("#drawn", "title").startswith("the newest 2,000 are kept")
        drawn = int(page.inner_text("#drawn").split()[0].replace(",", ""))
        assert 2000 <= drawn <= steps
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults == []
        browser.close()
    slow.close()
