"""The transports with one SSH connection for each host, and what every login over SSH needs: ssh_config, keys,
known_hosts.

Only this package imports fabric and paramiko.

    ssh_config    openssh_config (what `ssh -G` says)
    host keys     known_hosts, this_machine
    logins        identities, logins, failures
    --transport   fabric; openssh, openssh_failures; pdsh, pdsh_command
"""
