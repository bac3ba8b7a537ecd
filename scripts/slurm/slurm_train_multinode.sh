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
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_multinode.sh [CONFIG] [TRAINER OPTIONS]...
#
# The same as slurm_train.sh, which describes it; in the shell of salloc, srun may start it as well.

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train

# Slurm runs a copy of this file; scontrol shows where the original is.
script=$0
[[ $0 != */slurm_script ]] ||
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n '/Command=/{s/^ *Command=\(.*\.sh\).*/\1/p;q}')
# shellcheck source=scripts/slurm/job.sh
source "$(dirname -- "$script")/job.sh" config/local3.yaml "" "$@"
