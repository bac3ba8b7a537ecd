#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
#SBATCH --signal=B:TERM@60
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train.sh [CONFIG] [TRAINER OPTIONS]...
#
# Trains on whole nodes with a process per GPU, or with NPROC processes on each node:
#
#   sbatch --nodes=4 --partition=gpu scripts/slurm/slurm_train.sh config/local3.yaml --epochs 1
#   sbatch --oversubscribe --gpus-per-node=2 --cpus-per-task=16 --mem=64G scripts/slurm/slurm_train.sh
#   NPROC=2 sbatch scripts/slurm/slurm_train.sh     # on CPUs
#
# Submit it in a directory that contains logs/, or in scripts/slurm. The output is in logs/slurm-JOB.out and .err.

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train

# Slurm runs a copy of this file; scontrol shows where the original is.
script=$0
[[ $0 != */slurm_script ]] ||
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n '/Command=/{s/^ *Command=\(.*\.sh\).*/\1/p;q}')
# shellcheck source=scripts/slurm/job.sh
source "$(dirname -- "$script")/job.sh" config/local3.yaml "" "$@"
