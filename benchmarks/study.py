"""Code of studies of many trainings: the command line, and results that are saved one by one."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huefield.support.memory import keep_freed_memory

if TYPE_CHECKING:
    from huefield.model.ensemble import Ensemble
    from huefield.training.outcome import EnsembleScores

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
SHARED = Path(os.environ.get("HUEFIELD_DATA", HERE.parent.parent / "shared" / "data"))
ACAC = SHARED / "acac"
ACAC_SPLIT: dict[str, Any] = {
    "kind": "files",
    "train": [str(ACAC / "train_300K.xyz")],
    "split": {"kind": "random", "fractions": {"train": 0.9, "validation": 0.1}},
}


def parser(description: str | None, rows: Iterable[str]) -> argparse.ArgumentParser:
    """Options of every study."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", choices=list(rows), metavar="NAME", help=f"of {', '.join(rows)}")
    made.add_argument("--core", type=int, help="use this core alone")
    made.add_argument("--draw", action="store_true", help="draw what is there, and train nothing")
    return made


def run_study(
    description: str | None,
    rows: Mapping[str, Sequence[tuple[str, ...]]],
    results: Path,
    tables: Callable[[dict[str, Any]], str],
    trained: Callable[..., dict[str, Any]],
) -> None:
    """Train what is not in the results yet, or print the tables.

    Args:
        description: of the study, for its help.
        rows: names of the rows; each trains what has these names in the results.
        results: file of the results.
        tables: Markdown of results.
        trained: receives the names of a result and the folder of runs; trains, and returns the result.
    """
    options = parser(description, rows)
    options.add_argument(
        "--runs", type=Path, help="folder of the runs, to resume them; a temporary one if it is not given"
    )
    given = options.parse_args()
    if given.draw:
        print(tables(kept(results)))
        return
    use_core(given.core)
    keep_freed_memory()
    runs = given.runs or Path(tempfile.mkdtemp())
    for names in (names for row in given.only or rows for names in rows[row]):
        if not has(kept(results), names):
            found = trained(*names, runs)
            keep(results, found, *names)
            print(f"{', '.join(names)}: {found}", file=sys.stderr)


def has(results: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether there is a result under these names."""
    for name in names:
        if name not in results:
            return False
        results = results[name]
    return True


def use_core(core: int | None) -> None:
    """Stay on one core, so that another study may have the other."""
    if core is not None:
        os.sched_setaffinity(0, [core])


def kept(path: Path) -> dict[str, Any]:
    """Results that are there."""
    return json.loads(path.read_text()) if path.is_file() else {}


def keep(path: Path, found: dict[str, Any], *names: str) -> None:
    """Put a result under its names beside those that are there, which another process may have written meanwhile."""
    from huefield.support.files import write_bytes

    results = kept(path)
    level = results
    for name in names[:-1]:
        level = level.setdefault(name, {})
    level[names[-1]] = found
    write_bytes(path, (json.dumps(results, indent=1) + "\n").encode())


def acac_test() -> Any:
    """The test trajectory of AcAc at 300 K."""
    from huefield.data.dataset import open_part

    return open_part("test", [ACAC / "test_MD_300K.xyz"])


def scored(ensemble: "Ensemble", part: Any) -> "EnsembleScores":
    """Metrics of an ensemble on a part of the data."""
    from huefield.predict import predict_part
    from huefield.training.outcome import EnsembleScores

    return EnsembleScores.of(predict_part(ensemble, part, "ensemble"))
