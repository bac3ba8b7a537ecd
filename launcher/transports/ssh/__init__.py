"""The transports with one SSH connection for each host, and what every login over SSH needs: ssh_config, keys,
known_hosts.

Only this package and the servers of `launch demo` import fabric and paramiko.

In reading order:

    known_hosts           lines of known_hosts: names, wildcards, hashes, markers
    known_hosts_file      one such file, read and added to while others write it
    failures              why a login fails: the same classes and messages for all clients
    known_hosts_paths     which files UserKnownHostsFile and GlobalKnownHostsFile name
    host_certificates     certificates of hosts: who signed one, and whether it is valid
    own_host_keys         this machine's host keys, compared with those of known_hosts
    key_files             private keys, public keys and certificates in files
    settings              the user's settings for every login over SSH
    this_machine          hosts that are this machine, and need no SSH
    identities            what a login offers: keys, an agent's keys, certificates, a password
    packets               limits for what a server may send
    host_keys             a host's key, checked against known_hosts
    logins                how often a login is tried, and how many at a time
    proxy_command         a ProxyCommand, run as ssh runs it
    openssh_config        ssh_config as `ssh -G` reads it
    config_lines          ssh_config files as lines, with the files that Include names
    config_blocks         what the Host and Match blocks that apply to a host set for it
    config_groups         groups of hosts for which `ssh -G` gives the same answer
    config_files          ssh_config for fabric: read here, or by `ssh -G` where only ssh can tell
    fabric_failures       fabric's and paramiko's errors -> failures
    fabric                --transport fabric: the built-in client
    openssh_options       options of every ssh process of a run, whatever ssh_config sets
    openssh_failures      what `ssh` prints on stderr -> failures
    openssh               --transport ssh: the system's client
"""
