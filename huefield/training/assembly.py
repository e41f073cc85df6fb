"""Members that were trained one by one, put together."""

from pathlib import Path

import jax

from huefield.forcefield import Ensemble
from huefield.modelfile import load, save
from huefield.training.checkpoint import differences
from huefield.training.config import TrainConfig, parse_config
from huefield.training.feed import Prepared
from huefield.training.job import cutoff_of, member_folder, references_for
from huefield.training.outcome import MODEL, Candidates, Trained, conclude
from huefield.training.reports import Report


def assemble(
    out: str | Path,
    paths: list[Path] | None = None,
    *,
    allow_missing: bool = False,
    report: Report = lambda event: None,
) -> Trained:
    """Put members together that were trained one by one.

    Args:
        out: folder of the run; the ensemble is written there.
        paths: model files to put together as they are. None for all members of ``out``; what is kept of them is then
            chosen on the validation data, as if they had been trained together.
        allow_missing: whether some of the run's members may not be there.
        report: is told what was chosen.
    """
    folder = Path(out)
    if paths is not None:
        with jax.enable_x64(True):  # whatever precision they were trained in
            ensemble = _joined(paths)
            save(ensemble, folder / MODEL)
        return Trained(ensemble, folder / MODEL, {})
    folders, config = _members_of(folder, allow_missing)
    with jax.enable_x64(config.precision == "float64"):
        candidates = _candidates(folders, config)
        return conclude(candidates, _data_for(config, candidates.best), config, folder, report)


def _joined(paths: list[Path]) -> Ensemble:
    twice = [path for path in paths if sum(path.resolve() == other.resolve() for other in paths) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice: an ensemble of copies would be too sure of itself")
    loaded = [load(path) for path in paths]
    for path, one in zip(paths, loaded, strict=True):
        if one.atom_energies != loaded[0].atom_energies:
            raise ValueError(
                f"{path} has other energies of single atoms than {paths[0]}: was it trained on other data?"
            )
    ensemble = Ensemble.from_members([one.member(m) for one in loaded for m in range(one.num_members)])
    return ensemble.with_atom_energies(dict(loaded[0].atom_energies))


def _candidates(folders: list[Path], config: TrainConfig) -> Candidates:
    if config.selection == "member":
        best = _joined([folder / MODEL for folder in folders])
        return Candidates(best, best)
    return Candidates(*(_joined([folder / name for folder in folders]) for name in Candidates.files()))


def _data_for(config: TrainConfig, ensemble: Ensemble) -> dict[str, Prepared]:
    """All parts of the data but the one for training."""
    try:
        parts = config.data.load()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"what to keep of the members is chosen on the validation data, which cannot be read: {error}. Put them "
            "back, or name the model files to put together as they are"
        ) from error
    references = references_for(config, parts["train"], ensemble)
    return {name: Prepared.of(part, cutoff_of(config), references) for name, part in parts.items() if name != "train"}


def _members_of(folder: Path, allow_missing: bool) -> tuple[list[Path], TrainConfig]:
    """Folders of the trained members of a run, and the settings that they must all have been trained with."""
    folders = sorted(folder.glob("member-*"), key=lambda path: int(path.name.split("-")[1]))
    found = [path for path in folders if (path / MODEL).is_file()]
    if not found:
        raise ValueError(f"there is no trained member in {folder}: train some with `huefield train CONFIG --member K`")
    configs = {path: parse_config((path / "config.yaml").read_text(), str(path)) for path in found}
    first = configs[found[0]]
    for path, config in configs.items():
        changed = differences(first.result_digest_input, config.result_digest_input)
        if changed:
            raise ValueError(f"{path} was trained with other settings than {found[0]}: {changed[0]}")
    missing = [m for m in range(first.members) if member_folder(folder, m) not in found]
    if missing and not allow_missing:
        raise ValueError(
            f"members {', '.join(map(str, missing))} of {first.members} are not trained yet: train them, or put the "
            "others together with --allow-missing"
        )
    return found, first
