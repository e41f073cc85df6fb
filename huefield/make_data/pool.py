"""Work in several processes, each with one thread."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from huefield.support.errors import HuefieldError

Task: TypeAlias = "partial[None]"
"""Something to do, which can be sent to another process."""


@dataclass(frozen=True)
class MakeProgress:
    """How far the job is: units of work of its present stage."""

    stage: str
    done: int
    total: int
    resumed: int = 0
    """Units that an earlier, interrupted run had done."""
    seconds: float = 0.0
    """Time of this run in the stage."""

    @property
    def rate(self) -> float:
        """Units of this run in a second; 0 before the first."""
        return (self.done - self.resumed) / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Time that the rest of the stage takes at this rate; infinite before the first unit."""
        return (self.total - self.done) / self.rate if self.rate else math.inf


OnProgress: TypeAlias = Callable[[MakeProgress], Any]
"""Who is told how far the job is."""


def run_tasks(
    stage: str, tasks: Sequence[Task], workers: int, report: OnProgress = lambda progress: None, *, resumed: int = 0
) -> None:
    """Run the tasks, in any order; the first one that fails, or an interruption, ends all that is not done.

    Args:
        stage: what the work is called in reports.
        tasks: the work.
        workers: processes.
        report: is told at the beginning and after each task how far the stage is.
        resumed: tasks of the stage that need not be done any more, for the reports.
    """
    if workers < 1:
        raise HuefieldError(f"workers must be at least 1, but is {workers}")
    if not tasks:
        return
    start, total = time.monotonic(), resumed + len(tasks)
    report(MakeProgress(stage, resumed, total, resumed))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, len(tasks)), multiprocessing.get_context("spawn"), initializer=_one_thread)
    try:
        futures = [pool.submit(task) for task in tasks]
        for done, future in enumerate(as_completed(futures), start=resumed + 1):
            future.result()
            report(MakeProgress(stage, done, total, resumed, time.monotonic() - start))
    except BaseException:
        # A task may have minutes to go. What is finished is in files, written whole: nothing is lost by ending it here.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    pool.shutdown()


def _one_thread() -> None:
    """Keep numerical libraries that are not loaded yet to one thread, so that processes do not fight for cores."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
