"""Start PyTorch training on several machines over SSH, without a scheduler.

On the launch host, from the lowest layer up; each package's docstring says what it is for:

    escapes          foreign text, made safe for a terminal
    private_files    files that may hold secrets
    open_files       how many files this process may have open
    clock            seconds that include suspend, and a time of day that never steps back
    wording          numbers, times and lists as text
    errors           the errors, with their exit codes
    forms            messages and files, read by the types of frozen values
    concurrency      threads and tasks whose failure is reported
    hosts/           which hosts
    node/            what runs on the nodes
    diagnosis/       symptoms of a failure -> its cause in words
    job/             what to run, to the last argument
    output/          what the launch host shows and keeps
    preflight/       facts of all nodes -> findings
    transports/      bytes to and from one process on one host
    session/         the protocol with the supervisors of all nodes
    sync/            the code of a run, from here to every node
    runs/            a run from start to report
    controller/      the controller of a run on another machine, and what is asked of it
    cli/             the command line: each command is the module of its name
    api/             what is public for Python programs: its names are below, and docs/python.md describes them

What the ranks run doesn't depend on any of that:

    distributed      one process group for trainers; a file that can be copied
    collectives/     what `test-distributed` runs
    trainer/         the built-in trainer
"""

__version__ = "0.2.0"

__all__ = [
    "Cause", "CheckResult", "ChecksFailed", "Doing", "Error", "Explanation", "Finding", "FreeResult", "Host",
    "HostFailure", "HostsUnreachable", "Line", "ListedRun", "RankFailed", "RankFailure", "Result", "Run", "RunFailed",
    "UsageError", "__version__", "again", "attach", "check", "fetch", "free", "hosts", "launch", "runs", "singlenode",
    "stop",
]  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.api.run import Run, again, attach, check, fetch, free, hosts, launch, runs, singlenode, stop
    from launcher.api.values import (
        Cause,
        CheckResult,
        Doing,
        Explanation,
        Finding,
        FreeResult,
        Host,
        Line,
        ListedRun,
        RankFailed,
        RankFailure,
        Result,
        RunFailed,
    )  # fmt: skip
    from launcher.errors import ChecksFailed, HostFailure, HostsUnreachable, UsageError
    from launcher.errors import LauncherError as Error
else:
    import importlib
    import sys
    from types import ModuleType

    # An old Python on a host, and every command, import this file; so the rest is imported when it is used.
    _PLACES = {
        "api.run": (
            "Run",
            "again",
            "attach",
            "check",
            "fetch",
            "free",
            "hosts",
            "launch",
            "runs",
            "singlenode",
            "stop",
        ),
        "errors": ("ChecksFailed", "Error", "HostFailure", "HostsUnreachable", "UsageError"),
    }

    class _Package(ModuleType):
        """This package, of which `hosts` and `runs` are functions: importing those packages doesn't replace them."""

        def __setattr__(self, name, value):
            if not (name in __all__ and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module 'launcher' has no attribute {name!r}")
        place = next((place for place, names in _PLACES.items() if name in names), "api.values")
        module = importlib.import_module(f"launcher.{place}")
        value = getattr(module, "LauncherError" if name == "Error" else name)
        globals()[name] = value
        return value

    sys.modules[__name__].__class__ = _Package
