"""What a run says of its data before it begins."""

from pathlib import Path

import pytest

from huefield.data.references import AtomicReferences
from huefield.training.config import parse_config
from huefield.training.datachecks import overview
from tests.training.helpers import config_for, write_waters

WATERS = "structures of H, O for training"
ONE_BY_ONE = AtomicReferences({"all": {1: -13.6, 8: -2040.0}})
IN_SUM = AtomicReferences({"all": {1: -400.0, 8: -800.0}}, "least_squares", ("all",))


@pytest.mark.parametrize(("references", "warnings"), [(ONE_BY_ONE, 0), (IN_SUM, 1)])
def test_compositions_that_do_not_tell_elements_apart_are_said(
    references: AtomicReferences, warnings: int, tmp_path: Path
) -> None:
    parts = config_for(write_waters(tmp_path / "waters.xyz")).data.load()
    told = list(overview(parts, references, range(2), 2))
    assert WATERS in told[0]
    assert told[0].endswith("2 members")
    assert len(told) == 1 + warnings
    assert all("energies of other compositions will be wrong" in line for line in told[1:])


def test_data_without_forces_are_said(tmp_path: Path) -> None:
    path = write_waters(tmp_path / "waters.xyz")
    path.write_text(path.read_text().replace(":forces:R:3", ":elsewhere:R:3"))
    told = list(overview(config_for(path).data.load(), ONE_BY_ONE, range(3, 4), 5))
    assert told[0].endswith("member 3 of 5")
    assert told[1] == "warning: no structure for training has forces; they are learnt from energies alone"


def test_faults_are_named_as_set_takes_them(tmp_path: Path) -> None:
    """Without the kind of a stage, nor everything else that is configured."""
    text = f"""
data: {{kind: files, train: [{tmp_path}/w.xyz], validation: [{tmp_path}/v.xyz],
        split: {{kind: random, fractions: {{train: 0.9, validation: 0.1}}}}}}
model: {{potential: {{kind: painn}}, noise: {{kind: colored}}}}
stages: [{{kind: nll, steps: 1, joint: true, level_learns: evenly}}, {{kind: nll, steps: -1}}]
"""
    with pytest.raises(ValueError, match="mine") as raised:
        parse_config(text, "mine")
    lines = str(raised.value).splitlines()
    assert "mine: data: name files for validation or a split" in lines[0]
    assert lines[1].startswith("mine: stages.0: with joint: true, level_learns must be likelihood, but is evenly")
    assert lines[2] == "mine: stages.1.steps: Input should be greater than or equal to 0 (got -1)"
    assert str(tmp_path) not in str(raised.value)
