#!/bin/bash
# Train all members on one GPU:  sbatch one-gpu.sh mine.yaml run
#SBATCH --job-name=huefield
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120      # SIGTERM two minutes before the limit: huefield saves and ends with code 130
#SBATCH --requeue              # a preempted job goes back into the queue by itself
#SBATCH --open-mode=append

srun huefield train "$1" --out "$2"
code=$?
# The same command resumes the run: 130 after saving, 143 if nothing was to be saved.
if [ $code -eq 130 ] || [ $code -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
