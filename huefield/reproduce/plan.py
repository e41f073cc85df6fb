"""How much is trained: the paper's size, and one for a pair of cores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huefield.noise import NoiseConfig, VanillaNoise
from huefield.potentials import PaiNN
from huefield.reproduce.rows import PAPER, Row, all_rows, rows_named
from huefield.reproduce.sources import FEW, AbstractSource, source_of
from huefield.support.errors import HuefieldError
from huefield.support.files import require_free
from huefield.training import assemble, presets, train
from huefield.training.checkpoint import CHECKPOINTS
from huefield.training.config import TrainConfig
from huefield.training.job import member_folder, require_made_with
from huefield.training.outcome import MODEL
from huefield.training.reports import Report
from huefield.training.stages import SquaredErrorStage, Stage

MINI_POTENTIAL = PaiNN.Config(features=32)
RUN, MEAN = "run", "mean"
"""Folders of a row's training, and of the stage that all rows share."""

Showing = Callable[[str], AbstractContextManager[Report]]
"""Given what is trained, what is told how far it is."""


@dataclass(frozen=True)
class Job:
    """A row for one data set and seed."""

    source: AbstractSource
    seed: int
    row: Row

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.source.title}, seed {self.seed}: {self.row.title}"

    def shared(self, out: Path) -> Path:
        """The folder of all rows that share a split."""
        return out / self.source.name / f"seed-{self.seed}"

    def folder(self, out: Path) -> Path:
        """Where it is kept."""
        return self.shared(out) / self.row.name


class AbstractSize(ABC):
    """Networks and steps."""

    @property
    @abstractmethod
    def about(self) -> str:
        """A sentence for readers of the table."""

    @abstractmethod
    def config(self, job: Job, out: Path) -> TrainConfig:
        """Of the training of a row; what it starts from must be there when it runs."""

    def configs(self, job: Job, out: Path) -> tuple[TrainConfig, ...]:
        """Of all that is trained for a row."""
        return (self.config(job, out),)

    @abstractmethod
    def train(self, job: Job, out: Path, showing: Showing, should_stop: Callable[[], bool]) -> None:
        """Train a row, or go on with it; its ensemble is then in the folder of its run."""


@dataclass(frozen=True)
class MiniSize(AbstractSize):
    """For a pair of cores: small networks, few steps, and a first stage that is trained once.

    Squared errors train the mean of each ensemble once for each seed, as the first stage of all rows: noise outputs
    have no part in that stage, so that it is the same as if each row had trained its own. From there vanilla goes on
    with squared errors for as many steps as the others have of likelihoods.
    """

    potential: PaiNN.Config = MINI_POTENTIAL
    steps: tuple[int, int, int] = (4000, 600, 1200)
    """Of squared error, β-NLL and NLL."""
    members: int = 5
    validate_every: int = 200
    rate: float = 1e-2
    """Of squared errors, at first."""
    noise_rate: float = 5e-4
    """Of likelihoods, at first."""

    @property
    def about(self) -> str:
        """How small it is."""
        steps = " + ".join(map(str, self.steps))
        return f"Ensembles of {self.members}, PaiNN with {self.potential.features} features, {steps} steps."

    def mean(self, job: Job, out: Path) -> TrainConfig:
        """The first stage, which all rows share."""
        return self._config(job, out, VanillaNoise.Config(), self._stages()[:1])

    def config(self, job: Job, out: Path) -> TrainConfig:
        """What a row does with the mean."""
        later = self._stages()[1:]
        if isinstance(job.row.noise, VanillaNoise.Config):
            decay, steps = presets.LOWEST_RATE / self.noise_rate, sum(stage.steps for stage in later)
            later = (SquaredErrorStage(steps=steps, learning_rate=self.noise_rate, decay=decay),)
        config = self._config(job, out, job.row.noise, job.row.objectives(later))
        return config.model_copy(update={"start_from": job.shared(out) / MEAN / MODEL})

    def configs(self, job: Job, out: Path) -> tuple[TrainConfig, ...]:
        """The mean and what a row does with it."""
        return self.mean(job, out), self.config(job, out)

    def train(self, job: Job, out: Path, showing: Showing, should_stop: Callable[[], bool]) -> None:
        """The mean first, where it is not there."""
        mean = job.shared(out) / MEAN
        if (mean / MODEL).exists():
            require_made_with(self.mean(job, out), mean)
        else:
            require_free(mean)  # or each time that it is looked again, data would be read and announced
            with showing(f"{job.source.title}, seed {job.seed}: the mean, for all rows") as report:
                train(self.mean(job, out), mean, report=report, should_stop=should_stop)
        with showing(job.title) as report:
            train(self.config(job, out), job.folder(out) / RUN, report=report, should_stop=should_stop)

    def _stages(self) -> tuple[Stage, ...]:
        return presets.three_stages(self.steps, self.rate, self.noise_rate)

    def _config(self, job: Job, out: Path, noise: NoiseConfig, stages: tuple[Stage, ...]) -> TrainConfig:
        config = presets.with_care(
            job.source.data(job.seed, job.shared(out)),
            self.potential,
            stages,
            noise=noise,
            members=self.members,
            batch_size=job.source.batch_size,
            validate_every=self.validate_every,
            checkpoint_every=500,
        )
        return config.model_copy(update={"seed": job.seed})


@dataclass(frozen=True)
class PaperSize(AbstractSize):
    """The paper's setting: each row goes through all three stages, member by member.

    docs/reproduction.md lists what the paper leaves open.
    """

    dry_run: bool = False
    """Two steps of each stage instead of millions: shows that everything runs, and how long a step takes."""

    @property
    def about(self) -> str:
        """That of the paper, or a warning."""
        if self.dry_run:
            return "A DRY RUN with two steps of each stage: its numbers mean nothing."
        return "Networks and steps of the paper, ensembles of five."

    def config(self, job: Job, out: Path) -> TrainConfig:
        """[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training"."""
        config = presets.preset("paper", job.source.data(job.seed, job.shared(out)), job.row.noise)
        stages = job.row.objectives(config.stages)
        if self.dry_run:
            stages = tuple(stage.model_copy(update={"steps": 2}) for stage in stages)
        return config.model_copy(update={"stages": stages, "seed": job.seed})

    def train(self, job: Job, out: Path, showing: Showing, should_stop: Callable[[], bool]) -> None:
        """One member after the other, whoever has trained them: those of a job array are found and put together.

        A run that was begun with all members in one program is gone on with as it is.
        """
        config, run = self.config(job, out), job.folder(out) / RUN
        if (run / MODEL).exists():
            require_made_with(config, run)
            return
        if (run / CHECKPOINTS).exists():
            with showing(job.title) as report:
                train(config, run, report=report, should_stop=should_stop)
            return
        for member in range(config.members):
            if not (member_folder(run, member) / MODEL).exists():
                with showing(f"{job.title}, member {member + 1} of {config.members}") as report:
                    train(config, run, member=member, report=report, should_stop=should_stop)
        assemble(run)


@dataclass(frozen=True)
class Plan:
    """What a table takes."""

    source: AbstractSource
    size: AbstractSize
    jobs: tuple[Job, ...]
    out: Path

    @property
    def folder(self) -> Path:
        """Where the table goes."""
        return self.out / self.source.name


def planned(
    data: str = "bundled",
    *,
    paper_size: bool = False,
    dry_run: bool = False,
    rows: Sequence[str] | Literal["paper", "all"] = "paper",
    seeds: int = 1,
    file: Path | None = None,
    out: Path = Path("reproduction"),
) -> Plan:
    """What a table takes.

    Args:
        data: bundled, acac, ani1x, transition1x, or the path of a file.
        paper_size: whether networks and steps are the paper's.
        dry_run: of the paper's size, two steps of each stage.
        rows: names of them; the paper's, or all.
        seeds: of the data split.
        file: the published HDF5 file of ani1x or transition1x.
        out: folder for everything; the paper's size has one in it.
    """
    if dry_run and not paper_size:
        raise HuefieldError("--dry-run is for --size paper; the small size runs as it is")
    size: AbstractSize = PaperSize(dry_run=dry_run) if paper_size else MiniSize()
    if paper_size:
        # A folder of its own, or a result of one size would be taken for another's; jobs may start anywhere.
        out = (out / ("dry-run" if dry_run else "paper")).resolve()
        file = None if file is None else file.resolve()
    source = source_of(data, file, out, {} if paper_size else FEW)
    if isinstance(rows, str):
        chosen = PAPER if rows == "paper" else all_rows(mixed_sizes=source.mixed_sizes)
    else:
        chosen = rows_named(rows)
    return Plan(source, size, tuple(Job(source, seed, row) for seed in range(seeds) for row in chosen), out)
