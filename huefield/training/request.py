"""Inputs of :func:`huefield.train`: presets, files, ``Atoms``, single settings."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
from ase import Atoms
from pydantic import BaseModel

from huefield import __version__
from huefield.baselines import BaselineLike, TbliteBaseline, as_baseline
from huefield.core.structure import Block, joined
from huefield.data.dataset import BundledData, FileData
from huefield.data.opening import AtomsOrPaths, atoms_and_paths
from huefield.data.readers.detect import OnRemark, read_atoms
from huefield.data.runs import CONFIG, HASHED, STRUCTURES
from huefield.data.splits.config import RandomSplit
from huefield.data.store.format import Provenance, SourceInfo
from huefield.data.store.store import Store, is_store
from huefield.data.store.writer import StoreWriter
from huefield.support.errors import HuefieldError
from huefield.support.files import read_text
from huefield.training.checkpoint import CHECKPOINTS
from huefield.training.config import TrainConfig, content_of, validated, with_overrides
from huefield.training.presets import PresetName, preset

ConfigLike: TypeAlias = TrainConfig | Mapping[str, Any] | str | Path
"""A configuration, the same as a mapping, the name of a preset, or a YAML file."""
DataLike: TypeAlias = FileData | BundledData | AtomsOrPaths
"""A configuration of data, one or more files, or structures in memory."""
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Settings by their places, such as ``{"stages.0.steps": 100}`` or ``["stages.0.steps=100"]``."""

MEMORY = SourceInfo(path="memory", bytes=0, modified_ns=0)
"""The source of stores that keep structures given in memory."""
DATA_SUFFIXES = (".xyz", ".extxyz", ".traj", ".db", ".npz", ".h5", ".hdf5")
"""Suffixes of data, which are no configuration."""
FOLDER = "huefield-run"
SPLIT = RandomSplit(fractions={"train": 0.9, "validation": 0.1})
"""Split of data that come without one."""


@contextmanager
def run_folder(out: str | Path | None) -> Iterator[Path]:
    """The folder of a run, a new one for None. After a failure before the run has begun, nothing is left in it."""
    folder = _new_folder() if out is None else Path(out)
    try:
        yield folder
    except BaseException:
        if not _has_run(folder):
            for store in (folder / name for name in STRUCTURES):
                with suppress(HuefieldError, OSError):  # it must not hide the first error
                    if _is_ours(store):
                        shutil.rmtree(store)
            if out is None:
                with suppress(OSError):
                    folder.rmdir()
        raise


def _new_folder() -> Path:
    """A new folder in the current one: ``huefield-run``, ``huefield-run-2``, and so on."""
    for number in count(1):
        folder = Path(FOLDER if number == 1 else f"{FOLDER}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError


def resolved(
    config: ConfigLike,
    data: DataLike | None,
    validation: AtomsOrPaths | None,
    overrides: Sequence[Overrides],
    folder: Path,
    on_remark: OnRemark = None,
) -> TrainConfig:
    """The configuration that arguments of :func:`huefield.train` describe; structures go into ``folder``."""
    if isinstance(config, TrainConfig) and data is None and validation is None and not any(overrides):
        return config
    content, source = _content(config)
    if data is not None or validation is not None:
        content["data"] = _data(content.get("data"), data, validation, folder, on_remark)
    by_hand = [key for each in overrides for key in with_overrides(content, _plain(each))]
    _drop_needless_split(content.get("data"))
    return validated(content, source, by_hand)


def baseline_of(given: BaselineLike | Mapping[str, Any] | None) -> tuple[BaselineLike | None, dict[str, Any]]:
    """The calculator of a baseline, if one is given, and settings of the configuration for it."""
    if given is None:
        return None, {}
    if isinstance(given, BaseModel | Mapping):
        return None, {"baseline": _plain(given)}
    found = as_baseline(given)
    if isinstance(found, TbliteBaseline):
        return None, {"baseline": _plain(found.config)}
    return found, {"baseline": {"kind": "ase", "name": found.title}}


def _content(config: ConfigLike) -> tuple[dict[str, Any], str]:
    """The content of a configuration, and where it came from."""
    if isinstance(config, TrainConfig):
        return config.model_dump(mode="json"), "configuration"
    if isinstance(config, Mapping):
        return deepcopy(dict(config)), "configuration"
    if config in get_args(PresetName):
        return preset(config, BundledData()).model_dump(mode="json"), f"preset {config}"  # type: ignore[arg-type]
    if not Path(config).is_file():
        names = ", ".join(get_args(PresetName))
        raise HuefieldError(f"{config} is neither a file nor a preset ({names}): `huefield config` prints a preset")
    if Path(config).suffix.lower() in DATA_SUFFIXES:
        raise HuefieldError(f"{config} is a data file, not a configuration: use `huefield train small --data {config}`")
    return content_of(read_text(Path(config)), str(config)), str(config)


def _data(
    known: Any, data: DataLike | None, validation: AtomsOrPaths | None, folder: Path, on_remark: OnRemark
) -> dict[str, Any]:
    """The configuration of the data; split and reader of a configuration of files are kept."""
    if isinstance(data, FileData | BundledData):
        if validation is not None:
            raise HuefieldError("validation= cannot be combined with a data configuration: set its key validation")
        return data.model_dump(mode="json")
    settings = dict(known) if isinstance(known, Mapping) and known.get("kind", "files") == "files" else {}
    if data is not None:
        settings["train"] = _paths(data, folder / STRUCTURES[0], on_remark)
    if validation is not None:
        settings |= {"validation": _paths(validation, folder / STRUCTURES[1], on_remark), "split": None}
    elif not settings.get("validation") and settings.get("split") is None:
        settings["split"] = SPLIT.model_dump(mode="json")
    return {"kind": "files", **settings}


def _drop_needless_split(data: Any) -> None:
    """Remove the split of data that came without one, if an override names files for validation."""
    if isinstance(data, dict) and data.get("validation") and data.get("split") == SPLIT.model_dump(mode="json"):
        data["split"] = None


def _paths(data: AtomsOrPaths, store: Path, on_remark: OnRemark) -> list[str]:
    """Files with the data; structures in memory are written into a store."""
    atoms, paths = atoms_and_paths(data)
    return [str(_kept(atoms, store, on_remark))] if atoms else [str(path) for path in paths]


def _kept(atoms: Iterable[Atoms], store: Path, on_remark: OnRemark) -> Path:
    """A store with these structures; its path is absolute, so that the run can be resumed from another folder."""
    path, given = store.absolute(), joined(list(read_atoms(atoms, on_remark=on_remark)), "atoms")
    if path.exists() and not _is_ours(path):
        raise HuefieldError(f"{path} exists and was not written by huefield.train: choose another folder with out=")
    if not path.exists() or not _has_run(path.parent):
        return _written(given, path)
    kept = Store.open(path)
    saved = kept.block(np.arange(len(kept)))
    if not all(np.array_equal(getattr(given, name), getattr(saved, name)) for name in HASHED):
        raise HuefieldError(f"{path.parent} has a run with other structures: choose another folder with out=")
    return path


def _written(block: Block, path: Path) -> Path:
    made = Provenance(huefield=__version__, precision="float64", sources=(MEMORY,))
    with StoreWriter(path, made, resume=False, overwrite=True) as writer:
        writer.append(block)
        return writer.finish()


def _is_ours(store: Path) -> bool:
    """Whether a store keeps structures that were given in memory."""
    return is_store(store) and store.exists() and Store.open(store).provenance.sources == (MEMORY,)


def _has_run(folder: Path) -> bool:
    return (folder / CONFIG).exists() or (folder / CHECKPOINTS).exists() or any(folder.glob(f"member-*/{CONFIG}"))


def _plain(value: Any) -> Any:
    """Settings as YAML would have them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
