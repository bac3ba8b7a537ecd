#!/bin/bash
# Usage: scripts/ssh/launch_torchrun_multinode.sh CONFIG NGPUS NNODES NODE_RANK MASTER_ADDR [MASTER_PORT]
#            [TRAINER OPTIONS]...
#
# Runs this machine's share of a run on NNODES machines that can't log in to each other: run it on each, with its own
# NODE_RANK from 0 on and everything else the same. MASTER_ADDR is the address of node 0; MASTER_PORT defaults to 29500.
#
#   scripts/ssh/launch_torchrun_multinode.sh config/local3.yaml 8 2 0 10.0.0.1     # on 10.0.0.1
#   scripts/ssh/launch_torchrun_multinode.sh config/local3.yaml 8 2 1 10.0.0.1     # on the other
#
# Runs `launch node` from this checkout's .venv (made by `make demo`), or else the installed one.
# LAUNCH_OPTS adds options, separated by spaces, such as --cpu on machines without GPUs: launch node --help
set -efuo pipefail # -f: no file names for the brackets of LAUNCH_OPTS

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
case ${1-} in -h | --help) usage && exit ;; esac
[[ $# -ge 5 ]] || { usage >&2; exit 2; }

# shellcheck source=scripts/ssh/checkout.sh
source "$(dirname -- "$0")/checkout.sh"
config=$1 ngpus=$2 nnodes=$3 node_rank=$4 master_addr=$5
shift 5
if [[ $# -gt 0 && $1 != -* ]]; then
    LAUNCH_OPTS="--master-port $1 ${LAUNCH_OPTS-}"
    shift
fi
find_config
# shellcheck disable=SC2086  # LAUNCH_OPTS is a list of words
exec "$launch" node --nnodes "$nnodes" --node-rank "$node_rank" --master-addr "$master_addr" \
    --nproc "$ngpus" ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
