#!/bin/bash
#SBATCH --job-name=train-tp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
#SBATCH --signal=B:TERM@60
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_tp.sh [CONFIG] [TRAINER OPTIONS]...
#
# Learns Tiny Shakespeare with tensor parallelism; --ntasks-per-node is the number of processes on each node:
#
#   sbatch --ntasks-per-node=8 scripts/slurm/slurm_train_tp.sh
#   sbatch scripts/slurm/slurm_train_tp.sh config/tp_shakespeare.yaml --parallel tp     # on CPUs
#
# The text is downloaded to data/ if it isn't there. slurm_train.sh describes the rest.

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train

# Slurm runs a copy of this file; scontrol shows where the original is.
script=$0
[[ $0 != */slurm_script ]] ||
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n '/Command=/{s/^ *Command=\(.*\.sh\).*/\1/p;q}')
# shellcheck source=scripts/slurm/job.sh
source "$(dirname -- "$script")/job.sh" config/tp_shakespeare.yaml "--nproc ${SLURM_NTASKS_PER_NODE:-1}" "$@"
