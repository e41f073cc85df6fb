"""Records of baselines in model files."""

from dataclasses import replace

import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from huefield.baselines import AseBaseline, BaselineRecord, ColumnsBaseline, TbliteBaseline, open_baseline, record_of
from huefield.core.structure import Structure, pack
from huefield.support.errors import HuefieldError
from tests.baselines.molecules import copper, emt, shaken


def with_results(structures: list[Structure], baseline: AseBaseline | TbliteBaseline) -> list[Structure]:
    return [replace(structure, baseline=baseline.compute(structure)) for structure in structures]


@pytest.fixture(scope="module")
def record() -> BaselineRecord:
    structures = with_results([shaken(name) for name in ("CH3CH2OH", "H2O", "CH4", "C2H6", "CO")], emt())
    return record_of(AseBaseline.Config(name="EMT"), "", structures)


def test_probes_are_small_middle_and_large(record: BaselineRecord) -> None:
    assert [len(probe.atomic_numbers) for probe in record.probes] == [2, 5, 9]


def test_the_same_calculator_is_accepted_and_others_are_refused(record: BaselineRecord) -> None:
    assert open_baseline(record, EMT()) is not None
    with pytest.raises(HuefieldError, match=r"corrects EMT, but .* is another one: for CO .* energy is"):
        open_baseline(record, LennardJones())
    with pytest.raises(HuefieldError, match="a baseline is an ASE calculator, not str"):
        open_baseline(record, "EMT")


def test_a_change_of_forces_alone_is_noticed(record: BaselineRecord) -> None:
    class Pushing(EMT):
        def calculate(self, *args: object, **options: object) -> None:
            super().calculate(*args, **options)
            self.results["forces"] = self.results["forces"] + 0.01

    with pytest.raises(HuefieldError, match=r"a force differs by 0.01 eV/Å"):
        open_baseline(record, Pushing())


def test_records_of_other_results_for_one_structure_conflict(record: BaselineRecord) -> None:
    assert record.conflict(record) == ""
    assert record.conflict(record.model_copy(update={"probes": ()})) == ""
    shifted = [probe.model_copy(update={"energy": probe.energy + 1.0}) for probe in record.probes]
    other = record.model_copy(update={"probes": tuple(shifted)})
    assert "for CO of the training data, its energy is" in record.conflict(other)
    named = record.model_copy(update={"config": AseBaseline.Config(name="LJ")})
    assert record.conflict(named) == "EMT and LJ"


def test_columns_of_another_method_are_noticed_by_their_energies() -> None:
    """GFN2-xTB and EMT have other energies of atoms; bonds and thermal motion change less."""
    names = ("CH3CH2OH", "H2O", "CH4", "C2H6", "CO", "CH3OH", "C2H4", "H2CO")
    structures = [shaken(name) for name in names]
    gfn2 = TbliteBaseline(TbliteBaseline.Config())
    own = with_results(structures, gfn2)
    record = record_of(ColumnsBaseline.Config(), "", own)
    assert [element for element, _ in record.levels] == [1, 6, 8]
    assert 0 < record.scatter < 0.5
    assert record.doubt(pack(own, np.arange(len(own)), "own.xyz")) == ""
    larger = with_results([shaken("C6H6"), shaken("CH3COOH")], gfn2)
    assert record.doubt(pack(larger, np.arange(2), "larger.xyz")) == ""
    foreign = pack(with_results(structures, emt()), np.arange(len(structures)), "emt.xyz")
    assert "columns of emt.xyz may hold another baseline" in record.doubt(foreign)
    assert record.model_copy(update={"levels": ()}).doubt(foreign) == ""


def test_one_formula_says_nothing_about_columns_of_others() -> None:
    gfn2 = TbliteBaseline(TbliteBaseline.Config())
    record = record_of(ColumnsBaseline.Config(), "", with_results([shaken("H2O", seed=i) for i in range(4)], gfn2))
    assert record.levels == ()
    assert record.doubt(pack(with_results([shaken("H2O2")], gfn2), np.arange(1), "other.xyz")) == ""


def test_a_calculator_that_fails_for_a_probe_is_refused(record: BaselineRecord) -> None:
    unknown = with_results([copper()], emt())
    strange = record_of(AseBaseline.Config(name="EMT"), "1.0", unknown)
    silicon = replace(unknown[0], atomic_numbers=np.full(4, 14, np.uint8))
    probe = strange.probes[0].model_copy(update={"atomic_numbers": tuple(silicon.atomic_numbers.tolist())})
    broken = strange.model_copy(update={"probes": (probe,)})
    with pytest.raises(HuefieldError, match=r"corrects EMT \(1.0\), but the given baseline fails .*Si4.*EMT failed"):
        open_baseline(broken, EMT())


def test_built_in_baselines_need_no_calculator_and_are_checked() -> None:
    baseline = TbliteBaseline(TbliteBaseline.Config())
    record = record_of(baseline.config, baseline.version, with_results([shaken("H2O")], baseline))
    assert isinstance(open_baseline(record), TbliteBaseline)
    other = record.model_copy(update={"config": TbliteBaseline.Config(method="GFN1-xTB")})
    with pytest.raises(HuefieldError, match=r"corrects GFN1-xTB \(tblite .*\), but the given baseline"):
        open_baseline(other)


def test_without_its_calculator_a_baseline_has_no_results(record: BaselineRecord) -> None:
    found = open_baseline(record)
    assert isinstance(found, ColumnsBaseline)
    with pytest.raises(HuefieldError, match=r"corrects EMT, whose results .* missing.*Calculator\(model, baseline="):
        found.compute(shaken("H2O"))


def test_models_without_a_baseline_take_none() -> None:
    assert open_baseline(None) is None
    with pytest.raises(HuefieldError, match="the model corrects no baseline"):
        open_baseline(None, EMT())


def test_a_record_comes_back_from_json(record: BaselineRecord) -> None:
    again = BaselineRecord.model_validate_json(record.model_dump_json())
    assert again == record
    assert hash(again) == hash(record)
    np.testing.assert_array_equal(again.probes[1].result.forces, record.probes[1].result.forces)
