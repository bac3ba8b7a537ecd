"""How torchrun runs on a node: as text for the Python that has torch, which is not ours.

It is the parent of the ranks, and outlives guardian and supervisor if both are killed. While one of them lives, the
end of the ranks is theirs: they hold torchrun by a signal, and the kernel sends the same one when the supervisor dies.
Held, its main thread waits in the handler and does not listen to SIGTERM, so neither the end of a rank nor Slurm makes
it end the others. When both are gone it does what the ladder would: SIGTERM to the ranks alone, so that a trainer with
data-loader workers can save, torchrun's own end after the time for that, and SIGKILL to all that has the run's mark.
Not SIGSTOP: what the kernel sends would not reach a process that is stopped, and node 0's store would stand still while
ranks save together.
"""

from __future__ import annotations

KEEPERS_FD = 4  # at its end when guardian and supervisor are gone

# Its arguments are the word torchrun, the signal that holds it, and how long ranks may save, in seconds.
# That main thread may wait in C++, for other nodes, where it hears no signal: another one looks after the end.
PROGRAM = """\
import signal, threading, time
hold_signal, stop_timeout_s = int(sys.argv[2]), float(sys.argv[3])
mark = os.environ["LAUNCH_MARK"]
asked = []
def hold(*_):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(4, 1)
    is_first = before != signal.SIG_IGN and not asked
    if is_first:
        asked.append(True)
        let_ranks_save()
    signal.signal(signal.SIGTERM, before)
    if is_first:
        signal.raise_signal(signal.SIGTERM)
def let_ranks_save():
    ranks = read("/proc/self/task/%d/children" % os.getpid()).split()
    for rank in ranks:
        os.kill(int(rank), signal.SIGTERM)
    end_at = time.monotonic() + stop_timeout_s
    while time.monotonic() < end_at and any(map(is_alive, ranks)):
        time.sleep(0.05)
def is_alive(rank):
    return read("/proc/%s/stat" % rank).rpartition(") ")[2][:1] not in ("", "Z", "X")
def read(path):
    try:
        return open(path, errors="surrogateescape").read()
    except OSError:
        return ""
def is_of_run(environment):  # as processes.read_mark says
    env = dict(entry.partition("=")[::2] for entry in environment.split("\\0"))
    return env.get("LAUNCH_MARK") == mark and env.get("SLURM_JOB_ID", "") in ("", env.get("LAUNCH_SLURM_JOB", ""))
def kill_the_rest():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid() and is_of_run(read("/proc/%s/environ" % pid)):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
def end_without_keepers():
    os.read(4, 1)
    os.kill(os.getpid(), hold_signal)
    end_at = time.monotonic() + stop_timeout_s + 45  # torchrun gives its ranks 30 s between SIGTERM and SIGKILL
    try:
        while time.monotonic() < end_at:
            time.sleep(0.05)
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        pass
    kill_the_rest()
    os._exit(1)
signal.signal(hold_signal, hold)
threading.Thread(target=end_without_keepers, daemon=True).start()
from torch.distributed import run
order = sys.stdin.readline()
if order.endswith("\\n"):  # else it was cut short: the supervisor is gone
    order = json.loads(order)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        run.main(order["argv"])
    finally:
        if asked:
            kill_the_rest()
"""
