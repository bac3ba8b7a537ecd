"""The transport that reaches all hosts through one process on the launch host, srun, and a relay on each host.

srun has one stdin and one stdout for all hosts. The relay, a small program that is sent to each host, starts processes
there and carries their streams in lines that name a channel.
"""
