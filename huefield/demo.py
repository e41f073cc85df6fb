"""Demonstration: ensembles with three noise models, trained on the bundled data, calibrated and compared."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from huefield.data.dataset import BundledData, Parts
from huefield.evaluation.calibrate import calibrate
from huefield.evaluation.evaluate import evaluate_predictions
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import save
from huefield.predict import Predictions, predictions_by_part
from huefield.support.files import write_bytes
from huefield.training import presets, train
from huefield.training.history_figure import save_history_figure
from huefield.training.reports import OnTrainingEvent

KINDS: tuple[presets.NoiseName, ...] = ("vanilla", "white", "colored")
TESTS = {
    "test_id": "molecules and reactions as in training",
    "test_reactions": "reactions that were not trained on",
    "test_hot": "dynamics at 1500 K",
}
"""Parts of the bundled data for testing, with a description."""


@dataclass(frozen=True)
class Demo:
    """Result of the demonstration: the tables of metrics, and all files; the report comes first."""

    tables: str
    files: tuple[Path, ...]


def run_demo(
    out: Path,
    showing: Callable[[str], AbstractContextManager[OnTrainingEvent]],
    should_stop: Callable[[], bool],
    *,
    on_saved: Callable[[], None] = lambda: None,
    kinds: tuple[presets.NoiseName, ...] = KINDS,
    data: BundledData | None = None,
) -> Demo:
    """Train the ensembles, calibrate them on validation data, and compare them on test data.

    Args:
        out: folder for all files, with a folder for each ensemble. Unfinished training in it is resumed.
        showing: given a title, a context that shows the progress of a part of the work.
        should_stop: called after each training step; training stops when it returns True.
        on_saved: called after each checkpoint.
        kinds: noise models.
        data: data set; None for all of the bundled data.
    """
    source = data or BundledData()
    found: dict[str, list[Predictions]] = {name: [] for name in TESTS}
    models = []
    for number, kind in enumerate(kinds, 1):
        config = presets.preset("tiny", source, presets.noise_of_kind(kind))
        with showing(f"Training the {kind} ensemble ({number} of {len(kinds)}) in {out / kind}") as report:
            ensemble = train(config, out / kind, report=report, should_stop=should_stop, on_saved=on_saved).ensemble
        with showing(f"Calibrating the {kind} ensemble on validation data, and predicting the test data"):
            models.append(out / kind / "calibrated.safetensors")
            for name, predicted in _calibrated(ensemble, kind, source.load(), models[-1]).items():
                found[name].append(predicted)
        models.append(save_history_figure(out / kind))
    return _compared(found, out, models)


def _calibrated(ensemble: Ensemble, kind: str, parts: Parts, path: Path) -> dict[str, Predictions]:
    """Save the calibrated ensemble, and predict all test data with it."""
    model = calibrate(ensemble, parts["validation"]).ensemble
    save(model, path)
    return predictions_by_part(model, {name: parts[name] for name in TESTS}, kind)


def _compared(found: dict[str, list[Predictions]], out: Path, models: list[Path]) -> Demo:
    """Write the report about the first test set, and a table for each test set."""
    tables, files = [], list[Path]()
    for number, (name, predicted) in enumerate(found.items()):
        folder = None if number else out / "evaluation"
        judged = evaluate_predictions(predicted, folder, source=f"bundled data, {TESTS[name]}")
        tables.append(f"Bundled data, {TESTS[name]} ({len(predicted[0])} structures):\n\n{judged.table}")
        files += judged.files
    write_bytes(out / "comparison.md", "\n".join(tables).encode())
    return Demo("\n".join(tables), (*files, out / "comparison.md", *models))
