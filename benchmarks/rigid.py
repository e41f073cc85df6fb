"""Effect of removing rigid motions from the force noise: true forces have no net force and no net torque.

python benchmarks/rigid.py FOLDER     that of ``huefield reproduce table``; writes benchmarks/results/rigid.json

For each structure of a test, the likelihood of the energy and of the 3N − 6 internal components of the forces (those
orthogonal to shifts and turns): under the covariance as it is, and given that net force and net torque vanish, which
is the noise projected off rigid motions. Both also with the independent noise of forces times 3N/(3N − 6), as it was
fitted to components that projection leaves fewer of. In natural units of a degree of freedom. Beside it: how large a
net force the model takes for usual.
"""

import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from study import HERE

from huefield.core.rigid import internal_motions, rigid_motions
from huefield.core.structure import Block
from huefield.data.batches.prepared import Prepared
from huefield.data.batches.shapes import GrowingShapes
from huefield.model.modelfile import load
from huefield.predict.batches import batches_of
from huefield.reproduce.plan import RUN, Job, MiniSize
from huefield.reproduce.rows import rows_named
from huefield.reproduce.sources import SMALL, source_named

RESULTS = HERE / "results" / "rigid.json"
ROWS = ["white", "colored", "colored-atom", "colored-joint", "colored-atom-joint"]
MOST = 300
"""Structures of a test."""
FORMS = ("as it is", "projected", "as it is, more noise", "projected, more noise")


def nll(error: np.ndarray, covariance: np.ndarray) -> float:
    """Negative log density of an error under a Gaussian of mean zero."""
    lower = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(lower, error)
    return float(0.5 * scaled @ scaled + np.log(np.diag(lower)).sum() + 0.5 * len(error) * np.log(2 * np.pi))


def padded(basis: np.ndarray) -> np.ndarray:
    """With a row for the energy, which rigid motions leave alone."""
    return np.vstack([np.zeros((1, basis.shape[1])), basis])


def forms(covariance: np.ndarray, noise: np.ndarray, error: np.ndarray, positions: np.ndarray) -> list[float]:
    """NLL of energy and internal components, per degree of freedom, under each form; ``noise`` is that of forces."""
    rigid = rigid_motions(positions, np.ones(len(positions)), with_rotations=True)
    inner = internal_motions(positions)
    count = len(error) - 1
    seen = np.hstack([np.eye(len(error), 1), padded(inner)])
    constraint = padded(rigid)

    def projected(matrix: np.ndarray) -> np.ndarray:
        gain = matrix @ constraint
        return matrix - gain @ np.linalg.solve(constraint.T @ gain, gain.T)

    more = covariance + np.diag(np.append(0.0, noise)) * (count / inner.shape[1] - 1)
    kinds = (covariance, projected(covariance), more, projected(more))
    return [nll(seen.T @ error, seen.T @ each @ seen) / seen.shape[1] for each in kinds]


def measured(job: Job, out: Path) -> dict[str, float]:
    """Means over structures."""
    ensemble = load(job.folder(out) / RUN / "model.safetensors")
    parts = job.source.test_parts(MiniSize().config(job, out).data.load())

    def isolated(block: Block) -> np.ndarray:
        return np.bincount(block.owners, ensemble.isolated_energies(block.atomic_numbers), len(block))

    cutoff = ensemble.members.potential.atomic_config.cutoff_angstrom
    data = Prepared.of(parts[job.source.tests[0].part].share(range(MOST)), cutoff, isolated)
    joint = eqx.filter_jit(lambda model, graph: model.joint(graph).distribution)
    found, net, true = [], [], []
    for indices, batch in batches_of(data, GrowingShapes()):
        distribution = jax.device_get(joint(ensemble, batch.graph))
        for place in range(len(indices)):
            rows = np.flatnonzero(np.asarray(batch.graph.partition.structure_index) == place)
            if len(rows) < 3:
                continue
            observed = np.append(batch.labels.energy[place], np.asarray(batch.labels.forces)[rows])
            mean = np.append(distribution.mean.energy[place], distribution.mean.forces[rows])
            noise = distribution.diagonal.forces[rows].astype(float).ravel()
            covariance = distribution.covariance(place).astype(float)
            positions = np.asarray(batch.graph.positions)[rows].astype(float)
            found.append(forms(covariance, noise, (observed - mean).astype(float), positions))
            shifts = np.tile(np.eye(3), (len(rows), 1))
            net.append(np.trace(shifts.T @ covariance[1:, 1:] @ shifts) / 3)
            true.append(np.square(observed[1:].reshape(-1, 3).sum(0)).mean())
    means = dict(zip(FORMS, np.mean(found, 0).tolist(), strict=True))
    return {**means, "net_force": float(np.sqrt(np.mean(net))), "true_net_force": float(np.sqrt(np.mean(true)))}


def main() -> None:
    """Look at all that is trained."""
    out = Path(sys.argv[1])
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in SMALL:
        for row in rows_named(ROWS):
            job = Job(source_named(name), 0, row)
            if (job.folder(out) / RUN / "model.safetensors").exists():
                results.setdefault(name, {})[row.name] = measured(job, out)
                print(name, row.name, results[name][row.name], flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
