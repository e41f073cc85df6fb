#!/bin/bash
# Build and calibrate the ensemble of members that were trained one by one:  sbatch assemble.sh run
#SBATCH --job-name=huefield-assemble
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00

srun huefield assemble "$1" && srun huefield calibrate "$1/model.safetensors" "$1"
