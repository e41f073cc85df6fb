"""Assemble members that were trained one by one."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax

from huefield.baselines import BaselineLike, BaselineRecord
from huefield.data.dataset import Parts
from huefield.data.runs import CONFIG, DIGESTS, changed_parts
from huefield.model.ensemble import Ensemble
from huefield.model.modelfile import load, save
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, read_json, require_writable
from huefield.training.checkpoint import differences
from huefield.training.config import TrainConfig
from huefield.training.feed import prepare
from huefield.training.inputs import member_folder, recorded_config
from huefield.training.job import cutoff_of, references_for
from huefield.training.learning import learning_data
from huefield.training.outcome import CANDIDATES, MODEL, SCORES, Candidates, Trained, conclude
from huefield.training.reports import OnTrainingEvent

SAME_EV = 1e-6
"""Energies of isolated atoms that differ by less are equal: machines round differently."""


def assemble(
    out: str | Path,
    paths: list[Path] | None = None,
    *,
    allow_missing: bool = False,
    baseline: BaselineLike | None = None,
    report: OnTrainingEvent = lambda event: None,
) -> Trained:
    """Assemble members that were trained one by one.

    Args:
        out: folder of the run; the ensemble is written there.
        paths: model files to assemble unchanged. None for all members of ``out``; their best or last parameters are
            then selected on the validation data, as if they had been trained together.
        allow_missing: whether some of the run's members may be missing.
        baseline: the calculator of a baseline of the kind ``ase``.
        report: receives messages.
    """
    folder = Path(out)
    require_writable(folder)
    with alone_in(folder):
        if paths is not None:
            return _unchanged(folder, paths)
        folders, config = _members_of(folder, allow_missing)
        with jax.enable_x64(config.precision == "float64"):
            candidates = _candidates(folders, config)
            parts = _data_for(folders[0], config)
            data = learning_data(
                parts, config.baseline, folders[0], given=baseline, skip_bad=config.skip_bad, report=report
            )
            references = references_for(config, data.learnt("train"), candidates.best)
            validation = prepare(data.learnt("validation"), cutoff_of(config), references, config.data.datasets)
            return conclude(candidates, validation, data.parts, config, folder, report)


def _unchanged(folder: Path, paths: list[Path]) -> Trained:
    with jax.enable_x64(True):  # keeps whatever precision they were trained in
        ensemble = _joined(paths)
        (folder / SCORES).unlink(missing_ok=True)  # those of an earlier ensemble
        shutil.rmtree(folder / CANDIDATES, ignore_errors=True)
        save(ensemble, folder / MODEL)
    return Trained(ensemble, folder / MODEL, {})


def _joined(paths: list[Path]) -> Ensemble:
    twice = [path for path in paths if sum(path.resolve() == other.resolve() for other in paths) > 1]
    if twice:
        raise HuefieldError(f"{twice[0]} is named twice: an ensemble of copies would underestimate its uncertainty")
    loaded = [load(path) for path in paths]
    first = loaded[0]
    for path, one in zip(paths, loaded, strict=True):
        if one.precision != first.precision:
            raise HuefieldError(
                f"{path} has {one.precision}, but {paths[0]} {first.precision}: train them in one precision"
            )
        if difference := _conflict(one.baseline, first.baseline):
            raise HuefieldError(
                f"{path} and {paths[0]} correct different baselines ({difference}): assemble models of one baseline"
            )
        ours, theirs = _references(first), _references(one)
        if ours.keys() != theirs.keys() or any(abs(ours[key] - theirs[key]) > SAME_EV for key in ours):
            raise HuefieldError(
                f"{path} has other energies of isolated atoms than {paths[0]} ({_text(one)} and {_text(first)}): it "
                "was trained on other data. Give all members the same with references: {kind: given}"
            )
    _require_same_points(paths, loaded)
    ensemble = Ensemble.from_members([one.member(m) for one in loaded for m in range(one.num_members)])
    return replace(ensemble, atom_energies=first.atom_energies, datasets=first.datasets, baseline=first.baseline)


def _require_same_points(paths: list[Path], loaded: list[Ensemble]) -> None:
    """Raise if noise grows with the distance to different numbers of training points, or in another way."""
    shapes = [None if one.members.novelty is None else one.members.novelty.config for one in loaded]
    other = next((index for index, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is None:
        return
    if None in (shapes[0], shapes[other]):
        raise HuefieldError(
            f"noise grows with the distance to the training data in only one of {paths[0]} and {paths[other]}: train "
            "all members with novelty: true, or all with novelty: false"
        )
    first, second = shapes[0], shapes[other]
    if first is not None and second is not None and first.growth != second.growth:
        raise HuefieldError(
            f"noise grows in another way in {paths[other]} than in {paths[0]}: they were trained with different "
            "versions of huefield; train the older one again"
        )
    raise HuefieldError(
        f"{paths[other]} was trained on other data than {paths[0]}, so that its noise grows with another distance: "
        "train the members on the same data, or with novelty: false"
    )


def _conflict(one: BaselineRecord | None, other: BaselineRecord | None) -> str:
    """How two baselines differ; empty if they do not."""
    if one is None or other is None:
        known = one or other
        return "" if known is None else f"{known.title} and none"
    return one.conflict(other)


def _references(ensemble: Ensemble) -> dict[tuple[str, int], float]:
    """Energies of isolated atoms by data set and atomic number."""
    if ensemble.datasets is None:
        return {("", number): energy for number, energy in ensemble.atom_energies}
    return {(each.tag, number): e for each in ensemble.datasets.references for number, e in each.atom_energies}


def _text(ensemble: Ensemble) -> str:
    """Energies of isolated atoms, for a message."""
    if ensemble.datasets is None:
        return f"{dict(ensemble.atom_energies)} eV by atomic number"
    return ", ".join(f"{each.tag}: {dict(each.atom_energies)}" for each in ensemble.datasets.references)


def _candidates(folders: list[Path], config: TrainConfig) -> Candidates:
    if config.selection == "member":
        best = _joined([folder / MODEL for folder in folders])
        return Candidates(best, best)
    for folder in folders:
        for name in Candidates.files():
            if not (folder / name).is_file():
                raise HuefieldError(f"{folder / name} is missing: train that member again")
    return Candidates(*(_joined([folder / name for folder in folders]) for name in Candidates.files()))


def _data_for(member: Path, config: TrainConfig) -> Parts:
    """All parts of the data, after a check that they have not changed."""
    try:
        parts = config.data.load()
    except (OSError, HuefieldError) as error:
        raise HuefieldError(
            f"the validation data cannot be read from {Path.cwd()}: {error}. Go to the folder that the members were "
            "trained from, or name the model files to assemble them unchanged"
        ) from error
    for name in changed_parts(parts, member):
        raise HuefieldError(
            f"the data for {name} are not those that the members were trained with: restore them, or name the model "
            "files to assemble them unchanged"
        )
    return parts


def _members_of(folder: Path, allow_missing: bool) -> tuple[list[Path], TrainConfig]:
    """Folders of the trained members of a run, and the settings that all of them share."""
    some = [path.parent for path in sorted(folder.glob(f"member-*/{MODEL}"))]
    if not some:
        begun = [path.parent.name for path in sorted(folder.glob(f"member-*/{CONFIG}"))]
        if begun:
            raise HuefieldError(f"no member in {folder} is finished: run the command of {begun[0]} again")
        raise HuefieldError(
            f"there is no trained member in {folder}: train some with `huefield train CONFIG --member K`"
        )
    first = _config_of(some[0])
    wanted = [member_folder(folder, number) for number in range(first.members)]
    found = [path for path in wanted if (path / MODEL).is_file()]
    for path in found:
        changed = differences(first.result_digest_input, _config_of(path).result_digest_input)
        if changed:
            raise HuefieldError(f"{path} was trained with other settings than {some[0]}: {changed[0]}")
        if read_json(path / DIGESTS) != read_json(some[0] / DIGESTS):
            raise HuefieldError(f"{path} was trained with other data than {some[0]}: train one of them again")
    missing = [str(number) for number, path in enumerate(wanted) if path not in found]
    if missing and not allow_missing:
        raise HuefieldError(
            f"members {', '.join(missing)} of {first.members} are not trained yet: train them, or assemble the others "
            "with --allow-missing"
        )
    return found, first


def _config_of(member: Path) -> TrainConfig:
    for name in (CONFIG, DIGESTS):
        if not (member / name).is_file():
            raise HuefieldError(f"{member / name} is missing: train that member again")
    return recorded_config(member)
