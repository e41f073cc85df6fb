"""Cost of ``huefield train`` beyond the compiled step, and of members beyond one.

python benchmarks/training.py [--steps N] [--features F] [--rounds N] [--out FILE]

1. Wall time of a step of a whole run (batches, history every ten steps, checkpoints every twenty) relative to the bare
   compiled step, one member.
2. A step of five members in one process relative to one member, on two cores.
3. Five members as two processes with one core each, relative to one member on two cores, in whole runs.

Synthetic molecules of 15 atoms, batches of 64. In 1 and 2 both take turns within one process, as machines are noisy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BATCH = 64
WARM_UP = 10
TURN = 10
"""Steps between two reports of a run."""
SAVED_EVERY = 2 * TURN
"""Steps between two checkpoints."""
MEMBERS = 5


def write_data(path: Path, structures: int) -> None:
    """Molecules with random labels, whose values take no time."""
    sys.path.insert(0, str(HERE / "painn"))
    import numpy as np
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import write
    from cases import molecule

    rng = np.random.default_rng(0)
    frames = []
    for _ in range(structures):
        atoms = molecule(15, rng=rng)
        atoms.calc = SinglePointCalculator(atoms, energy=float(rng.normal()), forces=rng.normal(size=(15, 3)))
        frames.append(atoms)
    write(path, frames, format="extxyz")


def config_of(data: Path, features: int, members: int, steps: int) -> Any:
    """One stage of likelihood, with checkpoints and reports as often as people want them."""
    from huefield.training import TrainConfig

    split = {"kind": "random", "fractions": {"train": 0.9, "validation": 0.1}}
    return TrainConfig.model_validate(
        {
            "data": {"kind": "files", "train": [str(data)], "split": split},
            "model": {
                "potential": {"kind": "painn", "features": features},
                "noise": {"kind": "colored", "gamma": "atom"},
            },
            "stages": [{"kind": "nll", "steps": steps, "learning_rate": 1e-4}],
            "members": members,
            "batch_size": BATCH,
            "optimiser": {"average_decay": 0.99},
            "validate_every": steps,
            "checkpoint_every": SAVED_EVERY,
            "report_every": TURN,
        }
    )


def step_of_run(data: Path, features: int, members: int, steps: int, member: int | None = None) -> float:
    """Seconds of a step in a whole run, between the first reports and the last one."""
    from huefield.training import train
    from huefield.training.history import read_history

    with tempfile.TemporaryDirectory() as folder:
        train(config_of(data, features, members, steps), folder, member=member)
        path = Path(folder) if member is None else Path(folder) / f"member-{member}"
        told = [e for e in read_history(path / "history.jsonl") if e["event"] == "steps" and e["step"] >= WARM_UP]
    return (told[-1]["time"] - told[0]["time"]) / (told[-1]["step"] - told[0]["step"])


class BareStep:
    """The compiled step alone, on one batch that is on the device already."""

    def __init__(self, data: Path, features: int, members: int) -> None:
        self.program, self.states, self.batch = bare_program(data, features, members)

    def seconds(self, steps: int) -> float:
        """Mean seconds of a step."""
        import jax

        begin = time.perf_counter()
        for _ in range(steps):
            self.states, metrics = self.program.step(self.states, self.batch)
            jax.block_until_ready((metrics, self.states.rate))
        return (time.perf_counter() - begin) / steps


class InTurns:
    """Is told of a run's progress, and times compiled steps between the steps of the run: both see the same machine."""

    def __init__(self, bare: BareStep) -> None:
        self.bare, self.resumed, self.run_seconds, self.bare_seconds = bare, 0.0, 0.0, 0.0

    def __call__(self, event: object) -> None:
        """After each ``TURN`` steps of the run."""
        from huefield.training import StepReport

        if not isinstance(event, StepReport):
            return
        run = (time.perf_counter() - self.resumed) / TURN
        bare = self.bare.seconds(TURN)
        if event.step > SAVED_EVERY:  # from then on, as many checkpoints as there should be
            self.run_seconds, self.bare_seconds = self.run_seconds + run, self.bare_seconds + bare
        self.resumed = time.perf_counter()


def run_relative_to_bare(data: Path, features: int, steps: int) -> float:
    """A step of a run of one member, with data, history and checkpoints, relative to the compiled step."""
    from huefield.training import train

    in_turns = InTurns(BareStep(data, features, 1))
    with tempfile.TemporaryDirectory() as folder:
        train(config_of(data, features, 1, steps), folder, report=in_turns)
    return in_turns.run_seconds / in_turns.bare_seconds


def five_relative_to_one(data: Path, features: int, steps: int) -> float:
    """Compiled steps of five members and of one in turns, so that both see the same machine; median of the ratios."""
    one, five = BareStep(data, features, 1), BareStep(data, features, MEMBERS)
    one.seconds(WARM_UP), five.seconds(2)
    return statistics.median(five.seconds(1) / one.seconds(MEMBERS) for _ in range(max(steps // 4, 5)))


def bare_program(data: Path, features: int, members: int) -> tuple[Any, Any, Any]:
    """A compiled step with states and a batch for it."""
    from huefield.data.batches.batching import Place
    from huefield.data.batches.prepared import Prepared
    from huefield.training.feed import Feed
    from huefield.training.initial import initial_ensemble, order_keys
    from huefield.training.inputs import with_elements
    from huefield.training.job import references_for
    from huefield.training.mesh import Layout
    from huefield.training.program import StageProgram

    config = config_of(data, features, members, 1)
    parts = config.data.load()
    config = with_elements(config, parts["train"], None)
    references = references_for(config, parts["train"], None)
    prepared = Prepared.of(parts["train"], 5.0, references.of_block)
    layout = Layout(members, config.mesh)
    ensemble = initial_ensemble(config, range(members), references, prepared, None)
    feed = Feed(prepared, layout, BATCH, 1, order_keys(config, range(members), 0))
    program = StageProgram(ensemble.members, config.stages[0], config.optimiser, layout)
    states = program.start(ensemble.members)
    return program, states, next(feed.start(Place()))[1]


JOBS: dict[str, Callable[[Path, int, int], Any]] = {
    "run_relative_to_bare": run_relative_to_bare,
    "five_relative_to_one": five_relative_to_one,
    "one": lambda data, features, steps: step_of_run(data, features, 1, max(steps // 2, 30)),
    "alone": lambda data, features, steps: step_of_run(data, features, MEMBERS, steps, member=0),
}


def measured(name: str, data: Path, features: int, steps: int, cache: Path, core: int | None = None) -> Any:
    """Start a process for a job, on all cores or on one."""
    command = [sys.executable, __file__, "--job", name, "--data", str(data), "--features", str(features)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    pinned = (lambda: os.sched_setaffinity(0, [core])) if core is not None else None
    return subprocess.Popen(
        [*command, "--steps", str(steps)], stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=pinned
    )


def seconds(process: Any) -> float:
    """Measurements of one process."""
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"a job has failed: {process.args}")
    return float(out.splitlines()[-1])


def measure(features: int, steps: int, rounds: int) -> dict[str, Any]:
    """All jobs in turns."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, cache = Path(folder) / "molecules.xyz", Path(folder) / "cache"
        write_data(data, 640)
        for turn in range(rounds):
            for name in ("run_relative_to_bare", "five_relative_to_one", "one"):
                found.setdefault(name, []).append(seconds(measured(name, data, features, steps, cache)))
                print(f"round {turn + 1} of {rounds}: {name} {found[name][-1]:.4f}", file=sys.stderr)
            pair = [measured("alone", data, features, max(steps // 2, 30), cache, core) for core in (0, 1)]
            found.setdefault("alone_on_each_of_two_cores", []).append(statistics.mean(seconds(p) for p in pair))
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {
        "features": features,
        "found": found,
        "run_relative_to_bare_step": medians["run_relative_to_bare"],
        "five_members_relative_to_one": medians["five_relative_to_one"],
        "five_members_in_two_processes_relative_to_one": MEMBERS
        / 2
        * medians["alone_on_each_of_two_cores"]
        / medians["one"],
    }


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "training.json")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        print(JOBS[given.job](given.data, given.features, given.steps))
        return
    result = measure(given.features, given.steps, given.rounds)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
