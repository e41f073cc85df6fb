#!/bin/bash
# Train one ensemble on GPUs of several nodes:  sbatch many-hosts.sh mine.yaml run
# The folder of the run must be on a file system that all nodes share.
#SBATCH --job-name=huefield
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4    # one process for each GPU: under Slurm, JAX gives each process the GPU with its local number
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@300      # the processes look for signals at each report; allow for the time between two
#SBATCH --requeue              # a preempted job goes back into the queue by itself
#SBATCH --open-mode=append

srun huefield train "$1" --out "$2" --distributed
code=$?
# The same command resumes the run: 130 after saving, 143 if nothing was to be saved.
if [ $code -eq 130 ] || [ $code -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
