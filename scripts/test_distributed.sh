#!/bin/sh
# Usage: scripts/test_distributed.sh N [OPTIONS]
#
# Can N processes train together? On this machine, or N on each host that is named:
#
#   scripts/test_distributed.sh 2
#   scripts/test_distributed.sh 8 --hosts node1,node2 --plot pairs.png
#
# This is `test-distributed` from this checkout's .venv (made by `make demo`), or else the installed one.
# Exit code 0: every check passed. All options: scripts/test_distributed.sh --help
set -eu

if [ "$#" -eq 0 ]; then
    sed -n 's/^# \{0,1\}//; 2,10p' "$0" >&2
    exit 2
fi
folder=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
program=$folder/.venv/bin/test-distributed
[ -x "$program" ] || program=test-distributed
exec "$program" "$@"
