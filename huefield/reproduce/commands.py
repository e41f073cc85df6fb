"""How to run a table of the paper's size: on one GPU, on a node with several, as a job array."""

import shlex

from huefield.reproduce.plan import RUN, PaperSize, Plan
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.training.config import to_yaml
from huefield.training.job import CONFIG

SCRIPT = "members.sh"


def written_commands(plan: Plan, command: str) -> str:
    """Write a configuration for each row and a script for a queue, and say what to do with them.

    Args:
        plan: what is to be trained.
        command: that of the table itself.
    """
    if not isinstance(plan.size, PaperSize):
        raise HuefieldError("--commands is for --size paper; the small size trains everything in one command")
    folders = [job.folder(plan.out) for job in plan.jobs]
    configs = [plan.size.config(job, plan.out) for job in plan.jobs]
    for folder, config in zip(folders, configs, strict=True):
        write_bytes(folder / CONFIG, to_yaml(config).encode())
    members = configs[0].members
    script = plan.folder / SCRIPT
    write_bytes(script, _script([str(folder) for folder in folders], members).encode())
    trains = "\n".join(
        "  " + shlex.join(["huefield", "train", str(folder / CONFIG), "--out", str(folder / RUN)]) for folder in folders
    )
    return f"""Wrote {", ".join(str(folder / CONFIG) for folder in folders)} and {script}

One GPU, one member after the other:
  {command}

A node with several GPUs: members are spread over them, and batches over what is left.
{trains}

Slurm, a job for each member of each row:
  sbatch {shlex.quote(str(script))}

Choose one of them: each goes on where it was when it is started again, but the second refuses to start beside
members that one of the others has trained. When members are trained, the first command puts them together and makes
the table.
"""


def _script(folders: list[str], members: int) -> str:
    """For Slurm. Whoever is stopped before the time limit has saved, ends with 130 and is queued again."""
    rows = "\n".join(f"  {shlex.quote(folder)}" for folder in folders)
    return f"""#!/bin/bash
#SBATCH --array=0-{len(folders) * members - 1}
#SBATCH --gpus=1
#SBATCH --requeue
#SBATCH --signal=TERM@120
# Add what your queue wants: --time, --partition, --cpus-per-task, --mem; activate the environment that has huefield.
rows=(
{rows}
)
row=${{rows[$((SLURM_ARRAY_TASK_ID / {members}))]}}
srun huefield train "$row/{CONFIG}" --out "$row/{RUN}" --member $((SLURM_ARRAY_TASK_ID % {members}))
code=$?
if [ $code -eq 130 ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit $code
"""
