#!/bin/bash
# Usage: scripts/ssh/launch_torchrun_auto.sh CONFIG NGPUS HOST... [TRAINER OPTIONS]...
#
# Trains on several hosts over SSH, under torchrun, with NGPUS processes per host, one GPU each:
#
#   scripts/ssh/launch_torchrun_auto.sh config/local3.yaml 8 gpu1 gpu2 --epochs 1
#   scripts/ssh/launch_torchrun_auto.sh config/local3.yaml 8 gpu[1-4]
#   LAUNCH_OPTS=--cpu scripts/ssh/launch_torchrun_auto.sh config/local3.yaml 2 gpu1 gpu2     # on CPUs
#
# CONFIG and, if it is relative, this directory must exist on each host. The first host has rank 0.
# Runs `launch` from this checkout's .venv (made by `make demo`), or else the installed one.
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
exec "$launch" --hosts "$hosts" --nproc "$ngpus" ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
