"""Published results: [J23] arXiv:2312.04174v1, Table 1, test metrics of ensembles of five."""

from typing import NamedTuple

METRICS = ("mae", "rmse", "nll", "rzv", "ence", "cv", "rmv")


class Published(NamedTuple):
    """One row of the published table."""

    data: str
    row: str
    energy: dict[str, float]
    """Metrics of energies, eV."""
    forces: dict[str, float]
    """Metrics of force components, eV/Å."""


def _rows(data: str, **rows: str) -> tuple[Published, ...]:
    """Parse lines of the table: metrics of energies, then of forces."""
    found = []
    for row, line in rows.items():
        numbers = [float(word) for word in line.split()]
        energy, forces = numbers[: len(METRICS)], numbers[len(METRICS) :]
        found.append(Published(data, row, *(dict(zip(METRICS, part, strict=True)) for part in (energy, forces))))
    return tuple(found)


PUBLISHED = (
    *_rows(
        "ANI-1x",
        vanilla="0.013 0.031 -2.13 1.83 0.77 1.05 0.016   0.018 0.037 -1.74 1.89 0.76 1.31 0.027",
        white="0.010 0.028 -3.13 0.69 0.31 1.54 0.033   0.017 0.041 -2.67 0.70 0.29 1.32 0.052",
        colored="0.012 0.026 -2.56 0.42 0.56 0.97 0.048   0.018 0.039 -2.51 0.66 0.32 1.13 0.051",
    ),
    *_rows(
        "Transition1x",
        vanilla="0.033 0.060 -0.83 2.10 1.06 0.73 0.029   0.037 0.075 -1.56 1.54 0.47 1.08 0.057",
        white="0.039 0.064 -1.67 1.04 0.18 0.47 0.051   0.038 0.076 -1.86 0.86 0.18 0.84 0.076",
        colored="0.037 0.063 -1.75 0.93 0.21 0.48 0.054   0.038 0.075 -1.78 0.79 0.24 0.76 0.074",
    ),
)
