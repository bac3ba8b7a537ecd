#!/bin/bash
#SBATCH --job-name=train_distributed
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=train_distributed_%j.out
#SBATCH --signal=TERM@60
##SBATCH --gpus-per-node=4
##SBATCH --partition=gpu
##SBATCH --time=1:00:00
#
# Usage: sbatch [SBATCH OPTIONS] train_distributed_example.sh [OPTIONS OF THE .py]...
#
# Requests whole nodes. Every task is a rank: one per GPU of the nodes, or of those that
# --gpus-per-node or --gres asks for, or one per node on CPUs:
#
#   sbatch train_distributed_example.sh --epochs 10 --batch_size 16
#   sbatch --nodes=1 --ntasks-per-node=2 train_distributed_example.sh
#   sbatch --ntasks=3 train_distributed_example.sh

# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train
set -euo pipefail

fail() { echo "train_distributed_example.sh: $*" >&2 && exit 2; }
[[ ${0##*/} == slurm_script ]] || fail "this is a batch script; fix: sbatch $0"

# Slurm runs a copy of this file; the .py is beside the original, which scontrol shows with its arguments.
job=$(scontrol show job "$SLURM_JOB_ID" | sed '/^$/q') || true # of an array, one task
original=$(sed -n 's/^ *Command=//p' <<<"$job")
until [[ -f $original || $original != *" "* ]]; do original=${original% *}; done
script=$(dirname -- "$original")/train_distributed_example.py
[[ -e $script ]] || script=train_distributed_example.py
[[ -e $script ]] || fail "no train_distributed_example.py beside this script or in $PWD"
python=${PYTHON:-python3}
"$python" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
    fail "no torch for $python on $SLURMD_NODENAME;" \
        "fix: load your environment in the script, or set PYTHON=/PATH/TO/python"

nodes=$SLURM_JOB_NUM_NODES
gpus=${SLURM_GPUS_ON_NODE:-0}
# With --exclusive a job gets all GPUs of its nodes; scontrol shows what it asked for: TresPerNode=gres:gpu:a100:2
sum_gpus() { sed -nE "s/^ *$1=//p" <<<"$job" | { grep -oE '\bgpu(:[^:=,(]+)?([:=][0-9]+)?' || true; } |
    awk -F'[:=]' '{ sum += $NF ~ /^[0-9]+$/ ? $NF : 1 } END { print sum + 0 }'; }
asked=$(($(sum_gpus TresPerNode) + ($(sum_gpus TresPerJob) + nodes - 1) / nodes))
[[ $asked == 0 || $asked -ge $gpus ]] || gpus=$asked
ranks=${SLURM_NTASKS_PER_NODE:-$((gpus > 0 ? gpus : 1))}
tasks=${SLURM_NTASKS:-$((nodes * ranks))}
ranks=$(((tasks + nodes - 1) / nodes)) # on the node with the most
step=(--kill-on-bad-exit=1 --overlap --ntasks="$tasks")
[[ $tasks != $((nodes * ranks)) ]] || step+=(--ntasks-per-node="$ranks")
cpus=$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | sed -n '1s/(.*//; 1p') # 4(x2),8: the smallest node's
# By default srun gets one CPU per task (since 22.05), and only the GPUs that the job requested by number. It overlaps
# so that you can look into the job: srun --jobid=JOB --pty nvidia-smi
unset SLURM_GPUS SLURM_GPUS_PER_TASK # set by sbatch; they may contradict --gpus-per-node
exec srun "${step[@]}" --cpus-per-task="$((cpus > ranks ? cpus / ranks : 1))" \
    ${SLURM_GPUS_ON_NODE:+--gpus-per-node="$gpus"} "$python" -u "$script" "$@"
