"""The data of a run, found through the configuration and the digests that its folder records."""

import hashlib
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from huefield.core.structure import TAG
from huefield.data.dataset import DataConfig, FileData, Part, Parts
from huefield.data.readers.detect import OnRemark
from huefield.data.sources import DataFile
from huefield.support.config import explain
from huefield.support.errors import HuefieldError
from huefield.support.files import read_json, read_text
from huefield.support.yamlfile import parse_yaml

CONFIG, DIGESTS, REFERENCES = "config.yaml", "digests.json", "references.json"
STRUCTURES = ("structures.hues", "validation.hues")
"""Stores in the folder of a run that keep structures given in memory, for training and for validation."""
HASHED = ("sizes", "atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces")


def digest(part: Part) -> str:
    """A hash of all structures, labels and data sets."""
    hasher = hashlib.sha256()
    for block in part.blocks():
        for name in HASHED:
            hasher.update(np.ascontiguousarray(getattr(block, name)).tobytes())
        if set(block.tags) != {TAG}:
            hasher.update("\n".join(block.tags).encode())
    return hasher.hexdigest()


def inputs_folder(run: Path) -> Path:
    """The folder with the inputs of a run: its own, or that of the first member that was trained alone."""
    found = next((each for each in (run, *sorted(run.glob("member-*"))) if (each / CONFIG).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{run} has no {CONFIG}: it is not the folder of a run")
    return found


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run, of all members or of members that were trained one by one."""
    try:
        inputs_folder(path)
    except FileNotFoundError:
        return False
    return True


def changed_parts(parts: Parts, folder: Path) -> list[str]:
    """Names of decisive parts that differ from those that the run in a folder was trained with."""
    expected = read_json(folder / DIGESTS)
    return [name for name in expected if name not in parts or digest(parts[name]) != expected[name]]


def parts_of_run(path: Path, on_remark: OnRemark = None) -> Parts:
    """All parts of the data of a run, as its configuration names them now.

    Args:
        path: folder of the run.
        on_remark: receives remarks of the readers.
    """
    return _recorded_data(inputs_folder(path)).load(on_remark)


def part_of_run(path: Path, name: str, on_remark: OnRemark = None) -> Part:
    """A part of the data of a run, such as ``validation``, after a check that the data have not changed.

    Args:
        path: folder of the run.
        name: name of the part.
        on_remark: receives remarks of the readers.
    """
    folder = inputs_folder(path)
    parts = parts_of_run(path, on_remark)
    if name not in parts:
        raise HuefieldError(f"the data of {path} have no part {name!r}, but {', '.join(parts)}: choose one with --part")
    for changed in changed_parts(parts, folder):
        raise HuefieldError(
            f"the {changed} data of {path} have changed since the run, so that training and test data may be mixed: "
            "name a file instead"
        )
    return parts[name]


def relocated(data: DataConfig, folder: Path) -> DataConfig:
    """The data of a run whose folder may have been moved, with the structures that it keeps.

    Old runs may have validated on training structures. Their data are read, since nothing can be changed any more.
    """
    if not isinstance(data, FileData):
        return data
    found = {name: tuple(_moved(each, folder) for each in getattr(data, name)) for name in ("train", "validation")}
    return data.model_copy(update={**found, "allow_shared": True})


def _moved(entry: Path | DataFile, folder: Path) -> Path | DataFile:
    if isinstance(entry, DataFile):
        return entry.model_copy(update={"path": _moved(entry.path, folder)})
    path = entry
    here = (place / path.name for place in (folder, folder.parent))
    return next((each for each in here if each.exists()), path) if path.name in STRUCTURES else path


def _recorded_data(folder: Path) -> DataConfig:
    source = str(folder / CONFIG)
    content = parse_yaml(read_text(folder / CONFIG), source)
    if not isinstance(content, dict) or "data" not in content:
        raise HuefieldError(f"{source} does not name the data of the run: name a file of structures instead")
    try:
        return relocated(TypeAdapter[DataConfig](DataConfig).validate_python(content["data"]), folder)
    except ValidationError as error:
        raise HuefieldError(explain(error, f"{source}: data")) from None
