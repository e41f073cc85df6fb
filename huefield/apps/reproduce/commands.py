"""How to run a table of the paper's size: on one GPU, on a node with several, as a job array."""

from pathlib import Path

from huefield.apps.reproduce.plan import RUN, AbstractSize, Job
from huefield.core.files import write_bytes
from huefield.training.config import to_yaml


def written_commands(jobs: list[Job], size: AbstractSize, out: Path) -> str:
    """Write a configuration for each row, and say what to do with them."""
    runs = []
    for job in jobs:
        path = job.folder(out) / "config.yaml"
        write_bytes(path, to_yaml(size.config(job, out)).encode())
        runs.append((path, job.folder(out) / RUN))
    members = size.config(jobs[0], out).members
    trains = [f"huefield train {config} --out {run}" for config, run in runs]
    array = "\n".join(f"  {line} --member $SLURM_ARRAY_TASK_ID" for line in trains)
    return f"""Wrote {", ".join(str(config) for config, _ in runs)}

One GPU, one row after the other (each goes on where it was when it is started again):
{chr(10).join(f"  {line}" for line in trains)}

A node with several GPUs: the same. Members are spread over the devices, and batches over what is left of them.

Slurm, a job for each member:
  #SBATCH --array=0-{members - 1} --gpus=1 --signal=TERM@120 --requeue
{array}
and when all are done:
{chr(10).join(f"  huefield assemble {run}" for _, run in runs)}

Then the same command as now without --commands makes the table from what was trained.
"""
