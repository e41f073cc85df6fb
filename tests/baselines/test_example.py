"""The example that runs foreign calculators, with calculators of ASE."""

import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest

from huefield.baselines import BaselineError, ProcessBaseline
from huefield.data.dataset import open_part
from tests.baselines.molecules import atoms_of, copper, emt, shaken
from tests.paths import ROOT

SCRIPT = str(ROOT / "examples" / "foreign_baseline.py")


def test_it_answers_requests() -> None:
    served = ProcessBaseline([sys.executable, SCRIPT, "emt"], "EMT")
    for structure in (shaken("CH3OH"), copper()):
        found, expected = served.compute(structure), emt().compute(structure)
        assert found.energy == pytest.approx(expected.energy, rel=1e-12)
        np.testing.assert_allclose(found.forces, expected.forces, atol=1e-12)
        assert (found.stress is None) == (expected.stress is None)
        if found.stress is not None and expected.stress is not None:
            np.testing.assert_allclose(found.stress, expected.stress, atol=1e-12)
    with pytest.raises(BaselineError, match="NotImplementedError"):
        served.compute(shaken("SiH4"))
    served.close()


def test_a_model_may_print_while_it_is_loaded(tmp_path: Path) -> None:
    """As CHGNet does; standard output is for answers."""
    talking = tmp_path / "talking.py"
    text = Path(SCRIPT).read_text()
    talking.write_text(text.replace('    if kind == "emt":\n', '    if kind == "emt":\n        print("loading")\n'))
    served = ProcessBaseline([sys.executable, str(talking), "emt"], "EMT")
    assert served.compute(shaken("CH3OH")).energy == pytest.approx(emt().compute(shaken("CH3OH")).energy)
    served.close()


def test_it_writes_columns_that_readers_find(tmp_path: Path) -> None:
    frames = [atoms_of(shaken("CH4")), atoms_of(shaken("SiH4")), atoms_of(copper())]
    for atoms in frames:
        atoms.info |= {"REF_energy": -3.0, "config_type": "here"}
        atoms.arrays["REF_forces"] = atoms.positions
    ase.io.write(tmp_path / "in.xyz", frames, format="extxyz")
    command = [sys.executable, SCRIPT, "emt", str(tmp_path / "in.xyz"), str(tmp_path / "out.extxyz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "frame 1 is left out" in done.stderr
    block = open_part("all", [tmp_path / "out.extxyz"]).block(np.arange(2))
    assert block.groups == ("here", "here")
    np.testing.assert_array_equal(block.energy, [-3.0, -3.0])
    assert block.baseline is not None
    assert block.baseline.known.all()
    np.testing.assert_array_equal(block.baseline.has_stress, [False, True])
    expected = emt().compute(copper())
    np.testing.assert_allclose(block.baseline.energy[1], expected.energy, rtol=1e-7)
    assert expected.stress is not None
    np.testing.assert_allclose(block.baseline.stress[1], expected.stress, rtol=1e-6, atol=1e-9)
