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

folder=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
launch=$folder/.venv/bin/launch
[[ -x $launch ]] || launch=launch
config=$1 ngpus=$2
shift 2
# As in scripts/slurm: typed inside scripts/, a run starts in the checkout; a CONFIG that isn't here is the checkout's.
if [[ $(pwd -P)/ == "$folder"/scripts/* ]]; then
    [[ $config == /* || ! -e $config ]] || config=$PWD/$config
    cd -- "$folder"
    echo "scripts/ssh: this run starts in $folder" >&2
fi
[[ -e $config || ! -e $folder/$config ]] || config=$folder/$config
export LAUNCH_SCRIPT=$0 # so that launch's fix: lines name LAUNCH_OPTS
# shellcheck disable=SC2086  # LAUNCH_OPTS is a list of words
exec "$launch" singlenode --nproc "$ngpus" ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
