#!/bin/bash
#SBATCH --job-name=train-tp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --signal=TERM@60
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_tp.sh [CONFIG] [TRAINER OPTIONS]...
#
# Learns Tiny Shakespeare with tensor parallelism: every task is a rank, and pairs of them share each matrix product.
#
#   sbatch --ntasks-per-node=8 --gpus-per-task=1 --cpus-per-task=8 scripts/slurm/slurm_train_tp.sh
#   sbatch scripts/slurm/slurm_train_tp.sh config/tp_shakespeare.yaml --parallel tp --tensor-parallel 4   # on CPUs
#
# The text is downloaded to data/ unless it is there.
# Submit it in the project's folder, with the Python that has torch first on PATH, or named in PYTHON.
# What it prints goes to slurm-JOB.out there; a minute before the time limit the trainer saves.
set -euo pipefail

config=config/tp_shakespeare.yaml
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi
[[ -e data/tinyshakespeare.txt ]] || "${PYTHON:-python3}" -m launcher.trainer.prepare_data

# Since 22.05 srun no longer takes the CPUs per task over from sbatch.
exec srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "${PYTHON:-python3}" -u -m launcher.trainer --config "$config" "$@"
