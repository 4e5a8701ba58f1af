"""The page of a single run: what came out, what was chosen and what to try next."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from omegaconf import OmegaConf
from test_report import CHECK, chromium, in_browser  # noqa: F401  (a fixture)

from kbr.app.config.check import typed_words
from kbr.app.models.outcome import Alternative, Outcome
from kbr.app.report.by_latent import latents_of
from kbr.app.report.next_steps import next_steps, without
from kbr.app.report.run_page import write_run_page
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.units.scaling import Scaling

METRICS = {
    "test/mse": 0.3,
    "test/mse_stderr": 0.0,
    "test/trials": 1,
    "fit/seconds": 1.0,
    "filter/seconds_per_step": 1e-3,
    "test/coverage_90": 0.9,
    "test/steps_without_evidence": 1,
}
TYPED = ["data=rotation", "model=iw", "model.lams=[1]", "data.n_train=40"]


def outcome(**changes) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 50, 2, generator=generator, dtype=torch.float64)
    error = 0.3 * torch.randn(1, 50, 2, generator=generator, dtype=torch.float64)
    evidence = torch.ones(1, 50, dtype=torch.bool)
    evidence[0, 3] = False
    made = Outcome(
        mean=truth + error,
        cov=0.09 * torch.eye(2, dtype=torch.float64).expand(1, 50, 2, 2),
        truth=truth,
        evidence=evidence,
        labels=("<b>east</b> [m]", "north [m]"),
        chosen={"lam": torch.tensor([0.1])},
        notes=("2 rows were left out", "lam at the lower edge (0.1) in 1 of 1; try others"),
    )
    return replace(made, **changes)


def page(folder, *, metrics=None, **changes) -> str:
    write_run_page(
        folder,
        model="iw",
        data="rotation",
        outcome=outcome(**changes),
        metrics=METRICS | (metrics or {}),
        seconds=2.0,
        typed=TYPED,
        recorded=False,
        units=None,
    )
    return (folder / "report.html").read_text()


class Tags(HTMLParser):
    """Opened and closed tags in balance."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_has_all_parts_and_text_is_escaped(tmp_path):
    text = page(tmp_path)
    for heading in ("How it went", "Errors by latent", "What was chosen", "Data", "What to try"):
        assert heading in text
    assert "&lt;b&gt;east&lt;/b&gt; [m]" in text
    assert "<b>east" not in text
    assert text.count("<svg") == 2  # residuals of each latent
    assert "<li>2 rows were left out</li>" in text
    reader = Tags()
    reader.feed(text)
    assert reader.open == []


def test_a_filters_summary_gives_values_their_grids(tmp_path):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    filt = KernelBayesFilter(scales=(0.5,), lams=(0.1, 1.0)).fit(x, x)
    text = page(tmp_path, summary=filt.summary)
    assert "40 steps, x [2]" in text
    row = re.search(r'<tr><th scope="row">lam</th>(.*?)</tr>', text, re.DOTALL)[1]
    assert "listed" in row
    assert 'data-value="0.1"' in row
    assert 'data-value="1.0"' in row


def test_errors_by_latent_are_those_of_a_loop():
    made = outcome()
    error = (made.mean - made.truth)[0].numpy()
    for k, one in enumerate(latents_of(made)):
        assert one.rmse == pytest.approx((error[:, k] ** 2).mean() ** 0.5)
        assert one.bias == pytest.approx(error[:, k].mean())
        assert one.coverage == pytest.approx((abs(error[:, k]) <= 1.6448536 * 0.3).mean())
        assert one.explained == pytest.approx(
            1 - one.rmse**2 / made.truth[0, :, k].var(unbiased=False).item()
        )


def test_the_share_explained_of_an_angle_does_not_see_where_a_turn_begins():
    """Headings around north, of 350 to 10 degrees; truths by the turn nearest to the answer."""
    generator = torch.Generator().manual_seed(0)
    z, error = 5 * torch.randn(2, 2, 50, 1, generator=generator, dtype=torch.float64)
    scaling = Scaling.fit(z % 360, (True,), batch=1)
    found = []
    for mean in (z + error / 5, (z + error / 5) % 360):
        made = outcome(mean=mean, truth=scaling.nearest(z % 360, mean), cov=None, labels=None)
        found.append(latents_of(made, scaling)[0].explained)
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(0.96, abs=0.02)


def test_a_constant_latent_has_no_share_explained():
    flat = torch.ones(1, 50, 2, dtype=torch.float64)
    off = torch.tensor([0.0, 0.1], dtype=torch.float64)
    shares = [one.explained for one in latents_of(outcome(mean=flat + off, truth=flat))]
    assert shares == [1, 0]


def advice(made=None, *, typed=TYPED, recorded=False, **metrics) -> str:
    made = outcome() if made is None else made
    found = next_steps(made, {**METRICS, **metrics}, latents_of(made), typed, recorded=recorded)
    return "\n".join(f"{one.why} {one.how}" for one in found)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"val/mse": 0.1}, "3.0 times the validation error"),
        ({"test/coverage_90": 0.6}, "adapt=True"),
        ({"test/coverage_90": 0.99}, "wider than the test rows need"),
        ({"test/steps_without_evidence": 20}, "no usable observation"),
        ({"test/trials": 1}, "trials=10"),
    ],
)
def test_what_to_try_next_follows_from_the_numbers(metrics, words):
    assert words in advice(**metrics)
    quiet = {"val/mse": 0.3, "test/trials": 3}
    assert words not in advice(**quiet)


def test_what_to_try_next_follows_from_errors_edges_and_other_models():
    made = outcome()
    assert "lower edge (0.1)" in advice(made)
    assert "off to one side" in advice(replace(made, mean=made.mean + 1))
    poor = advice(replace(made, mean=torch.zeros_like(made.mean)))
    assert "model.history=auto" in poor
    assert "model.lams" not in poor.partition("model=iw,lstm")[0].rpartition("-m")[2]
    other = Alternative(model="iw_nn", what="a trained encoder")
    assert "model=iw_nn" in advice(replace(made, alternative=other))
    tried = replace(other, error=0.2, own_error=0.1)
    assert "model=iw_nn" not in advice(replace(made, alternative=tried))


def test_the_facts_name_steps_trials_and_coverage_without_evidence(tmp_path):
    """Of three trials, and of a run whose latents have units far apart."""
    one = outcome()
    one.evidence[0, :30] = False
    three = {name: torch.cat([getattr(one, name)] * 3) for name in ("mean", "cov", "evidence")}
    three["truth"] = torch.cat([one.truth, one.truth, one.mean])  # the last without an error
    metrics = {"test/trials": 3, "test/mse_standardised": 0.05, "test/mse_of_mean": 2.0}
    found = page(tmp_path, metrics=metrics, **three)
    assert re.search(r"90\.0 % of the truths, and \d+\.\d % at the 90 steps without", found)
    assert "50; 1 without evidence in all trials" in found
    assert f"3, with errors from 0.0000 to {float(one.mse):.4f}" in found
    assert "0.0500 (the same with each latent in standard" in found
    assert "2.0000 by always answering the training mean" in found
    assert 'class="folded">python train.py data=rotation' in found


@pytest.mark.parametrize(
    ("typed", "models"),
    [
        (["model=iw"], "model=iw,lstm"),
        (["model=particle", "model.filter.n_particles=9"], "model=iw,particle"),
        ([], "model=iw,iw_nn"),
        (["model={_target_:mine.Nearest}"], "model=iw,lstm"),
    ],
)
def test_the_comparison_is_with_another_model(typed, models):
    assert advice(typed=["data=rotation", *typed]).endswith(f"train.py -m data=rotation {models}")


def test_seeds_of_recorded_data_are_no_other_rows():
    assert "trials=10" in advice(typed=["data=battery"])
    assert "trials=10" not in advice(typed=["data=battery"], recorded=True)


def test_tuned_settings_go_with_their_model():
    words = ["data=rotation", "model=iw", "hparams=rotation_iw", "model.lams=[1]", "seed=3"]
    assert without(words, "model") == ["data=rotation", "seed=3"]
    assert without(words, "model.lams") == [word for word in words if "lams" not in word]
    assert "hparams" not in advice(typed=words).rpartition("-m")[2]


def test_words_stay_as_they_were_typed():
    word = "hparams=${data}_${model}"
    hydra = OmegaConf.create({"overrides": {"task": ["model=iw", word]}})
    assert typed_words(hydra) == ["model=iw", word]


def test_in_a_browser_it_makes_neither_errors_nor_requests(tmp_path, chromium):  # noqa: F811
    watched = CHECK[CHECK.index("seen.faults") :]
    check = f"<script>const seen = {{}};\n{watched}"
    seen = in_browser(page(tmp_path), check, tmp_path, chromium)
    assert seen["faults"] == []
    assert seen["requests"] == []
    assert seen["overflow"] <= 0
