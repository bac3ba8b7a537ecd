#!/bin/bash
# Usage: srun --ntasks-per-node=1 scripts/slurm/slurm_train_multinode.sh [CONFIG] [TRAINER OPTIONS]...
#
# One node's share of a run that spans the nodes of a step; slurm_train.sh starts it, and so can you, in salloc.
# All nodes meet at the first one, at a port that the job's number gives, so that two jobs don't meet.
set -euo pipefail
: "${SLURM_STEP_NODELIST:?start this with srun, or submit slurm_train.sh}"

config=config/local3.yaml
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi
nodes=$(scontrol show hostnames "$SLURM_STEP_NODELIST")
exec "${PYTHON:-python3}" -m torch.distributed.run \
    --nnodes="$SLURM_STEP_NUM_NODES" --node-rank="$SLURM_NODEID" \
    --log-dir=logs --nproc-per-node="${NPROC:-${SLURM_GPUS_ON_NODE:-1}}" \
    --master-addr="${nodes%%$'\n'*}" --master-port=$((15000 + SLURM_JOB_ID % 15000)) \
    -m launcher.trainer --config "$config" "$@"
