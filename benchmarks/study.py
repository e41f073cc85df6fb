"""Code of studies of many trainings: the command line, and results that are saved one by one."""

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
