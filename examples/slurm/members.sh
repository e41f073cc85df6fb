#!/bin/bash
# Train each member in a job of its own, then build the ensemble:
#   job=$(sbatch --parsable members.sh mine.yaml run)
#   sbatch --dependency=afterok:$job assemble.sh run
#SBATCH --job-name=huefield-member
#SBATCH --array=0-4            # as many as the configuration has members
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120      # SIGTERM two minutes before the limit: huefield saves and ends with code 130
#SBATCH --requeue              # a preempted job goes back into the queue by itself
#SBATCH --open-mode=append

srun huefield train "$1" --out "$2" --member "$SLURM_ARRAY_TASK_ID"
code=$?
# The same command resumes the member: 130 after saving, 143 if nothing was to be saved.
if [ $code -eq 130 ] || [ $code -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
