"""Hosts that can't be used: found before anything is started, with the host, the reason and the remedy."""

from __future__ import annotations

import getpass
import re
import socket

import pytest
from launching import TRANSPORTS, Launch, every_transport
from machines.patience import DEADLINE_S, slowed
from machines.ports import free_port
from machines.runs import shell
from ssh_hosts import SshHosts, another_sshd, make_key

from launcher.transports.bootstrap import MARKER_TIMEOUT_S

NEVER_STARTED = ["--no-python", "touch", "started"]


@pytest.mark.parametrize("transport", [*TRANSPORTS, "pdsh"])
def test_each_host_is_named_with_its_reason_and_its_remedy(launch: Launch, hosts: SshHosts) -> None:
    user, port, closed_port = getpass.getuser(), hosts["node2"].port, free_port("127.0.0.2")
    key, unknown, changed = (launch.folder / name for name in ("other_key", "known", "known_hosts"))
    make_key(key)
    unknown.touch()
    changed.write_text(hosts.known_line(hosts["node2"], hosts["node1"].public_key))
    hosts.add_login(launch.folder / "closed_key", "echo 'Please log in as the user ubuntu'; exit 142")
    hosts.add_login(launch.folder / "waiting_key", "head -n 1 >eaten")
    new_key = r"its host key has changed: SHA256:\S+ is not in known_hosts"
    with socket.create_server(("127.0.0.2", 0)) as mute:
        mute_port = mute.getsockname()[1]
        expected: dict[str, tuple[dict[str, object], str, str]] = {
            "refused": ({"IdentityFile": key}, rf"login refused for user {user} \(tried {key}\)",
                        f"ssh-copy-id -p {port} {user}@127.0.0.2"),
            "down": ({"Port": closed_port}, f"127.0.0.2 port {closed_port} refuses the connection",
                     "check that sshd is running there, on that port"),
            "nowhere": ({"HostName": "no-such-host.invalid"}, "the name no-such-host.invalid is not known",
                        "check the spelling, DNS or ssh_config"),
            "mute": ({"Port": mute_port}, f"127.0.0.2 port {mute_port} does not answer", "check that it is on"),
            "unknown": ({"UserKnownHostsFile": unknown}, "its host key is not known",
                        f"ssh-keyscan -p {port} 127.0.0.2 >> {unknown}"),
            "changed": ({"UserKnownHostsFile": changed}, new_key, f"ssh-keygen -f {changed} -R '[127.0.0.2]:{port}'"),
            "closed": ({"IdentityFile": launch.folder / "closed_key"},
                       r"its login shell ended \(exit code 142\): Please log in as the user ubuntu",
                       "try by hand: ssh closed true; it may take another user (USER@closed)"),
            # Nothing is sent before the node's side answers, so it gets nothing that it could eat.
            "waiting": ({"IdentityFile": launch.folder / "waiting_key"},
                        "its login shell has not started Python in N s", "look in ~/.bashrc"),
        }  # fmt: skip
        place = {"HostName": "127.0.0.2", "Port": port}
        if launch.transport != "ssh":  # the same for all, and ten seconds are waited for it
            del expected["waiting"]
        settings = {name: {**place, **own} for name, (own, _, _) in expected.items()}
        config = hosts.write_config(launch.folder / "config", **settings)
        words = ("--hosts", ",".join(["node1", *expected]), "--ssh-config", str(config))
        # As long as the shell that waits for input takes anyway, so that no other login is cut short.
        timeout_s = max(slowed(2), MARKER_TIMEOUT_S) if "waiting" in expected else max(slowed(2), 3.0)
        done = launch.run(*words, "--connect-timeout", f"{timeout_s:g}", *NEVER_STARTED)
    first, *said, last = done.words
    assert (done.exit_code, first) == (69, f"launch: {len(expected)} hosts can't be used:")
    texts = dict(line.strip().split(": ", 1) for line in said if not line.startswith("    "))
    assert texts.keys() == expected.keys()
    for name, (_, text, fix) in expected.items():
        assert re.fullmatch(text, texts[name])
        assert fix in said[said.index(f"  {name}: {texts[name]}") + 1]
    assert last == "launch: nothing was started"
    assert not (launch.folder / "started").exists()
    assert not (launch.folder / "logs").exists()


@pytest.mark.parametrize("transport", ["fabric", "ssh", "pdsh"])
def test_a_configuration_that_ssh_refuses(launch: Launch) -> None:
    config = launch.folder / "config"
    config.write_text("Host node*\n  Bogus 1\n  Sham 2\n")
    done = launch.run("--ssh-config", str(config), *NEVER_STARTED)
    fix = f"run `ssh -F {config} -G HOST` for details"
    each = [
        f"{config}: line {line}: Bad configuration option: {option}" for line, option in ((2, "bogus"), (3, "sham"))
    ]
    assert done.exit_code == 69
    assert done.words[1:3] == [f"  node[1-2]: {'; '.join(each)}", f"    fix: {fix}"]


@every_transport
def test_a_new_host_key_is_accepted_where_that_was_asked_for(launch: Launch, hosts: SshHosts) -> None:
    folder = launch.folder / "it's a"
    folder.mkdir()
    known = folder / "known hosts"
    config = hosts.write_config(
        launch.folder / "config",
        node2={"UserKnownHostsFile": f'"{known}"', "StrictHostKeyChecking": "accept-new"},
    )
    done = launch.run("--ssh-config", str(config), *shell("true"))
    assert done.exit_code == 0
    assert known.read_text() == hosts.known_line(hosts["node2"], hosts["node2"].public_key)
    assert list(folder.iterdir()) == [known]
    assert not (launch.folder / "it's").exists()


@pytest.mark.parametrize("transport", ["ssh", "pdsh"])
def test_a_host_that_ssh_refuses_alone_ends_no_other(launch: Launch, hosts: SshHosts) -> None:
    """Though it comes first."""
    config = hosts.write_config(launch.folder / "config", typo={"ProxyJump": "typo"})
    done = launch.exec("--hosts", "typo,node1", "--ssh-config", str(config), "--", "true")
    assert done.exit_code == 69
    assert re.search(r"^  typo: jumphost loop via typo$", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("transport", ["fabric", "ssh", "pdsh"])
def test_a_way_that_leads_round_in_a_circle(launch: Launch, hosts: SshHosts) -> None:
    """ssh itself would start another ssh for ever, also one that pdsh starts."""
    round_trip = {"HostName": "127.0.0.2", "ProxyJump": "gate"}
    config = hosts.write_config(launch.folder / "config", gate=round_trip, far=round_trip)
    done = launch.exec("--hosts", "node1,far", "--ssh-config", str(config), "--", "echo fine")
    assert (done.exit_code, done.lines) == (69, ["[node1] fine"])
    said = "  far: ProxyJump loop on the way to far: gate is reached through itself"
    assert said in done.words


def test_a_gateway_s_new_host_key_is_recorded(launch: Launch, hosts: SshHosts) -> None:
    """Of hosts behind it, several may look before any of them has written, and ssh then writes the same key again."""
    known = launch.folder / "known_hosts"
    own = {"UserKnownHostsFile": known, "StrictHostKeyChecking": "accept-new"}
    far = {**own, "HostName": "127.0.0.2", "Port": hosts["node2"].port, "ProxyJump": "node1"}
    config = hosts.write_config(launch.folder / "config", node1=own, **{f"far{number}": far for number in range(1, 5)})
    argv = ["--hosts", "far[1-4]", "--ssh-config", str(config), "-b", "--", "echo in"]
    done = launch.exec(*argv)
    assert (done.exit_code, done.lines) == (0, ["---- far[1-4] ----", "in"])
    assert set(known.read_text().splitlines(keepends=True)) == {
        hosts.known_line(host, host.public_key) for host in hosts
    }


# ---- connections that fail sometimes --------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [*TRANSPORTS, "pdsh"])
def test_many_hosts_behind_one_bastion(launch: Launch, hosts: SshHosts) -> None:
    """An sshd drops connections at random beyond ten that have not logged in (MaxStartups), and this one all."""
    far = {"HostName": "127.0.0.2", "Port": hosts["node2"].port, "ProxyJump": "node1"}
    with another_sshd(hosts["node1"], launch.folder, "MaxStartups 10:100:10") as gate:
        config = launch.folder / "config"
        hosts.write_config(config, node1=gate, **{f"far{number}": far for number in range(1, 13)})
        done = launch.exec("--hosts", "far[1-12]", "--ssh-config", str(config), "-b", "--", "echo in")
    assert (done.exit_code, done.lines) == (0, ["---- far[1-12] ----", "in"]), done.stderr
    if launch.transport != "pdsh":  # which logs in to all at once, and again to those that were dropped
        assert "drop connection" not in (launch.folder / "sshd.log").read_text()


@every_transport
def test_a_host_that_is_booting_is_waited_for(launch: Launch, hosts: SshHosts) -> None:
    """Where --connect-timeout says how long; without it a port that refuses is a mistake, and said at once."""
    port, node2 = free_port("127.0.0.2"), hosts["node2"]
    config = hosts.write_config(launch.folder / "config", node2={"Port": port, "HostKeyAlias": node2.known_name})
    words = ("--ssh-config", str(config), "--connect-timeout", str(DEADLINE_S), "--", "echo in")
    running = launch.start_exec(*words)
    running.wait_for(r"^\[node1\] in")
    with another_sshd(node2, launch.folder, port=port):
        done = running.finish()
    assert (done.exit_code, sorted(done.lines)) == (0, ["[node1] in", "[node2] in"])


# ---- rc files -------------------------------------------------------------------------------------------------------


@every_transport
def test_an_rc_file_that_is_harmless(launch: Launch, hosts: SshHosts) -> None:
    """Also one that leaves no Python on the path: the next candidate, launch's own path, is tried then."""
    rc_files = {
        "noisy": "echo Welcome; printf '\\377 no newline'; echo 'module: command not found' >&2",
        "long": "seq 1 5000",
        "reading": "read -r answer </dev/null; cat </dev/null",
        "pathless": "PATH=/nowhere",
    }
    place = {"HostName": "127.0.0.2", "Port": hosts["node2"].port}
    for name, rc_file in rc_files.items():
        hosts.add_login(launch.folder / name, rc_file)
    settings = {name: {**place, "IdentityFile": launch.folder / name} for name in rc_files}
    config = hosts.write_config(launch.folder / "config", **settings)
    words = ("--hosts", ",".join(rc_files), "--nproc", "1", "--ssh-config", str(config))
    done = launch.run(*words, "--no-python", "/bin/echo", "hello")
    assert done.exit_code == 0
    assert sorted(done.lines) == sorted(f"[{name}:{rank}] hello" for rank, name in enumerate(rc_files))
