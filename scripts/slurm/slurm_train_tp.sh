#!/bin/bash
#SBATCH --job-name=train-tp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
#SBATCH --signal=TERM@60
#
# Whole nodes: all their GPUs, CPUs and memory (--exclusive, --mem=0). Fewer GPUs: --gpus-per-node=2, and the rest stays
# idle. A part of each node, that others may use as well, on the command line of sbatch, or here without these two:
##SBATCH --oversubscribe
##SBATCH --gpus-per-node=2
##SBATCH --cpus-per-task=8
##SBATCH --mem=64G
# What a cluster may want besides:
##SBATCH --partition=gpu
##SBATCH --account=project
##SBATCH --time=12:00:00
##SBATCH --gres=gpu:a100:4
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_tp.sh [CONFIG] [TRAINER OPTIONS]...
#
# Learns Tiny Shakespeare with tensor parallelism: every task is a rank, and pairs of them share each matrix product.
#
#   sbatch --ntasks-per-node=8 scripts/slurm/slurm_train_tp.sh
#   sbatch scripts/slurm/slurm_train_tp.sh config/tp_shakespeare.yaml --parallel tp     # on CPUs
#
# The text is downloaded to data/ unless it is there, or --data names another.
# Submit it in the project's folder, where logs/ must be, or in scripts/slurm. Python is the one on PATH, or PYTHON.
# The output is in logs/slurm-JOB.out and .err; a minute before the time limit the trainer saves.

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train

# Slurm runs a copy of this file; scontrol knows where it lies.
scripts=$(dirname -- "$0")
[[ -e $scripts/job.sh ]] ||
    scripts=$(scontrol show job "${SLURM_JOB_ID:-none}" | sed -n 's|^ *Command=\(.*\)/slurm_train.*|\1|p')
# shellcheck source=scripts/slurm/job.sh
source "${scripts:-scripts/slurm}/job.sh" || exit 2

read_words config/tp_shakespeare.yaml "$@"
need_torch
if [[ ! -e data/tinyshakespeare.txt && " ${options[*]-} " != *" --data"[\ =]* ]]; then
    "$python" -m launcher.trainer.prepare_data
fi
tasks=${SLURM_NTASKS_PER_NODE:-1}
read_gpus
warn_of_idle_gpus "$tasks" --ntasks-per-node=N
read_step "$tasks"
exec srun "${step[@]}" "$python" -u -m launcher.trainer --config "$config" ${options[@]+"${options[@]}"}
