"""Tasks in several processes with one thread each."""

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from huefield.support.errors import HuefieldError

Task: TypeAlias = "partial[None]"
"""A task that can be sent to another process."""
PARENT_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class MakeProgress:
    """Progress of a stage in units of work."""

    stage: str
    done: int
    total: int
    resumed: int = 0
    """Units that an earlier, interrupted run finished."""
    seconds: float = 0.0
    """Time that this run has spent in the stage."""

    @property
    def rate(self) -> float:
        """Units per second of this run; 0 before the first."""
        return (self.done - self.resumed) / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Estimated time for the rest of the stage; infinite before the first unit."""
        return (self.total - self.done) / self.rate if self.rate else math.inf


OnMakeProgress: TypeAlias = Callable[[MakeProgress], Any]
"""Receives progress."""


def run_tasks(
    stage: str, tasks: Sequence[Task], workers: int, report: OnMakeProgress = lambda progress: None, *, resumed: int = 0
) -> None:
    """Run the tasks in any order; the first failure, or an interruption, cancels the unfinished ones.

    Args:
        stage: name of the stage in reports.
        tasks: tasks to run.
        workers: number of processes.
        report: called at the start and after each task.
        resumed: tasks of the stage that an earlier run finished, for the reports.
    """
    if workers < 1:
        raise HuefieldError(f"workers must be at least 1, but is {workers}")
    if not tasks:
        return
    start, total = time.monotonic(), resumed + len(tasks)
    report(MakeProgress(stage, resumed, total, resumed))
    others = set(multiprocessing.active_children())
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), spawning, initializer=_prepare, initargs=(os.getpid(),))
    try:
        futures = [pool.submit(task) for task in tasks]
        for done, future in enumerate(as_completed(futures), start=resumed + 1):
            future.result()
            report(MakeProgress(stage, done, total, resumed, time.monotonic() - start))
    except BaseException:
        # A task may take minutes. Finished units are files, written atomically: terminating workers loses nothing.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    pool.shutdown()


def _prepare(parent: int) -> None:
    """Limit numerical libraries that are not loaded yet to one thread, and end when the parent is killed.

    Processes then do not compete for cores. A worker without its parent would write units into the folder of whatever
    run comes next.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def _end_with(parent: int) -> None:
    """End this process soon after another process is its parent."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)
