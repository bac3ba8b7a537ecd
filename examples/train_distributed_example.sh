#!/bin/bash
#SBATCH --job-name=train_distributed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=train_distributed_%j.out
##SBATCH --mem=64G
##SBATCH --partition=gpu
##SBATCH --time=1:00:00
#
# Usage: sbatch [SBATCH OPTIONS] train_distributed_example.sh [OPTIONS OF THE .py]...
#
# Every task is a rank with a GPU, so for 4 GPUs on each node:
#
#   sbatch --ntasks-per-node=4 --gpus-per-node=4 train_distributed_example.sh --epochs 10 --batch_size 16
#   sbatch --gpus-per-node=0 --ntasks-per-node=2 train_distributed_example.sh     # on CPUs

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train
set -euo pipefail

script=train_distributed_example.py
[[ -e $script ]] || script=examples/$script
# Since 22.05 srun no longer takes the CPUs per task over from sbatch. It overlaps so that you can look into the job:
# srun --jobid=JOB --pty nvidia-smi
exec srun --kill-on-bad-exit=1 --overlap ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "${PYTHON:-python3}" -u "$script" "$@"
