"""Times dynamics with huefield's calculator. Prints one JSON line.

python benchmarks/md/with_huefield.py JOB [--quick]
"""

import beside  # noqa: F401
from measure import MEMBERS, memory_mb, use_two_cores

use_two_cores()

import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import measure as sizes  # noqa: E402
from jobs import FEW_STEPS, SKINS_ANGSTROM, Job, Steps, Worked, take_turns, work  # noqa: E402
from motion import Dynamics  # noqa: E402
from ours import config_of  # noqa: E402

from huefield import Ensemble  # noqa: E402
from huefield.ase.calculator import Calculator  # noqa: E402


def ensemble(members: int, features: int = 64) -> Ensemble:
    """Random weights, the size of SchNetPack's and colored noise."""
    return Ensemble.build(config_of(sizes.Job("ensemble", "molecule", features)), members, key=jax.random.key(0))


def bare(dynamics: Dynamics, calculator: Calculator, program: str) -> Steps:
    """The compiled program that the calculator calls, with the arguments of its last step ready."""
    found: list[tuple[Any, ...]] = []
    compiled: Callable[..., Any] = getattr(calculator.evaluator, program)
    setattr(calculator.evaluator, program, lambda *given: found.append(given) or compiled(*given))
    dynamics(1)
    setattr(calculator.evaluator, program, compiled)
    ready = [jax.device_put(value) if _has_arrays(value) else value for value in found[-1]]

    def steps(count: int) -> None:
        for _ in range(count):
            jax.block_until_ready(compiled(*ready))

    return steps


def molecule(job: Job, quick: bool) -> Worked:
    """The calculator with and without uncertainties, and the programs that it calls."""
    members, variants, calculators = ensemble(MEMBERS), dict[str, Steps](), dict[str, Calculator]()
    for when, program in (("on_request", "_mean"), ("always", "_variances")):
        calculator = calculators[when] = Calculator(members, uncertainty=when)
        dynamics = variants[when] = Dynamics(job.system, calculator)
        spare = Calculator(members, uncertainty=when)
        variants[f"bare {when}"] = bare(Dynamics(job.system, spare), spare, program)
    seconds = take_turns(variants, *job.length(quick))
    return seconds, {
        "place": dynamics.place,
        "steps_between_searches": between_searches(calculators["on_request"], job, quick),
    }


def box(job: Job, quick: bool) -> Worked:
    """One and five members in a box of water."""
    counts = [1] if quick and job.quick_steps < 15 else [1, MEMBERS]
    calculators = {f"{count} members": Calculator(ensemble(count)) for count in counts}
    variants = {name: Dynamics(job.system, calculator) for name, calculator in calculators.items()}
    seconds = take_turns(variants, *job.length(quick))
    single = calculators["1 members"]
    return seconds, {
        "atoms": len(variants["1 members"].atoms),
        "compilations": single.evaluator.compilations,
        "steps_between_searches": between_searches(single, job, quick),
    }


def skins(job: Job, quick: bool) -> Worked:
    """One member with thinner and thicker skins."""
    member = ensemble(1)
    calculators = {f"{skin:g}": Calculator(member, skin_angstrom=skin) for skin in SKINS_ANGSTROM}
    variants = {name: Dynamics(job.system, calculator) for name, calculator in calculators.items()}
    seconds = take_turns(variants, *job.length(quick))
    between = {f"steps_between_searches {name}": between_searches(c, job, quick) for name, c in calculators.items()}
    return seconds, {"atoms": len(variants["0"].atoms), **between}


def long(job: Job, quick: bool) -> Worked:
    """Many steps of a small molecule, with uncertainties in each hundredth: memory and compilations on the way."""
    calculator = Calculator(ensemble(2, features=16), uncertainty=100)
    dynamics, (_, steps) = Dynamics(job.system, calculator), job.length(quick)
    dynamics(FEW_STEPS)
    memory, compilations = [memory_mb("VmRSS")], calculator.evaluator.compilations
    seconds: list[float] = []
    for _ in range(10):
        seconds += take_turns({"step": dynamics}, 1, (steps - FEW_STEPS) // 10 - 3)["step"]
        memory.append(memory_mb("VmRSS"))
    return {"step": seconds}, {
        "steps": steps,
        "resident_mb_early": memory[0],
        "resident_mb_end": memory[-1],
        "resident_mb_most": max(memory),
        "compilations_early": compilations,
        "compilations_late": calculator.evaluator.compilations - compilations,
        "steps_between_searches": steps / calculator.evaluator.searches,
    }


def between_searches(calculator: Calculator, job: Job, quick: bool) -> float:
    """Steps from one search of neighbours to the next."""
    blocks, steps = job.length(quick)
    return (blocks * steps + 3) / calculator.evaluator.searches


def measure(job: Job, quick: bool) -> Worked:
    """Time a job."""
    warnings.simplefilter("ignore")
    return {"molecule": molecule, "box": box, "skins": skins, "long": long}[job.kind](job, quick)


def _has_arrays(value: object) -> bool:
    return any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(value))


if __name__ == "__main__":
    work(measure)
