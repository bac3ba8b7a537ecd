"""The ways over SSH, each host by itself: what ssh_config, keys and known_hosts say, and two clients.

fabric and paramiko are imported here, and nowhere else but in the servers of `launch demo`.

In reading order:

    known_hosts           lines of known_hosts: names, wildcards, hashes, marks
    known_hosts_file      one such file, read and added to while others write it
    failures              how a login fails: one set of classes and words for all clients
    known_hosts_paths     which files UserKnownHostsFile and GlobalKnownHostsFile name
    host_certificates     who has signed a host's key, and whether that counts
    own_host_keys         whether known_hosts means this machine by a name
    key_files             private keys, public keys and certificates in files
    settings              what the user asked for every login over SSH
    this_machine          hosts that are this machine, and need no SSH
    identities            with what one logs in: keys, agents, certificates, passwords
    packets               bounds for what a server sends
    host_keys             whether a host's key is the right one
    logins                how often a login is tried, and how many at once
    proxy_command         a ProxyCommand, run as ssh runs it
    openssh_config        ssh_config as `ssh -G` reads it
    config_files          ssh_config as paramiko reads it, with `ssh -G` where that is not enough
    fabric_failures       fabric's and paramiko's errors -> failures
    fabric                --transport fabric: the built-in client
    openssh_options       what each ssh of ours is told, whatever ssh_config says
    openssh_failures      the words of `ssh` on stderr -> failures
    openssh               --transport ssh: the system's client
"""
