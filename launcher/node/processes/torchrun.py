"""The program that becomes torchrun on a node, as text: it runs in the Python that has torch, not in the supervisor's.

It is the parent of the ranks, and stops the run if guardian and supervisor are both killed. As long as one of them
lives, stopping the ranks is their task. They hold torchrun by a signal, and the kernel sends the same one when the
supervisor dies. While it is held, its main thread waits in the handler and ignores SIGTERM, so neither a rank's exit
nor Slurm makes it stop the other ranks; it never continues from there. When both are gone, it does what stop_steps
would do: it sends SIGTERM to the ranks alone, so that a trainer with data-loader workers can save, then SIGTERM to the
rest, and finally SIGKILL. torchrun's own shutdown would take 30 s if a rank ignores SIGTERM.

It is not held by SIGSTOP: a suspended process does not get what the kernel sends, and node 0's store would not respond
while ranks save together. Do not assume that a signal reaches Python code at once: the main thread may wait in C++ for
other nodes, so another thread watches for the end of both guardian and supervisor.

A rank is a child of torchrun, which reaps ten times a second: a supervisor that looks a moment too late finds nothing
in /proc, and torchrun ends the other ranks. So this program wraps Popen.poll, which torchrun calls for its ranks, in
its main thread (SubprocessContext in torch/distributed/elastic/multiprocessing/api.py): it reports how a rank ended
before it is reaped, and holds itself if the rank failed. What names the run's directory in its argv is a rank.
"""

from __future__ import annotations

KEEPERS_FD = 4  # closes when guardian and supervisor are gone

# Also part of warm.SITECUSTOMIZE; both set its globals mark, folder and stop_timeout_s.
END_RANKS = """\
import os, signal, time
def end_ranks():
    ranks = read("/proc/self/task/%d/children" % os.getpid()).split()
    send(signal.SIGTERM, ranks)
    wait_while(lambda: any(map(is_alive, ranks)), stop_timeout_s)
    send(signal.SIGTERM, find_marked())
    wait_while(find_marked, 1)
    kill_all(ranks)
def kill_all(ranks):
    send(signal.SIGKILL, ["-" + rank for rank in ranks])  # each leads a process group
    end_at, quiet_looks = time.monotonic() + 5, 0
    while quiet_looks < 3 and time.monotonic() < end_at:  # what forks may escape a look
        found = find_marked()
        send(signal.SIGSTOP, found)
        send(signal.SIGKILL, found)
        quiet_looks = 0 if found else quiet_looks + 1
    remove_folder()
    os._exit(1)
def remove_folder():
    mounted = " %s/" % os.path.realpath(folder).replace(" ", "\\\\040")  # as workers.remove_folder: it stays then
    is_mounted = mounted in read("/proc/self/mountinfo")
    if os.path.basename(folder).startswith("launch-%s-" % mark.partition(".")[0]) and not is_mounted:
        import shutil
        shutil.rmtree(folder, ignore_errors=True)
def wait_while(is_true, timeout_s):
    end_at = time.monotonic() + timeout_s
    while time.monotonic() < end_at and is_true():
        time.sleep(0.05)
def send(number, pids):
    for pid in pids:
        try:
            os.kill(int(pid), number)
        except OSError:
            pass
def is_alive(pid):
    return read("/proc/%s/stat" % pid).rpartition(") ")[2][:1] not in ("", "Z", "X")
def find_marked():
    pids = filter(str.isdigit, os.listdir("/proc"))
    return [pid for pid in pids if int(pid) != os.getpid() and is_marked(read("/proc/%s/environ" % pid))]
def is_marked(environment):  # as proc.read_mark does
    env = dict(entry.partition("=")[::2] for entry in environment.split("\\0"))
    return env.get("LAUNCH_MARK") == mark and env.get("SLURM_JOB_ID", "") in ("", env.get("LAUNCH_SLURM_JOB", ""))
def read(path):
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
"""

# Its arguments are the word torchrun, the number of the signal that holds it, and how long ranks may save, in seconds.
PROGRAM = (
    """\
import shutil, subprocess, threading  # now: a signal that comes within an import would find half of shutil
hold_signal, stop_timeout_s = int(sys.argv[2]), float(sys.argv[3])
mark, folder = os.environ["LAUNCH_MARK"], os.path.dirname(os.environ["LAUNCH_FILES"])
def hold(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(4, 1)
    end_ranks()
"""
    + END_RANKS
    + """def has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
def end_without_main_thread():
    os.read(4, 1)
    os.kill(os.getpid(), hold_signal)
    time.sleep(0.1)
    wait_while(has_children, stop_timeout_s + 5)
    kill_all([])
def poll(process, reap=subprocess.Popen.poll):
    is_rank = isinstance(process.args, (list, tuple)) and folder in process.args
    if is_rank and process.returncode is None:
        tell_end(process.pid)
    return reap(process)
def tell_end(pid):
    status = 0
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            status = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
            with open(os.open(folder + "/ranks", os.O_WRONLY | os.O_NONBLOCK), "wb", 0) as reports:
                reports.write(b"ended %d %d\\n" % (pid, status))
    except OSError:  # the supervisor is gone
        pass
    if status:
        hold()
subprocess.Popen.poll = poll
signal.signal(hold_signal, hold)
threading.Thread(target=end_without_main_thread, daemon=True).start()
from torch.distributed import run
import socket
with socket.socket(fileno=os.dup(0)) as orders:  # first the sockets of the run's claim, which lasts as long as this
    orders.recvmsg(1, socket.CMSG_SPACE(1 << 10), socket.MSG_CMSG_CLOEXEC)
order = sys.stdin.readline()
if order.endswith("\\n"):  # else it was cut short: the supervisor is gone
    order = json.loads(order)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if order["lock"]:  # of the code: no other run takes it while this process, and so a rank, may live
        import fcntl
        try:
            fcntl.flock(os.open(order["lock"], os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            pass
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    run.main(order["argv"])
"""
)
