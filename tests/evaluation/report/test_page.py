import base64
import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from huefield.evaluation.report import html
from huefield.evaluation.report.figures import save_figures
from huefield.evaluation.report.html import Cell, HtmlTable, Paragraph, Picture, RowGroup, Section, packed
from huefield.evaluation.report.page import BEFORE_EXPLANATION, formula, write_report
from huefield.evaluation.report.selection import StructureScores
from huefield.evaluation.slices import summarise
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from tests.evaluation.report.browser import CHROMIUM, Browser
from tests.evaluation.synthetic import predicted, waters
from tests.predict.helpers import changed

VOID = {"meta", "link", "img", "br"}


class Balance(HTMLParser):
    """Raises where tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(path: Path, given: list[Predictions], **options: object) -> str:
    write_report(path, [summarise(p) for p in given], given, figures=[], **options)  # type: ignore[arg-type]
    text = path.read_text()
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    return text


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two models, with figures, before and after."""
    folder = tmp_path_factory.mktemp("report")
    given = [predicted(waters(30), name=name, scale=scale) for name, scale in (("white", 0.5), ("colored <γ>", 1.0))]
    before = [summarise(predicted(waters(30), name="white", scale=3.0))]
    evaluations = [summarise(p, resamples=10) for p in given]
    figures = save_figures(evaluations, given, folder, before=before)
    write_report(
        folder / "report.html", evaluations, given, figures=figures, before=before, title="A & B", notes=["n < 1"]
    )
    return folder / "report.html"


def test_a_page_says_which_errors_have_tails(tmp_path: Path) -> None:
    """With the meaning of ν before its first use, and captions that fit."""
    given = [predicted(waters(30), name="heavy", dof=3.1), predicted(waters(30), name="normal")]
    evaluations = [summarise(p) for p in given]
    before = [summarise(predicted(waters(30), name="heavy", scale=2.0))]
    drawn = save_figures(evaluations, given, tmp_path, before=before)
    write_report(tmp_path / "page.html", evaluations, given, figures=drawn, before=before)
    text = (tmp_path / "page.html").read_text()
    assert "heavy: errors follow a Student t with ν = 3.1 for energies and ν = 3.1 for forces. ν, the degrees" in text
    assert "normal: errors follow" not in text
    for said in ("Panels with ν: the dashed density", "Models with ν in the legend", BEFORE_EXPLANATION):
        assert said in text
    assert "ν" not in page_of(tmp_path / "other.html", given[1:])


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with Browser(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def viewed(report: Path) -> Iterator[Browser]:
    """The report, opened once: without a graphics card the first drawing takes long."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with Browser(report.parent / "profile", 900, 700) as opened:
        opened.open(report)
        opened.wait_for("document.querySelector('#viewer')?.dataset.state != null")
        yield opened


def test_the_page_has_everything(report: Path) -> None:
    text = report.read_text()
    assert "<h1>A &amp; B</h1><p>n &lt; 1</p>" in text
    assert re.findall(r'<section id="(\w+)">', text) == [
        "metrics",
        "figures",
        "calibration",
        "worst",
        "viewer",
        "parts",
    ]
    assert text.count("<figure>") == 7
    assert "colored &lt;γ&gt;" in text
    assert "<γ>" not in text


def test_nothing_is_fetched_from_elsewhere(report: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", report.read_text(), flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!#|data:)', text) == []
    assert "https://" not in text
    assert "@import" not in text


def test_whose_work_the_viewer_is_stands_in_the_page(report: Path) -> None:
    assert "chemiscope developers" in report.read_text()


@pytest.mark.slow
def test_a_browser_opens_it_without_errors_or_requests(viewed: Browser, report: Path) -> None:
    assert viewed.evaluate("document.querySelector('#viewer').dataset.state") == "ready"
    assert viewed.errors == []
    assert viewed.requests == [report.as_uri()]


def choose(browser: Browser, control: str, label: str) -> None:
    browser.evaluate(
        f"(s => {{ s.value = '{label}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('{control}'))"
    )


@pytest.mark.slow
@pytest.mark.parametrize("panel", ["#viewer-map", "#viewer-structure"])
def test_scatter_and_structure_are_drawn(viewed: Browser, panel: str) -> None:
    """A blank canvas has one colour; axes and buttons alone have greys only."""
    seen = viewed.picture(panel)
    colored = np.ptp(seen, axis=2) > 0.2
    assert 0.005 < colored.mean() < 0.5
    middle = colored[len(colored) // 4 : -len(colored) // 4, colored.shape[1] // 4 : -colored.shape[1] // 4]
    assert middle.mean() > 0.005


@pytest.mark.slow
def test_atoms_are_coloured_by_what_is_chosen(viewed: Browser) -> None:
    """Oxygen is red among elements, and nothing in the scale of uncertainties is."""

    def red() -> float:
        seen = viewed.picture("#viewer-structure")[100:, 60:-80]
        return float(((seen[..., 0] > 0.5) & (seen[..., 1] < 0.3) & (seen[..., 2] < 0.3)).mean())

    assert red() == 0
    choose(viewed, "#choose-color", "element")
    assert red() > 0.001
    choose(viewed, "#choose-color", "force error")
    assert red() == 0


@pytest.mark.slow
def test_the_scatter_can_be_of_energies(viewed: Browser) -> None:
    before = viewed.picture("#viewer-map")
    choose(viewed, "#choose-map", "energies")
    assert np.abs(viewed.picture("#viewer-map") - before).max() > 0.5
    assert viewed.errors == []


@pytest.mark.slow
def test_a_row_brings_its_structure_into_the_viewer(viewed: Browser) -> None:
    shown = "document.querySelector('#viewer-info').firstElementChild.shadowRoot.querySelector('input').value"
    buttons = viewed.evaluate("[...document.querySelectorAll('button[data-structure]')].map(b => b.dataset.structure)")
    assert len(buttons) == 20
    for number in (3, 7):
        viewed.evaluate(f"document.querySelectorAll('button[data-structure]')[{number}].click()")
        viewed.wait_for(f"{shown} === '{buttons[number]}'", 20.0)
    assert viewed.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_at_any_width(viewed: Browser, width: int) -> None:
    viewed.resize(width, 800)
    assert viewed.evaluate("document.documentElement.scrollWidth") <= width
    panels = "[...document.querySelectorAll('#viewer .panel')].map(panel => panel.getBoundingClientRect().toJSON())"
    left, right = viewed.evaluate(panels)
    apart = left["right"] <= right["left"] or left["bottom"] <= right["top"]
    assert apart
    assert min(left["height"], right["height"]) > 300


@pytest.mark.slow
def test_a_browser_without_what_the_viewer_needs_says_so(browser: Browser, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(
        report.read_text().replace('"use strict";', '"use strict"; window.DecompressionStream = undefined;')
    )
    browser.open(broken)
    browser.wait_for("document.querySelector('#viewer')?.dataset.state === 'failed'")
    said = browser.evaluate("document.querySelector('#viewer-message').textContent")
    assert said.startswith("The viewer could not start in this browser: ")


def test_a_model_of_energies_alone(tmp_path: Path) -> None:
    given = changed(predicted(waters(12)), forces=None)
    text = page_of(tmp_path / "r.html", [given])
    assert "model, force components: no value was both predicted and observed" in text
    assert "By energy error" in text
    assert "By force error" not in text


@pytest.mark.slow
def test_structures_are_shown_where_there_is_nothing_to_scatter(browser: Browser, tmp_path: Path) -> None:
    given, nowhere = predicted(waters(3, cell=4.0)), np.zeros(3, bool)
    block = replace(given.structures, has_energy=nowhere, has_forces=nowhere)
    page_of(tmp_path / "r.html", [replace(given, structures=block)])
    browser.open(tmp_path / "r.html")
    browser.wait_for("document.querySelector('#viewer')?.dataset.state != null")
    assert browser.evaluate("document.querySelector('#viewer').dataset.state") == "ready"
    assert browser.evaluate("document.querySelector('#viewer-map').parentElement.hidden")
    assert browser.errors == []


def test_one_structure_without_figures(tmp_path: Path) -> None:
    text = page_of(tmp_path / "r.html", [predicted(waters(1))])
    assert "the only structure" in text
    assert 'id="figures"' not in text
    assert 'id="calibration"' not in text


def test_rzv_is_explained_as_it_is_computed(report: Path) -> None:
    assert "RZV is the standard deviation of the z-scores" in report.read_text()


def test_coverage_has_its_intervals(tmp_path: Path) -> None:
    given = predicted(waters(30))
    evaluation = summarise(given, resamples=20)
    write_report(tmp_path / "r.html", [evaluation], [given], figures=[])
    assert evaluation.forces is not None
    ends = evaluation.forces.interval("coverage_90")
    assert ends is not None
    small = f"<small>{100 * ends.low:.1f} to {100 * ends.high:.1f}</small>"
    assert f"<td>{100 * evaluation.forces.coverage[2].observed:.1f}{small}</td>" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(("resamples", "said"), [(0, "model &lt;a&gt;: 2.50.</p>"), (20, "model &lt;a&gt;: 2.50 (")])
def test_the_joint_nll_is_told(tmp_path: Path, resamples: int, said: str) -> None:
    given = changed(predicted(waters(4), name="model <a>"), joint_nll=np.array([1.0, 2.0, 3.0, 4.0]))
    write_report(tmp_path / "r.html", [summarise(given, resamples=resamples)], [given], figures=[])
    assert said in (tmp_path / "r.html").read_text()


def test_without_the_program_of_the_viewer_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huefield.evaluation.report.chemiscope.find_spec", lambda _: None)
    text = page_of(tmp_path / "r.html", [predicted(waters(5))])
    assert "<p>The structure viewer is not available: chemiscope is not installed: install chemiscope 1.1.</p>" in text
    assert "By force error" in text
    assert 'id="viewer-map"' not in text
    assert "<script" not in text


def test_structures_have_the_numbers_of_their_source(tmp_path: Path) -> None:
    given = predicted(waters(3))
    block = replace(given.structures, frames=np.array([11, 222, 3333]))
    text = page_of(tmp_path / "r.html", [replace(given, structures=block)])
    assert re.findall(r'</td><td>(\d+)</td><td class="words">H2O', text)[:3] == [
        str(block.frames[i]) for i in np.argsort(-StructureScores(given).force_error)
    ]
    assert "Numbers count the structures of the file or store, from 0." in text


def test_structures_that_were_predicted_in_part(tmp_path: Path) -> None:
    """What is unknown of the first is a dash in the table of the worst energies."""
    given = predicted(waters(2))
    assert given.forces is not None
    mean, variance = given.forces.mean.copy(), given.forces.variance.copy()
    mean[:3], variance[:3] = np.nan, 0.0
    text = page_of(tmp_path / "r.html", [changed(given, forces=Marginals(mean, variance))])
    assert "model: forces: not predicted for 1 of 2 structures with observed values" in text
    dashes = '<td class="first">–</td><td>–</td>' * 2
    assert text.count(dashes) == 1


def test_no_structures_at_all(tmp_path: Path) -> None:
    evaluation = summarise(predicted(waters(1)))
    empty = predicted(waters(0))
    write_report(tmp_path / "r.html", [evaluation], [empty], figures=[])
    assert "chemiscope-program" not in (tmp_path / "r.html").read_text()


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    given = replace(predicted(waters(5)), left_out={"NaN energy": 1, "unknown element": 1200})
    text = page_of(tmp_path / "r.html", [given])
    assert "model: skipped 1 structure (NaN energy)" in text
    assert "model: skipped 1 200 structures (unknown element)" in text


def test_zero_variances_are_counted(tmp_path: Path) -> None:
    text = page_of(tmp_path / "r.html", [predicted(waters(5), scale=0.0)])
    assert (
        "force components: 45 of 45 values have a predicted variance of zero and are excluded from NLL, RZV, ENCE"
        in text
    )


def test_many_structures_stay_a_small_page(tmp_path: Path) -> None:
    given = predicted(waters(100_000))
    text = page_of(tmp_path / "r.html", [given])
    assert "500 of 100 000 structures: those with the largest" in text
    assert len(text) < 2_000_000
    worst = int(np.argmax(StructureScores(given).force_error))
    assert f"<td>{worst}</td>" in text


def test_the_same_input_gives_the_same_page(tmp_path: Path) -> None:
    given = predicted(waters(10))
    assert page_of(tmp_path / "a.html", [given]) == page_of(tmp_path / "b.html", [given])


def test_formulas_are_hills() -> None:
    block = waters(1)
    assert formula(block[0]) == "H2O"
    numbers = np.array([8, 6, 1, 1, 1, 7], np.uint8)
    methyl = replace(block[0], atomic_numbers=numbers, positions=np.zeros((6, 3)), forces=None)
    assert formula(methyl) == "CH3NO"


def test_all_text_is_escaped(tmp_path: Path) -> None:
    evil = "<script>\"'&"
    Figure().savefig(tmp_path / "f.png")
    cells = [Cell(evil, evil), Cell(evil, kind="words"), Cell(evil, kind="row head"), Cell(evil, kind="show")]
    table = HtmlTable([Cell(evil)], [RowGroup(evil, [cells])], [(evil, 1)])
    blocks = [
        Paragraph(evil), html.Heading(evil), table, Picture(tmp_path / "f.png", evil, evil), html.RemarkList([evil]),
        html.Folded(evil, [Paragraph(evil)]), html.ViewerPanels(evil, evil),
    ]  # fmt: skip
    scripts = html.ViewerScripts.of(evil, evil, evil + "-->" + evil)
    text = html.page_of(evil, [evil], [Section(evil, evil, blocks)], scripts)
    assert text.count("&lt;script&gt;&#34;&#39;&amp;") == 27
    assert evil not in text
    assert '<script>"' not in text
    assert text.count("-->") == 1


def test_a_table_has_the_markup_of_its_cells() -> None:
    cells = [Cell("b", small="c"), Cell("w", kind="words", first=True), Cell("7", kind="show"), Cell("", kind="show")]
    table = HtmlTable([Cell("a", kind="words")], [RowGroup("x", [[Cell("r", kind="row head"), *cells]])], [("g", 2)])
    text = html.page_of("t", [], [Section("s", "S", [table]), Section("empty", "E", [])])
    for part in (
        '<tr><th class="group" colspan="2">g</th></tr><tr><th class="words">a</th></tr></thead>',
        '<tr class="part"><th colspan="1">x</th></tr>',
        '<tr><th scope="row">r</th><td>b<small>c</small></td><td class="words first">w</td>',
        '<td class="show"><button type="button" hidden data-structure="7">show</button></td><td class="show"></td>',
    ):
        assert part in text
    assert 'id="empty"' not in text


def test_a_model_with_an_evil_name(tmp_path: Path) -> None:
    name = "a|b<script>/../x"
    text = page_of(tmp_path / "r.html", [predicted(waters(12, group="<b>&"), name=name)], title=name, notes=[name])
    assert "<script>/" not in text
    assert "<b>" not in text
    assert "a|b&lt;script&gt;/../x" in text


def test_packed_text_comes_back() -> None:
    found = packed("</script> ä")
    assert set(found) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert gzip.decompress(base64.b64decode(found)).decode() == "</script> ä"


def test_figures_are_as_wide_as_their_files_say(tmp_path: Path) -> None:
    figure = Figure(figsize=(5, 1))
    figure.savefig(tmp_path / "f.png", dpi=100)
    assert Picture(tmp_path / "f.png", "t", "c").width == 300


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are 0 evaluations and 1 predictions"):
        write_report(tmp_path / "r.html", [], [predicted(waters(2))], figures=[])
    assert not (tmp_path / "r.html").exists()
