"""Rows, means over seeds, comparisons and figures, of results that were made up or kept."""

import json
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import pytest

from huefield.potentials import PaiNN
from huefield.reproduce.figures import reliability_figure, rows_figure
from huefield.reproduce.plan import Job, MiniSize
from huefield.reproduce.published import METRICS, PUBLISHED
from huefield.reproduce.report import compared
from huefield.reproduce.rows import LOCAL, PAPER, ROWS, all_rows, rows_named
from huefield.reproduce.settings import same_settings, settings_of
from huefield.reproduce.sources import SMALL, AbstractSource, Bundled, source_named
from huefield.reproduce.table import (
    SeedMean,
    Table,
    comparison_table,
    deviation,
    paper_table,
    require_comparable,
    titles_of_tests,
)
from tests.paths import ROOT


def fabricated(values: dict[str, list[float]], metric: str = "nll") -> Table:
    """Rows with one metric of energies and forces for each seed."""
    tests = {
        row: {
            seed: {
                "seed": seed,
                "tests": {
                    "test": {
                        "none": {"energy": {metric: value}, "forces": {metric: 2 * value}, "joint_nll": 10 * value}
                    }
                },
            }
            for seed, value in enumerate(found)
        }
        for row, found in values.items()
    }
    return Table("x", "data", {"test": "as in training"}, tests)


class TestRows:
    def test_names_are_found_in_the_order_of_the_table(self) -> None:
        assert [row.name for row in rows_named(["colored", "vanilla"])] == ["vanilla", "colored"]

    def test_a_row_that_is_not_there_is_an_error_that_lists_all(self) -> None:
        with pytest.raises(ValueError, match=rf"unknown row 'beige'; known rows: {', '.join(ROWS)}$"):
            rows_named(["beige"])

    def test_readouts_are_for_molecules_of_different_sizes(self) -> None:
        assert all_rows(mixed_sizes=True) == tuple(ROWS.values())
        assert {row.name for row in ROWS.values()} - {row.name for row in all_rows(mixed_sizes=False)} == {
            "colored-atom-mean", "colored-atom-root", "white-mean"
        }  # fmt: skip

    def test_the_rows_of_the_paper_are_its_own(self) -> None:
        assert {row.row for row in PUBLISHED} == {row.name for row in PAPER}
        assert ROWS["colored"].noise.model_dump()["gamma"] == "global"


class TestSeedMean:
    def test_the_margin_is_that_of_student(self) -> None:
        found = SeedMean.of([1.0, 2.0, 3.0])
        assert found.mean == 2.0
        assert found.margin == pytest.approx(4.302653 / np.sqrt(3))  # t of 2 degrees of freedom, standard deviation 1
        assert found.text(2) == "2.00 ± 2.48"

    def test_one_seed_has_no_margin(self) -> None:
        found = SeedMean.of([1.5])
        assert found.mean == 1.5
        assert isnan(found.margin)
        assert found.text(1) == "1.5"

    def test_an_unknown_number_is_a_dash(self) -> None:
        assert SeedMean.of([1.0, nan]).text(2) == SeedMean.of([]).text(2) == "–"


class TestTable:
    def test_differences_are_taken_seed_by_seed(self) -> None:
        table = fabricated({"white": [1.0, 5.0, 9.0], "colored": [1.5, 5.5, 9.5]})
        found = table.mean("colored", "test", "forces", "nll", less="white")
        assert found.mean == pytest.approx(1.0)
        assert found.margin == pytest.approx(0.0, abs=1e-12)
        assert table.mean("colored", "test", "forces", "nll").margin > 1

    def test_seeds_that_only_one_row_has_do_not_count(self) -> None:
        table = fabricated({"white": [1.0, 2.0], "colored": [3.0]})
        assert table.mean("colored", "test", "energy", "nll", less="white").mean == 2.0

    def test_a_row_that_failed_has_no_numbers(self) -> None:
        table = fabricated({"white": [1.0], "colored": [2.0]})
        table.results["colored"][0] = {"seed": 0, "failed": "diverged"}
        assert "| colored (0 of 1 seeds) | – |" in paper_table(table)
        assert table.warnings() == ["colored, seed 0, failed and is ignored: diverged"]
        assert table.as_dict()["rows"]["colored"] == {"0": {"seed": 0, "failed": "diverged"}}

    def test_the_papers_own_rows_stand_below(self) -> None:
        text = paper_table(fabricated({"white": [1.0]}))
        line = next(line for line in text.splitlines() if "paper, ANI-1x: colored" in line)
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        assert cells[:7] == ["0.012", "0.026", "−2.56", "0.42", "0.56", "0.97", "0.048"]
        assert len(cells) == 2 * len(METRICS)

    def test_the_comparison_has_the_joint_likelihood(self) -> None:
        text = comparison_table(fabricated({"white": [1.0], "colored": [0.5]}), "test")
        assert "| colored | −0.500 | – | −1.000 | – | – | – | 5.00 | −5.00 | – |" in text

    def test_a_saved_table_is_read_back(self, tmp_path: Path) -> None:
        table = fabricated({"white": [1.0, 5.0]})
        table.save(tmp_path / "t.json")
        assert Table.load(tmp_path / "t.json") == table

    def test_rows_with_fewer_seeds_say_so(self) -> None:
        text = paper_table(fabricated({"white": [1.0, 2.0], "colored": [3.0]}))
        assert "| colored (1 of 2 seeds) |" in text
        assert "| white |" in text

    def test_remarks_on_calibrations_are_said_once(self) -> None:
        table = fabricated({"white": [1.0, 2.0], "colored": [3.0]})
        for row in table.rows:
            table.results[row][0]["remarks"] = {"isotonic": ["energies: too few"]}
        table.results["white"][1]["remarks"] = {"scale": ["at its bound"]}
        assert table.remarks() == ["isotonic: energies: too few (all rows)", "one factor: at its bound (white)"]

    def test_the_largest_deviation_is_named(self) -> None:
        one, other = (fabricated({"white": [1.0, 2.0], "colored": [3.0, x]}, "rmse") for x in (4.0, 5.0))
        assert deviation(one, one).largest == 0.0
        found = deviation(one, other)
        assert found.largest == pytest.approx(0.2)
        assert found.where.startswith("colored, seed 1, test")
        assert found.missing == ()

    def test_a_number_that_only_one_has_deviates_infinitely(self) -> None:
        one, other = (fabricated({"white": [x]}, "rmse") for x in (nan, 1.0))
        assert deviation(one, other).largest == deviation(other, one).largest == inf
        assert not compared(one, other).agrees

    def test_rows_that_started_from_different_means_are_named(self) -> None:
        table = fabricated({"vanilla": [1.0], "white": [1.0, 2.0], "colored": [1.0, 2.0]})
        for row, means in {"white": "aa", "colored": "ab"}.items():
            for seed, mean in enumerate(means):
                table.results[row][seed]["mean_digest"] = mean
        expected = "seed 1: rows started from different means and cannot be compared well: white | colored"
        assert table.warnings() == [expected]

    def test_likelihoods_near_zero_deviate_by_their_difference(self) -> None:
        one, other = (fabricated({"white": [x]}) for x in (0.01, 0.03))
        assert deviation(one, other).largest == pytest.approx(0.04)  # that of forces

    def test_rows_that_were_not_compared_are_listed(self) -> None:
        one, other = fabricated({"white": [1.0, 2.0], "colored": [3.0]}), fabricated({"white": [1.0]})
        one.results["colored"][0] = {"seed": 0, "failed": "diverged"}
        comparison = compared(one, other)
        assert comparison.agrees
        assert comparison.text.endswith("Not compared: white, seed 1; colored, seed 0")

    def test_tables_without_a_common_row_cannot_be_compared(self) -> None:
        with pytest.raises(ValueError, match="no number in common"):
            deviation(fabricated({"white": [1.0]}), fabricated({"colored": [1.0]}))

    def test_tables_of_different_data_cannot_be_compared(self) -> None:
        other = fabricated({"white": [1.0]})
        with pytest.raises(ValueError, match="results of data cannot be compared with those of AcAc"):
            deviation(fabricated({"white": [1.0]}), Table("acac", "AcAc", other.tests, other.results))

    def test_incomparable_tables_are_refused_before_training(self) -> None:
        with pytest.raises(ValueError, match="results of bundled data cannot be compared with those of data"):
            require_comparable(Bundled(), [("white", 0)], fabricated({"white": [1.0]}))
        ours = Table("bundled", "bundled data", titles_of_tests(Bundled()), fabricated({"white": [1.0]}).results)
        require_comparable(Bundled(), [("colored", 0), ("white", 0)], ours)
        with pytest.raises(ValueError, match="no row and seed in common"):
            require_comparable(Bundled(), [("white", 1), ("colored", 0)], ours)

    @pytest.mark.parametrize("content", ["3\nwater\n", "[]", '{"rows": {}}'])
    def test_a_file_without_results_is_named(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "other").write_text(content)
        with pytest.raises(ValueError, match="other has no results of a table"):
            Table.load(tmp_path / "other")


class TestFigures:
    def test_a_table_of_vanilla_alone_can_be_drawn(self) -> None:
        assert rows_figure(fabricated({"vanilla": [1.0, 2.0]})) is not None

    def test_rows_are_drawn_relative_to_white_noise_of_the_same_seed(self) -> None:
        figure = rows_figure(fabricated({"white": [1.0, 2.0], "colored": [1.1, 2.3]}))
        assert figure is not None
        drawn = [np.asarray(line.get_xdata(), float) for line in figure.axes[0].lines]
        assert any(len(x) == 2 and np.allclose(x, [0.1, 0.3]) for x in drawn)

    def test_diagrams_without_points_say_so(self) -> None:
        table = fabricated({"white": [1.0]})
        scores = table.results["white"][0]["tests"]["test"]["none"]
        scores["forces"]["reliability"] = {"rmv": [0.1, 0.2], "rmse": [0.1, 0.3]}
        scores["energy"]["reliability"] = {"rmv": [], "rmse": []}
        figure = reliability_figure(table)
        assert figure is not None
        above, below = ([text.get_text() for text in ax.texts] for ax in figure.axes)
        assert above == ["too few data for a diagram"]
        assert below == ["ENCE –\nRZV –"]


KEPT_TABLES = ROOT / "benchmarks" / "results" / "reproduction"


def kept_table(source: AbstractSource) -> Table:
    path = KEPT_TABLES / f"{source.name}.json"
    if not path.exists():
        pytest.skip("results are not part of the package")
    return Table.load(path)


@pytest.mark.parametrize("name", SMALL)
class TestKeptResults:
    def test_they_have_the_current_settings(self, name: str, tmp_path: Path) -> None:
        """Or ``huefield reproduce`` would refuse them, and the table could not be made again."""
        source = source_named(name)
        try:
            source.prepare(3, lambda event: None, lambda: False)
        except FileNotFoundError:
            pytest.skip("needs public data")
        table = kept_table(source)
        found = {
            (row, seed): same_settings(result["settings"], Job(source, seed, ROWS[row]), MiniSize(), tmp_path)
            for row, seeds in table.results.items()
            for seed, result in seeds.items()
        }
        assert len(found) > 15
        assert [job for job, same in found.items() if not same] == []

    def test_there_is_one_of_every_row(self, name: str) -> None:
        source = source_named(name)
        assert [
            row.name for row in all_rows(mixed_sizes=source.mixed_sizes) if row.name not in kept_table(source).rows
        ] == []

    def test_rows_of_a_seed_started_from_one_mean(self, name: str) -> None:
        """The local rows were trained later than the others, from means that differ by rounding, as the pages say."""
        table = kept_table(source_named(name))
        later = {row.name for row in LOCAL}
        for chosen in (set(table.results) - later, later):
            some = replace(table, results={row: table.results[row] for row in chosen})
            assert some.warnings() == []
        assert all("mean_digest" in found for seeds in table.results.values() for found in seeds.values())


class TestSettings:
    @pytest.fixture
    def job(self) -> Job:
        return Job(Bundled(), 0, ROWS["colored-atom-energies"])

    def test_they_are_the_same_as_their_own(self, job: Job, tmp_path: Path) -> None:
        kept = json.loads(json.dumps(settings_of(job, MiniSize(), tmp_path)))
        assert same_settings(kept, job, MiniSize(), tmp_path / "elsewhere")

    @pytest.mark.parametrize(
        "other", [MiniSize(members=4), MiniSize(steps=(4000, 600, 1201)), MiniSize(PaiNN.Config())]
    )
    def test_others_are_not(self, job: Job, other: MiniSize, tmp_path: Path) -> None:
        assert not same_settings(settings_of(job, other, tmp_path), job, MiniSize(), tmp_path)

    def test_a_later_setting_must_have_its_default(self, job: Job, tmp_path: Path) -> None:
        kept = settings_of(job, MiniSize(), tmp_path)
        del kept[1]["stages"][0]["level_learns"]
        assert same_settings(kept, job, MiniSize(), tmp_path)
        del kept[1]["stages"][0]["energy_weight"]
        assert not same_settings(kept, job, MiniSize(), tmp_path)

    def test_a_removed_setting_counts_as_different(self, job: Job, tmp_path: Path) -> None:
        kept = settings_of(job, MiniSize(), tmp_path)
        kept[0]["optimiser"]["momentum"] = 0.9
        assert not same_settings(kept, job, MiniSize(), tmp_path)

    @pytest.mark.parametrize("kept", [None, "48ce7f01", []])
    def test_results_without_settings_are_not_taken(self, kept: object, job: Job, tmp_path: Path) -> None:
        assert not same_settings(kept, job, MiniSize(), tmp_path)


def test_the_documentation_names_every_row() -> None:
    page = (ROOT / "docs" / "reproduction" / "running.md").read_text()
    assert [name for name in ROWS if f"`{name}`" not in page] == []
