#!/bin/bash
#SBATCH --job-name=train_distributed
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=train_distributed_%j.out
##SBATCH --gpus-per-node=4
##SBATCH --partition=gpu
##SBATCH --time=1:00:00
#
# Usage: sbatch [SBATCH OPTIONS] train_distributed_example.sh [OPTIONS OF THE .py]...
#
# Requests whole nodes. Every task is a rank: one per GPU of the nodes, or one per node on CPUs:
#
#   sbatch train_distributed_example.sh --epochs 10 --batch_size 16
#   sbatch --nodes=1 --ntasks-per-node=2 train_distributed_example.sh

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train
set -euo pipefail

script=train_distributed_example.py
[[ -e $script ]] || script=examples/$script
gpus=${SLURM_GPUS_ON_NODE:-0}
ranks=${SLURM_NTASKS_PER_NODE:-$((gpus > 0 ? gpus : 1))} # per node
cpus=$((SLURM_CPUS_ON_NODE > ranks ? SLURM_CPUS_ON_NODE / ranks : 1))
# By default srun gets one CPU per task (since 22.05), and only the GPUs that the job requested by number. It overlaps
# so that you can look into the job: srun --jobid=JOB --pty nvidia-smi
exec srun --kill-on-bad-exit=1 --overlap --ntasks="$((SLURM_JOB_NUM_NODES * ranks))" --ntasks-per-node="$ranks" \
    --cpus-per-task="$cpus" ${SLURM_GPUS_ON_NODE:+--gpus-per-node="$gpus"} "${PYTHON:-python3}" -u "$script" "$@"
