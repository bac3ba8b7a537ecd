"""The files of a cluster's hosts: the scripts that boot them, sshd's and ssh's settings, a fake nvidia-smi."""

from __future__ import annotations

SWITCH_SCRIPT = "ip link add bridge type bridge; ip link set bridge up; echo ready; exec sleep infinity"
# Every host has the same docker0, as hosts with Docker do: an address through which no other host can be reached.
# The local table moves behind the rules of `block`, and forwarding lets `prohibit` send its error.
HOST_SCRIPT = """\
echo {name} >/proc/sys/kernel/hostname
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=8g tmpfs /dev/shm
mkdir /run/sshd
mount --bind {folder}/../hosts /etc/hosts
mount --bind {folder}/../shadow /etc/shadow
echo ready
read -r cable_is_there
echo {first_pid} >/proc/sys/kernel/ns_last_pid
echo 1 >/proc/sys/net/ipv4/ip_forward
ip -batch - <<END
link set lo up
addr add {address}/16 dev {interface}
link set {interface} up
link add docker0 type bridge
addr add 172.17.0.1/16 dev docker0
link set docker0 up
rule add pref 100 lookup local
rule del pref 0
END
{services}
exec {sshd} -D -e -f {folder}/sshd_config
"""
# All hosts share the cores of this machine: threads of torch that wait for others must not spin.
SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/../id.pub
SetEnv TMPDIR={folder}/tmp HOME={folder}/home PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin OMP_WAIT_POLICY=passive
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
"""
# OpenSSH's default key exchange takes seven times the CPU.
CLIENT_CONFIG = """\
Host {name}
  HostName {address}
  User root
  IdentityFile {folder}/../id
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/../known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  KexAlgorithms curve25519-sha256
"""
# It answers only the launcher's two queries. A line of the file gpu-processes is `GPU, PID, MIB`.
FAKE_NVIDIA_SMI = """\
#!/bin/sh
# A fake: this machine has no such GPUs.
[ "$2" = "--format=csv,noheader,nounits" ] || exit 2
processes() {{ sed "s/^/GPU-/" {folder}/gpu-processes 2>/dev/null; }}
used() {{ sed -n "s/^$1, .*, //p" {folder}/gpu-processes 2>/dev/null | grep . || echo 0; }}
case "$1" in
--query-gpu=index,name,memory.total,driver_version,uuid,memory.free,compute_mode,*,pci.*) {answer};;
--query-compute-apps=gpu_uuid,pid,used_memory) processes;;
*) exit 2;;
esac
"""
_FAKE_FREE = "$((81559 - $(used $index)))"
_FAKE_LINE = f"$index, Fake GPU, 81559, {{driver}}, GPU-$index, {_FAKE_FREE}, Default, 0, 00000000:0$index:00.0, "
_FAKE_LINE += "Disabled, 30, Disabled"
_FAKE_TABLE = f'for index in $(seq 0 $(({{count}} - 1))); do echo "{_FAKE_LINE}"; done'
FAKE_ANSWERS = {
    "works": _FAKE_TABLE,
    "warns": f"{_FAKE_TABLE}; echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0'; exit 14",
}
