"""Answers of NCCL's RAS, as its documentation records them, and a stand-in for the thread that gives them.

No GPU is at hand. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html, "Sample Output".
"""

from __future__ import annotations

SUMMARY = """\
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""

HEALTHY = SUMMARY + "    0         8         4         1         4        32   RUNNING      OK\n"

MISMATCH = (
    SUMMARY
    + """\
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
)

INCOMPLETE = (
    SUMMARY
    + """\
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
)

# Listens where NCCL_RAS_ADDR says, and answers each question with the text of argv[1]; prints each question.
STAND_IN = """
import os, socket, sys
host, port = os.environ["NCCL_RAS_ADDR"].split(":")
with socket.create_server((host, int(port))) as server:
    for _ in range(3):
        print("ready line", flush=True)
    while True:
        client, _ = server.accept()
        with client:
            print(client.recv(100), file=sys.stderr, flush=True)
            client.sendall(sys.argv[1].encode())
"""
