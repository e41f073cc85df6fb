"""Configurations near equilibria: thermal displacements along normal modes, and Langevin dynamics.

Normal modes, as ANI-1x samples them, with classical statistics: at a temperature T drawn uniformly, each mode with
the angular frequency ω has the mass-weighted displacement Q ~ N(0, kT/ω²), so that ½ω²Q² is kT/2 on average. Modes
softer than a floor get the frequency of the floor, as large harmonic displacements along a torsion would break bonds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ase import units
from ase.data import atomic_masses
from ase.md.langevin import Langevin
from jaxtyping import Float, UInt8

from huefield.core.rigid import rotations, shifts
from huefield.core.structure import Structure
from huefield.make_data.geometry import num_fragments
from huefield.make_data.oracles import AbstractOracle, OracleError
from huefield.make_data.relax import SamplingError, atoms_of

PER_CM = 2 * np.pi * units._c * 100.0 / units._e**0.5 * units._amu**0.5 * 1e-10
"""Angular frequency, in (eV/Å²/amu)^½, of a wave number of 1/cm."""

ONE_PIECE = 1.6
"""A molecule counts as one piece while neighbours are within this multiple of the sum of their covalent radii."""


@dataclass(frozen=True)
class ModeSettings:
    """Sampling of normal modes."""

    lowest_k: float = 300.0
    highest_k: float = 1000.0
    step_angstrom: float = 0.005
    floor_per_cm: float = 150.0


@dataclass(frozen=True)
class DynamicsSettings:
    """Langevin dynamics."""

    timestep_fs: float = 1.0
    friction_per_fs: float = 0.05
    equilibration_steps: int = 100
    steps_between_frames: int = 40
    attempts: int = 5
    """Number of trajectories in which the molecule may dissociate before it is given up."""


MODES, DYNAMICS = ModeSettings(), DynamicsSettings()


@dataclass(frozen=True, eq=False)
class NormalModes:
    """Vibrations of a molecule: ω² in eV/Å²/amu, and directions in Å per unit of Q (amu^½ Å)."""

    omega2: Float[np.ndarray, " V"]
    directions: Float[np.ndarray, "V N 3"]


def hessian(
    numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], oracle: AbstractOracle, step: float
) -> Float[np.ndarray, "3*N 3*N"]:
    """Second derivatives in eV/Å² by central differences of the forces."""

    def forces(shift: Float[np.ndarray, " D"]) -> np.ndarray:
        labelled = oracle.label(Structure(numbers, positions + shift.reshape(-1, 3)))
        return np.asarray(labelled.forces).ravel()

    rows = [-(forces(shift) - forces(-shift)) / (2 * step) for shift in step * np.eye(positions.size)]
    return (np.array(rows) + np.array(rows).T) / 2


def normal_modes(
    numbers: UInt8[np.ndarray, " N"], positions: Float[np.ndarray, "N 3"], second: Float[np.ndarray, "3*N 3*N"]
) -> NormalModes:
    """Vibrations from second derivatives with rigid motions projected out."""
    root_mass = np.repeat(np.sqrt(atomic_masses[numbers]), 3)
    rigid = np.concatenate([shifts(len(positions)), rotations(positions, positions.mean(0))])
    rigid = rigid.reshape(len(rigid), -1) * root_mass
    left, singular, _ = np.linalg.svd(rigid.T)
    rank = int((singular > 1e-4 * singular[0]).sum())
    vibrations = left[:, rank:]
    omega2, vectors = np.linalg.eigh(vibrations.T @ (second / np.outer(root_mass, root_mass)) @ vibrations)
    directions = (vibrations @ vectors).T / root_mass
    return NormalModes(omega2, directions.reshape(len(omega2), -1, 3))


def sample_modes(
    positions: Float[np.ndarray, "N 3"],
    modes: NormalModes,
    num_frames: int,
    *,
    rng: np.random.Generator,
    settings: ModeSettings = MODES,
) -> Float[np.ndarray, "n N 3"]:
    """Thermal displacements, each at its own temperature."""
    omega2 = np.maximum(modes.omega2, (settings.floor_per_cm * PER_CM) ** 2)
    kelvin = rng.uniform(settings.lowest_k, settings.highest_k, (num_frames, 1))
    amplitudes = np.sqrt(units.kB * kelvin / omega2) * rng.standard_normal((num_frames, omega2.size))
    return positions + np.einsum("nv,vax->nax", amplitudes, modes.directions)


def sample_dynamics(
    numbers: UInt8[np.ndarray, " N"],
    positions: Float[np.ndarray, "N 3"],
    oracle: AbstractOracle,
    num_frames: int,
    *,
    temperature_k: float,
    rng: np.random.Generator,
    settings: DynamicsSettings = DYNAMICS,
) -> tuple[Float[np.ndarray, "n N 3"], int]:
    """Frames of Langevin dynamics, and the number of restarts after the molecule dissociated."""
    frames: list[np.ndarray] = []
    for restarts in range(settings.attempts):
        try:
            for frame in _trajectory(
                numbers, positions, oracle, num_frames - len(frames), temperature_k, rng, settings
            ):
                if num_fragments(numbers, frame, ONE_PIECE) > 1:
                    break
                frames.append(frame)
        except OracleError:
            pass  # no self-consistency, as with a broken bond: the trajectory ends here
        if len(frames) == num_frames:
            return np.array(frames).reshape(-1, *positions.shape), restarts
    raise SamplingError(f"the molecule dissociated {settings.attempts} times at {temperature_k:.0f} K")


def _trajectory(
    numbers: UInt8[np.ndarray, " N"],
    positions: Float[np.ndarray, "N 3"],
    oracle: AbstractOracle,
    num_frames: int,
    temperature_k: float,
    rng: np.random.Generator,
    settings: DynamicsSettings,
) -> Iterator[Float[np.ndarray, "N 3"]]:
    """Frames of one run from the minimum."""
    atoms = atoms_of(numbers, positions, oracle)
    spread = np.sqrt(atoms.get_masses()[:, None] * units.kB * temperature_k)
    atoms.set_momenta(spread * rng.standard_normal(positions.shape))
    dynamics = Langevin(
        atoms,
        settings.timestep_fs * units.fs,
        temperature_K=temperature_k,
        friction=settings.friction_per_fs / units.fs,
        fixcm=False,  # as ASE recommends for small systems; frames are centred below
        rng=rng,
    )
    dynamics.run(settings.equilibration_steps)
    for _ in range(num_frames):
        dynamics.run(settings.steps_between_frames)
        yield atoms.positions - atoms.positions.mean(0)
