"""A model is one file that can be mailed: safetensors, with the architecture as JSON and a checksum in its header.

Layout of format versions 1 and 2: a safetensors file whose metadata has

=================  ==========================================================================
``format``         the word ``huefield-model``
``format_version`` the version
``huefield``       version of the library that wrote it
``config``         JSON of :class:`ForceField.Config`
``atom_energies``  JSON list of atomic numbers and energies of single atoms [eV]; may be missing
``calibration``    JSON of :class:`EnergyForcesCalibration`; in version 2 alone
``typical``        JSON of :class:`TypicalUncertainty`; may be missing
``sha256``         digest of the whole file with these 64 characters replaced by zeros
=================  ==========================================================================

Loading builds classes that the caller's program knows; a file cannot name code to run.
"""

import json
from pathlib import Path
from statistics import mode
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import ValidationError

from huefield import __version__
from huefield.model.forcefield import Ensemble, ForceField
from huefield.model.joint_calibration import EnergyForcesCalibration
from huefield.model.typical import TypicalUncertainty
from huefield.support.checks import require_finite
from huefield.support.config import FrozenConfig, explain
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.support.tensorfile import TensorFileError, checked_metadata, format_file, tensors_in
from huefield.support.trees import named_arrays, with_arrays

T = TypeVar("T", bound=FrozenConfig)
FORMAT = "huefield-model"
FORMAT_VERSION = 2
"""The newest that is read; 2 is written for a calibrated ensemble, which a program that knows 1 alone would mistake."""


class ModelFileError(HuefieldError):
    """A model file cannot be used; the message says which and why."""


def save(ensemble: Ensemble, path: str | Path) -> None:
    """Write an ensemble to one file, whole or not at all."""
    member = ensemble.members
    config = {
        "potential": member.potential.config.model_dump(mode="json"),
        "noise": member.noise.config.model_dump(mode="json"),
    }
    metadata = {
        "format_version": "1" if ensemble.calibration is None else "2",
        "huefield": __version__,
        "config": json.dumps(config),
        "atom_energies": json.dumps(ensemble.atom_energies),
    }
    if ensemble.calibration is not None:
        metadata["calibration"] = ensemble.calibration.model_dump_json()
    if ensemble.typical is not None:
        metadata["typical"] = ensemble.typical.model_dump_json()
    tensors = {name: np.asarray(array) for name, array in named_arrays(member).items()}
    for name, array in tensors.items():
        require_finite(f"parameter {name}", array, hint="a model that is not a number is not worth a file")
    write_bytes(Path(path), format_file(tensors, metadata, FORMAT))


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
    if dtype not in (None, "float32", "float64"):
        raise HuefieldError(f"dtype must be 'float32', 'float64' or None, but is {dtype!r}")
    path = Path(path)
    if path.is_dir():
        raise ModelFileError(f"{path}: this is a folder; name the model file, such as {path / 'model.safetensors'}")
    content = path.read_bytes()
    metadata = _checked_metadata(path, content)
    try:
        config = config_type.model_validate_json(metadata["config"])
    except ValidationError as error:
        raise ModelFileError(
            f"{path}: the model uses an architecture that this program does not know:\n{explain(error, 'config')}\n"
            "If it has a potential or noise model of your own, pass config_type"
        ) from error
    skeleton = eqx.filter_eval_shape(lambda: config.build(key=jax.random.key(0)))
    try:
        tensors = tensors_in(path, content)
    except TensorFileError as error:
        raise ModelFileError(str(error)) from error
    ensemble = Ensemble(_filled(path, skeleton, tensors, dtype))
    ensemble = ensemble.with_atom_energies(_atom_energies(path, metadata.get("atom_energies", "[]")))
    ensemble = ensemble.with_calibration(_entry(path, metadata, "calibration", EnergyForcesCalibration))
    return ensemble.with_typical(_entry(path, metadata, "typical", TypicalUncertainty))


def _atom_energies(path: Path, text: str) -> dict[int, float]:
    try:
        return {int(number): float(energy) for number, energy in json.loads(text)}
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: the energies of single atoms cannot be read: {error}") from None


def _entry(path: Path, metadata: dict[str, str], name: str, kind: type[T]) -> T | None:
    """What the header has under a name, if anything."""
    try:
        return kind.model_validate_json(metadata[name]) if name in metadata else None
    except ValidationError as error:
        raise ModelFileError(f"{path}: its {name!r} cannot be read: {explain(error, name)}") from None


def _checked_metadata(path: Path, content: bytes) -> dict[str, str]:
    try:
        metadata = checked_metadata(path, content, FORMAT, "model")
    except TensorFileError as error:
        raise ModelFileError(str(error)) from None
    _check_entries(path, metadata)
    return metadata


def _check_entries(path: Path, metadata: dict[str, str]) -> None:
    missing = [name for name in ("format_version", "huefield", "config") if name not in metadata]
    if missing:
        raise ModelFileError(f"{path}: not written by huefield: its header lacks {missing}")
    if not metadata["format_version"].isdecimal():
        raise ModelFileError(f"{path}: format version {metadata['format_version']!r} is not a number")
    if int(metadata["format_version"]) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: format version {metadata['format_version']} is newer than this huefield ({__version__}) can read "
            f"({FORMAT_VERSION}); it was written by huefield {metadata['huefield']}: upgrade to that or later"
        )


def _filled(path: Path, skeleton: ForceField, tensors: dict[str, np.ndarray], dtype: str | None) -> ForceField:
    """The skeleton of one member with the arrays of all members in it."""
    wanted = named_arrays(skeleton)
    if set(wanted) != set(tensors):
        raise ModelFileError(
            f"{path}: parameters do not fit the architecture: missing {sorted(set(wanted) - set(tensors))}, "
            f"unknown {sorted(set(tensors) - set(wanted))}"
        )
    members = mode([array.shape[:1] for array in tensors.values()] or [(0,)])
    if members in ((), (0,)):
        raise ModelFileError(f"{path}: the file has parameters of no member")
    for name, leaf in wanted.items():
        if tensors[name].shape != members + leaf.shape:
            raise ModelFileError(
                f"{path}: parameter {name} has shape {tensors[name].shape}, "
                f"but the architecture with {members[0]} members needs {members + leaf.shape}"
            )
    return with_arrays(skeleton, {name: _as_precision(path, name, tensors[name], dtype) for name in wanted})


def _as_precision(path: Path, name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    wanted = np.dtype(dtype) if dtype and np.issubdtype(array.dtype, np.floating) else array.dtype
    result = jnp.asarray(array.astype(wanted))
    if result.dtype != wanted:
        raise ModelFileError(
            f"{path}: parameter {name} is {wanted}, which JAX has switched off; load(..., dtype='float32'), "
            "or run inside  with jax.enable_x64(True)"
        )
    return result
