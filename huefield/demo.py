"""Vanilla, white and colored ensembles on the data that come with huefield: trained, calibrated and compared."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from huefield.data.dataset import BundledData, Parts
from huefield.evaluation.calibrate import fit_calibration, typical_of
from huefield.evaluation.evaluate import evaluate_predictions
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import save
from huefield.predict import Predictions, Together
from huefield.support.files import write_bytes
from huefield.training import presets, train
from huefield.training.history_figure import save_history_figure
from huefield.training.reports import OnTrainingEvent

KINDS = ("vanilla", "white", "colored")
TESTS = {
    "test_id": "molecules and reactions as in training",
    "test_reactions": "reactions that were not trained on",
    "test_hot": "dynamics at 1500 K",
}
"""Parts of the bundled data to test on."""


@dataclass(frozen=True)
class Demo:
    """The tables of scores, and what was written, the page first."""

    tables: str
    files: tuple[Path, ...]


def run_demo(
    out: Path,
    showing: Callable[[str], AbstractContextManager[OnTrainingEvent]],
    should_stop: Callable[[], bool],
    *,
    kinds: tuple[str, ...] = KINDS,
    data: BundledData | None = None,
) -> Demo:
    """Train the ensembles, each into a folder of its own, calibrate them on validation data, and compare them.

    Args:
        out: folder for all of it; what is there already is gone on with.
        showing: given the kind of an ensemble, what is told how far its training is.
        should_stop: is asked after each step.
        kinds: noise models.
        data: what they are trained on; None for all of the bundled data.
    """
    source = data or BundledData()
    found: dict[str, list[Predictions]] = {name: [] for name in TESTS}
    models = []
    for kind in kinds:
        config = presets.preset("tiny", source, presets.noise_of_kind(kind))
        with showing(kind) as report:
            ensemble = train(config, out / kind, report=report, should_stop=should_stop).ensemble
            report("calibrating it on validation data, and predicting test data")
            models.append(out / kind / "calibrated.safetensors")
            for name, predicted in _calibrated(ensemble, kind, source.load(), models[-1]).items():
                found[name].append(predicted)
        models.append(save_history_figure(out / kind))
    return _compared(found, out, models)


def _calibrated(ensemble: Ensemble, kind: str, parts: Parts, path: Path) -> dict[str, Predictions]:
    """Save the calibrated ensemble, and predict all test data with it: in one go, which compiles once."""
    together = Together.of({name: parts[name] for name in ("validation", *TESTS)})
    predictions = together.predicted(ensemble, kind)
    validation = predictions["validation"]
    calibration = fit_calibration(validation, "isotonic").calibration
    typical = typical_of(validation.calibrated(calibration), "validation data")
    save(ensemble.with_calibration(calibration).with_typical(typical), path)
    return {name: predictions[name].calibrated(calibration) for name in TESTS}


def _compared(found: dict[str, list[Predictions]], out: Path, models: list[Path]) -> Demo:
    """A page about the first test, and a table of all."""
    tables, files = [], list[Path]()
    for number, (name, predicted) in enumerate(found.items()):
        folder = None if number else out / "evaluation"
        judged = evaluate_predictions(predicted, folder, source=f"bundled data, {TESTS[name]}")
        tables.append(f"Bundled data, {TESTS[name]} ({len(predicted[0])} structures):\n\n{judged.table}")
        files += judged.files
    write_bytes(out / "comparison.md", "\n".join(tables).encode())
    return Demo("\n".join(tables), (*files, out / "comparison.md", *models))
