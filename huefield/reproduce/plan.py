"""Training plan of a table: rows and seeds, at the paper's size or at a size for two cores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huefield.noise import NoiseConfig, VanillaNoise
from huefield.potentials import PaiNN
from huefield.reproduce.rows import PAPER, ModelRow, all_rows, rows_named
from huefield.reproduce.sources import FEW, AbstractSource, source_of
from huefield.support.errors import HuefieldError
from huefield.support.files import require_free
from huefield.training import assemble, presets, train
from huefield.training.checkpoint import CHECKPOINTS
from huefield.training.config import TrainConfig
from huefield.training.inputs import member_folder, require_made_with
from huefield.training.outcome import MODEL
from huefield.training.reports import OnTrainingEvent
from huefield.training.stages import SquaredErrorStage, Stage

MINI_POTENTIAL = PaiNN.Config(features=32)
RUN, MEAN = "run", "mean"
"""Folders of a row's training run and of the first stage, which all rows share."""

ShowProgress = Callable[[str], AbstractContextManager[OnTrainingEvent]]
"""Opens a progress display for the training with this title."""


@dataclass(frozen=True)
class Job:
    """One row on one data set with one seed."""

    source: AbstractSource
    seed: int
    row: ModelRow

    @property
    def title(self) -> str:
        """Data set, seed and row in words."""
        return f"{self.source.title}, seed {self.seed}: {self.row.title}"

    def shared(self, out: Path) -> Path:
        """Folder of all rows with the same data and seed."""
        return out / self.source.name / f"seed-{self.seed}"

    def folder(self, out: Path) -> Path:
        """Folder of this row."""
        return self.shared(out) / self.row.name


class AbstractSize(ABC):
    """Size of the networks and length of the training."""

    @property
    @abstractmethod
    def about(self) -> str:
        """Describe the size in one sentence, for readers of the table."""

    @abstractmethod
    def config(self, job: Job, out: Path) -> TrainConfig:
        """Training configuration of a row; the model it starts from must exist when it runs."""

    def configs(self, job: Job, out: Path) -> tuple[TrainConfig, ...]:
        """Configurations of every training that a row needs."""
        return (self.config(job, out),)

    @abstractmethod
    def train(
        self,
        job: Job,
        out: Path,
        showing: ShowProgress,
        should_stop: Callable[[], bool],
        on_saved: Callable[[], None],
    ) -> None:
        """Train a row or resume it; the ensemble is saved in the folder of the run."""


@dataclass(frozen=True)
class MiniSize(AbstractSize):
    """Size for two cores: small networks, few steps, and a first stage that all rows of a seed share.

    The first stage trains the means with squared errors. Noise outputs take no part in it, so sharing it gives the
    same result as training it for each row. Vanilla then continues with squared errors for as many steps as the other
    rows train with likelihoods.
    """

    potential: PaiNN.Config = MINI_POTENTIAL
    steps: tuple[int, int, int] = (4000, 600, 1200)
    """Steps of squared error, β-NLL and NLL."""
    members: int = 5
    validate_every: int = 200
    rate: float = 1e-2
    """Initial learning rate of the squared-error stage."""
    noise_rate: float = 5e-4
    """Initial learning rate of the likelihood stages."""

    @property
    def about(self) -> str:
        """Members, features and steps."""
        steps = " + ".join(map(str, self.steps))
        return f"Ensembles of {self.members}, PaiNN with {self.potential.features} features, {steps} steps."

    def mean(self, job: Job, out: Path) -> TrainConfig:
        """Configuration of the first stage, which all rows share."""
        return self._config(job, out, VanillaNoise.Config(), self._stages()[:1])

    def config(self, job: Job, out: Path) -> TrainConfig:
        """Configuration of the later stages, which start from the shared means."""
        later = self._stages()[1:]
        if isinstance(job.row.noise, VanillaNoise.Config):
            decay, steps = presets.LOWEST_RATE / self.noise_rate, sum(stage.steps for stage in later)
            later = (SquaredErrorStage(steps=steps, learning_rate=self.noise_rate, decay=decay),)
        config = self._config(job, out, job.row.noise, job.row.objectives(later))
        return config.model_copy(update={"start_from": job.shared(out) / MEAN / MODEL})

    def configs(self, job: Job, out: Path) -> tuple[TrainConfig, ...]:
        """The shared first stage and the later stages of the row."""
        return self.mean(job, out), self.config(job, out)

    def train(
        self,
        job: Job,
        out: Path,
        showing: ShowProgress,
        should_stop: Callable[[], bool],
        on_saved: Callable[[], None],
    ) -> None:
        """Train the shared means if they are missing, then the row."""
        mean = job.shared(out) / MEAN
        if (mean / MODEL).exists():
            require_made_with(self.mean(job, out), mean)
        else:
            require_free(mean)  # fail before the data are read if another process trains the means
            with showing(f"{job.source.title}, seed {job.seed}: the mean, for all rows") as report:
                train(self.mean(job, out), mean, report=report, should_stop=should_stop, on_saved=on_saved)
        with showing(job.title) as report:
            train(
                self.config(job, out), job.folder(out) / RUN, report=report, should_stop=should_stop, on_saved=on_saved
            )

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
        # Rows compare noise models, without growth of their noise, which only some of them have.
        return config.model_copy(update={"seed": job.seed, "novelty": False})


@dataclass(frozen=True)
class PaperSize(AbstractSize):
    """The paper's setting: each row trains all three stages, one member after the other.

    docs/reproduction.md lists the settings that the paper does not state.
    """

    dry_run: bool = False
    """Two steps of each stage instead of millions, to see that everything runs and how long a step takes."""

    @property
    def about(self) -> str:
        """Name the paper's size, or warn that this is a dry run."""
        if self.dry_run:
            return "A DRY RUN with two steps of each stage: its numbers mean nothing."
        return "Networks and steps of the paper, ensembles of five."

    def config(self, job: Job, out: Path) -> TrainConfig:
        """[J23] arXiv:2312.04174v1, appendix "Model Hyperparameters and Training"."""
        config = presets.preset("paper", job.source.data(job.seed, job.shared(out)), job.row.noise)
        stages = job.row.objectives(config.stages)
        if self.dry_run:
            stages = tuple(stage.model_copy(update={"steps": 2}) for stage in stages)
        return config.model_copy(update={"stages": stages, "seed": job.seed, "novelty": False})

    def train(
        self,
        job: Job,
        out: Path,
        showing: ShowProgress,
        should_stop: Callable[[], bool],
        on_saved: Callable[[], None],
    ) -> None:
        """Train the missing members one after the other, then assemble all, including those of a job array.

        A run that was started with all members in one program is resumed in that way.
        """
        config, run = self.config(job, out), job.folder(out) / RUN
        if (run / MODEL).exists():
            require_made_with(config, run)
            return
        if (run / CHECKPOINTS).exists():
            with showing(job.title) as report:
                train(config, run, report=report, should_stop=should_stop, on_saved=on_saved)
            return
        for member in range(config.members):
            if not (member_folder(run, member) / MODEL).exists():
                with showing(f"{job.title}, member {member + 1} of {config.members}") as report:
                    train(config, run, member=member, report=report, should_stop=should_stop, on_saved=on_saved)
        assemble(run)


@dataclass(frozen=True)
class TablePlan:
    """Everything that a table needs: data, size, jobs and folder."""

    source: AbstractSource
    size: AbstractSize
    jobs: tuple[Job, ...]
    out: Path

    @property
    def folder(self) -> Path:
        """Folder of the table."""
        return self.out / self.source.name


def plan_table(
    data: str = "bundled",
    *,
    paper_size: bool = False,
    dry_run: bool = False,
    rows: Sequence[str] | Literal["paper", "all"] = "paper",
    seeds: int = 1,
    file: Path | None = None,
    out: Path = Path("reproduction"),
) -> TablePlan:
    """Plan a table: choose the data, the size and the rows.

    Args:
        data: bundled, acac, ani1x, transition1x, or the path of a file.
        paper_size: train networks of the paper's size for as many steps.
        dry_run: train two steps of each stage; only with the paper's size.
        rows: names of rows, "paper" or "all".
        seeds: number of seeds of the data split.
        file: the published HDF5 file of ani1x or transition1x.
        out: output folder; the paper's size has a subfolder of its own.
    """
    if dry_run and not paper_size:
        raise HuefieldError("--dry-run needs --size paper; --size mini is short enough to run in full")
    size: AbstractSize = PaperSize(dry_run=dry_run) if paper_size else MiniSize()
    if paper_size:
        # A folder of its own keeps results of different sizes apart; absolute, as jobs may start anywhere.
        out = (out / ("dry-run" if dry_run else "paper")).resolve()
        file = None if file is None else file.resolve()
    source = source_of(data, file, out, {} if paper_size else FEW)
    if isinstance(rows, str):
        chosen = PAPER if rows == "paper" else all_rows(mixed_sizes=source.mixed_sizes)
    else:
        chosen = rows_named(rows)
    return TablePlan(source, size, tuple(Job(source, seed, row) for seed in range(seeds) for row in chosen), out)
