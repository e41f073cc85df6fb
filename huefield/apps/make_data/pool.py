"""Work in several processes, each with one thread."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

Task: TypeAlias = "partial[None]"
"""Something to do, which can be sent to another process."""


@dataclass(frozen=True)
class MakeProgress:
    """How far the job is."""

    stage: str
    done: int
    total: int


def run_tasks(
    stage: str, tasks: Sequence[Task], workers: int, report: Callable[[MakeProgress], Any] | None = None
) -> None:
    """Run the tasks, in any order; the first one that fails stops those that have not begun."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, but is {workers}")
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, initializer=_one_thread) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if report is not None:
                    report(MakeProgress(stage, done, len(tasks)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_thread() -> None:
    """Keep numerical libraries that are not loaded yet to one thread, so that processes do not fight for cores."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
