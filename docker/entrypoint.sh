#!/usr/bin/env bash
# Usage: entrypoint.sh head|node|healthy
#
# Runs the daemons of a container of the cluster: sshd, munged, and slurmctld (head) or slurmd (node).
#
#   head      makes the keys for munge, sshd and the user's ssh at the first start
#   node      waits until the keys exist
#   healthy   exits with 0 if the machine accepts logins and Slurm knows it; compose.yaml calls this
#
# NODES is the node list as Slurm writes it, node-[1-2]; the keys are in a volume that all machines share, at /keys.
# The container exits, and prints the reason, when one of its daemons exits.
set -euo pipefail

readonly KEYS=${KEYS_FOLDER:-/keys}/made TRAINER=trainer
readonly DAEMONS_TIMEOUT_S=60

main() {
    case ${1-} in
    head | node) serve "$1" ;;
    healthy) check_health ;;
    *) sed -n 's/^# \{0,1\}//; 2,11p' "$0" >&2 && exit 2 ;;
    esac
}

serve() {
    : "${NODES:?the node list as Slurm writes it, such as node-[1-2]}"
    trap stop TERM INT
    sed "s/@NODES@/$NODES/" /etc/slurm/slurm.conf.in >/etc/slurm/slurm.conf
    if [[ $1 == head ]]; then make_keys; fi
    wait_for "the keys that the head makes" test -d "$KEYS"
    install_keys
    install -d -m 0755 /run/sshd
    install -d -m 0755 -o munge -g munge /run/munge
    install -d -m 0755 -o slurm -g slurm /var/lib/slurm/slurmctld
    install -d -m 0755 /var/lib/slurm/slurmd

    start /usr/sbin/sshd -D -e
    start runuser -u munge -- /usr/sbin/munged --foreground
    wait_for munged munge --no-input --output /dev/null
    if [[ $1 == head ]]; then start slurmctld -D; else start slurmd -D -N "$(hostname)"; fi
    local ended code=0
    wait -n -p ended || code=$?
    echo "entrypoint.sh: ${daemons[$ended]} ended with exit code $code, so this container exits" >&2
    exit 1
}

declare -A daemons=()

start() {
    "$@" &
    daemons[$!]=$*
}

stop() {
    trap '' TERM
    kill "${!daemons[@]}" 2>/dev/null || true
    wait
    exit 0
}

# The directory is renamed once it is complete, so no reader sees half of it, and a second start changes nothing.
make_keys() {
    if [[ -d $KEYS ]]; then return; fi
    local new
    new=$(mktemp -d "${KEYS%/*}/new.XXXXXX")
    head -c 1024 /dev/urandom >"$new/munge.key"
    ssh-keygen -q -t ed25519 -N '' -C 'every machine' -f "$new/host"
    ssh-keygen -q -t ed25519 -N '' -C "$TRAINER" -f "$new/user"
    mv -T "$new" "$KEYS"
}

install_keys() {
    local home names
    home=$(getent passwd "$TRAINER" | cut -d: -f6)
    names=$(scontrol show hostnames "head,$NODES" | paste -sd,)
    install -m 0400 -o munge -g munge "$KEYS/munge.key" /etc/munge/munge.key
    install -m 0600 "$KEYS/host" /etc/ssh/ssh_host_ed25519_key
    install -m 0644 "$KEYS/host.pub" /etc/ssh/ssh_host_ed25519_key.pub # `launch` recognizes its own machine by it
    install -d -m 0700 -o "$TRAINER" -g "$TRAINER" "$home/.ssh"
    install -m 0600 -o "$TRAINER" -g "$TRAINER" "$KEYS/user" "$home/.ssh/id_ed25519"
    install -m 0644 -o "$TRAINER" -g "$TRAINER" "$KEYS/user.pub" "$home/.ssh/authorized_keys"
    echo "$names $(cut -d' ' -f1,2 "$KEYS/host.pub")" \
        | install -m 0644 -o "$TRAINER" -g "$TRAINER" /dev/stdin "$home/.ssh/known_hosts"
}

wait_for() {
    local what=$1 end=$((SECONDS + DAEMONS_TIMEOUT_S))
    shift
    until "$@" 2>/dev/null; do
        if ((SECONDS > end)); then
            echo "entrypoint.sh: no $what after $DAEMONS_TIMEOUT_S s" >&2
            exit 1
        fi
        sleep 0.2
    done
}

check_health() {
    timeout 2 bash -c '</dev/tcp/127.0.0.1/22'
    if scontrol show hostnames "$NODES" | grep -qx "$(hostname)"; then
        sinfo --noheader --Node --nodes "$(hostname)" --format %t | grep -qxE 'idle|mix|alloc|comp'
    else
        scontrol ping | grep -q 'is UP'
    fi
}

main "$@"
