"""Files of structures with the results of a baseline as columns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from huefield import __version__
from huefield.baselines.base import AbstractBaseline
from huefield.baselines.computing import BaselineComputer
from huefield.baselines.resultlog import ResultLog
from huefield.core.structure import Block
from huefield.data.convert import read_any, source_info
from huefield.data.readers.ase_files import BASELINE_ENERGY, BASELINE_FORCES, BASELINE_STRESS
from huefield.data.readers.base import BadFrameError, Fault, Remark, warn_of
from huefield.data.readers.detect import ReaderConfig
from huefield.data.store.format import SUFFIX, Provenance
from huefield.data.store.writer import StoreWriter
from huefield.data.xyz_text import frame_text, joined, periodic_word, text_word
from huefield.support.errors import HuefieldError
from huefield.support.files import replacing
from huefield.support.folders import folder_for_results

NUMBER = "%.17g"
"""Every double is read back exactly."""
RESULTS = ".results"
"""Suffix of the file that keeps results until all are there."""
SHOWN = 10
"""Failures that a message lists."""


@dataclass(frozen=True)
class BaselineFile:
    """A file with results of a baseline."""

    path: Path
    structures: int
    faults: tuple[Fault, ...]
    """Structures that were left out."""


def write_baseline(
    source: str | Path,
    out: str | Path,
    baseline: AbstractBaseline,
    *,
    reader: ReaderConfig | None = None,
    skip_bad: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    report: Callable[[int], None] = lambda done: None,
) -> BaselineFile:
    """Compute a baseline for all structures of a file and write them with the results.

    Labels and groups are written, too; other entries of the file are not. Results are kept in ``OUT.results`` until all
    of them are there: the same call resumes an interrupted one.

    Args:
        source: a file that readers know, or a store.
        out: the file to write: ``NAME.xyz`` or ``NAME.extxyz``, or a store ``NAME.hues``.
        baseline: the baseline.
        reader: how to read the source; None to detect it.
        skip_bad: whether to leave out damaged frames and structures for which the baseline fails.
        workers: number of processes; None for one on each core.
        overwrite: whether a file at ``out`` is replaced.
        report: called with the number of structures done.
    """
    source, target = Path(source), Path(out)
    _require_free(source, target, overwrite)
    faults: list[Fault] = []
    count = 0
    with folder_for_results(target.parent):
        log = ResultLog(target.with_name(target.name + RESULTS), baseline.identity)
        computer = BaselineComputer(baseline, log=log, workers=workers)
        with computer, _writing(source, target, reader) as write:
            on_fault = faults.append if skip_bad else _refuse
            for block in read_any(source, reader, on_fault=on_fault, on_remark=_electrons):
                whole, bad = computer.attached(block, partial(_report_after, report, count))
                faults += bad
                count += len(whole)
                write(whole)
            _require_results(baseline, faults, count, skip_bad, log)
        log.path.unlink(missing_ok=True)
    return BaselineFile(target, count, tuple(faults))


def _report_after(report: Callable[[int], None], before: int, done: int) -> None:
    report(before + done)


def _require_free(source: Path, target: Path, overwrite: bool) -> None:
    if not source.exists():
        raise FileNotFoundError(f"there is no file or store {source}")
    if target.suffix.lower() not in (".xyz", ".extxyz", SUFFIX):
        raise HuefieldError(f"call the file NAME.extxyz or NAME.xyz, or the store NAME{SUFFIX}, not {target}")
    if target.resolve() == source.resolve():
        raise HuefieldError(f"{source} would be overwritten: write to another file")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists: choose another name, or replace it with --overwrite")


def _refuse(fault: Fault) -> None:
    raise BadFrameError(f"{fault}. Correct it, or leave such frames out with --skip-bad")


def _electrons(remark: Remark) -> None:
    if remark.kind == "electrons":
        warn_of(remark)


def _require_results(
    baseline: AbstractBaseline, faults: list[Fault], structures: int, skip_bad: bool, log: ResultLog
) -> None:
    """Raise if there are failures that are not to be skipped, or no result at all."""
    if structures and (skip_bad or not faults):
        return
    listed = "".join(f"\n  {fault}" for fault in faults[:SHOWN]) + ("\n  ..." if len(faults) > SHOWN else "")
    cure = (
        f"The other results are kept in {log.path}: leave these structures out with --skip-bad"
        if structures
        else "There is no other structure: is it the right baseline?"
    )
    raise HuefieldError(f"{baseline.title} has no result for {len(faults)} structures:{listed}\n{cure}")


@contextmanager
def _writing(source: Path, target: Path, reader: ReaderConfig | None) -> Iterator[Callable[[Block], Any]]:
    """A function that appends blocks to a file or store, which is written whole or not at all."""
    if target.suffix == SUFFIX:
        made = Provenance(huefield=__version__, precision="float64", sources=(source_info(source, reader),))
        with StoreWriter(target, made, resume=False, overwrite=True) as writer:
            yield writer.append
            writer.finish()
        return
    with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield lambda block: file.writelines(frames_of(block))


def frames_of(block: Block) -> Iterator[str]:
    """Structures with labels and results of a baseline as frames of extended xyz."""
    columns = block.baseline
    assert columns is not None  # noqa: S101 - the caller has attached them
    for index in range(len(block)):
        atoms = slice(block.starts[index], block.starts[index + 1])
        of_atoms = {BASELINE_FORCES: columns.forces[atoms]}
        words = [periodic_word(block.pbc[index]), f"{BASELINE_ENERGY}={joined(columns.energy[index], NUMBER)}"]
        if columns.has_stress[index]:
            words.append(f"{BASELINE_STRESS}={joined(columns.stress[index], NUMBER)}")
        if block.has_energy[index]:
            words.append(f"REF_energy={joined(block.energy[index], NUMBER)}")
        if block.has_stress[index]:
            words.append(f"REF_stress={joined(block.stress[index], NUMBER)}")
        if block.has_forces[index]:
            of_atoms["REF_forces"] = block.forces[atoms]
        if block.groups[index]:
            words.append(f"group={text_word(block.groups[index])}")
        symbols = (chemical_symbols[number] for number in block.atomic_numbers[atoms])
        yield frame_text(symbols, block.positions[atoms], np.asarray(block.cells[index]), of_atoms, words, NUMBER)
