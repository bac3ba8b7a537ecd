#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/slurm-%j.out
#SBATCH --error=logs/slurm-%j.err
#SBATCH --signal=TERM@60
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
# Usage: srun --ntasks-per-node=1 scripts/slurm/slurm_train_multinode.sh [CONFIG] [TRAINER OPTIONS]...
#    or: sbatch [SBATCH OPTIONS] scripts/slurm/slurm_train_multinode.sh [CONFIG] [TRAINER OPTIONS]...
#
# Runs one node's share of a run on all nodes of a step: a torchrun with a process per GPU, or with NPROC processes.
# With sbatch it does the same as slurm_train.sh; use srun inside salloc.
# The nodes meet on the first node, at MASTER_PORT or at a port derived from the job ID, so that two jobs don't collide.
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
# A batch script and the shell of salloc aren't tasks; slurm.h numbers their steps from SLURM_INTERACTIVE_STEP on.
if [[ ${0##*/} == slurm_script || ${SLURM_STEP_ID:-4294967290} -ge 4294967280 ]]; then
    start_on_each_node
fi
if [[ ! $SLURM_STEP_TASKS_PER_NODE =~ ^1(\(x[0-9]+\))?$ ]]; then
    [[ $SLURM_PROCID == 0 ]] || { sleep 1 && exit 2; } # the first task to exit makes srun end the others
    fail "$SLURM_STEP_TASKS_PER_NODE tasks per node would each start a torchrun; fix: srun --ntasks-per-node=1"
fi
need_torch
read_ranks
[[ $SLURM_NODEID != 0 ]] || warn_of_idle_gpus "$ranks" "set NPROC=N"
limit_threads "$ranks"
nodes=$(scontrol show hostnames "$SLURM_STEP_NODELIST")
exec "$python" -m torch.distributed.run \
    --nnodes="$SLURM_STEP_NUM_NODES" --node-rank="$SLURM_NODEID" --log-dir=/dev/null --nproc-per-node="$ranks" \
    --master-addr="${MASTER_ADDR:-${nodes%%$'\n'*}}" --master-port="${MASTER_PORT:-$((15000 + SLURM_JOB_ID % 15000))}" \
    -m launcher.trainer --config "$config" ${options[@]+"${options[@]}"}
