"""What tests of training share."""

from pathlib import Path

import pytest

from tests.training.helpers import write_waters


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled water molecules."""
    return write_waters(tmp_path_factory.mktemp("data") / "waters.xyz")
