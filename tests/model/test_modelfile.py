import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from pydantic import Field
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as format_tensors

import huefield
from huefield import Ensemble, ForceField
from huefield.core import EnergyForces, EnergyForcesStack, Graph, Outputs, Partition
from huefield.data import toy_graph
from huefield.model import CoherentCalibration, EnergyForcesCalibration, ScaleCalibration, Tails, modelfile
from huefield.model.modelfile import ModelFileError, open_model
from huefield.model.typical import Deviations, TypicalUncertainty
from huefield.noise import (
    AbstractNoise,
    ColoredNoise,
    Covariance,
    LocalNoise,
    LocalWhiteNoise,
    VanillaNoise,
    WhiteNoise,
)
from huefield.potentials import MLPPotential
from huefield.support.config import FrozenConfig
from huefield.support.tensorfile import format_file
from huefield.testing.probes import graph_of
from tests.golden.make_models import WATER
from tests.paths import ROOT

MEASURES = {
    measure: dict.fromkeys(("total", "aleatoric", "epistemic"), np.arange(1.0, 9.0))
    for measure in ("energy", "atom", "max", "mean")
}
NOISES = {
    "vanilla": VanillaNoise.Config(),
    "white": WhiteNoise.Config(pooling=True, energy_floor_ev=3e-5),
    "colored": ColoredNoise.Config(gamma="element"),
    "local": LocalNoise.Config(floor_ev=1e-4),
    "local white": LocalWhiteNoise.Config(),
    "colored atom channels": ColoredNoise.Config(gamma="atom", channels=2, floor_ev=0.01),
}
WEIGHT = "potential.network.layers.0.weight"
BLANK = "0" * 64
SMALL = MLPPotential.Config(dimension=2, width=4, depth=1, frequency=0.7)


def random_ensemble(
    noise: FrozenConfig,
    num_members: int = 3,
    potential: MLPPotential.Config = SMALL,
    config_type: type[ForceField.Config] = ForceField.Config,
) -> Ensemble:
    """Members that differ in every parameter, so that none can be lost or swapped unnoticed."""
    config = config_type(potential=potential, noise=noise)
    member = eqx.filter_eval_shape(lambda: config.build(key=jax.random.key(0)))
    rng = np.random.default_rng(1)

    def filled(leaf: object) -> object:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jnp.asarray(0.5 * rng.normal(size=(num_members, *leaf.shape)), leaf.dtype)

    return Ensemble(jax.tree.map(filled, member))


def small_graph() -> Graph:
    partition = Partition.from_sizes([2, 1, 3])
    positions = np.random.default_rng(2).normal(size=(6, 2))
    return Graph(jnp.asarray(positions, float), jnp.array([1, 6, 8, 1, 7, 6]), partition)


def bits(tree: object) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(str(x.dtype), x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model file of about a thousand bytes."""
    path = tmp_path / "tiny.hue"
    huefield.save(random_ensemble(ColoredNoise.Config(), 1, potential=MLPPotential.Config(width=2, depth=1)), path)
    return path


def header_of(content: bytes) -> dict[str, dict[str, str]]:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def forge(path: Path, *, metadata: dict[str, object] | None = None, tensors: dict[str, object] | None = None) -> None:
    """Change entries of a model file (None removes one) and give it the checksum that belongs to the change."""
    content = path.read_bytes()

    def changed(old: dict[str, object], changes: dict[str, object] | None) -> dict[str, object]:
        return {name: value for name, value in (old | (changes or {})).items() if value is not None}

    entries = changed(header_of(content)["__metadata__"] | {"sha256": BLANK}, metadata)
    blank = format_tensors(changed(parse_tensors(content), tensors), entries)
    path.write_bytes(blank.replace(BLANK.encode(), hashlib.sha256(blank).hexdigest().encode()))


def forge_config(path: Path, part: str, changes: dict[str, object]) -> None:
    config = json.loads(header_of(path.read_bytes())["__metadata__"]["config"])
    config[part] |= changes
    forge(path, metadata={"config": json.dumps(config)})


def refused(path: Path, reason: str) -> "pytest.RaisesExc[ModelFileError]":
    """Loading has to fail with the name of the file and the reason, a regular expression."""
    return pytest.raises(ModelFileError, match=rf"(?s)^{re.escape(str(path))}: .*{reason}")


class TestRoundTrip:
    @pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
    def test_predictions_are_the_same_to_the_last_bit(
        self, noise: FrozenConfig, precision: str, tmp_path: Path
    ) -> None:
        ensemble, graph = random_ensemble(noise), small_graph()
        huefield.save(ensemble, tmp_path / "model.hue")
        loaded = huefield.load(tmp_path / "model.hue")
        assert bits(loaded.predict(graph)) == bits(ensemble.predict(graph))
        assert {dtype for dtype, _, _ in bits(loaded)} == {precision}
        assert eqx.tree_equal(loaded, ensemble)

    @pytest.mark.parametrize("num_members", [1, 4])
    def test_number_of_members_and_their_order_survive(self, num_members: int, tmp_path: Path) -> None:
        ensemble = random_ensemble(ColoredNoise.Config(), num_members)
        huefield.save(ensemble, tmp_path / "model.hue")
        loaded = huefield.load(tmp_path / "model.hue")
        assert loaded.num_members == num_members
        for index in range(num_members):
            assert bits(loaded.member(index)) == bits(ensemble.member(index))

    def test_path_may_be_a_string(self, tmp_path: Path) -> None:
        ensemble = random_ensemble(WhiteNoise.Config())
        huefield.save(ensemble, f"{tmp_path}/model.hue")
        assert eqx.tree_equal(huefield.load(f"{tmp_path}/model.hue"), ensemble)

    def test_saving_what_was_loaded_loses_nothing(self, tmp_path: Path) -> None:
        ensemble = random_ensemble(WhiteNoise.Config(pooling=True))
        huefield.save(ensemble, tmp_path / "first.hue")
        huefield.save(huefield.load(tmp_path / "first.hue"), tmp_path / "second.hue")
        assert eqx.tree_equal(huefield.load(tmp_path / "second.hue"), ensemble)

    def test_equal_models_are_equal_files(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            huefield.save(random_ensemble(ColoredNoise.Config()), tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("version", range(1, 6))
    def test_files_of_every_format_version_still_load(self, version: int) -> None:
        golden = ROOT / "tests" / "golden" / f"model-v{version}"
        expected = json.loads(golden.with_suffix(".json").read_text())
        graph = toy_graph([-0.7, 0.1, 0.9])
        hydrogen = eqx.tree_at(lambda g: g.atomic_numbers, graph, jnp.ones_like(graph.atomic_numbers))
        ensemble = huefield.load(golden.with_suffix(".safetensors"))
        assert (ensemble.baseline is not None) == (version == 4)
        assert (ensemble.datasets is not None) == (version == 5)
        prediction = ensemble.with_baseline(None).predict(hydrogen)
        np.testing.assert_allclose(prediction.energy, expected["energy"], rtol=1e-6)
        np.testing.assert_allclose(prediction.forces, expected["forces"], rtol=1e-6)
        np.testing.assert_allclose(prediction.energy_uncertainty, expected["energy_uncertainty"], rtol=1e-6)
        np.testing.assert_allclose(prediction.forces_uncertainty, expected["forces_uncertainty"], rtol=1e-6)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("version", range(6, modelfile.FORMAT_VERSION + 1))
    def test_files_with_growing_noise_still_load(self, version: int) -> None:
        golden = ROOT / "tests" / "golden" / f"model-v{version}"
        expected = json.loads(golden.with_suffix(".json").read_text())
        loaded = huefield.load(golden.with_suffix(".safetensors"))
        assert loaded.members.novelty is not None
        prediction = loaded.predict(graph_of([WATER], 3.0))
        for name, values in expected.items():
            np.testing.assert_allclose(getattr(prediction, name), values, rtol=1e-6, atol=1e-12)

    @pytest.mark.parametrize("version", ["6", "7"])
    def test_growing_noise_is_format_version_6_or_7(self, version: str, tmp_path: Path) -> None:
        golden = huefield.load(ROOT / "tests" / "golden" / f"model-v{version}.safetensors")
        huefield.save(golden, tmp_path / "model")
        header = header_of((tmp_path / "model").read_bytes())["__metadata__"]
        assert header["format_version"] == version
        assert ("growth" in header["novelty"]) == (version == "7")
        assert bits(huefield.load(tmp_path / "model")) == bits(golden)
        for old, new, message in (
            ('"dimensions":4', '"dimensions":3', "parameter novelty.axes has shape"),
            ('"points":[5,5]', '"points":[10]', "do not fit the elements"),
            ('"features":4', '"features":5', "its 'novelty' does not fit"),
        ):
            forge(tmp_path / "model", metadata={"novelty": header["novelty"].replace(old, new)})
            with refused(tmp_path / "model", message):
                huefield.load(tmp_path / "model")

    def test_a_coherent_calibration_is_format_version_3(self, tmp_path: Path) -> None:
        calibration = CoherentCalibration(noise=2.0, spread=3.0, tails=Tails(energy=4.0, joint=6.5))
        path, plain = tmp_path / "coherent.hue", random_ensemble(NOISES["local"])
        calibrated = plain.with_calibration(calibration)
        huefield.save(calibrated, path)
        assert header_of(path.read_bytes())["__metadata__"]["format_version"] == "3"
        loaded = huefield.load(path)
        assert loaded.calibration == calibration
        assert loaded.tails == Tails(energy=4.0, joint=6.5)
        assert bits(loaded.predict(small_graph())) == bits(calibrated.predict(small_graph()))

    def test_older_versions_have_only_fields_that_they_know(self, tmp_path: Path) -> None:
        """Those of a file that an older huefield wrote, and the typical uncertainty without its newest field."""
        separate = EnergyForcesCalibration(energy=ScaleCalibration(factor=2.0))
        typical = TypicalUncertainty.of([Deviations(MEASURES, 0)], "validation data")
        plain = random_ensemble(ColoredNoise.Config())
        for version, calibration in (("1", None), ("2", separate)):
            huefield.save(plain.with_calibration(calibration).with_typical(typical), tmp_path / version)
            written = header_of((tmp_path / version).read_bytes())["__metadata__"]
            assert written["format_version"] == version
            assert set(json.loads(written["typical"])) == {"source", "structures", "energy", "atom", "max", "mean"}
            loaded = huefield.load(tmp_path / version)
            assert (loaded.calibration, loaded.typical) == (calibration, typical)
        golden = header_of((ROOT / "tests" / "golden" / "model-v2.safetensors").read_bytes())["__metadata__"]
        assert set(json.loads(written["calibration"])) >= set(json.loads(golden["calibration"]))
        assert set(json.loads(written["calibration"])) == {"energy", "forces", "differences"}

    @pytest.mark.parametrize("what", ["tails", "size", "noise"])
    def test_what_older_versions_do_not_know_is_format_version_3(self, tmp_path: Path, what: str) -> None:
        ensemble = random_ensemble(NOISES["local"] if what == "noise" else ColoredNoise.Config())
        if what == "tails":
            ensemble = ensemble.with_calibration(EnergyForcesCalibration(tails=Tails(forces=4.0)))
        if what == "size":
            ensemble = ensemble.with_typical(TypicalUncertainty.of([Deviations(MEASURES, 21)], "validation data"))
        huefield.save(ensemble, tmp_path / "model")
        assert header_of((tmp_path / "model").read_bytes())["__metadata__"]["format_version"] == "3"
        loaded = huefield.load(tmp_path / "model")
        assert (loaded.calibration, loaded.typical) == (ensemble.calibration, ensemble.typical)

    def test_a_calibration_of_version_2_has_no_kind(self, tiny: Path) -> None:
        """It was written before there were coherent ones."""
        ensemble = huefield.load(tiny)
        forge(tiny, metadata={"format_version": "2", "calibration": '{"forces": {"kind": "scale", "factor": 4.0}}'})
        loaded, calibration = huefield.load(tiny), EnergyForcesCalibration(forces=ScaleCalibration(factor=4.0))
        assert loaded.calibration == calibration
        found, plain = (each.predict(toy_graph([0.3])) for each in (loaded, ensemble))
        np.testing.assert_allclose(found.forces_uncertainty, 2 * np.asarray(plain.forces_uncertainty), rtol=1e-6)
        assert bits(found.energy_uncertainty) == bits(plain.energy_uncertainty)
        huefield.save(loaded, tiny)
        assert header_of(tiny.read_bytes())["__metadata__"]["format_version"] == "2"

    def test_arrays_without_elements_of_older_versions_are_ignored(self, tiny: Path, tmp_path: Path) -> None:
        """PaiNN had a readout of vectors, of which no noise model asked for any."""
        content = tiny.read_bytes()
        metadata = {k: v for k, v in header_of(content)["__metadata__"].items() if k not in ("format", "sha256")}
        tensors = parse_tensors(content)
        for name, shape, accepted in (("empty", (3, 4, 0), True), ("full", (3, 4, 1), False)):
            path = tmp_path / f"{name}.safetensors"
            more = {**tensors, "potential.readout.vectors.weight": np.zeros(shape, np.float32)}
            path.write_bytes(format_file(more, metadata, modelfile.FORMAT))
            if accepted:
                assert bits(huefield.load(path)) == bits(huefield.load(tiny))
            else:
                with refused(path, r"unknown \['potential.readout.vectors.weight'\]"):
                    huefield.load(path)

    def test_file_is_laid_out_as_documented(self, tiny: Path) -> None:
        content = tiny.read_bytes()
        metadata = header_of(content)["__metadata__"]
        assert set(metadata) == {"format", "format_version", "huefield", "config", "atom_energies", "sha256"}
        assert metadata["format"] == "huefield-model"
        assert metadata["format_version"] == "1"
        assert metadata["huefield"] == huefield.__version__
        blank = content.replace(metadata["sha256"].encode(), BLANK.encode())
        assert hashlib.sha256(blank).hexdigest() == metadata["sha256"]


class TestPrecision:
    @pytest.fixture
    def double_file(self, tmp_path: Path) -> Path:
        with jax.enable_x64(True):
            huefield.save(random_ensemble(ColoredNoise.Config()), tmp_path / "double.hue")
        return tmp_path / "double.hue"

    def test_double_file_is_loaded_and_predicts_in_double_precision(self, double_file: Path) -> None:
        loaded = huefield.load(double_file)
        assert loaded.precision == "float64"
        assert {dtype for dtype, _, _ in bits(loaded)} == {"float64"}
        assert loaded.predict(small_graph()).distribution.mean.energy.dtype == np.float64

    def test_an_opened_model_has_the_wanted_precision(self, double_file: Path) -> None:
        double = open_model(double_file)
        assert (double.precision, open_model(double_file, dtype="float32").precision) == ("float64", "float32")
        assert (open_model(double).precision, open_model(double, dtype="float32").precision) == ("float64", "float32")

    def test_double_file_can_be_loaded_in_single_precision(self, double_file: Path) -> None:
        single = huefield.load(double_file, dtype="float32")
        assert {dtype for dtype, _, _ in bits(single)} == {"float32"}
        expected = parse_tensors(double_file.read_bytes())[WEIGHT].astype(np.float32)
        np.testing.assert_array_equal(single.members.potential.network.layers[0].weight, expected)
        assert np.isfinite(single.predict(small_graph()).energy).all()

    @pytest.mark.usefixtures("x64")
    def test_single_file_can_be_loaded_in_double_precision(self, tmp_path: Path) -> None:
        with jax.enable_x64(False):
            huefield.save(random_ensemble(WhiteNoise.Config()), tmp_path / "single.hue")
        double = huefield.load(tmp_path / "single.hue", dtype="float64")
        assert {dtype for dtype, _, _ in bits(double)} == {"float64"}
        assert {dtype for dtype, _, _ in bits(huefield.load(tmp_path / "single.hue"))} == {"float32"}
        expected = parse_tensors((tmp_path / "single.hue").read_bytes())[WEIGHT]
        np.testing.assert_array_equal(double.members.potential.network.layers[0].weight, expected)

    @pytest.mark.parametrize("dtype", ["int32", "float16", "banana"])
    def test_other_precisions_are_refused(self, dtype: str, tiny: Path) -> None:
        with pytest.raises(ValueError, match=f"dtype must be 'float32', 'float64' or None, but is '{dtype}'"):
            huefield.load(tiny, dtype=dtype)


class TestDamage:
    def test_file_cut_off_anywhere_is_refused(self, tiny: Path) -> None:
        content, cut = tiny.read_bytes(), tiny.with_name("cut.hue")
        tensors_begin = 8 + int.from_bytes(content[:8], "little")
        assert 8 < tensors_begin < len(content)
        for length in range(len(content)):
            cut.write_bytes(content[:length])
            reason = f"damaged: it has {length} bytes but should have {len(content)}"
            if length < tensors_begin:
                reason += rf"|cut off \({length} bytes\)"  # unless all that is lost of the header is blanks
            with refused(cut, f"({reason})"):
                huefield.load(cut)

    def test_flipped_bit_is_found_in_any_byte(self, tiny: Path) -> None:
        content, flipped = bytearray(tiny.read_bytes()), tiny.with_name("flipped.hue")
        bits_to_flip = 1 << np.random.default_rng(3).integers(0, 8, len(content))
        for place, bit in enumerate(bits_to_flip.tolist()):
            content[place] ^= bit
            flipped.write_bytes(content)
            with refused(flipped, "(damaged|not a huefield model)"):
                huefield.load(flipped)
            content[place] ^= bit
        flipped.write_bytes(content)
        assert eqx.tree_equal(huefield.load(flipped), huefield.load(tiny))

    @pytest.mark.parametrize("extra", [b"\0", b"\n", b"x" * 1000])
    def test_bytes_appended_are_refused(self, extra: bytes, tiny: Path) -> None:
        content = tiny.read_bytes()
        tiny.write_bytes(content + extra)
        with refused(tiny, f"damaged: it has {len(content) + len(extra)} bytes but should have {len(content)}"):
            huefield.load(tiny)


class TestNotOurs:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"energy: 1.0\nforces: 0.1 0.2 0.3\n",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0",
            b"{}",
            b'        {"cutoff": 5.0}',
            b'        {"__metadata__": []}',
            b'        {"__metadata__": null}',
            b'        ["data_offsets"]',
            b"        " + b"[" * 100_000,
            bytes(range(256)) * 8,
            (2**63).to_bytes(8, "little") + b"{}",
        ],
        ids=lambda content: repr(content[:30]),
    )
    def test_file_of_another_kind_is_refused(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "other.dat"
        path.write_bytes(content)
        with refused(path, "not a huefield model"):
            huefield.load(path)

    @pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
    def test_somebody_elses_tensors_are_refused(self, metadata: dict[str, str] | None, tmp_path: Path) -> None:
        path = tmp_path / "bert.safetensors"
        path.write_bytes(format_tensors({"encoder.weight": np.ones((3, 2), np.float32)}, metadata))
        with refused(path, r"not a huefield model, but another safetensors file"):
            huefield.load(path)

    @pytest.mark.parametrize("digest", [3, None, ["a"], "", "\ud800" * 64, "ab" * 32])
    def test_our_mark_with_a_strange_checksum_is_refused(self, digest: object, tmp_path: Path) -> None:
        header = json.dumps({"__metadata__": {"format": "huefield-model", "sha256": digest}}).encode()
        path = tmp_path / "strange.hue"
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with refused(path, "(damaged|not a huefield model)"):
            huefield.load(path)

    def test_missing_file_is_the_usual_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"there is no model file .*nowhere\.hue"):
            huefield.load(tmp_path / "nowhere.hue")

    def test_a_folder_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        with refused(tmp_path, r"this is a folder, but a model file is needed, such as .*model\.safetensors"):
            huefield.load(tmp_path)


class TestUnknownContent:
    """Files whose checksum is right, so that only their content can be at fault."""

    def test_forging_nothing_leaves_a_good_file(self, tiny: Path) -> None:
        before = huefield.load(tiny)
        forge(tiny)
        assert eqx.tree_equal(huefield.load(tiny), before)

    def test_newer_format_names_both_versions(self, tiny: Path) -> None:
        forge(tiny, metadata={"format_version": "8", "huefield": "9.8.7"})
        known = rf"\({huefield.__version__}\) can read \({modelfile.FORMAT_VERSION}\)"
        versions = rf"format version 8 is newer than this huefield {known}"
        with refused(tiny, rf"{versions}; it was written by huefield 9\.8\.7: upgrade"):
            huefield.load(tiny)

    @pytest.mark.parametrize("entry", ["format_version", "huefield", "config"])
    def test_missing_entry_is_named(self, entry: str, tiny: Path) -> None:
        forge(tiny, metadata={entry: None})
        with refused(tiny, rf"lacks \['{entry}'\]"):
            huefield.load(tiny)

    def test_unknown_noise_kind_is_named_with_the_known_ones(self, tiny: Path) -> None:
        forge_config(tiny, "noise", {"kind": "pink"})
        with refused(tiny, r"config: noise: .*'pink'.*'vanilla', 'white', 'colored'.*pass config_type"):
            huefield.load(tiny)

    def test_unknown_potential_kind_is_named(self, tiny: Path) -> None:
        forge_config(tiny, "potential", {"kind": "oracle"})
        with refused(tiny, r"config: potential.*'mlp'.*'oracle'.*pass config_type"):
            huefield.load(tiny)

    def test_unknown_key_is_named_with_its_value_and_the_known_ones(self, tiny: Path) -> None:
        forge_config(tiny, "noise", {"temperature": 300})
        with refused(
            tiny, r"noise\.colored\.temperature: is not a known key.*gamma, channels, readout, floor_ev.*\(got 300\)"
        ):
            huefield.load(tiny)

    def test_value_out_of_range_is_named(self, tiny: Path) -> None:
        forge_config(tiny, "noise", {"floor_ev": -1.0})
        with refused(tiny, r"noise\.colored\.floor_ev: .*greater than 0 \(got -1\.0\)"):
            huefield.load(tiny)

    def test_config_that_is_no_json_is_refused(self, tiny: Path) -> None:
        forge(tiny, metadata={"config": "{"})
        with refused(tiny, "config: configuration: Invalid JSON"):
            huefield.load(tiny)

    def test_parameter_of_wrong_shape_is_named_with_both_shapes(self, tiny: Path) -> None:
        forge(tiny, tensors={WEIGHT: np.zeros((1, 3, 1), np.float32)})
        with refused(tiny, rf"parameter {re.escape(WEIGHT)} has shape \(1, 3, 1\), .* needs \(1, 2, 1\)"):
            huefield.load(tiny)

    def test_config_of_another_size_than_the_parameters_names_one(self, tiny: Path) -> None:
        forge_config(tiny, "potential", {"width": 5})
        with refused(tiny, rf"parameter {re.escape(WEIGHT)} has shape \(1, 2, 1\), .* needs \(1, 5, 1\)"):
            huefield.load(tiny)

    def test_missing_parameter_is_named(self, tiny: Path) -> None:
        forge(tiny, tensors={"noise.offset": None})
        with refused(tiny, r"missing \['noise\.offset'\], unknown \[\]"):
            huefield.load(tiny)

    def test_unknown_parameter_is_named(self, tiny: Path) -> None:
        forge(tiny, tensors={"noise.ghost": np.zeros(1, np.float32)})
        with refused(tiny, r"missing \[\], unknown \['noise\.ghost'\]"):
            huefield.load(tiny)

    def test_renamed_parameter_names_both(self, tiny: Path) -> None:
        forge(tiny, tensors={"noise.offset": None, "noise.ofset": np.zeros((1, 1), np.float32)})
        with refused(tiny, r"missing \['noise\.offset'\], unknown \['noise\.ofset'\]"):
            huefield.load(tiny)

    def test_parameters_of_different_numbers_of_members_are_refused(self, tiny: Path) -> None:
        forge(tiny, tensors={"noise.offset": np.zeros((2, 1), np.float32)})
        with refused(tiny, r"parameter noise\.offset has shape \(2, 1\), .* with 1 members needs \(1, 1\)"):
            huefield.load(tiny)

    def test_a_parameter_that_is_nan_is_named(self, tiny: Path) -> None:
        weight = parse_tensors(tiny.read_bytes())[WEIGHT]
        weight[0, 1, 0] = np.nan
        forge(tiny, tensors={WEIGHT: weight})
        with refused(tiny, rf"parameter {WEIGHT} must be finite, but is nan at index \(0, 1, 0\).*copy the file again"):
            huefield.load(tiny)

    def test_a_parameter_too_large_for_the_asked_precision_is_named(self, tiny: Path) -> None:
        weight = parse_tensors(tiny.read_bytes())[WEIGHT].astype(np.float64)
        weight[0, 0, 0] = 1e300
        forge(tiny, tensors={WEIGHT: weight})
        with refused(tiny, rf"parameter {WEIGHT} must be finite, but is inf"):
            huefield.load(tiny, dtype="float32")

    @pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bool"])
    def test_a_parameter_of_another_type_is_named(self, dtype: str, tiny: Path) -> None:
        forge(tiny, tensors={WEIGHT: parse_tensors(tiny.read_bytes())[WEIGHT].astype(dtype)})
        with refused(tiny, f"parameter {WEIGHT} has the type {dtype}, but parameters are float32 or float64"):
            huefield.load(tiny)

    @pytest.mark.parametrize(
        ("energies", "reason"),
        [
            ("[[1, NaN]]", "cannot be used: atom energies must be finite, but is nan"),
            ("[[1, -Infinity]]", "cannot be used: atom energies must be finite, but is -inf"),
            (f"[[1, {'7' * 400}]]", "cannot be used: int too large"),
            ("[[1.5, -13.6]]", "1.5 in atom_energies is no atomic number"),
            ('[["1", -13.6]]', "1 in atom_energies is no atomic number"),
            (f"[[{'7' * 400}, -13.6]]", r"7{37}\.\.\. in atom_energies is no atomic number"),
            ("[[0, -13.6]]", "0 in atom_energies is no atomic number"),
            ("[" * 100_000, "cannot be used"),
            ("[[1, -13.6, 2]]", "cannot be used"),
        ],
    )
    def test_absurd_atom_energies_are_named(self, energies: str, reason: str, tiny: Path) -> None:
        forge(tiny, metadata={"atom_energies": energies})
        with refused(tiny, f"{reason}.*copy the file again"):
            huefield.load(tiny)

    @pytest.mark.parametrize("version", ["one", "0", "-1", "1.5", "٣", "²", "1e3", " 2", "2\n", ""])
    def test_a_version_that_is_no_number_is_named(self, version: str, tiny: Path) -> None:
        forge(tiny, metadata={"format_version": version})
        with refused(tiny, f"format version {re.escape(repr(version))} is not a whole number from 1"):
            huefield.load(tiny)

    @pytest.mark.parametrize("digits", [400, 5000])
    def test_a_version_of_many_digits_is_newer(self, digits: int, tiny: Path) -> None:
        forge(tiny, metadata={"format_version": "7" * digits})
        with refused(tiny, r"format version 7{37}\.\.\. is newer than this huefield"):
            huefield.load(tiny)

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-1"])
    def test_absurd_calibrations_are_named(self, number: str, tiny: Path) -> None:
        forge(tiny, metadata={"calibration": f'{{"forces": {{"kind": "scale", "factor": {number}}}}}'})
        with refused(tiny, "its 'calibration' cannot be used: .*factor"):
            huefield.load(tiny)

    def test_parameters_of_no_members_are_refused(self, tiny: Path) -> None:
        none = {name: array[:0] for name, array in parse_tensors(tiny.read_bytes()).items()}
        forge(tiny, tensors=none)
        with refused(tiny, "parameters of no ensemble member"):
            huefield.load(tiny)

    def test_scalar_parameter_without_a_member_axis_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "white.hue"
        huefield.save(random_ensemble(WhiteNoise.Config()), path)
        forge(path, tensors={"noise.energy_offset": np.zeros((), np.float32)})
        with refused(path, r"parameter noise\.energy_offset has shape \(\), .* with 3 members needs \(3,\)"):
            huefield.load(path)


class PinkNoise(AbstractNoise):
    """A stranger's model: the same noise on every energy and every force."""

    class Config(FrozenConfig):
        kind: Literal["pink"] = "pink"
        floor_ev: float = 1e-3

        def build(self) -> "PinkNoise":
            return PinkNoise(jnp.zeros(()), self)

    log_level: Float[Array, ""]
    config: Config = eqx.field(static=True)

    @property
    def raw_outputs(self) -> tuple[str, ...]:
        return ()

    def levels(self, raw: jax.Array, graph: Graph) -> jax.Array:
        return jnp.zeros((0, graph.partition.num_structures), raw.dtype)

    def covariance(self, outputs: Outputs, graph: Graph) -> Covariance:
        variance = (self.config.floor_ev + jnp.exp(self.log_level)) ** 2
        like = EnergyForces(outputs.energy, outputs.energy_gradient)
        diagonal = jax.tree.map(lambda x: jnp.broadcast_to(variance, x.shape), like)
        return Covariance(diagonal, EnergyForcesStack.empty(like))

    def initialised(self, energy_rmse: float, force_rmse: float, atoms: float = 1.0) -> "PinkNoise":
        return self


class WiderConfig(ForceField.Config):
    noise: Annotated[WhiteNoise.Config | PinkNoise.Config, Field(discriminator="kind")]


class TestOwnNoiseModel:
    @pytest.fixture
    def pink(self) -> Ensemble:
        return random_ensemble(PinkNoise.Config(floor_ev=0.25), config_type=WiderConfig)

    def test_saves_and_loads_with_config_type(self, pink: Ensemble, tmp_path: Path) -> None:
        huefield.save(pink, tmp_path / "pink.hue")
        loaded = huefield.load(tmp_path / "pink.hue", config_type=WiderConfig)
        assert isinstance(loaded.members.noise, PinkNoise)
        assert loaded.members.noise.config.floor_ev == 0.25
        assert bits(loaded.predict(small_graph())) == bits(pink.predict(small_graph()))

    def test_without_config_type_the_error_says_to_pass_it(self, pink: Ensemble, tmp_path: Path) -> None:
        huefield.save(pink, tmp_path / "pink.hue")
        with refused(tmp_path / "pink.hue", r"'pink'.*noise model of your own, pass config_type"):
            huefield.load(tmp_path / "pink.hue")

    def test_our_own_models_load_with_a_wider_config_type_too(self, tmp_path: Path) -> None:
        white = random_ensemble(WhiteNoise.Config())
        huefield.save(white, tmp_path / "white.hue")
        assert eqx.tree_equal(huefield.load(tmp_path / "white.hue", config_type=WiderConfig), white)


class TestWriting:
    def test_a_model_that_is_not_a_number_is_refused(self, tmp_path: Path) -> None:
        good = random_ensemble(ColoredNoise.Config())
        bad = eqx.tree_at(lambda e: e.members.noise.offset, good, good.members.noise.offset.at[1, 0].set(jnp.nan))
        with pytest.raises(ValueError, match=r"parameter noise.offset must be finite, but is nan at index \(1, 0\)"):
            huefield.save(bad, tmp_path / "bad.safetensors")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("step", ["write_bytes", "fsync", "chmod", "replace"])
    def test_full_disk_leaves_the_old_file_and_nothing_else(
        self, step: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = tiny.read_bytes()
        with failing(step, monkeypatch), pytest.raises(OSError, match="No space left on device"):
            huefield.save(random_ensemble(WhiteNoise.Config()), tiny)
        assert tiny.read_bytes() == before
        assert list(tiny.parent.iterdir()) == [tiny]

    @pytest.mark.parametrize("step", ["write_bytes", "replace"])
    def test_full_disk_leaves_no_new_file(self, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with failing(step, monkeypatch), pytest.raises(OSError, match="No space left on device"):
            huefield.save(random_ensemble(WhiteNoise.Config()), tmp_path / "model.hue")
        assert list(tmp_path.iterdir()) == []

    def test_saving_replaces_an_older_model(self, tiny: Path) -> None:
        ensemble = random_ensemble(WhiteNoise.Config())
        huefield.save(ensemble, tiny)
        assert eqx.tree_equal(huefield.load(tiny), ensemble)
        assert list(tiny.parent.iterdir()) == [tiny]

    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
    def test_permission_follows_the_umask(self, umask: int, mode: int, tmp_path: Path) -> None:
        before = os.umask(umask)
        try:
            huefield.save(random_ensemble(VanillaNoise.Config(), 1), tmp_path / "model.hue")
            assert os.umask(umask) == umask, "saving changed the umask"
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "model.hue").stat().st_mode) == mode


@contextmanager
def failing(step: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that is full at one step of writing a file; of the content it takes the first half."""

    def fail(*args: object, **options: object) -> None:
        if step == "write_bytes":
            path, content = args
            with path.open("wb") as file:
                file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, fail)
        yield


@pytest.mark.usefixtures("as_users_run")
def test_what_has_no_ensemble_is_no_model() -> None:
    with pytest.raises(huefield.HuefieldError, match=r"a model is an ensemble, a model file, .*, not int"):
        modelfile.open_model(3)  # type: ignore[arg-type]
