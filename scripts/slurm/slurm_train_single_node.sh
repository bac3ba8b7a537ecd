#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@60
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_single_node.sh [CONFIG] [TRAINER OPTIONS]...
#
# Trains on one node under torchrun, one process per GPU of the job; NPROC says how many on CPUs:
#
#   sbatch --gres=gpu:8 --cpus-per-task=64 scripts/slurm/slurm_train_single_node.sh
#   NPROC=2 sbatch --cpus-per-task=2 scripts/slurm/slurm_train_single_node.sh config/local3.yaml --epochs 1
#
# Submit it in the project's folder, with the Python that has torch first on PATH, or named in PYTHON.
# What it prints goes to slurm-JOB.out there; a minute before the time limit the trainer saves.
set -euo pipefail

config=config/local3.yaml
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi
exec "${PYTHON:-python3}" -m torch.distributed.run \
    --standalone --log-dir=logs --nproc-per-node="${NPROC:-${SLURM_GPUS_ON_NODE:-1}}" \
    -m launcher.trainer --config "$config" "$@"
