# shellcheck shell=bash
# What the scripts beside this file share; each of them sources it inside its job.
set -euo pipefail

say() { echo "scripts/slurm: $1" >&2; }
fail() { say "$1" && exit 2; }

[[ -n ${SLURM_JOB_ID-} ]] || fail "this runs in a Slurm job: sbatch scripts/slurm/${0##*/}"
scripts=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
checkout=${scripts%/scripts/slurm}
node=${SLURMD_NODENAME:-$(uname -n)}
python=${PYTHON:-python3}
export PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH} # for jobs that run in another folder

# Set `config` to the first word, or to the default before it, and `options` to the others.
# A job that was submitted inside of scripts/ goes to the checkout.
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

need_torch() {
    "$python" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' ||
        fail "no torch for $python on $node: load your environment in the script, or name its PYTHON=/PATH/TO/python"
}

# The sum of the GPUs in a list of Slurm's: gpu:4, gpu:a100:4(S:0-1),gpu:v100:2, gres:gpu:2
sum_gpus() {
    { grep -oE '\bgpu(:[^:,(]+)?:[0-9]+' || true; } | awk -F: '{ sum += $NF } END { print sum + 0 }'
}

# Set `gpus` to those of each node that the job asked for, or to all of them: --exclusive gives it all in any case.
read_gpus() {
    local asked
    asked=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *TresPerNode=//p' | sum_gpus) || true
    gpus=${SLURM_GPUS_ON_NODE:-0}
    [[ $asked == 0 || $asked -ge $gpus ]] || gpus=$asked
}

# Set `ranks`, on each node: NPROC, or one per GPU of the job, or one on CPUs.
read_ranks() {
    read_gpus
    # shellcheck disable=SC2034  # the scripts read it
    ranks=${NPROC:-$((gpus > 0 ? gpus : 1))}
}

count() { if [[ $1 == 1 ]]; then echo "1 $2"; else echo "$1 $2s"; fi; }

# Say before the training which GPUs it leaves alone. $1: ranks per node, $2: the option that sets them.
warn_of_idle_gpus() {
    local there trains
    if [[ $gpus -gt 0 ]]; then
        [[ $1 -ge $gpus ]] || say "this job has $gpus GPUs on $node and uses $1 of them; fix: ${2/%N/$gpus}"
        return
    fi
    trains="it trains on CPUs with $(count "$1" rank) per node"
    there=$(scontrol show node "$node" 2>/dev/null | sed -n 's/^ *Gres=//p' | sum_gpus) || true
    if [[ $there -gt 0 ]]; then
        say "$node has $(count "$there" GPU) but this job has none: $trains; fix: --gpus-per-node=$there"
        return
    fi
    there=$(timeout 10 nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
    if [[ $1 -lt $there ]]; then
        say "$node has $there GPUs that Slurm doesn't know of, for $(count "$1" rank) per node; fix: ${2/%N/$there}"
    elif [[ $there == 0 && $(sinfo --noheader --format=%G 2>/dev/null | sum_gpus) -gt 0 ]]; then
        say "$node has no GPUs but other nodes have: $trains; fix: --gpus-per-node=N, or another --partition"
    elif [[ $there == 0 ]]; then
        say "$node has no GPUs: $trains; for more: $2"
    fi
}

# Share this node's CPUs among $1 ranks, as `launch` does; torchrun would give each rank one thread.
limit_threads() {
    local cpus
    cpus=$(env -u OMP_NUM_THREADS nproc)
    # Without affinity, which the cluster may lack, these are all CPUs of the machine.
    [[ ${SLURM_CPUS_ON_NODE:-$cpus} -ge $cpus ]] || cpus=$SLURM_CPUS_ON_NODE
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > $1 ? cpus / $1 : 1))}"
}

# Set `step` to the options of an srun whose tasks, $1 on each node, share all CPUs that the job has there, and `gpus`.
# By itself it would have one CPU per task since Slurm 22.05, and of the GPUs those that were asked for by number.
# It overlaps so that a look into the job, srun --jobid=JOB --pty nvidia-smi, does not wait for its end.
read_step() {
    local cpus
    cpus=$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | sed -n '1s/(.*//; 1p') # 4(x2),8: the smallest node's
    step=(--kill-on-bad-exit=1 --overlap --cpus-per-task="$((cpus > $1 ? cpus / $1 : 1))")
    [[ $gpus == 0 ]] || step+=(--gpus-per-node="$gpus")
    unset SLURM_GPUS SLURM_GPUS_PER_TASK # of sbatch, which may contradict it
}

# Run slurm_train_multinode.sh once on each node of the job.
start_on_each_node() {
    read_gpus
    read_step 1
    exec srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "${step[@]}" \
        "$scripts/slurm_train_multinode.sh" "$config" ${options[@]+"${options[@]}"}
}
