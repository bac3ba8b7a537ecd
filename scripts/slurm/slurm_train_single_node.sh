#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
#SBATCH --signal=B:TERM@60
#
# Requests whole nodes: all GPUs, CPUs and memory (--exclusive, --mem=0). Fewer GPUs: --gpus-per-node=2; the rest stays
# idle. To share nodes with other jobs, pass these to sbatch, or set them here instead of --exclusive and --mem=0:
##SBATCH --oversubscribe
##SBATCH --gpus-per-node=2
##SBATCH --cpus-per-task=16
##SBATCH --mem=64G
# Options that a cluster may need as well:
##SBATCH --partition=gpu
##SBATCH --account=project
##SBATCH --time=12:00:00
##SBATCH --gres=gpu:a100:4
#
# Usage: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_single_node.sh [CONFIG] [TRAINER OPTIONS]...
#
# Trains on one node under torchrun, one process per GPU of the job; NPROC sets the number of processes on CPUs:
#
#   sbatch scripts/slurm/slurm_train_single_node.sh config/local3.yaml --epochs 1
#   sbatch --oversubscribe --gpus-per-node=2 --cpus-per-task=16 scripts/slurm/slurm_train_single_node.sh
#   NPROC=2 sbatch scripts/slurm/slurm_train_single_node.sh     # on CPUs
#
# Submit it in the project directory, which must contain logs/, or in scripts/slurm. Python: the one on PATH, or PYTHON.
# The output is in logs/slurm-JOB.out and .err; the trainer saves a minute before the time limit.

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train

# Slurm runs a copy of this file; scontrol shows where the original is, and its arguments.
script=$0
if [[ $script == */slurm_script ]]; then
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p; /^$/q')
    until [[ -f $script || $script != *" "* ]]; do script=${script% *}; done
fi
scripts=$(dirname -- "$script")
[[ -e $scripts/job.sh ]] || scripts=scripts/slurm
[[ -e $scripts/job.sh ]] || { echo "$script: job.sh of scripts/slurm is needed beside it" >&2 && exit 2; }
# shellcheck source=scripts/slurm/job.sh
source "$scripts/job.sh"

read_words config/local3.yaml "$@"
on_node || start_on_nodes 1 slurm_train_single_node.sh
need_torch
read_ranks
warn_of_idle_gpus "$ranks" "set NPROC=N"
limit_threads "$ranks"
meeting=(--standalone)
[[ -z ${MASTER_PORT-} ]] || meeting=(--master-addr=127.0.0.1 --master-port="$MASTER_PORT")
exec "$python" -m torch.distributed.run "${meeting[@]}" --log-dir=/dev/null --nproc-per-node="$ranks" \
    -m launcher.trainer --config "$config" ${options[@]+"${options[@]}"}
