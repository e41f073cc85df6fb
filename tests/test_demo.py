import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import huefield
from huefield.data.dataset import BundledData
from huefield.demo import run_demo
from huefield.demo.job import TESTS
from huefield.demo.page import LARGER, SEEN, UNSEEN, barrier_table, drawn_profiles, sentence, sorted_by_kind
from huefield.demo.profiles import Profile


def profile(name: str, heavy: int, error: float) -> Profile:
    true = np.array([0.0, 1.0, 0.2])
    return Profile(name, np.arange(3.0), true, true + 0.5, true + error, np.array([0.0, 0.1, 0.1]), heavy)


def test_profiles_are_sorted_by_what_training_had_seen() -> None:
    known, largest = profile("ammonia inversion", 1, 0.05), profile("vinyl alcohol to acetaldehyde", 3, 0.3)
    larger = profile("glyoxal to formaldehyde and carbon monoxide", 4, 0.3)
    unseen = profile("methyl isocyanide to acetonitrile", 3, 0.0)
    found = sorted_by_kind([unseen, larger, known, largest])
    assert found == {SEEN: [known, largest], LARGER: [larger], UNSEEN: [unseen]}
    assert list(sorted_by_kind([larger])) == [LARGER]


def test_the_table_of_barriers_counts_what_is_inside_the_intervals() -> None:
    within, beyond = profile("one", 1, 0.05), profile("two", 1, -0.3)
    assert within.barrier == pytest.approx((1.0, 1.5, 1.05, 0.1))
    (group,) = barrier_table({SEEN: [within, beyond]}).parts
    rows = [[cell.text for cell in row] for row in group.rows]
    assert rows[0] == ["one", "1.00", "1.50", "1.05", "0.10", "2 of 2"]
    assert rows[1] == ["two", "1.00", "1.50", "0.70", "0.10", "0 of 2"]
    assert rows[2][-4:] == ["0.50", "0.18", "", "2 of 4"]


def test_the_figure_has_the_worst_of_the_baseline_and_unseen_reactions() -> None:
    worse = replace(profile("worse", 1, 0.0), baseline=np.array([0.0, 3.0, 0.2]))
    some = [profile(f"reaction {number}", 1, 0.0) for number in range(3)]
    unseen = profile("unseen", 4, 0.0)
    assert drawn_profiles({SEEN: [*some, worse], LARGER: some, UNSEEN: [unseen]}) == [worse, *some[:2], unseen]


@pytest.mark.slow
def test_the_demo_ends_in_a_page(tmp_path: Path) -> None:
    """With less data, fewer steps and one kind of noise: train, calibrate, compare."""
    pytest.importorskip("tblite")
    told: list[Any] = []

    @contextlib.contextmanager
    def showing(title: str) -> Iterator[Any]:
        told.append(title)
        yield told.append

    data, saved = BundledData(level_of_theory="wb97x/6-31g(d)", train_limit=100), list[bool]()
    done = run_demo(
        tmp_path,
        showing,
        lambda: False,
        on_saved=lambda: saved.append(True),
        kinds=("colored",),
        data=data,
        steps=(60, 20, 20),
    )
    assert saved
    assert done.files[0] == tmp_path / "demo.html"
    assert all(path.exists() for path in done.files)
    assert all(sentence(text) in done.tables for text in TESTS.values())
    assert "GFN2-xTB alone" in done.tables
    page = done.files[0].read_text()
    assert all(text in page for text in (SEEN, LARGER, UNSEEN))
    model = huefield.load(tmp_path / "colored" / "calibrated.safetensors")
    assert model.calibration is not None
    assert model.baseline is not None
    assert "Predicting the test data with colored noise" in told
