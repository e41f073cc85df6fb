"""From a configuration to a trained ensemble in a folder that has everything one may want to know about it.

=========================  =================================================================
``config.yaml``            the complete configuration
``references.json``        energies of single atoms
``split.json``             which structures are for what, by their numbers in the data
``digests.json``           of the data for training and validation: other data have others
``history.jsonl``          what happened, one event a line
``tensorboard/``           the same for TensorBoard, if the configuration asks for it
``checkpoints/``           the last states, to go on from
``model.safetensors``      the trained ensemble, when the run is finished
``candidates/``            what ``model.safetensors`` was chosen from (``selection: ensemble``)
``scores.json``            how good it is on validation data and on every other part of a split
=========================  =================================================================
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from ase.data import chemical_symbols
from jaxtyping import Array, Key

from huefield.data.batches.prepared import TAG, Prepared
from huefield.data.dataset import Part, Parts
from huefield.data.references import AtomicReferences, EnergyChunk, GivenReferences
from huefield.model.forcefield import Ensemble, ForceField, build_members
from huefield.model.modelfile import load
from huefield.support.errors import HuefieldError
from huefield.support.files import alone_in, leaving_no_empty, require_writable, write_bytes
from huefield.training.checkpoint import CHECKPOINTS, differences, saying_what_is_safe
from huefield.training.config import TrainConfig, parse_config, to_yaml
from huefield.training.diagnosis import diagnose
from huefield.training.feed import Feed, prepare, validation_batches
from huefield.training.mesh import Layout, first_process
from huefield.training.outcome import MODEL, Candidates, Trained, conclude
from huefield.training.reports import Report
from huefield.training.run import Run, Setting
from huefield.training.tensorboard import require_tensorboard
from huefield.training.transfer import require_transferable, transferred
from huefield.training.validation import Validator

CONFIG, DIGESTS = "config.yaml", "digests.json"
DECISIVE = ("train", "validation")
"""Parts of the data that a result depends on."""
OUTLIER = 100.0
HASHED = ("sizes", "atomic_numbers", "positions", "cells", "pbc", "energy", "has_energy", "forces", "has_forces")


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    member: int | None = None,
    report: Report = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train an ensemble, or go on with a run that was interrupted.

    Args:
        config: of the run.
        out: folder of the run. If it has an unfinished run with this configuration, that is gone on with.
        member: train this member alone, into a folder of its own within ``out``;
            :func:`~huefield.training.assembly.assemble` puts members together. None for all in one program.
        report: is told how far it is.
        should_stop: is asked after each step (in a job of several processes, at each report); if it says so, the state
            is saved and ``TrainingStoppedError`` raised.
    """
    if member is not None and not 0 <= member < config.members:
        raise HuefieldError(f"there is no member {member}: the configuration has {config.members}, counted from 0")
    folder = Path(out) if member is None else member_folder(Path(out), member)
    if member is None:
        _require_no_members_alone(folder, config.members)
    elif (Path(out) / CHECKPOINTS).exists():
        raise HuefieldError(f"{out} has a run of all members: go on with it without --member, or choose another folder")
    with jax.enable_x64(config.precision == "float64"), saying_what_is_safe(folder), leaving_no_empty(folder):
        return _train(
            config, folder, range(config.members) if member is None else range(member, member + 1), report, should_stop
        )


def _require_no_members_alone(folder: Path, members: int) -> None:
    """Raise where members were trained one by one: all of them together would start from nothing beside them."""
    alone = [name for name in range(members) if (member_folder(folder, name) / CONFIG).exists()]
    if alone and not (folder / CHECKPOINTS).exists():
        done = (
            "they are put together in it already"
            if (folder / MODEL).exists()
            else "go on with --member, put them together with huefield assemble"
        )
        raise HuefieldError(
            f"{folder} has members that were trained alone ({', '.join(map(str, alone))}): {done}, or train all of "
            "them into another folder"
        )


def member_folder(out: Path, member: int) -> Path:
    """Where a member is that is trained alone."""
    return out / f"member-{member}"


def _train(
    config: TrainConfig, folder: Path, members: range, report: Report, should_stop: Callable[[], bool]
) -> Trained:
    if config.tensorboard:
        require_tensorboard()
    require_writable(folder)
    layout, cutoff = Layout(len(members), config.mesh), cutoff_of(config)
    saved = None if config.start_from is None else load(config.start_from, dtype=config.precision)
    parts = config.data.load()
    require_usable(parts)
    config = with_elements(config, parts["train"], saved)
    if saved is not None:
        require_transferable(saved, config.model, members)
    references = references_for(config, parts["train"], saved)
    prepared = {name: prepare(part, cutoff, references) for name, part in parts.items()}
    digests = {name: digest(parts[name]) for name in DECISIVE}
    if first_process():
        for line in overview(parts, references, members):
            report(line)
    ensemble = initial_ensemble(config, members, references, prepared["train"], saved)
    batches = validation_batches(prepared["validation"], layout, config.batch_size)
    setting = Setting(
        config=config,
        layout=layout,
        validator=Validator(batches, layout, "auto", ensemble.members.noise.has_variance),
        feed_for=lambda stage: Feed(
            prepared["train"],
            layout,
            config.batch_size,
            config.buckets,
            order_keys(config, members, stage),
            steps=config.stages[stage].steps,
        ),
        folder=folder,
        fingerprint=fingerprint(config, members, digests),
        report=report,
        should_stop=should_stop,
        diagnose=lambda one, batches, stage: diagnose(one, prepared["train"], batches, stage),
    )
    with alone_in(folder) if first_process() else nullcontext():
        run = Run(setting, ensemble.members)
        run.resume()  # or say what has changed, before anything is written
        if not run.resumed and (folder / MODEL).exists():
            raise HuefieldError(
                f"{folder / MODEL} is there, but no checkpoint of the run that it came from: train into another folder "
                "with --out, or move the model away"
            )
        if first_process():
            _write_inputs(config, parts, references, digests, folder)
        ends = (
            Ensemble(jax.tree.map(_on_device, end), atom_energies=ensemble.atom_energies) for end in layout.fetch(run())
        )
        return conclude(Candidates(*ends), prepared, config, folder, report)


def _on_device(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def require_usable(parts: Parts) -> None:
    """Raise where training would fail, or mean nothing, hours later."""
    for name in DECISIVE:
        if name not in parts:
            raise HuefieldError(f"the split has no part {name!r}, only {list(parts)}: name one so")
        if not len(parts[name]):
            raise HuefieldError(f"there are no structures for {name}: change the split or the files")
        if not any((block.has_energy | block.has_forces).any() for block in parts[name].blocks()):
            raise HuefieldError(f"no structure for {name} has an energy or forces: are the labels under other names?")
    if not any(block.has_energy.any() for block in parts["train"].blocks()):
        raise HuefieldError(
            "no structure for training has an energy: energies can then not be learnt, not even roughly"
        )
    known = parts["train"].elements()
    for name, part in parts.items():
        strange = [element for element in part.elements() if element not in known]
        if strange:
            raise HuefieldError(
                f"the part {name!r} has {', '.join(strange)}, but training has only {', '.join(known)}: nothing can be "
                "learnt about it; leave such structures out, or add some to the training data"
            )


def overview(parts: Parts, references: AtomicReferences, members: range) -> Iterator[str]:
    """What is trained on, and what to know about it."""
    train, counts = parts["train"], {name: len(parts[name]) for name in DECISIVE}
    who = f"{len(members)} members" if len(members) > 1 else f"member {members[0]}"
    yield (
        f"{counts['train']} structures of {', '.join(train.elements())} for training, {counts['validation']} for "
        f"validation; {who}"
    )
    if references.underdetermined:
        yield (
            "warning: the compositions of the training data do not tell the energies of single atoms apart, so that "
            "energies of other compositions will be wrong; references: {kind: isolated_atoms} takes them from single "
            "atoms among the training data"
        )
    if not any(block.has_forces.any() for block in train.blocks()):
        yield "warning: no structure for training has forces; they are learnt from energies alone"


def with_elements(config: TrainConfig, part: Part, saved: Ensemble | None) -> TrainConfig:
    """The configuration with the elements of the saved model or of the training data, where it named none."""
    potential = config.model.potential
    if saved is not None:
        potential = potential.for_elements(getattr(saved.members.potential.config, "elements", ()))
    model = config.model.model_copy(update={"potential": potential.for_elements(part.elements())})
    return config.model_copy(update={"model": model})


def references_for(config: TrainConfig, part: Part, saved: Ensemble | None) -> AtomicReferences:
    """Energies of single atoms: those of the saved model, whose mean was trained without them; else as configured."""
    if saved is not None and saved.atom_energies:
        return AtomicReferences({TAG: {chemical_symbols[number]: energy for number, energy in saved.atom_energies}})
    if isinstance(config.references, GivenReferences):
        given = list(config.references.energies_ev.values())
        if len(given) != 1:
            raise HuefieldError(f"references must be of one data set, but are of {list(config.references.energies_ev)}")
        return AtomicReferences({TAG: given[0]})
    return config.references.make(EnergyChunk.from_block(block, TAG) for block in part.blocks())


def cutoff_of(config: TrainConfig) -> float:
    """How far the potential looks."""
    cutoff = getattr(config.model.potential, "cutoff_angstrom", None)
    if cutoff is None:
        raise HuefieldError(
            f"a potential of kind {config.model.potential.kind!r} is not for structures of atoms: use painn"
        )
    return float(cutoff)


def member_key(config: TrainConfig, member: int) -> Key[Array, ""]:
    """Randomness of one member, the same whether it is trained alone or with others."""
    return jax.random.fold_in(jax.random.key(config.seed), member)


def order_keys(config: TrainConfig, members: range, stage: int) -> list[Key[Array, ""]]:
    """Randomness of the order of batches in a stage."""
    return [jax.random.fold_in(member_key(config, member), 1 + stage) for member in members]


def initial_ensemble(
    config: TrainConfig, members: range, references: AtomicReferences, data: Prepared, saved: Ensemble | None
) -> Ensemble:
    """What training starts from: random weights, or a saved model."""
    energies = {number_of_symbol[name]: energy for name, energy in references.energies_ev[TAG].items()}
    if saved is not None:
        return transferred(saved, config.model, members).with_atom_energies(energies)
    keys = jnp.stack([jax.random.fold_in(member_key(config, member), 0) for member in members])
    scale = force_scale(data)
    built = build_members(config.model, keys)
    scaled = eqx.filter_vmap(lambda member: ForceField(member.potential.with_energy_scale(scale), member.noise))(built)
    return Ensemble(scaled).with_atom_energies(energies)


def force_scale(data: Prepared) -> float:
    """Root mean square of force components [eV/Å], taken for the size of an atom's energy [eV]; 1 without forces.

    Components a hundred times larger than the median of those that are not zero are left out: a wrong label must not
    set the scale of all.
    """
    total, count = 0.0, 0
    for block in data.part.blocks():
        kept = np.abs(block.forces[np.repeat(block.has_forces, block.sizes)])
        usual = kept[kept <= OUTLIER * np.median(kept[kept > 0])] if kept.any() else kept
        total, count = total + float((usual**2).sum()), count + usual.size
    return float(np.sqrt(total / count)) if count and total else 1.0


def fingerprint(config: TrainConfig, members: range, digests: dict[str, str]) -> dict[str, Any]:
    """What a checkpoint may only be used with: settings that results depend on, members, data, what it started from."""
    begun = None if config.start_from is None else hashlib.sha256(config.start_from.read_bytes()).hexdigest()
    settings = config.result_digest_input
    return {"config": settings, "members": list(members), "data": digests, "content of start_from": begun}


def digest(part: Part) -> str:
    """Of all structures and labels: other data have another."""
    hasher = hashlib.sha256()
    for block in part.blocks():
        for name in HASHED:
            hasher.update(np.ascontiguousarray(getattr(block, name)).tobytes())
    return hasher.hexdigest()


def changed_parts(parts: Parts, folder: Path) -> list[str]:
    """Names of decisive parts that are not what the run in a folder was made with."""
    expected = json.loads((folder / DIGESTS).read_text())
    return [name for name in expected if name not in parts or digest(parts[name]) != expected[name]]


def inputs_folder(run: Path) -> Path:
    """Where the configuration and digests of a run are: of members that were trained alone, with the first of them."""
    found = next((each for each in (run, *sorted(run.glob("member-*"))) if (each / CONFIG).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{run} has no {CONFIG}: it is not the folder of a run")
    return found


def require_made_with(config: TrainConfig, run: Path) -> None:
    """Raise where a finished run was made with other settings or data than these; data may have been moved."""
    folder, parts = inputs_folder(run), config.data.load()
    made = parse_config((folder / CONFIG).read_text(), str(folder / CONFIG))
    before, now = (
        {name: value for name, value in each.result_digest_input.items() if name not in ("data", "start_from")}
        for each in (made, with_elements(config, parts["train"], None))
    )
    other = differences(before, now)
    other += [f"other data for {name}" for name in changed_parts(parts, folder)]
    if other:
        raise HuefieldError(
            f"{run} has a model that was made otherwise ({'; '.join(other)}): choose another folder with --out, or "
            "remove it"
        )


def _write_inputs(
    config: TrainConfig, parts: Parts, references: AtomicReferences, digests: dict[str, str], folder: Path
) -> None:
    write_bytes(folder / CONFIG, to_yaml(config).encode())
    references.save(folder / "references.json")
    indices = {name: part.indices.tolist() for name, part in parts.items()}
    write_bytes(folder / "split.json", json.dumps(indices).encode())
    write_bytes(folder / DIGESTS, (json.dumps(digests, indent=1) + "\n").encode())
