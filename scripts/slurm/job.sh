# shellcheck shell=bash
# What the scripts in this directory share; each sources it in its job: job.sh DEFAULT_CONFIG OPTIONS_OF_LAUNCH WORDS...

# shellcheck source=scripts/ssh/checkout.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../ssh/checkout.sh"
[[ -n ${SLURM_JOB_ID-} ]] ||
    { echo "scripts/slurm: this must run in a Slurm job; fix: sbatch scripts/slurm/${0##*/}" >&2 && exit 2; }
# Under srun the first task starts the run on all nodes.
[[ ${SLURM_PROCID:-0} == 0 ]] || exit 0
unset SLURM_STEP_ID

config=$1 options=$2
shift 2
if [[ $# -gt 0 && $1 != -* ]]; then
    config=$1
    shift
fi
find_config
if [[ $config == *tp_shakespeare.yaml && ! -e data/tinyshakespeare.txt && " $* " != *" --data"[\ =]* ]]; then
    PYTHONPATH=$checkout "${PYTHON:-python3}" -m launcher.trainer.prepare_data
fi
# shellcheck disable=SC2086  # lists of words
exec "$launch" --transport srun $options ${NPROC:+--nproc "$NPROC"} ${PYTHON:+--python "$PYTHON"} \
    ${MASTER_PORT:+--master-port "$MASTER_PORT"} ${LAUNCH_OPTS-} -m launcher.trainer --config "$config" "$@"
