"""The way of launch's code into the Python of the ranks, and what it does to a rank itself.

`python -c` gets this text for the search for torch, and Python's site module runs it as a sitecustomize, in a directory
that is first on PYTHONPATH. There it comes before anything of the user's, in every Python below a rank: it must be
quick, so it imports nothing that isn't loaded yet, and it must never fail. It then runs the user's own sitecustomize.
"""

import os
import sys

SIGNAL = 61  # SIGRTMAX-3: unused by convention. Slurm uses SIGUSR1 and 2, the C library 32 and 33, valgrind 64.
MEMORY = "launch-stacks"  # the name of the file with the stacks, as /proc/PID/fd shows it
STACKS, WARM = "stacks", "warm"  # what the directory is for, which its name begins with
# What is open in a Python that imports torch, or is asked for one: it answers, hears of the end of guardian and
# supervisor, gets its order, and has launch's archive.
ANSWER_FD, KEEPERS_FD, ORDER_FD, CODE_FD = 3, 4, 5, 6


def search_torch() -> None:
    """Be the candidate for a Python with torch; it becomes torchrun if that is wanted."""
    if sys.version_info < (3, 7):  # what follows takes a newer one, and so does every torch that can be started
        os.write(ANSWER_FD, b'{"torch": null}\n')
        return
    if sys.path[0] == "":  # the working directory, where a random.py of the user's would break torchrun
        del sys.path[0]
    if borrow("search").main():
        torchrun = borrow("torchrun")
        os.close(CODE_FD)
        torchrun.main(float(sys.argv[2]))


def customize(folder: str) -> None:
    """Do what the directory is for; the user's program follows."""
    first = []
    if not os.path.basename(folder).startswith(WARM):
        listen(folder)
    elif sys.argv[:1] == ["-c"]:
        sys.launch_is_heard = True  # type: ignore[attr-defined] # the search looks whether this text was run
    else:
        first = become_rank(folder)
    go_on(folder, first)


def become_rank(folder: str) -> list:  # type: ignore[type-arg] # Python 3.8 evaluates it
    """Return in each rank, with the directories that come first on its path."""
    loaded = set(sys.modules)
    try:
        warm = borrow("warm")
        os.close(CODE_FD)
        return warm.become_rank(folder, loaded)  # type: ignore[no-any-return]
    except BaseException:  # noqa: BLE001 - never continue with the script: this is no rank
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def borrow(name: str):  # type: ignore[no-untyped-def] # nothing is imported for it
    """Import one of launch's programs from the archive, of which the user's program then finds nothing."""
    import marshal
    from importlib import import_module
    from importlib.util import MAGIC_NUMBER

    with open(CODE_FD, "rb", closefd=False) as file:
        file.seek(0)
        source, content, magic, bytecode = marshal.load(file)
    found: dict = {}  # type: ignore[type-arg] # Python 3.8 evaluates it
    exec(source, found)
    archive = found["Archive"](content, bytecode if magic == MAGIC_NUMBER else {})
    users = archive.take_modules()  # a launcher.py beside the script
    archive.enter()
    module = import_module("launcher.node.programs." + name)
    sys.meta_path.remove(archive)
    archive.take_modules()
    sys.modules.update(users)
    return module


def listen(folder: str) -> None:
    """Let faulthandler write the stacks of all threads at every `SIGNAL`."""
    try:
        import faulthandler

        faulthandler.register(SIGNAL, file=open_file(folder), all_threads=True, chain=False)
    except Exception:  # noqa: BLE001 - the user's program needs no stacks
        pass


def open_file(folder: str) -> int:
    """Open a file without a name: in memory or, where an old C library has none there, on a disk."""
    try:
        return os.memfd_create(MEMORY)
    except (AttributeError, OSError):
        path = os.path.join(folder, "stack.%d" % os.getpid())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.unlink(path)
        return fd


def go_on(folder: str, first: list) -> None:  # type: ignore[type-arg] # Python 3.8 evaluates it
    """Run the user's own sitecustomize, without this directory on the path."""
    sys.path[:] = [*first, *(entry for entry in sys.path if entry != folder)]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


if __name__ == "__main__":
    search_torch()
elif __name__ == "sitecustomize":
    customize(os.path.dirname(__file__))
