import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import huefield
from huefield.data.dataset import BundledData
from huefield.demo import TESTS, run_demo


@pytest.mark.slow
def test_the_demo_ends_in_a_page(tmp_path: Path) -> None:
    """With less data and one kind of noise: train, calibrate, compare."""
    told: list[Any] = []

    @contextlib.contextmanager
    def showing(title: str) -> Iterator[Any]:
        told.append(title)
        yield told.append

    data, saved = BundledData(train_limit=200), list[bool]()
    done = run_demo(
        tmp_path, showing, lambda: False, on_saved=lambda: saved.append(True), kinds=("colored",), data=data
    )
    assert saved
    assert done.files[0] == tmp_path / "evaluation" / "report.html"
    assert all(path.exists() for path in done.files)
    assert all(text in done.tables for text in TESTS.values())
    assert huefield.load(tmp_path / "colored" / "calibrated.safetensors").calibration is not None
    assert "Calibrating the colored ensemble on validation data, and predicting the test data" in told
