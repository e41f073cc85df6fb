"""Files of a reaction path, and of a band that is not finished."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ase import Atoms
from ase.io import write

from huefield.ase.calculator import Calculator
from huefield.ase.neb.path import ReactionPath
from huefield.ase.neb.profile import save_profile
from huefield.ase.neb.search import PathConfig, PathReport, find_path
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, replacing, write_bytes
from huefield.support.folders import folder_for_results

PATH_FILE, BAND_FILE, RESULT_FILE, FIGURE = "path.xyz", "band.xyz", "path.json", "profile"
PARTS = ("", "_uncertainty", "_uncertainty_aleatoric", "_uncertainty_epistemic")


def find_and_save_path(
    calculator: Calculator,
    reactant: Atoms,
    product: Atoms,
    out: str | Path,
    config: PathConfig | None = None,
    *,
    through: Sequence[Atoms] = (),
    overwrite: bool = False,
    report: Callable[[PathReport], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[ReactionPath, tuple[Path, ...]]:
    """Find a path with :func:`find_path` and save it; returns the path and its files.

    The band is kept in ``band.xyz`` until the path is found.

    Args:
        calculator: energies and forces.
        reactant: one end.
        product: the other end.
        out: folder for all files.
        config: settings.
        through: initial images.
        overwrite: replace a band or path in the folder.
        report: called at every step.
        should_stop: called after every step.
    """
    out = Path(out)
    with folder_for_results(out), alone_in(out):
        if not overwrite:
            _require_no_path(out)
        found = find_path(
            calculator,
            reactant,
            product,
            config,
            through=through,
            keep=lambda band: _save_band(band, out),
            report=report,
            should_stop=should_stop,
        )
        return found, save_path(found, out)


def save_path(found: ReactionPath, folder: Path) -> tuple[Path, ...]:
    """Write the images with their uncertainties, all numbers, and the figure of the profile; returns the files.

    An unfinished band in the folder is removed.
    """
    with replacing(folder / PATH_FILE) as temporary:
        write(temporary, [_with_results(image) for image in found.images], format="extxyz")
    (folder / BAND_FILE).unlink(missing_ok=True)
    write_bytes(folder / RESULT_FILE, (json.dumps(found.as_dict(), indent=1) + "\n").encode())
    return folder / PATH_FILE, folder / RESULT_FILE, *save_profile(found, folder / FIGURE)


def _save_band(images: Sequence[Atoms], folder: Path) -> None:
    with replacing(folder / BAND_FILE) as temporary:
        write(temporary, [image.copy() for image in images], format="extxyz")  # without predictions


def _require_no_path(folder: Path) -> None:
    """Raise if the folder has a band or a path that would be lost."""
    there = [name for name in (BAND_FILE, PATH_FILE, RESULT_FILE) if (folder / name).exists()]
    if there:
        images = next((name for name in there if name != RESULT_FILE), None)
        resume = "" if images is None else f"resume from it with --start-from {folder / images}, "
        raise HuefieldError(
            f"{folder} has {', '.join(there)} of an earlier path: {resume}choose another --out, or replace it with "
            "--overwrite"
        )


def _with_results(image: Atoms) -> Atoms:
    """A copy with the prediction where extended xyz keeps it."""
    image.calc.get_property("energy_uncertainty", image)
    results, written = image.calc.results, image.copy()
    written.info.update({f"energy{part}": results[f"energy{part}"] for part in PARTS})
    for part in PARTS:
        written.set_array(f"forces{part}", results[f"forces{part}"])
    return written
