# shellcheck shell=bash
# What the launch scripts in this directory share: the checkout, its `launch`, and where CONFIG is.
set -efuo pipefail # as the scripts have it

checkout=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
# shellcheck disable=SC2034  # the scripts run it
launch=$checkout/.venv/bin/launch
"$launch" --version &>/dev/null || launch=launch # in a container, the .venv of its host may have no Python
export LAUNCH_SCRIPT=$0 # so that launch's fix: lines name LAUNCH_OPTS

# Change to the checkout if the script is typed inside scripts/, as in scripts/slurm; a CONFIG that isn't in the current
# directory is the checkout's. One that the checkout lacks too stays as typed: it may exist only on the hosts.
find_config() {
    if [[ $(pwd -P)/ == "$checkout"/scripts/* ]]; then
        [[ $config == /* || ! -e $config ]] || config=$PWD/$config
        cd -- "$checkout"
        echo "scripts: this run starts in $checkout" >&2
    fi
    [[ -e $config || ! -e $checkout/$config ]] || config=$checkout/$config
}
