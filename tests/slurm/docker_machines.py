"""The machines of compose.yaml without Docker: the entry script on hosts whose files look like the image's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from machines.cluster import TOOL_PATH, Cluster, Host
from machines.patience import DEADLINE_S

ROOT = Path(__file__).parents[2]
NAMES = ("head", "node-1", "node-2")
NODES = "node-[1-2]"

# What the Dockerfile does to Debian's files, laid over this machine's; then the entry script as a first process. The
# files of cgroups are as in a container on most machines, whatever this one has: v2 alone, and no systemd to ask.
SERVICES = """\
export PATH={path}
mount -t tmpfs tmpfs /home
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /etc/munge
mount -t tmpfs tmpfs /etc/slurm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp -r /etc/ssh /run/etc-ssh
mount --bind /run/etc-ssh /etc/ssh
rm -f /etc/ssh/ssh_host_*
for name in passwd group shadow; do
  cat /etc/$name {folder}/$name.trainer >/run/$name
  mount --bind /run/$name /etc/$name
done
install -d -o munge -g munge -m 0700 /var/lib/munge /var/log/munge
install -d -o trainer -g trainer /home/trainer
install -m 0644 {docker}/sshd.conf /etc/ssh/sshd_config.d/cluster.conf
install -m 0644 {docker}/slurm.conf /etc/slurm/slurm.conf.in
install -m 0644 {docker}/cgroup.conf /etc/slurm/cgroup.conf
role=node
[ {head} != $(uname -n) ] || role=head
export NODES={nodes} KEYS_FOLDER={folder}/keys
{docker}/entrypoint.sh $role || echo "entrypoint.sh: exit code $?" >&2
exec sleep infinity
"""
ACCOUNT = {
    "passwd": "trainer:x:59999:59999::/home/trainer:/bin/bash\n",
    "group": "trainer:x:59999:\n",
    "shadow": "trainer:!:19000:0:99999:7:::\n",
}


def make_machines(folder: Path) -> Cluster:
    """Return the three machines, not started; their folder of keys is empty."""
    (folder / "keys").mkdir()
    for name, line in ACCOUNT.items():
        (folder / f"{name}.trainer").write_text(line)
    words = {"path": TOOL_PATH, "folder": folder, "docker": ROOT / "docker", "head": NAMES[0], "nodes": f"'{NODES}'"}
    return Cluster(folder, NAMES, SERVICES.format(**words))


def run_as(user: str, host: Host, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program on a machine as `docker compose exec --user` does."""
    words = [
        *host.enter(Path("/")),
        "env",
        "-i",
        f"PATH={TOOL_PATH}",
        f"NODES={NODES}",
        "runuser",
        "-u",
        user,
        "--",
        *argv,
    ]
    return subprocess.run(words, text=True, capture_output=True, check=False, timeout=DEADLINE_S)
