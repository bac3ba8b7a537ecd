#!/bin/bash
# Usage: scripts/ssh/launch_multinode.sh CONFIG NGPUS HOST... [TRAINER OPTIONS]...
#
# Trains on several hosts over SSH, as torch.distributed.launch does, with NGPUS processes per host, one GPU each:
#
#   scripts/ssh/launch_multinode.sh config/local3.yaml 8 gpu1 gpu2 --epochs 1
#   LAUNCH_OPTS=--cpu scripts/ssh/launch_multinode.sh config/local3.yaml 2 gpu1 gpu2     # on CPUs
#   LAUNCH_OPTS=--dry-run scripts/ssh/launch_multinode.sh config/local3.yaml 8 gpu1 gpu2   # the line of each host
#
# For PyTorch before 2.0, where torchrun is missing or takes other options; from 2.0 on, use launch_torchrun_auto.sh.
# The built-in trainer needs 2.4: replace `-m launcher.trainer --config "$config"` below with your own script.
# CONFIG and, if it is relative, this directory must exist on each host. The first host has rank 0.
# Runs `launch --start=plain` from this checkout's .venv (made by `make demo`), or else the installed one.
# LAUNCH_OPTS adds options, separated by spaces: launch run --help
set -efuo pipefail # -f: no file names for the brackets of LAUNCH_OPTS

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
case ${1-} in -h | --help) usage && exit ;; esac
[[ $# -ge 3 ]] || { usage >&2; exit 2; }

# shellcheck source=scripts/ssh/checkout.sh
source "$(dirname -- "$0")/checkout.sh"
config=$1 ngpus=$2 hosts=$3
shift 3
while [[ $# -gt 0 && $1 != -* ]]; do
    hosts+=,$1
    shift
done
find_config
# shellcheck disable=SC2086  # LAUNCH_OPTS is a list of words
exec "$launch" --start=plain --hosts "$hosts" --nproc "$ngpus" ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
