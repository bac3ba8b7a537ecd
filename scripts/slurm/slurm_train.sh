#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@60
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train.sh [CONFIG] [TRAINER OPTIONS]...
#
# Trains on several nodes: srun starts slurm_train_multinode.sh on each, and that a torchrun with a process per GPU.
#
#   sbatch --nodes=4 --gres=gpu:8 --cpus-per-task=64 scripts/slurm/slurm_train.sh
#   NPROC=2 sbatch --cpus-per-task=2 scripts/slurm/slurm_train.sh config/local3.yaml --epochs 1     # on CPUs
#
# Submit it in the project's folder, with the Python that has torch first on PATH, or named in PYTHON.
# What it prints goes to slurm-JOB.out there; a minute before the time limit the trainer saves.
set -euo pipefail

# Since 22.05 srun no longer takes the CPUs per task over from sbatch.
exec srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    scripts/slurm/slurm_train_multinode.sh "$@"
