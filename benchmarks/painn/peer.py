"""Times SchNetPack's PaiNN: energies and forces. Runs in an environment of its own; prints one JSON line.

python benchmarks/painn/peer.py JOB [--repeats N]
"""

from measure import CORES, LAYERS, MEMBERS, RADIAL_FUNCTIONS, Job, Sample, memory_mb, repeat, use_two_cores, work

use_two_cores()

import typing  # noqa: E402
from collections.abc import Callable  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.utils.data.dataloader as dataloader  # noqa: E402

if not hasattr(dataloader, "T_co"):  # SchNetPack 2.1.1 imports it from here, where newer versions of torch have none
    dataloader.T_co = typing.TypeVar("T_co", covariant=True)

import schnetpack as spk  # noqa: E402
from cases import CUTOFF_ANGSTROM, System, pairs, systems  # noqa: E402
from schnetpack import properties  # noqa: E402

Inputs = dict[str, torch.Tensor]


def potential(features: int) -> spk.model.NeuralNetworkPotential:
    """PaiNN as SchNetPack's documentation builds it."""
    representation = spk.representation.PaiNN(
        n_atom_basis=features,
        n_interactions=LAYERS,
        radial_basis=spk.nn.GaussianRBF(n_rbf=RADIAL_FUNCTIONS, cutoff=CUTOFF_ANGSTROM),
        cutoff_fn=spk.nn.CosineCutoff(CUTOFF_ANGSTROM),
    )
    return spk.model.NeuralNetworkPotential(
        representation=representation,
        input_modules=[spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=features, output_key=properties.energy),
            spk.atomistic.Forces(),
        ],
    )


def batch_of(structures: list[System]) -> Inputs:
    """Structures as SchNetPack's loader would give them, neighbours included."""
    found, sizes = pairs(structures), [len(s.atoms) for s in structures]
    cells = np.stack([np.array(s.atoms.cell) for s in structures])
    return {
        properties.Z: torch.tensor(np.concatenate([s.atoms.numbers for s in structures])),
        properties.R: _real(np.concatenate([s.atoms.positions for s in structures])),
        properties.cell: _real(cells),
        properties.pbc: torch.tensor(np.concatenate([s.atoms.pbc for s in structures])),
        properties.n_atoms: torch.tensor(sizes),
        properties.idx_m: torch.tensor(np.repeat(np.arange(len(sizes)), sizes)),
        properties.idx_i: torch.tensor(found.first),
        properties.idx_j: torch.tensor(found.second),
        properties.offsets: _real(found.offsets),
    }


def fresh(batch: Inputs) -> Inputs:
    """A batch whose positions have no history: the model writes into what it is given."""
    return {**batch, properties.R: batch[properties.R].detach().clone()}


def training(model: torch.nn.Module, batch: Inputs, structures: list[System]) -> Callable[[], None]:
    """One step of Adam on the squared errors of energies and forces."""
    energy = _real(np.array([s.energy for s in structures]))
    forces = _real(np.concatenate([s.forces for s in structures]))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        result = model(fresh(batch))
        loss = torch.nn.functional.mse_loss(result[properties.energy], energy)
        loss = loss + torch.nn.functional.mse_loss(result[properties.forces], forces)
        loss.backward()
        optimiser.step()

    return step


def inference(models: list[torch.nn.Module], batch: Inputs) -> Callable[[], None]:
    """Energies and forces of each model, one after the other."""
    for model in models:
        model.eval().requires_grad_(False)

    def predict() -> None:
        for model in models:
            result = model(fresh(batch))
            assert not result[properties.forces].requires_grad  # noqa: S101

    return predict


def measure(job: Job, repeats: int) -> Sample:
    """Time a job."""
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    structures = systems(job.system)
    batch = batch_of(structures)
    models = [potential(job.features) for _ in range(MEMBERS if job.kind == "ensemble" else 1)]
    run = training(models[0], batch, structures) if job.kind == "train" else inference(models, batch)
    before = memory_mb("VmRSS")
    repeat(run, 2)
    seconds = repeat(run, repeats)
    atoms, found = len(batch[properties.Z]), len(batch[properties.idx_i])
    return Sample(seconds, atoms, found, before, memory_mb("VmHWM"))


def _real(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


if __name__ == "__main__":
    work(measure)
