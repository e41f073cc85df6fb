from pathlib import Path

import numpy as np
import pytest
from ase.io import read
from typer.testing import CliRunner

from huefield.cli.data import app
from huefield.data.info import draw_summary, look_into
from huefield.data.summary import summarise_data
from tests.data.store.test_writer import random_block, written
from tests.data.test_summary import molecules
from tests.paths import SHARED as DATA


def test_the_picture_has_six_panels_and_says_what_there_is_none_of() -> None:
    block = random_block(30, rng=np.random.default_rng(0), labels=("energy",))
    figure = draw_summary(summarise_data([block], rng=np.random.default_rng(0)), "some")
    names = [ax.get_xlabel() for ax in figure.axes]
    assert names[0] == "atoms in a structure"
    assert names[1] == "element (12 most frequent)"
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["none"]


def test_a_name_with_dollars_is_no_formula() -> None:
    block = random_block(5, rng=np.random.default_rng(0))
    figure = draw_summary(summarise_data([block], rng=np.random.default_rng(0)), r"a$\frac{$.xyz")
    assert r"a\$\frac{\$.xyz: 5 structures" in figure.get_suptitle()


def test_only_stores_can_be_verified(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1\n\nH 0 0 0\n")
    with pytest.raises(ValueError, match=r"a\.xyz is not a store and has no checksums: omit --verify"):
        look_into(tmp_path / "a.xyz", verify=True)


def test_the_program_describes_and_draws_a_store(tmp_path: Path) -> None:
    path = written(tmp_path / "a.hues", [molecules()])
    figure = tmp_path / "figure.png"
    arguments = ["info", str(path), "--figure", str(figure), "--verify"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "structures        20" in result.output
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.hues", [molecules()])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = CliRunner().invoke(app, ["info", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Drew" not in result.output
    assert list(Path().iterdir()) == []


def test_an_impossible_force_and_an_unusual_energy_are_shown(tmp_path: Path) -> None:
    frames = [
        f"1\nProperties=species:S:1:pos:R:3:forces:R:3 energy={-13.6 + 0.01 * i:.2f}\nH 0 0 0 1 1 1\n" for i in range(9)
    ]
    frames[3] = frames[3].replace("1 1 1", "1e6 1 1")
    frames[7] = frames[7].replace("energy=-13.53", "energy=-3.53")
    (tmp_path / "a.xyz").write_text("".join(frames))
    result = CliRunner().invoke(app, ["info", str(tmp_path / "a.xyz")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"wrong label       frame 3 of {tmp_path / 'a.xyz'} has a force of 1e+06 eV/Å" in result.output
    assert f"unusual label     frame 7 of {tmp_path / 'a.xyz'} has an energy +10 eV per atom" in result.output


def test_labels_under_other_names_and_charges_are_shown(tmp_path: Path) -> None:
    frame = "1\nProperties=species:S:1:pos:R:3:dft_forces:R:3 dft_energy=1.5 charge=1\nH 0 0 0 1 1 1\n"
    (tmp_path / "a.xyz").write_text(frame)
    result = CliRunner().invoke(app, ["info", str(tmp_path / "a.xyz")], catch_exceptions=False)
    assert "a.xyz, frame 0: the atoms have a charge, which models do not take as input" in result.output
    assert '"energy_keys": ["dft_energy"], "forces_keys": ["dft_forces"]' in result.output


def test_a_file_of_bad_frames_only_is_described_but_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "bad.xyz").write_text("2\nProperties=species:S:1:pos:R:3\nH 0 0 0\nH 0 0 0\n")
    result = CliRunner().invoke(app, ["info", str(tmp_path / "bad.xyz"), "--figure", str(tmp_path / "a.png")])
    assert "bad frames        1" in result.output
    assert "no structure that can be used" in str(result.exception)
    assert not (tmp_path / "a.png").exists()


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no reference data at {DATA}; set HUEFIELD_DATA")
def test_the_program_describes_a_real_file_without_suspicion(tmp_path: Path) -> None:
    path = DATA / "acac" / "test_dihedral.xyz"
    arguments = ["info", str(path), "--figure", str(tmp_path / "figure.png")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"structures        {len(read(path, ':'))}" in result.output
    assert "suspicious" not in result.output
