#!/bin/bash
# Usage: scripts/ssh/launch_singlenode.sh CONFIG NGPUS [TRAINER OPTIONS]...
#
# Trains on this machine alone, with NGPUS processes, one GPU each:
#
#   scripts/ssh/launch_singlenode.sh config/local3.yaml 4
#   LAUNCH_OPTS=--cpu scripts/ssh/launch_singlenode.sh config/local3.yaml 2 --epochs 1     # on CPUs
#
# Runs `launch singlenode` from this checkout's .venv (made by `make demo`), or else the installed one.
# LAUNCH_OPTS adds options, separated by spaces: launch singlenode --help
set -efuo pipefail # -f: no file names for the brackets of LAUNCH_OPTS

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
case ${1-} in -h | --help) usage && exit ;; esac
[[ $# -ge 2 ]] || { usage >&2; exit 2; }

# shellcheck source=scripts/ssh/checkout.sh
source "$(dirname -- "$0")/checkout.sh"
config=$1 ngpus=$2
shift 2
find_config
# shellcheck disable=SC2086  # LAUNCH_OPTS is a list of words
exec "$launch" singlenode --nproc "$ngpus" ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
