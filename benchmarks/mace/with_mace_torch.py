"""Times mace-torch: energies and forces. Runs in an environment of its own; prints one JSON line.

python benchmarks/mace/with_mace_torch.py JOB [--repeats N]
"""

import beside  # noqa: F401 - finds the modules of benchmarks/painn
from measure import CORES, MEMBERS, Job, Sample, memory_mb, repeat, use_two_cores, work

use_two_cores()

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cases import System, systems  # noqa: E402
from models import batch_of, build, settings  # noqa: E402


def training(model: Any, batch: dict[str, torch.Tensor], structures: list[System]) -> Callable[[], None]:
    """One step of Adam on the squared errors of energies and forces."""
    energy = torch.tensor([s.energy for s in structures], dtype=torch.float32)
    forces = torch.tensor(np.concatenate([s.forces for s in structures]), dtype=torch.float32)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, amsgrad=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        result = model(dict(batch), training=True)
        loss = torch.nn.functional.mse_loss(result["energy"], energy)
        loss = loss + torch.nn.functional.mse_loss(result["forces"], forces)
        loss.backward()
        optimiser.step()

    return step


def inference(models: list[Any], batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Energies and forces of each model, one after the other."""
    for model in models:
        model.eval().requires_grad_(False)

    def predict() -> None:
        for model in models:
            result = model(dict(batch))
            assert not result["forces"].requires_grad  # noqa: S101

    return predict


def measure(job: Job, repeats: int) -> Sample:
    """Time a job."""
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    structures = systems(job.system)
    batch = batch_of([system.atoms for system in structures], torch.float32)
    sizes = settings(channels=job.features, hidden=16, radial=[64, 64, 64], neighbours=16.0)
    models = [build(sizes) for _ in range(MEMBERS if job.kind == "ensemble" else 1)]
    run = training(models[0], batch, structures) if job.kind == "train" else inference(models, batch)
    before = memory_mb("VmRSS")
    repeat(run, 2)
    seconds = repeat(run, repeats)
    return Sample(seconds, len(batch["positions"]), batch["edge_index"].shape[1], before, memory_mb("VmHWM"))


if __name__ == "__main__":
    work(measure)
