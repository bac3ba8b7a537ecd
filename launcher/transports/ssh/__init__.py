"""The transports with one SSH connection for each host, and what every login over SSH needs: ssh_config, keys,
known_hosts.

Only this package and the servers of `launch demo` import fabric and paramiko.
"""
