"""Train the correction and its noise, calibrate, and check both on structures that were not trained on."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from huefield.core.structure import joined
from huefield.data.dataset import BundledData, Part
from huefield.demo.page import drawn_profiles, sentence, sorted_by_kind, write_page
from huefield.demo.profiles import profiles, save_profiles
from huefield.demo.recipe import DATA, STEPS, mean_config, noise_config
from huefield.evaluation.calibrate import calibrate
from huefield.evaluation.evaluate import EvaluationResult, evaluate_predictions
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import save
from huefield.predict import Predictions, predict_part, with_results
from huefield.support.files import write_bytes
from huefield.training import presets, train
from huefield.training.config import TrainConfig
from huefield.training.history_figure import save_history_figure
from huefield.training.reports import OnTrainingEvent

KINDS: tuple[presets.NoiseName, ...] = ("white", "colored")
"""Noise models; the page shows the last one."""
TESTS = {
    "test_id": "molecules and reactions as in training",
    "test_hot": "dynamics at 1500 and 2000 K",
    "test_larger": "larger molecules and reactions",
    "test_reactions": "reactions that were not trained on",
}
"""Parts of the bundled data for testing, with a description."""
PATHS = "test_paths"
MODEL, CALIBRATED = "model.safetensors", "calibrated.safetensors"

Showing = Callable[[str], AbstractContextManager[OnTrainingEvent]]


@dataclass(frozen=True)
class Demo:
    """Result of the demonstration: the tables of metrics, and all files; the page comes first."""

    tables: str
    files: tuple[Path, ...]


def run_demo(
    out: Path,
    showing: Showing,
    should_stop: Callable[[], bool],
    *,
    on_saved: Callable[[], None] = lambda: None,
    kinds: tuple[presets.NoiseName, ...] = KINDS,
    data: BundledData = DATA,
    steps: tuple[int, int, int] = STEPS,
) -> Demo:
    """Train a correction of GFN2-xTB with some noise models, calibrate them, and check them on test data.

    Args:
        out: folder for all files, with a folder for each ensemble. Unfinished training in it is resumed.
        showing: given a title, a context that shows the progress of a part of the work.
        should_stop: called after each training step; training stops when it returns True.
        on_saved: called after each checkpoint.
        kinds: noise models.
        data: data set.
        steps: of the three stages of training.
    """

    def trained(title: str, config: TrainConfig, folder: Path) -> Ensemble:
        with showing(f"{title} in {folder}") as report:
            found = train(config, folder, report=report, should_stop=should_stop, on_saved=on_saved).ensemble
        files.append(save_history_figure(folder))
        return found

    files = list[Path]()
    mean = trained("Training the correction of GFN2-xTB", mean_config(data, steps), out / "mean")
    with showing("Computing GFN2-xTB for validation and test data"):
        parts = {name: with_results(mean, data.load()[name]) for name in ("validation", *TESTS, PATHS)}
    found: dict[str, list[Predictions]] = {name: [] for name in TESTS}
    for kind in kinds:
        config = noise_config(kind, out / "mean" / MODEL, data, steps)
        model = _calibrated(trained(f"Training {kind} noise", config, out / kind), out / kind, parts["validation"])
        files.append(out / kind / CALIBRATED)
        with showing(f"Predicting the test data with {kind} noise"):
            for name in TESTS:
                found[name].append(predict_part(model, parts[name], kind))
    return _checked(out, model, found, parts[PATHS], files)


def _calibrated(ensemble: Ensemble, folder: Path, validation: Part) -> Ensemble:
    model = calibrate(ensemble, validation).ensemble
    save(model, folder / CALIBRATED)
    return model


def _checked(out: Path, model: Ensemble, found: dict[str, list[Predictions]], paths: Part, files: list[Path]) -> Demo:
    """Write the page, the full report about the first test set, and a table for each test set."""
    results = dict[str, EvaluationResult]()
    for name, predicted in found.items():
        folder = None if results else out / "evaluation"
        results[name] = evaluate_predictions(predicted, folder, source=f"bundled data, {TESTS[name]}")
    by_kind = sorted_by_kind(profiles(model, joined(list(paths.blocks()), PATHS)))
    picture = save_profiles(drawn_profiles(by_kind), out / "paths.png")
    page = out / "demo.html"
    write_page(page, by_kind, picture, results, TESTS, "evaluation/report.html")
    heads = {name: f"{sentence(TESTS[name])} ({len(each[0])} structures)" for name, each in found.items()}
    tables = "\n".join(f"{heads[name]}:\n\n{result.table}" for name, result in results.items())
    write_bytes(out / "comparison.md", tables.encode())
    reported = [path for result in results.values() for path in result.files]
    return Demo(tables, (page, picture, out / "comparison.md", *reported, *files))
