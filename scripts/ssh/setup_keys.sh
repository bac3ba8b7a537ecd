#!/bin/bash
# Usage: scripts/ssh/setup_keys.sh [-F SSH_CONFIG] HOST...
#
# Makes `ssh HOST` work without prompting, which is all that `launch` needs. For each host that prompts:
#
#   1. if its host key is not known yet: shows the fingerprints, asks you, and adds the key to your known_hosts
#   2. copies your public key to the host (ssh-copy-id); ssh asks for the password
#   3. tries to log in
#
#   scripts/ssh/setup_keys.sh gpu1 gpu2 ann@10.0.0.3
#
# If you have no key, it makes one. Users, ports and files come from your ssh_config, or from SSH_CONFIG.
# It overwrites nothing and changes nothing on hosts where you can log in: after a failure, run it again.
# Exit code: 0 if you can log in to all hosts, 1 if not, 2 for wrong input.
set -uo pipefail

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
case ${1-} in -h | --help) usage && exit ;; esac
config=
if [[ ${1-} == -F && $# -ge 2 ]]; then
    config=$2
    shift 2
fi
if [[ $# -eq 0 || " $*" == *" -"* ]]; then # ssh would read -o... as an option
    usage >&2
    exit 2
fi

# These logins ignore what ssh_config sets for interactive ones: no agent is forwarded to a host of unknown identity.
plain=(-o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes -o PermitLocalCommand=no -o RemoteCommand=none)
log_in() { ssh ${config:+-F "$config"} "${plain[@]}" -o ConnectTimeout=10 "$@" true </dev/null; }
setting() { sed -n "s/^$1 //p" <<<"$settings"; } # of the host, as ssh reads its configuration
known_files() { # of an option, one per line: ssh quotes no names, so existing files decide what a space separates
    local value
    value=$(setting "$1")
    [[ -e $value || -d ${value%/*} ]] || value=${value// \//$'\n'/}
    printf '%s\n' "$value"
}
fail() { reason=$1 && return 1; }

set_up() {
    local said
    said=$(log_in -o BatchMode=yes "$1" 2>&1 | tr -d '\r') && return
    case $said in
        *"IDENTIFICATION HAS CHANGED"*) fail "its host key has changed: \`ssh $1\` says more" || return ;;
        *"Host key verification failed"* | *"Permission denied"*) ;;
        *) fail "${said##*$'\n'}" || return ;;
    esac
    settings=$(ssh ${config:+-F "$config"} -G "$1") && learn_host_key || return
    log_in -o BatchMode=yes "$1" 2>/dev/null && return
    find_key || return
    (umask 077 && mkdir -p ~/.ssh) # where ssh-copy-id creates temporary files
    ssh-copy-id ${config:+-F "$config"} ${key:+-i "$key"} "${plain[@]}" -o ConnectTimeout=10 "$1" </dev/null ||
        fail "the key was not copied" || return
    log_in -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no "$1" || fail "it still refuses the login"
}

learn_host_key() {
    local hostname port name file keys answer end=
    hostname=$(setting hostname) port=$(setting port) name=$(setting hostkeyalias)
    if [[ -z $name ]]; then
        name=$hostname
        [[ $port == 22 ]] || name="[$hostname]:$port"
    fi
    while read -r file; do
        ssh-keygen -F "$name" -f "$file" >/dev/null 2>&1 && return
    done < <(known_files userknownhostsfile && known_files globalknownhostsfile)
    read -r file < <(known_files userknownhostsfile)
    if [[ $file == none || $file == /dev/null || -n $(setting proxyjump)$(setting proxycommand) ]]; then
        show_where_to_compare # ssh-keyscan supports no jump hosts, so ssh itself asks
        return
    fi
    [[ $file != *" "* || -e $file || -d ${file%/*} ]] ||
        fail "UserKnownHostsFile may be one file or two; create its directory: $file" || return
    keys=$(ssh-keyscan -T 10 -p "$port" "$hostname" 2>/dev/null | awk -v name="$name" '!/^#/ { $1 = name; print }')
    [[ -n $keys ]] || fail "ssh-keyscan got no key of $hostname port $port" || return
    printf 'The host key of %s is not known. The machine at that address has these fingerprints:\n' "$name"
    ssh-keygen -lf - <<<"$keys"
    show_where_to_compare
    printf 'Add the keys to %s? [yes/no] ' "$file"
    read -r answer
    [[ $answer == yes ]] || fail "its host key was not accepted" || return
    (umask 077 && mkdir -p "$(dirname "$file")")
    [[ ! -s $file || -z $(tail -c 1 "$file") ]] || end=$'\n' # the last line of the file has no newline
    printf '%s%s\n' "$end" "$keys" >>"$file" || fail "its host key can't be written to $file"
}

show_where_to_compare() {
    printf 'Compare them with what this command prints there, at the console or through the administrator:\n'
    # shellcheck disable=SC2016  # for the user to run on the host
    printf '    for key in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $key; done\n'
}

# Set `key` to the first key that exists, to nothing if an agent has keys, or to a new key.
find_key() {
    local first=
    while read -r key; do
        key=${key/#\~/$HOME}
        first=${first:-$key}
        [[ ! -e $key ]] || return 0
    done <<<"$(setting identityfile)"
    key=
    ssh-add -L >/dev/null 2>&1 && return
    key=$first
    [[ $(setting identityfile) != *"~/.ssh/id_ed25519"* ]] || key=~/.ssh/id_ed25519
    [[ ! -e $key.pub ]] || fail "$key.pub is there without its private key" || return
    (umask 077 && mkdir -p "$(dirname "$key")")
    if [[ -t 0 ]]; then
        ssh-keygen -t ed25519 -f "$key" # asks for a passphrase
    else
        ssh-keygen -q -t ed25519 -f "$key" -N ''
    fi || fail "ssh-keygen made no key"
}

failed=()
for host; do
    reason="ssh can't read its settings"
    printf '== %s\n' "$host"
    set_up "$host" || failed+=("$host: $reason")
done
printf '== login works on %d of %d hosts\n' $(($# - ${#failed[@]})) $#
[[ ${#failed[@]} -eq 0 ]] || { printf '   %s\n' "${failed[@]}" && exit 1; }
