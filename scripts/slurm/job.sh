# shellcheck shell=bash
# Functions that the scripts in this directory share; each script sources this file inside its job.
set -euo pipefail

say() { echo "scripts/slurm: $1" >&2; }
fail() { say "$1" && exit 2; }

[[ -n ${SLURM_JOB_ID-} ]] || fail "this must run in a Slurm job; fix: sbatch scripts/slurm/${0##*/}"
scripts=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
checkout=${scripts%/scripts/slurm}
node=${SLURMD_NODENAME:-$(uname -n)}
python=${PYTHON:-python3}
export PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH} # for jobs that run in another directory

# Set `config` to the first word, or to the default before it, and `options` to the others.
# A job that was submitted inside scripts/ changes to the checkout.
read_words() {
    config=$1
    shift
    if [[ $# -gt 0 && $1 != -* ]]; then
        config=$1
        shift
    fi
    options=("$@")
    if [[ $(pwd -P)/ == "$checkout"/scripts/* ]]; then
        [[ $config == /* || ! -e $config ]] || config=$PWD/$config
        cd -- "$checkout"
        say "this job runs in $checkout"
    fi
    [[ $config == /* || -e $config ]] || config=$checkout/$config
    [[ -e $config ]] || fail "no configuration $config on $node"
}

# Whether this is a node of the job; the shell of salloc may run on the login machine.
on_node() { [[ -n ${SLURMD_NODENAME-} ]]; }

need_torch() {
    "$python" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' ||
        fail "no torch for $python on $node; fix: load your environment in the script, or set PYTHON=/PATH/TO/python"
}

# Print the sum of the GPUs in a list that Slurm prints: gpu:4, gpu:a100:4(S:0-1),gpu:v100:2, gres:gpu:2, gres:gpu (1)
sum_gpus() {
    { grep -oE '\bgpu(:[^:=,(]+)?([:=][0-9]+)?' || true; } |
        awk -F'[:=]' '{ sum += $NF ~ /^[0-9]+$/ ? $NF : 1 } END { print sum + 0 }'
}

# Set `gpus` to the number per node that the job requested, or to all: with --exclusive a job gets all of them anyway.
read_gpus() {
    local job asked total
    job=$(scontrol --details show job "$SLURM_JOB_ID" 2>/dev/null | sed '/^$/q') || true # of an array, one task
    total=$(sed -n 's/^ *TresPerJob=//p' <<<"$job" | sum_gpus) # --gpus
    asked=$(sed -n 's/^ *TresPerNode=//p' <<<"$job" | sum_gpus)
    asked=$((asked + (total + SLURM_JOB_NUM_NODES - 1) / SLURM_JOB_NUM_NODES))
    gpus=${SLURM_GPUS_ON_NODE:-0}
    # In the shell of salloc that variable isn't set.
    on_node || gpus=$(sed -n 's/^ *Nodes=.* GRES=//p' <<<"$job" | sed -n 1p | sum_gpus)
    [[ $asked == 0 || $asked -ge $gpus ]] || gpus=$asked
}

# Set `ranks` to the number per node: NPROC, or one per GPU of the job, or one on CPUs.
read_ranks() {
    read_gpus
    # shellcheck disable=SC2034  # the scripts read it
    ranks=${NPROC:-$((gpus > 0 ? gpus : 1))}
}

count() { if [[ $1 == 1 ]]; then echo "1 $2"; else echo "$1 $2s"; fi; }

# Warn before the training of GPUs that it doesn't use. $1: ranks per node, $2: how to set their number.
warn_of_idle_gpus() {
    local node=$node there trains
    on_node || node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
    if [[ $gpus -gt 0 ]]; then
        [[ $1 -ge $gpus ]] || say "this job has $gpus GPUs on $node and uses $1 of them; fix: ${2/%N/$gpus}"
        return
    fi
    trains="it trains on CPUs with $(count "$1" rank) per node"
    there=$(scontrol show node "$node" 2>/dev/null | sed -n 's/^ *Gres=//p' | sum_gpus) || true
    if [[ $there -gt 0 ]]; then
        say "$node has $(count "$there" GPU) but this job has none: $trains; fix: pass --gpus-per-node=$there"
        return
    fi
    ! on_node || there=$(timeout 10 nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
    if [[ $1 -lt $there ]]; then
        say "$node has $there GPUs that Slurm doesn't know of, for $(count "$1" rank) per node; fix: ${2/%N/$there}"
    elif [[ $there == 0 && $(sinfo --noheader --format=%G 2>/dev/null | sum_gpus) -gt 0 ]]; then
        say "$node has no GPUs but other nodes have: $trains; fix: pass --gpus-per-node=N, or another --partition"
    elif [[ $there == 0 ]]; then
        say "$node has no GPUs: $trains; for more, $2"
    fi
}

# Share this node's CPUs among $1 ranks, as `launch` does; torchrun would give each rank one thread.
limit_threads() {
    local cpus
    cpus=$(env -u OMP_NUM_THREADS nproc)
    # If the cluster sets no CPU affinity, nproc prints all CPUs of the machine.
    [[ ${SLURM_CPUS_ON_NODE:-$cpus} -ge $cpus ]] || cpus=$SLURM_CPUS_ON_NODE
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > $1 ? cpus / $1 : 1))}"
}

# Set `step` to the options of an srun with $1 tasks per node, which share all CPUs of the job there, and `gpus`.
# By default it would get one CPU per task since Slurm 22.05, and only the GPUs that the job requested by number.
# It overlaps so that srun --jobid=JOB --pty nvidia-smi, a look into the job, doesn't wait until it ends.
read_step() {
    local cpus
    cpus=$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | sed -n '1s/(.*//; 1p') # 4(x2),8: the smallest node's
    step=(--kill-on-bad-exit=1 --overlap --cpus-per-task="$((cpus > $1 ? cpus / $1 : 1))")
    [[ $gpus == 0 ]] || step+=(--gpus-per-node="$gpus")
    unset SLURM_GPUS SLURM_GPUS_PER_TASK # set by sbatch; they may contradict `step`
}

# Run slurm_train_multinode.sh once on each node of the job.
start_on_each_node() { start_on_nodes "$SLURM_JOB_NUM_NODES" slurm_train_multinode.sh; }

# Run a script of this directory once on each of $1 nodes.
start_on_nodes() {
    read_gpus
    read_step 1
    exec srun --nodes="$1" --ntasks="$1" --ntasks-per-node=1 "${step[@]}" \
        "$scripts/$2" "$config" ${options[@]+"${options[@]}"}
}
