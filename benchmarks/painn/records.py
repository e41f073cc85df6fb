"""Records told as they come, and the files that are left of them."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from processes import machine
from report import BUSY_CORES


class Sampled(Protocol):
    """A sample, and where it comes from."""

    @property
    def job(self) -> str: ...

    @property
    def side(self) -> str: ...

    @property
    def malloc(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def elsewhere_cores(self) -> float: ...


R = TypeVar("R", bound=Sampled)


def told(records: Iterable[R], best: Callable[[R], str]) -> list[R]:
    """All records, each told on standard error as it comes, with the best of its figures."""
    kept = []
    for record in records:
        busy = f"; other work kept {record.elsewhere_cores:.1f} cores busy" * (record.elsewhere_cores > BUSY_CORES)
        where = f"{record.side}, {record.malloc} malloc"
        print(f"round {record.round}: {record.job} ({where}): best {best(record)}{busy}", file=sys.stderr)
        kept.append(record)
    return kept


def write_results(folder: Path, text: str, **found: Any) -> None:
    """Write tables, and everything that was found with the machine that it was found on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    (folder / "table.md").write_text(text)
