"""Times dynamics with five models of SchNetPack. Runs in an environment of its own; prints one JSON line.

python benchmarks/md/with_schnetpack.py molecule [--quick]

SchNetPack 2.1.1 has an ASE calculator for one model, and one for ensembles in its own engine of dynamics. The variants:

- ``ase``: its ASE calculator with the mean of five models, neighbours searched in each step;
- ``ase skin``: the same with its list of neighbours that is kept while it holds;
- ``ase skin scripted``: the same with models compiled to TorchScript, which its own engine offers;
- ``ase skin scripted, 1 thread``: the same, as threads may cost more than they bring;
- ``own engine``: the ensemble calculator of its engine alone, with ready positions and without the engine's own time.
"""

import beside  # noqa: F401
from measure import CORES, MEMBERS, use_two_cores

use_two_cores()

import warnings  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cases import CUTOFF_ANGSTROM, systems  # noqa: E402
from jobs import Job, Steps, Worked, take_turns, work  # noqa: E402
from motion import Dynamics  # noqa: E402
from peer import Inputs, fresh, potential  # noqa: E402
from schnetpack import properties  # noqa: E402
from schnetpack.interfaces.ase_interface import SpkCalculator  # noqa: E402
from schnetpack.md import System  # noqa: E402
from schnetpack.md.calculators import SchNetPackEnsembleCalculator  # noqa: E402
from schnetpack.md.neighborlist_md import NeighborListMD  # noqa: E402
from schnetpack.transform import MatScipyNeighborList, SkinNeighborList, Transform  # noqa: E402

FEATURES = 64
SKIN_ANGSTROM = 0.3
"""The default of SchNetPack's list."""


class Mean(torch.nn.Module):
    """The mean of models, each on inputs of its own."""

    def __init__(self, models: list[torch.nn.Module]) -> None:
        super().__init__()
        self.models = torch.nn.ModuleList(models)

    def forward(self, inputs: Inputs) -> Inputs:
        """Energy and forces."""
        found = [model(fresh(inputs)) for model in self.models]
        return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


class EnsembleCalculator(SpkCalculator):
    """SchNetPack's ASE calculator with models at hand in place of the file of one."""

    def _load_model(self, models: list[torch.nn.Module]) -> torch.nn.Module:
        return Mean(models).eval()


class OwnEngine(SchNetPackEnsembleCalculator):
    """The ensemble calculator of SchNetPack's own dynamics, with models at hand in place of their files."""

    def _load_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model


def through_ase(job: Job, models: list[torch.nn.Module], neighbours: Transform) -> Dynamics:
    """Dynamics with the ASE calculator."""
    return Dynamics(job.system, EnsembleCalculator(models, neighbours, energy_unit="eV"))


def own_engine(job: Job, models: list[torch.nn.Module]) -> Steps:
    """The calculator of SchNetPack's engine on the positions of our dynamics."""
    system, dynamics, path = System(), Dynamics(job.system, None), []
    system.load_molecules([case.atoms for case in systems(job.system)], n_replicas=1, position_unit_input="Angstrom")
    system = system.to(torch.float32)
    neighbours = NeighborListMD(CUTOFF_ANGSTROM, SKIN_ANGSTROM, MatScipyNeighborList)
    calculator = OwnEngine(models, properties.forces, "eV", "Angstrom", neighbours, properties.energy)
    calculator = calculator.to(torch.float32)
    for _ in range(100):
        dynamics(1)
        placed = torch.tensor(dynamics.atoms.positions, dtype=torch.float32)
        path.append((placed * calculator.position_conversion)[None])
    there_and_back = path + path[::-1]
    done = 0

    def steps(count: int) -> None:
        nonlocal done
        for number in range(done, done + count):
            system.positions = there_and_back[number % len(there_and_back)].clone()
            calculator.calculate(system)
        done += count

    return steps


def single_threaded(run: Steps) -> Steps:
    """The same with one thread."""

    def steps(count: int) -> None:
        torch.set_num_threads(1)
        run(count)
        torch.set_num_threads(CORES)

    return steps


def measure(job: Job, quick: bool) -> Worked:
    """Time a job."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    models = [potential(FEATURES).eval().requires_grad_(False) for _ in range(MEMBERS)]
    scripted = [torch.jit.script(model) for model in models]
    through = {
        "ase": through_ase(job, models, plain()),
        "ase skin": through_ase(job, models, SkinNeighborList(plain(), cutoff_skin=SKIN_ANGSTROM)),
        "ase skin scripted": through_ase(job, scripted, SkinNeighborList(plain(), cutoff_skin=SKIN_ANGSTROM)),
    }
    alone = through_ase(job, scripted, SkinNeighborList(plain(), cutoff_skin=SKIN_ANGSTROM))
    further = {"ase skin scripted, 1 thread": single_threaded(alone), "own engine": own_engine(job, scripted)}
    seconds = take_turns({**through, **further}, *job.length(quick))
    if not np.isclose(through["ase"].place, alone.place):
        raise ValueError("all calculators must see the same positions")
    return seconds, {"place": through["ase"].place}


def plain() -> Transform:
    """SchNetPack's fastest search."""
    return MatScipyNeighborList(CUTOFF_ANGSTROM)


if __name__ == "__main__":
    work(measure)
