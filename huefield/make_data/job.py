"""``huefield data make``: sample molecules and reactions, label, split and document the data."""

import json
import platform
import shutil
from collections import Counter
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from huefield.core.structure import Structure
from huefield.data.bundled.sets import SplitData, write_splits
from huefield.make_data.neb import BANDS
from huefield.make_data.oracles import TbliteOracle, oracle_of
from huefield.make_data.plan import ALWAYS, PLAN, SPLITS, SamplingPlan
from huefield.make_data.pool import OnMakeProgress, Task, run_tasks
from huefield.make_data.reactions import HELD_OUT
from huefield.make_data.relax import RELAXATION
from huefield.make_data.sampling import DYNAMICS, MODES, ONE_PIECE
from huefield.make_data.splits import assigned_splits
from huefield.make_data.thinning import distinct
from huefield.make_data.units import (
    PATH,
    UnitResult,
    finish_unit,
    label_structures,
    read_unit,
    sample_molecule,
    sample_reaction,
    unit_rng,
)
from huefield.support.errors import HuefieldError
from huefield.support.files import read_json, write_bytes

FRAMES_PER_LABEL_UNIT = 16


def make(
    out: Path,
    *,
    seed: int = 0,
    level_of_theory: str = "gfn2-xtb",
    workers: int = 1,
    scale: float = 1.0,
    resume: bool = True,
    plan: SamplingPlan = PLAN,
    report: OnMakeProgress = lambda progress: None,
) -> SplitData:
    """Make a reactive data set in a folder: ``data.npz``, ``provenance.json`` and finished units in ``work``.

    GFN2-xTB samples the configurations, which takes minutes; each is then labelled at the requested level. The same
    arguments give the same data for any number of workers, on one machine with the same versions of the programs.

    Args:
        out: output folder.
        seed: seed of all random choices.
        level_of_theory: level of theory of the labels.
        workers: number of processes.
        scale: factor on the numbers of configurations.
        resume: keep finished units of an interrupted run instead of starting anew.
        plan: molecules, reactions and numbers of configurations.
        report: called at the start of a stage and after every unit.
    """
    if not scale > 0:
        raise HuefieldError(f"scale must be positive, but is {scale}")
    oracle, scaled = oracle_of(level_of_theory), plan.scaled(scale)
    request = {
        "seed": seed,
        "level": level_of_theory,
        "plan": scaled.model_dump(mode="json"),
        "labels": oracle.provenance(),
    }
    work = _work_folder(out, request, resume)
    sampled = _sample(work, scaled, seed, workers, report)
    structures, splits, num_alike = _split(sampled, scaled, seed)
    labelled = _label(work, structures, scaled, level_of_theory, workers, report)
    split_of = {_key(structure): split for structure, split in zip(structures, splits, strict=True)}
    kept = [structure for unit in labelled for structure in unit.structures]
    by_split = {name: [s for s in kept if split_of[_key(s)] == name] for name in SPLITS}
    by_split = {name: members for name, members in by_split.items() if members or name in ALWAYS}
    command = f"huefield data make OUT --level-of-theory '{level_of_theory}' --seed {seed} --scale {scale:g}"
    command += f" --max-heavy-atoms {plan.max_heavy_atoms}" if plan.max_heavy_atoms else ""
    command += f" --fewer-above {plan.fewer_above}" if plan.fewer_above else ""
    command += " --whole-paths" if plan.whole_paths else ""
    counts = {
        "counts": {name: len(items) for name, items in by_split.items()},
        "dropped": {"too alike": num_alike} | _dropped([*sampled.values(), *labelled]),
    }
    data = SplitData.from_structures(
        by_split,
        atom_energies={z: oracle.atom_energy(z) for z in sorted({int(z) for s in kept for z in s.atomic_numbers})},
        provenance={"command": command} | request | _provenance(sampled) | counts,
    )
    write_splits(out / "data.npz", data)
    write_bytes(out / "provenance.json", (json.dumps(data.provenance, indent=1) + "\n").encode())
    return data


def _provenance(sampled: dict[str, UnitResult]) -> dict[str, Any]:
    """Sampling settings, program versions, and a record of each molecule and reaction."""
    settings: dict[str, Any] = {
        "relaxation": RELAXATION,
        "normal_modes": MODES,
        "dynamics": DYNAMICS,
        "bands": BANDS,
    }
    return {
        "sampling": TbliteOracle().provenance()
        | {name: asdict(value) for name, value in settings.items()}
        | {"one_piece": ONE_PIECE},
        "versions": {name: version(name) for name in ("huefield", "ase", "numpy", "scipy")}
        | {"python": platform.python_version()},
        "held_out_reactions": [name for name in HELD_OUT if f"reaction: {name}" in sampled],
        "units": {name: result.record | {"sampled": len(result.structures)} for name, result in sampled.items()},
    }


def _work_folder(out: Path, request: dict[str, Any], resume: bool) -> Path:
    """Folder of finished units; raises if it belongs to another request."""
    work = out / "work"
    note = work / "request.json"
    if work.exists() and not resume:
        shutil.rmtree(work)
    if note.exists() and read_json(note) != json.loads(json.dumps(request)):
        raise HuefieldError(
            f"{work} holds units of another request (seed, level, scale, plan or program version differ); "
            "choose another folder, or start anew with --no-resume"
        )
    write_bytes(note, json.dumps(request).encode())
    return work


def _sample(work: Path, plan: SamplingPlan, seed: int, workers: int, report: OnMakeProgress) -> dict[str, UnitResult]:
    """Sample all molecules and reactions; results by the name of the unit."""
    oracle = TbliteOracle()
    jobs: dict[str, partial[UnitResult]] = {}
    for reaction in plan.chosen_reactions():
        name = f"reaction: {reaction.name}"
        jobs[name] = partial(sample_reaction, reaction, plan.of_unit(reaction.numbers), oracle)
    for molecule in sorted(plan.chosen_molecules(), key=lambda m: -len(m.numbers)):
        name = f"molecule: {molecule.name}"
        jobs[name] = partial(sample_molecule, molecule, plan.of_unit(molecule.numbers), oracle, unit_rng(seed, name))
    paths = {name: work / "samples" / f"{name.replace(': ', '_').replace(' ', '_')}.npz" for name in jobs}
    tasks: list[Task] = [partial(finish_unit, paths[n], job) for n, job in jobs.items() if not paths[n].exists()]
    run_tasks("sampling", tasks, workers, report, resumed=len(jobs) - len(tasks))
    return {name: read_unit(path) for name, path in paths.items()}


def _split(sampled: dict[str, UnitResult], plan: SamplingPlan, seed: int) -> tuple[list[Structure], list[str], int]:
    """Distinct configurations, the split of each, and the number of duplicates that were dropped."""
    found = [s for result in sampled.values() for s in result.structures]
    is_path = np.array([s.group.startswith(PATH) for s in found], bool)
    order = np.argsort(~is_path, kind="stable")  # images of paths first: others that are like them are dropped
    keep = is_path.copy()  # all images, also the mirrored half of a symmetric path
    keep[order] |= distinct(
        [found[i].atomic_numbers for i in order], [found[i].positions for i in order], plan.closest_angstrom
    )
    structures = [s for s, kept in zip(found, keep, strict=True) if kept]
    return structures, assigned_splits(structures, plan, rng=unit_rng(seed, "splits")), int((~keep).sum())


def _label(
    work: Path,
    structures: list[Structure],
    plan: SamplingPlan,
    level_of_theory: str,
    workers: int,
    report: OnMakeProgress,
) -> list[UnitResult]:
    """Label the structures, in their order."""
    oracle = oracle_of(level_of_theory)
    starts = range(0, len(structures), FRAMES_PER_LABEL_UNIT)
    paths = [work / "labels" / f"{start:06d}.npz" for start in starts]
    tasks: list[Task] = []
    for start, path in zip(starts, paths, strict=True):
        if path.exists():
            continue
        part = structures[start : start + FRAMES_PER_LABEL_UNIT]
        tasks.append(partial(finish_unit, path, partial(label_structures, part, plan.largest_force, oracle)))
    run_tasks("labelling", tasks, workers, report, resumed=len(paths) - len(tasks))
    return [read_unit(path) for path in paths]


def _dropped(results: list[UnitResult]) -> dict[str, int]:
    """Numbers of dropped frames by reason."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.record.get("dropped", {}))
    return dict(total)


def _key(structure: Structure) -> bytes:
    return structure.atomic_numbers.tobytes() + np.ascontiguousarray(structure.positions).tobytes()
