"""Results of a baseline for many structures: in parallel processes, resumable, with failures listed."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from queue import SimpleQueue
from types import TracebackType

from huefield.baselines.base import AbstractBaseline, BaselineError
from huefield.baselines.columns import ColumnsBaseline
from huefield.baselines.process import ProcessBaseline
from huefield.baselines.records import differing
from huefield.baselines.resultlog import ResultLog
from huefield.core.structure import BaselineResult, Block, Structure
from huefield.data.readers.base import Fault
from huefield.support.errors import HuefieldError

WORTH_WORKERS = 40
"""Structures from which it pays to start other processes, which takes some seconds."""
NO_COLUMNS = (
    "it has no baseline_energy and baseline_forces (write them with `huefield data baseline`, or give the calculator "
    "with baseline=, --baseline or --baseline-command)"
)
AHEAD = 4
"""Structures for each worker that are sent ahead of the results."""

Outcome = BaselineResult | BaselineError


class BaselineComputer:
    """Computes a baseline for structures that come block by block."""

    def __init__(self, baseline: AbstractBaseline, *, log: ResultLog | None = None, workers: int | None = None) -> None:
        """Prepare a computation.

        Args:
            baseline: the baseline.
            log: file for results, in which those of an interrupted run are found; None for no file.
            workers: number of processes; None for the usual number of the baseline.
        """
        self.baseline = baseline
        self._log, self._workers = log, workers or baseline.usual_workers
        self._stack = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[AbstractBaseline] = SimpleQueue()
        self._log_checked = False

    def __enter__(self) -> "BaselineComputer":
        if self._log is not None:
            self._stack.enter_context(self._log.writing())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()
        self.baseline.close()

    def attached(self, block: Block, report: Callable[[int], None] = lambda done: None) -> tuple[Block, list[Fault]]:
        """The structures that have a result, with it, and faults of the others.

        Results that come with the structures are kept, after a comparison of the first one of each file.

        Args:
            block: the structures.
            report: called with the number of structures done.
        """
        results: list[BaselineResult | None] = []
        faults = []
        for index, outcome in enumerate(self._outcomes(block)):
            known = not isinstance(outcome, BaselineError)
            results.append(outcome if isinstance(outcome, BaselineResult) else None)
            if not known:
                faults.append(Fault(block.source, int(block.frames[index]), str(outcome)))
            report(index + 1)
        whole = block.with_baseline(results)
        assert whole.baseline is not None  # noqa: S101 - just attached
        return (whole.select(whole.baseline.known) if faults else whole), faults

    def _outcomes(self, block: Block) -> Iterator[Outcome]:
        structures = list(block)
        if isinstance(self.baseline, ColumnsBaseline):
            yield from map(_column, structures)
            return
        self._require_own(structures, block)
        # Looked up once, before the first result is logged: a second structure of the same geometry would otherwise
        # take the result of the first from the log, and all that follow those of their predecessors.
        known = [structure.baseline or self._logged(structure) for structure in structures]
        computed = self._computed([s for s, found in zip(structures, known, strict=True) if found is None])
        for structure, found in zip(structures, known, strict=True):
            if found is not None:
                yield found
                continue
            outcome = next(computed)
            if self._log is not None and isinstance(outcome, BaselineResult):
                self._log.add(structure, outcome)
            yield outcome

    def _logged(self, structure: Structure) -> BaselineResult | None:
        """The result of an earlier run; the first one is computed again, in case it is that of another baseline."""
        found = None if self._log is None else self._log.find(structure)
        if found is not None and self._log is not None and not self._log_checked:
            self._log_checked = True
            difference = self._difference(found, structure)
            if difference:
                raise HuefieldError(
                    f"{self._log.path} has results of another baseline than {self.baseline.title}: for one structure, "
                    f"{difference}. Remove the file, or choose another folder"
                )
        return found

    def _require_own(self, structures: Sequence[Structure], block: Block) -> None:
        """Raise if results that come with structures are those of another baseline: the first, middle and last ones."""
        known = [index for index, structure in enumerate(structures) if structure.baseline is not None]
        for index in sorted({known[place] for place in (0, len(known) // 2, -1)}) if known else ():
            expected = structures[index].baseline
            difference = "" if expected is None else self._difference(expected, structures[index])
            if difference:
                raise HuefieldError(
                    f"{block.source} has results of another baseline than {self.baseline.title}: in frame "
                    f"{block.frames[index]}, {difference}. Remove baseline_energy and baseline_forces from the file, "
                    "or train with baseline: {kind: columns}"
                )

    def _difference(self, expected: BaselineResult, structure: Structure) -> str:
        """How a result differs from that of the baseline; empty if it agrees, or if the baseline has none."""
        found = _outcome(self.baseline, structure)
        return differing(expected, found) if isinstance(found, BaselineResult) else ""

    def _computed(self, structures: Sequence[Structure]) -> Iterator[Outcome]:
        """Outcomes in the order of the structures, from other processes if it pays."""
        command = self.baseline.worker_command
        if command is None or self._workers == 1 or (self._pool is None and len(structures) < WORTH_WORKERS):
            yield from (_outcome(self.baseline, structure) for structure in structures)
            return
        pool = self._started(command)
        waiting = deque(pool.submit(self._by_worker, s) for s in structures[: AHEAD * self._workers])
        rest = iter(structures[AHEAD * self._workers :])
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(self._by_worker, s) for s in islice(rest, 1))

    def _started(self, command: Sequence[str]) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, "baseline")
            for _ in range(self._workers):
                worker = ProcessBaseline(command, self.baseline.title, one_thread=True)
                self._stack.callback(worker.close)
                self._free.put(worker)
        return self._pool

    def _by_worker(self, structure: Structure) -> Outcome:
        worker = self._free.get()
        try:
            return _outcome(worker, structure)
        finally:
            self._free.put(worker)


def _outcome(baseline: AbstractBaseline, structure: Structure) -> Outcome:
    try:
        return baseline.compute(structure)
    except BaselineError as error:
        return error


def _column(structure: Structure) -> Outcome:
    return BaselineError(NO_COLUMNS) if structure.baseline is None else structure.baseline
