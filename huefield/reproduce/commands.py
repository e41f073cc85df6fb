"""Commands that run a table of the paper's size: on one GPU, on a node with several, or as a job array."""

import shlex

from huefield.data.runs import CONFIG
from huefield.reproduce.plan import RUN, PaperSize, TablePlan
from huefield.support.errors import HuefieldError
from huefield.support.files import write_bytes
from huefield.training.config import to_yaml

SCRIPT = "members.sh"


def written_commands(plan: TablePlan, command: str) -> str:
    """Write a configuration for each row and a Slurm script, and return instructions.

    Args:
        plan: rows and seeds to train.
        command: the command that makes the table.
    """
    if not isinstance(plan.size, PaperSize):
        raise HuefieldError("--commands needs --size paper; --size mini trains everything in one command")
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

A node with several GPUs (members are spread over the devices, and batches over the remaining ones):
{trains}

Slurm, a job for each member of each row:
  sbatch {shlex.quote(str(script))}

Choose one way. Each resumes when it is started again, but the second refuses a folder in which another way has
trained members. When all members are trained, the first command assembles them and makes the table.
"""


def _script(folders: list[str], members: int) -> str:
    """Slurm script. A job that is stopped before the time limit saves, ends with 130 and is queued again."""
    rows = "\n".join(f"  {shlex.quote(folder)}" for folder in folders)
    return f"""#!/bin/bash
#SBATCH --array=0-{len(folders) * members - 1}
#SBATCH --gpus=1
#SBATCH --requeue
#SBATCH --signal=TERM@120
# Add the options of your queue: --time, --partition, --cpus-per-task, --mem; activate the environment with huefield.
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
