"""Conclusions that programs in ``benchmarks`` draw from their measurements, and pages they write."""

import importlib
import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from huefield.core.rigid import internal_motions, rigid_motions
from huefield.reproduce.table import SeedMean

Program = Callable[[str], ModuleType]
FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="benchmarks are not part of the package")


@pytest.fixture
def benchmark_named(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


class TestClaim:
    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ((0.0, 0.0, 0.0, 0.0), True),
            ((0.004, 0.02, 0.004, 0.02), True),
            ((0.006, 0.0, -1.0, 0.0), False),
            ((-1.0, 0.0, 0.006, 0.0), False),
            ((-1.0, 0.021, -1.0, 0.0), False),
            ((-1.0, 0.0, -1.0, 0.021), False),
            ((-1.0, 0.0, nan, 0.0), False),
        ],
    )
    def test_neither_likelihood_is_worse_and_ence_hardly(
        self, benchmark_named: Program, changes: tuple[float, ...], verdict: bool
    ) -> None:
        reproduction = benchmark_named("reproduction")
        assert reproduction.matches([SeedMean(change, 0.1) for change in changes]) is verdict


class TestPages:
    def test_a_table_stands_between_its_marks(self, benchmark_named: Program) -> None:
        filled = benchmark_named("pages").filled
        page = "before\n<!-- one -->\nold\n<!-- end -->\nbetween\n<!-- one more -->\n<!-- end -->\nafter\n"
        assert filled(page, "one", "new\n") == page.replace("old", "new")
        assert filled(page, "one more", "x\n") == page.replace("more -->\n", "more -->\nx\n")

    def test_a_page_without_its_place_is_an_error(self, benchmark_named: Program) -> None:
        with pytest.raises(ValueError, match="one place for the table 'other', but has 0"):
            benchmark_named("pages").filled("<!-- one -->\n<!-- end -->\n", "other", "x\n")

    def test_generated_pages_are_up_to_date(self, benchmark_named: Program) -> None:
        reproduction = benchmark_named("reproduction")
        tables = reproduction.kept_tables()
        assert [table.source for table in tables] == ["bundled", "acac", "ani1x"]
        for table in tables:
            path = FOLDER.parent / "docs" / "reproduction" / f"{table.source}.md"
            assert path.read_text() == reproduction.page(table), "run python benchmarks/reproduction.py draw"

    def test_tables_of_local_noise_are_up_to_date(self, benchmark_named: Program) -> None:
        local = benchmark_named("local_noise")
        page = (FOLDER.parent / "docs" / "reproduction" / "local-noise.md").read_text()
        for place, content in local.tables_of_page().items():
            assert f"<!-- {place} -->\n{content}<!-- end -->" in page, "run python benchmarks/local_noise.py"

    def test_tables_of_new_structures_are_up_to_date(self, benchmark_named: Program) -> None:
        page = (FOLDER.parent / "docs" / "reproduction" / "new-structures.md").read_text()
        study, probes = benchmark_named("new_structures"), benchmark_named("physics_probes")
        found = benchmark_named("held_out_tables").tables_of_page(json.loads(study.RESULTS.read_text()))
        found["probes"] = probes.tables(json.loads(probes.RESULTS.read_text())).partition("\n\n")[0]
        for place, content in found.items():
            assert f"<!-- {place} -->\n{content}\n<!-- end -->" in page, "run new_structures.py and physics_probes.py"

    def test_local_and_white_noise_started_from_the_same_means(self, benchmark_named: Program) -> None:
        tables = benchmark_named("local_noise").paired_tables()
        assert {table.source for table in tables} >= {"bundled", "acac"}
        for table in tables:
            assert set(table.results) == {"local", "white", "white-pooled"}
            assert len({tuple(sorted(seeds)) for seeds in table.results.values()}) == 1
            assert table.warnings() == []

    def test_findings_are_read_in_five_minutes(self) -> None:
        page = (FOLDER.parent / "docs" / "reproduction.md").read_text()
        assert len(page.splitlines()) <= 120
        assert len(page.split()) < 2000

    def test_every_picture_is_shown_somewhere(self) -> None:
        docs = FOLDER.parent / "docs"
        text = "".join(path.read_text() for path in [*docs.rglob("*.md"), FOLDER.parent / "README.md"])
        assert [path.name for path in sorted((docs / "images").iterdir()) if path.name not in text] == []


class TestRigid:
    def test_projection_changes_nothing_for_isotropic_noise(self, benchmark_named: Program) -> None:
        """Independent noise of one size has no covariance between rigid and internal motions."""
        rigid, rng = benchmark_named("rigid"), np.random.default_rng(0)
        positions, error = rng.normal(size=(3, 3)), rng.normal(size=10)
        noise = np.full(9, 0.3)
        found = dict(zip(rigid.FORMS, rigid.forms(np.diag([2.0, *noise]), noise, error, positions), strict=True))
        assert found["projected"] == pytest.approx(found["as it is"])
        assert found["projected, more noise"] == pytest.approx(found["as it is, more noise"])

        inner = internal_motions(positions)
        seen, variances = inner.T @ error[1:], 0.3 * np.array([1.0, 9 / 3])
        energy = error[0] ** 2 / 4 + 0.5 * np.log(2 * np.pi * 2.0)  # its variance stays as it is
        expected = [
            (energy + (seen**2 / (2 * v) + 0.5 * np.log(2 * np.pi * v)).sum()) / (1 + len(seen)) for v in variances
        ]
        assert [found["as it is"], found["as it is, more noise"]] == pytest.approx(expected)

    def test_projection_uses_what_rigid_motions_tell_about_the_others(self, benchmark_named: Program) -> None:
        """With noise that differs between atoms, a net force of zero makes the others' errors more certain."""
        rigid, rng = benchmark_named("rigid"), np.random.default_rng(1)
        positions, noise = rng.normal(size=(4, 3)), np.repeat([1.0, 1e-2, 1e-2, 1e-2], 3)
        off = rigid_motions(positions, np.ones(4), with_rotations=True)
        drawn = np.linalg.cholesky(np.diag(noise)) @ rng.normal(size=(12, 400))
        gain = np.diag(noise) @ off
        without = drawn - gain @ np.linalg.solve(off.T @ gain, off.T @ drawn)  # conditioned on no rigid motion
        found = np.mean(
            [rigid.forms(np.diag([1.0, *noise]), noise, np.append(0.0, e), positions) for e in without.T], 0
        )
        assert found[1] < found[0] - 0.1
