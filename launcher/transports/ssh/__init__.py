"""The transports with one SSH connection for each host, and what every login over SSH needs: ssh_config, keys,
known_hosts.

Only this package imports fabric and paramiko.

    ssh_config    openssh_config (what `ssh -G` says), plain_config (where there is no ssh)
    host keys     known_hosts, host_keys (for Fabric), this_machine
    logins        identities, logins, failures
    --transport   fabric, fabric_failures, packet_limits; openssh, openssh_failures; pdsh, pdsh_command, pdsh_output
"""
