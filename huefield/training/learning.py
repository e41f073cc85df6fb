"""The data that a correction of a baseline learns: labels less the results of the baseline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from huefield.baselines import (
    AbstractBaseline,
    BaselineComputer,
    BaselineConfig,
    BaselineLike,
    BaselineRecord,
    ColumnsBaseline,
    ResultLog,
    as_baseline,
    record_of,
)
from huefield.baselines.computing import NO_COLUMNS
from huefield.baselines.kinds import built
from huefield.core.structure import Block, Structure, joined
from huefield.data.dataset import Part, Parts
from huefield.data.readers.base import Fault
from huefield.support.errors import HuefieldError
from huefield.support.pace import NowAndThen
from huefield.training.inputs import DECISIVE
from huefield.training.mesh import first_process

RESULTS = "baseline.log"
"""File with results of the baseline in the folder of a run."""
SHOWN = 5
"""Failures that a message lists."""
LITTLE = 0.9
"""A baseline that leaves more than this share of the forces explains little."""


@dataclass(frozen=True, eq=False)
class LearningData:
    """The parts of the data, and what a network learns of them."""

    parts: Parts
    """With results of the baseline, if there is one."""
    record: BaselineRecord | None = None
    """The baseline; None for networks that learn the labels themselves."""

    def learnt(self, name: str) -> Part:
        """A part with the labels that the network learns."""
        part = self.parts[name]
        return part if self.record is None else part.relative_to_baseline()


def learning_data(
    parts: Parts,
    config: BaselineConfig | None,
    folder: Path,
    *,
    given: BaselineLike | None = None,
    skip_bad: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> LearningData:
    """Compute the baseline for all parts, or take it from the columns of the files.

    Args:
        parts: the data.
        config: the baseline; None for none.
        folder: folder of the run, in which results are kept.
        given: the calculator of a baseline of the kind ``ase``.
        skip_bad: whether to leave out structures for which the baseline fails.
        report: receives messages.
    """
    if config is None:
        return LearningData(parts)
    baseline = _baseline(config, given)
    if isinstance(baseline, ColumnsBaseline):
        found = {name: _with_columns(part, skip_bad, report) for name, part in parts.items()}
    else:
        found = _computed(baseline, parts, folder, skip_bad, report)
    empty = next((name for name in DECISIVE if not len(found[name])), None)
    if empty is not None:
        raise HuefieldError(f"{baseline.title} has no result for any structure for {empty}: is it the right baseline?")
    record = record_of(config, baseline.version, _some_structures(found["train"]))
    data = LearningData(found, record)
    report(_errors_in_words(record.title, data))
    return data


def _baseline(config: BaselineConfig, given: BaselineLike | None) -> AbstractBaseline:
    if given is not None:
        return as_baseline(given)
    found = built(config)
    if found is None:
        raise HuefieldError(
            "a baseline of the kind ase is a calculator in Python: train with huefield.train(..., baseline=calc), "
            "or with --baseline-command, or compute its results first and train with baseline: {kind: columns}"
        )
    return found


def _computed(
    baseline: AbstractBaseline,
    parts: Parts,
    folder: Path,
    skip_bad: bool,
    report: Callable[[str], None],
) -> dict[str, Part]:
    total, done, due = sum(map(len, parts.values())), 0, NowAndThen(at_once=False)
    log = ResultLog(folder / RESULTS, baseline.identity) if first_process() else None
    if log:
        report(f"{len(log)} results of {baseline.title} are taken from {log.path}")
    faults: list[Fault] = []
    found = {}
    with BaselineComputer(baseline, log=log) as computer:
        for name, part in parts.items():
            blocks: list[Block] = []
            for block in part.blocks():

                def tell(count: int, before: int = done) -> None:
                    if due.due() or before + count == total:
                        report(f"{baseline.title}: {before + count} of {total} structures")

                attached, bad = computer.attached(block, tell)
                blocks.append(attached)
                faults += bad
                done += len(block)
            found[name] = _in_memory(part, blocks)
    _tell_of_faults(baseline.title, faults, skip_bad, report)
    return found


def _in_memory(part: Part, blocks: Sequence[Block]) -> Part:
    whole = joined(blocks, blocks[0].source) if blocks else part.block(np.arange(0))
    return replace(part, source=whole, indices=np.arange(len(whole)), files=())


def _with_columns(part: Part, skip_bad: bool, report: Callable[[str], None]) -> Part:
    """The structures with results in their columns."""
    known = [np.zeros(0, bool)]
    faults: list[Fault] = []
    for block in part.blocks():
        has = np.zeros(len(block), bool) if block.baseline is None else block.baseline.known
        known.append(has)
        faults += [Fault(block.source, int(block.frames[index]), NO_COLUMNS) for index in np.flatnonzero(~has)]
    _tell_of_faults("the columns of the baseline", faults, skip_bad, report)
    return replace(part, indices=part.indices[np.concatenate(known)])


def _tell_of_faults(title: str, faults: Sequence[Fault], skip_bad: bool, report: Callable[[str], None]) -> None:
    if not faults:
        return
    listed = "; ".join(map(str, faults[:SHOWN])) + ("; ..." if len(faults) > SHOWN else "")
    if not skip_bad:
        raise HuefieldError(
            f"{title}: no result for {len(faults)} structures ({listed}). Remove them, or leave them out with "
            "--skip-bad (skip_bad: true)"
        )
    report(f"warning: {title}: {len(faults)} structures without a result are left out ({listed})")


def _some_structures(part: Part, count: int = 300) -> list[Structure]:
    return list(part.at_most(count).block(np.arange(min(count, len(part)))))


def _errors_in_words(title: str, data: LearningData) -> str:
    """Root mean square of forces and of the errors of the baseline, over some training structures."""
    learnt, part = data.learnt("train"), data.parts["train"]
    some = np.arange(min(1000, len(part)))
    label, rest = (_root_mean_square(each.block(some)) for each in (part, learnt))
    if not np.isfinite(label) or not label:
        return f"{title} is the baseline; there are no forces to compare it with"
    little = "; warning: it explains little of them" if rest > LITTLE * label else ""
    return f"{title} is the baseline: forces are {label:.3g} eV/Å, its errors of them {rest:.3g} eV/Å (rms){little}"


def _root_mean_square(block: Block) -> float:
    forces = block.forces[block.has_forces[block.owners]]
    return float(np.sqrt(np.mean(forces**2))) if forces.size else float("nan")
