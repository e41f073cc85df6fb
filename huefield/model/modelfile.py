"""Model files: one safetensors file with the architecture as JSON and a checksum in its header.

Layout of format versions 1 to 7: a safetensors file whose metadata has

=================  ==========================================================================
``format``         the word ``huefield-model``
``format_version`` the version
``huefield``       version of the library that wrote it
``config``         JSON of :class:`ForceField.Config`
``atom_energies``  JSON list of atomic numbers and energies of isolated atoms [eV]; optional
``calibration``    JSON of a joint calibration; coherent ones and tails from version 3, stresses from 4 on
``typical``        JSON of :class:`TypicalUncertainty`; optional
``baseline``       JSON of :class:`BaselineRecord` for a model that corrects a baseline; from version 4 on
``datasets``       JSON of :class:`Datasets`, from version 5 on; ``atom_energies`` are those of the chosen one
``novelty``        JSON of :class:`Novelty.Config`, from version 6 on, for noise that grows away from the data
``sha256``         digest of the whole file with these 64 characters replaced by zeros
=================  ==========================================================================

Loading builds only classes that the caller's program knows: a file cannot name code to run.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mode
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols
from pydantic import TypeAdapter, ValidationError

from huefield import __version__
from huefield.baselines.records import BaselineRecord
from huefield.core.structure import Precision
from huefield.model.datasets import Datasets
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.model.joint_calibration import AbstractJointCalibration, CoherentCalibration, JointCalibration, Tails
from huefield.model.typical import TypicalUncertainty
from huefield.noise.novelty import Growth, Novelty
from huefield.support.checks import NotFiniteError, require_finite
from huefield.support.config import explain
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, format_of, tensors_in
from huefield.support.trees import named_arrays, with_arrays

T = TypeVar("T")
FORMAT = "huefield-model"
FORMAT_VERSION = 7
"""The newest version that can be read. Ensembles are written as the oldest version that has everything they have, and
with the fields of that version alone: programs that know older versions only either read a file, or ask for an upgrade.
Calibrations need version 2. Coherent ones, tails, local noise and the size of the largest structure need version 3,
corrections of a baseline and models or calibrations that were fitted to stresses version 4, several data sets
version 5, noise that grows with the distance to the training data version 6, and how it grows version 7."""
SINCE_VERSION_3 = ("kind", "tails", "most_atoms")
"""Fields of calibrations and of typical uncertainties that older versions do not know."""
STRAIN_REST = "log_strain_rest"
"""The parameter that only members have which were trained with stresses; version 4."""
SINCE_VERSION_4: dict[str, Any] = {"stress_diagonal": True, "tails": {"observed_stress": True}}
"""The same of version 4."""
NOISE_SINCE_VERSION_3 = ("local", "local_white")
"""Kinds of noise models that older versions do not know."""
_CALIBRATION: TypeAdapter[AbstractJointCalibration] = TypeAdapter(JointCalibration)
_TYPICAL = TypeAdapter(TypicalUncertainty)
_BASELINE = TypeAdapter(BaselineRecord)
PRECISIONS = ("float32", "float64")
SWAPPED = "if it has structures, check the order of the arguments: the model comes before the data"
COPY_AGAIN = "copy the file again from its source, or train the model again"


@runtime_checkable
class HasEnsemble(Protocol):
    """An object with an ensemble: the result of a training or of a calibration, or a calculator."""

    @property
    def ensemble(self) -> Ensemble:
        """The model."""


ModelSource: TypeAlias = Ensemble | str | Path | HasEnsemble
"""A model, its file, or an object that has it."""


class ModelFileError(HuefieldError):
    """A model file cannot be used; the message names the file and the reason."""


def save(ensemble: Ensemble, path: str | Path) -> None:
    """Write an ensemble to one file, whole or not at all."""
    member = ensemble.members
    config: dict[str, object] = {
        "potential": member.potential.config.model_dump(mode="json"),
        "noise": member.noise.config.model_dump(mode="json"),
        **({} if member.correction == "learned" else {"correction": member.correction}),
    }
    metadata = {
        "format_version": _version(ensemble),
        "huefield": __version__,
        "config": json.dumps(config),
        "atom_energies": json.dumps(ensemble.atom_energies),
    }
    for name, entry in (("calibration", ensemble.calibration), ("typical", ensemble.typical)):
        if entry is not None:
            metadata[name] = entry.model_dump_json(exclude=_unknown_fields(int(metadata["format_version"])))
    if ensemble.baseline is not None:
        metadata["baseline"] = ensemble.baseline.model_dump_json()
    if ensemble.datasets is not None:
        metadata["datasets"] = ensemble.datasets.model_dump_json()
    if member.novelty is not None:
        unknown = {"growth"} if metadata["format_version"] == "6" else None
        metadata["novelty"] = member.novelty.config.model_dump_json(exclude=unknown)
    tensors = {name: np.asarray(array) for name, array in named_arrays(member).items()}
    for name, array in tensors.items():
        require_finite(f"parameter {name}", array, hint="train the model again with a smaller learning rate")
    write_bytes(Path(path), format_file(tensors, metadata, FORMAT))


def _unknown_fields(version: int) -> dict[str, Any]:
    """Fields of calibrations and typical uncertainties that a format version does not know."""
    if version >= 4:
        return {}
    return SINCE_VERSION_4 if version == 3 else {**SINCE_VERSION_4, **dict.fromkeys(SINCE_VERSION_3, True)}


def _version(ensemble: Ensemble) -> str:
    """The oldest format version that has everything the ensemble has."""
    if (novelty := ensemble.members.novelty) is not None:
        return "6" if novelty.config.growth == Growth() else "7"
    if ensemble.datasets is not None:
        return "5"
    calibration = ensemble.calibration
    stressed = isinstance(calibration, CoherentCalibration) and calibration.stress_diagonal is not None
    if ensemble.baseline is not None or stressed or ensemble.members.log_strain_rest is not None:
        return "4"
    if (
        isinstance(ensemble.calibration, CoherentCalibration)
        or ensemble.tails != Tails()
        or ensemble.noise_kind in NOISE_SINCE_VERSION_3
        or (ensemble.typical is not None and ensemble.typical.most_atoms is not None)
    ):
        return "3"
    return "1" if ensemble.calibration is None else "2"


def load(
    path: str | Path,
    *,
    dtype: str | None = None,
    config_type: type[ForceField.Config] = ForceField.Config,
) -> Ensemble:
    """Read an ensemble that :func:`save` wrote.

    Args:
        path: the model file.
        dtype: precision of the parameters, "float32" or "float64"; None for that of the file.
        config_type: a subclass of ``ForceField.Config`` whose unions include potentials or noise models of your own.
    """
    if dtype not in (None, *PRECISIONS):
        raise HuefieldError(f"dtype must be 'float32', 'float64' or None, but is {dtype!r}")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no model file {path}")
    if path.is_dir():
        raise ModelFileError(
            f"{path}: this is a folder, but a model file is needed, such as {path / 'model.safetensors'}; {SWAPPED}"
        )
    content = path.read_bytes()
    metadata = _checked_metadata(path, content)
    try:
        config = config_type.model_validate_json(metadata["config"])
    except ValidationError as error:
        raise ModelFileError(
            f"{path}: this program does not know the architecture of the model:\n{explain(error, 'config')}\n"
            "If it has a potential or noise model of your own, pass config_type"
        ) from error
    skeleton = eqx.filter_eval_shape(lambda: config.build(key=jax.random.key(0)))
    novelty = _entry(path, metadata, "novelty", Novelty.Config.model_validate_json)
    if novelty is not None:
        if not skeleton.noise.grows or novelty.features != getattr(config.potential, "num_features", None):
            raise ModelFileError(f"{path}: its 'novelty' does not fit its potential and its noise model; {COPY_AGAIN}")
        skeleton = replace(skeleton, novelty=eqx.filter_eval_shape(novelty.build))
    try:
        tensors = tensors_in(path, content)
    except TensorFileError as error:
        raise ModelFileError(str(error)) from error
    ensemble = Ensemble(_filled(path, skeleton, tensors, dtype))
    ensemble = ensemble.with_atom_energies(_atom_energies(path, metadata.get("atom_energies", "[]")))
    ensemble = _with_datasets(ensemble, _entry(path, metadata, "datasets", Datasets.model_validate_json))
    ensemble = ensemble.with_calibration(_entry(path, metadata, "calibration", _CALIBRATION.validate_json))
    ensemble = ensemble.with_baseline(_entry(path, metadata, "baseline", _BASELINE.validate_json))
    return ensemble.with_typical(_entry(path, metadata, "typical", _TYPICAL.validate_json))


def _with_datasets(ensemble: Ensemble, datasets: Datasets | None) -> Ensemble:
    return ensemble if datasets is None else replace(ensemble, atom_energies=datasets.energies(), datasets=datasets)


def open_model(
    model: ModelSource, *, dtype: Precision | None = None, dataset: str | None = None, growth: bool = True
) -> Ensemble:
    """The ensemble of a model.

    Args:
        model: an ensemble, a model file, or an object with an ``ensemble``, such as the result of ``huefield.train``.
        dtype: precision of the parameters; None for that of the model.
        dataset: tag of the data set whose energies to predict; None for the one that the model has chosen.
        growth: whether noise may grow with the distance to the training data (:meth:`Ensemble.without_growth`).
    """
    ensemble = _opened(model, dtype)
    ensemble = ensemble if growth else ensemble.without_growth()
    return ensemble if dataset is None else ensemble.with_dataset(dataset)


def _opened(model: ModelSource, dtype: Precision | None) -> Ensemble:
    if isinstance(model, str | Path):
        return load(model, dtype=dtype)
    ensemble = model if isinstance(model, Ensemble) else getattr(model, "ensemble", None)
    if not isinstance(ensemble, Ensemble):
        raise HuefieldError(
            "a model is an ensemble, a model file, or a result of huefield.train or huefield.calibrate, not "
            f"{type(model).__name__}"
        )
    return ensemble if dtype is None else ensemble.in_precision(dtype)


def _atom_energies(path: Path, text: str) -> dict[int, float]:
    try:
        energies = {number: float(energy) for number, energy in json.loads(text)}
        require_finite("atom energies", np.array(list(energies.values())))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path}: the energies of isolated atoms cannot be used: {error}; {COPY_AGAIN}") from None
    wrong = [number for number in energies if type(number) is not int or not 0 < number < len(chemical_symbols)]
    if wrong:
        raise ModelFileError(f"{path}: {_shortened(wrong[0])} in atom_energies is no atomic number; {COPY_AGAIN}")
    return energies


def _entry(path: Path, metadata: dict[str, str], name: str, read: Callable[[str], T]) -> T | None:
    """The entry of the header with this name, if there is one."""
    try:
        return read(metadata[name]) if name in metadata else None
    except ValidationError as error:
        raise ModelFileError(f"{path}: its {name!r} cannot be used: {explain(error, name)}; {COPY_AGAIN}") from None


def _checked_metadata(path: Path, content: bytes) -> dict[str, str]:
    try:
        metadata = checked_metadata(path, content, FORMAT, "model")
    except TensorFileError as error:
        raise ModelFileError(str(error) + ("" if format_of(path) else f"; {SWAPPED}")) from None
    _check_entries(path, metadata)
    return metadata


def _check_entries(path: Path, metadata: dict[str, str]) -> None:
    missing = [name for name in ("format_version", "huefield", "config") if name not in metadata]
    if missing:
        raise ModelFileError(f"{path}: not written by huefield: its header lacks {missing}")
    version, writer = metadata["format_version"], _shortened(metadata["huefield"])
    if not re.fullmatch("[1-9][0-9]*", version, re.ASCII):
        raise ModelFileError(
            f"{path}: format version {_shortened(repr(version))} is not a whole number from 1; {COPY_AGAIN}"
        )
    if len(version) > 4 or int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: format version {_shortened(version)} is newer than this huefield ({__version__}) can read "
            f"({FORMAT_VERSION}); it was written by huefield {writer}: upgrade to that version or later"
        )


def _shortened(value: object) -> str:
    """The value as text of at most forty characters, for messages."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _filled(path: Path, skeleton: ForceField, tensors: dict[str, np.ndarray], dtype: str | None) -> ForceField:
    """The skeleton of one member with the arrays of all members in it."""
    if STRAIN_REST in tensors:
        skeleton = replace(skeleton, log_strain_rest=jnp.zeros(()))
    wanted = named_arrays(skeleton)
    # Files of older versions have arrays without elements, for outputs that no longer exist.
    tensors = {name: array for name, array in tensors.items() if array.size or name in wanted}
    if set(wanted) != set(tensors):
        raise ModelFileError(
            f"{path}: parameters do not fit the architecture: missing {sorted(set(wanted) - set(tensors))}, "
            f"unknown {sorted(set(tensors) - set(wanted))}"
        )
    members = mode([array.shape[:1] for array in tensors.values()] or [(0,)])
    if members in ((), (0,)):
        raise ModelFileError(f"{path}: the file has parameters of no ensemble member")
    for name, leaf in wanted.items():
        if tensors[name].shape != members + leaf.shape:
            raise ModelFileError(
                f"{path}: parameter {name} has shape {tensors[name].shape}, "
                f"but the architecture with {members[0]} members needs {members + leaf.shape}"
            )
    return with_arrays(skeleton, {name: _as_precision(path, name, tensors[name], dtype) for name in wanted})


def _as_precision(path: Path, name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    if array.dtype not in PRECISIONS:
        raise ModelFileError(
            f"{path}: parameter {name} has the type {array.dtype}, but parameters are float32 or float64; {COPY_AGAIN}"
        )
    wanted = np.dtype(dtype or array.dtype)
    with np.errstate(over="ignore"):
        values = array.astype(wanted)
    try:
        require_finite(f"parameter {name}", values, hint=COPY_AGAIN)
    except NotFiniteError as error:
        raise ModelFileError(f"{path}: {error}") from None
    with jax.enable_x64(wanted == np.float64):
        return jnp.asarray(values)
