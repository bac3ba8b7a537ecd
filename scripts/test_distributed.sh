#!/bin/sh
# Usage: scripts/test_distributed.sh [N] [OPTIONS]
#
# Tests whether N processes can train together: on this machine, or N on each host that you name:
#
#   scripts/test_distributed.sh           # one process per GPU of this machine, or 2 on CPUs
#   scripts/test_distributed.sh 8 --hosts gpu1,gpu2
#
# Runs `test-distributed` from this checkout's .venv (made by `make demo`), or else the installed one.
# Exit code 0: every check passed. All options: scripts/test_distributed.sh --help
set -eu

# If no argument is a number, N is missing; hosts may have more GPUs than this machine.
processes=2
for word; do
    case $word in
    -h | --help) processes= && break ;;
    --cpu | --host*) processes=2 && gpus=no ;;
    *[!0-9]* | '') ;;
    *) processes= && break ;;
    esac
done
if [ -n "$processes" ]; then
    [ -n "${gpus-}" ] || gpus=$(timeout 10 nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || gpus=0
    [ "$gpus" = no ] || [ "$gpus" -eq 0 ] || processes=$gpus
    echo "scripts/test_distributed.sh: N is $processes" >&2
    set -- "$processes" "$@"
fi
folder=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
program=$folder/.venv/bin/test-distributed
[ -x "$program" ] || program=test-distributed
exec "$program" "$@"
