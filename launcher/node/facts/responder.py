"""What the launcher asks: before a run facts, a Python with torch, the route to node 0, whether its port is open and
whether all see the same checkpoints, and when it has failed whether the ranks have saved.

Nothing here blocks the supervisor: what may block is asked through `Loop.ask`.
"""

from __future__ import annotations

import os
from functools import partial
from socket import socket
from typing import Any, Callable

from launcher.node import messages
from launcher.node.facts import checkpoints, gathering, gpus, machine, network, packages
from launcher.node.facts.pythons import Search
from launcher.node.facts.setup import Setup
from launcher.node.loop import Loop
from launcher.node.processes.ranks import Ranks
from launcher.node.send_queue import SendQueue

FACTS_TIMEOUT_S = 15.0
GPUS_TIMEOUT_S = 70.0  # for what asks the GPUs' tool, which has a shorter timeout
PROBE_TIMEOUT_S = 8.0  # for what tries a target, which has shorter timeouts of its own
DNS_TIMEOUT_S = 1.0  # TCPStore looks names up for each connection, so a slower lookup is worth a warning
LOOK_UP_TIMEOUT_S = 8.0  # for node 0's name: a dead DNS server takes 5 s, and then the next one may respond
MAX_ANSWERED = 64  # connections kept open
LOOK_TIMEOUT_S = 2.0  # the launcher waits a little longer before it stops a run that has failed


class Responder:
    """Gathers the answers to the launcher's questions, and sends each as soon as it is complete.

    After `cancel` no answer is sent any more: the run is being stopped, and children may have been killed for that. The
    port that node 0 holds stays held until `release_port`.
    """

    def __init__(
        self,
        loop: Loop,
        send_queue: SendQueue,
        ranks: Ranks,
        keepers_fd: int,
    ) -> None:
        """keepers_fd: passed to the process that imports torchrun; closes when guardian and supervisor are gone."""
        self.search: Search | None = None
        self._is_searching = False
        self._loop = loop
        self._send_queue = send_queue
        self._keepers_fd = keepers_fd
        self._ranks = ranks
        self._setup: Setup | None = None
        self._made: dict[str, Any] | None = None  # the setup's result, if one was requested
        self._env: dict[str, str] = {}
        self._parts: dict[str, dict[str, Any]] = {}  # of FACTS, which have come so far
        self._wants_packages = False
        self._held_port: socket | None = None
        self._listeners: list[socket] = []
        self._answered: list[socket] = []
        self._is_over = False

    def gather_facts(self, wanted: dict[str, Any], env: dict[str, str], folder: str) -> None:
        """Answer `wanted` (the launcher's PREPARE) with one message: facts, and the Python that was found.

        A setup changes `env` before the search for that Python.
        """
        self._env = env
        late = {"error": "its checks did not finish in %g s: a file system may be hung" % FACTS_TIMEOUT_S}
        self._ask(lambda: gathering.gather_facts(wanted), FACTS_TIMEOUT_S, late, partial(self._keep, "machine"))
        if wanted.get("gpus", True):
            silence = {"gpus": [], "gpu_error": "what asks its GPUs gave no answer"}
            self._ask(gathering.find_gpus, GPUS_TIMEOUT_S, silence, partial(self._keep, "gpus"))
        else:
            self._keep("gpus", {"gpus": [], "gpu_error": "not requested"})
        if wanted.get("code") is not None:  # apart: the walk of a hung file system must delay no other fact
            find = partial(machine.hash_code, wanted)
            self._ask(find, machine.CODE_TIMEOUT_S, machine.NO_CODE_HASH, partial(self._keep, "code"))
        else:
            self._keep("code", {})
        if not wanted.get("setup"):
            self.search_python(wanted, env, folder)
            return

        def go_on(made: dict[str, Any]) -> None:
            self._made = made
            own = [made["python"]] if made.get("python") else []
            rest = [python for python in wanted["pythons"] if python != messages.ENVIRONMENT]
            candidates = [] if made["failure"] else own + rest if wanted["pythons"] else []
            self.search_python(dict(wanted, pythons=candidates), env, folder)

        self._setup = Setup(self._loop, self._ranks, folder, env, wanted, go_on)
        self._setup.run_next()

    def search_python(self, wanted: dict[str, Any], env: dict[str, str], folder: str) -> None:
        """Begin the search for a Python with torch, if it has not begun; a setup isn't waited for."""
        if self._is_searching:
            return
        self._is_searching, self._env = True, env
        self._wants_packages = wanted.get("packages", False)
        if not wanted["pythons"]:  # the run needs no torch, or its setup failed
            self._keep("python", {})
            return
        keepers_fd, keep = self._keepers_fd, self._keep_python
        self.search = Search(self._loop, self._send_queue, wanted, env, folder, keepers_fd, keep)
        self.search.try_next()

    def cancel(self) -> None:
        """Start nothing more and send no more answers: the run is being stopped."""
        self._is_over = True
        if self._setup is not None:
            self._setup.cancel()

    def _keep_python(self, status: dict[str, Any] | None) -> None:
        assert self.search is not None  # it calls this
        python = dict(status or {"python": None}, tried=self.search.tried)
        site = python.pop("site", [])
        if status and self.search.for_torchrun:
            self._ranks.set_torchrun(self.search.child)
        if not status or not self._wants_packages:
            self._keep("python", python)
            return
        # Not in that Python: its import of torchrun would wait, which a run waits for.
        self._ask(
            lambda: packages.list_packages(site),
            packages.TIMEOUT_S,
            packages.UNKNOWN,
            lambda found: self._keep("python", {**python, **found}),
        )

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """What this node has reported of its GPUs."""
        return self._parts.get("gpus", {}).get("gpus") or []

    def _keep(self, part: str, found: dict[str, Any]) -> None:
        """Keep one of the four parts, and send them all as soon as they are complete."""
        self._parts[part] = found
        if len(self._parts) < 4 or self._is_over:
            return
        facts = self._parts["machine"]
        # Take the environment that the ranks will have: the login's, then the setup's, then --env.
        visible = gpus.find_visible(self.gpus, self._env)
        if self._made is not None and self._made.get("has_venv"):
            facts["venv_found"] = True  # the setup has made it meanwhile
        facts.get("checks", {}).update(self._parts["code"])
        self._send_queue.send(
            messages.FACTS, visible=visible, search=self._parts["python"], setup=self._made,
            python_path=self._env.get("PYTHONPATH"), **facts, **self._parts["gpus"],
        )  # fmt: skip

    # ---- the network --------------------------------------------------------------------------------------------

    def find_route(self, header: dict[str, Any]) -> None:
        """Answer a ROUTE with this node's interface and address on the route to node 0; node 0 then holds the port.

        With `listens`, a port for a neighbour's probe is open as well, and node 0 answers on the master port.
        """
        master = header["master"]
        silence = {"error": "the name %s did not resolve in %g s" % (master, LOOK_UP_TIMEOUT_S)}
        find = partial(network.find_route, master)
        self._ask(find, LOOK_UP_TIMEOUT_S, silence, lambda found: self._go_route(header, found))

    def _go_route(self, header: dict[str, Any], found: dict[str, Any]) -> None:
        """Hold and open the ports on the route, if `found` is one and not an error, and send the answer."""
        port = header.get("port")
        try:
            if "error" not in found and port is not None:
                self._held_port = network.bind("", port)
                found["port"] = self._held_port.getsockname()[1]
            if "error" not in found and header.get("listens"):
                everywhere = "::" if ":" in found["address"] else ""
                found["probe_port"] = self._listen(network.bind(everywhere, 0))
                if port is not None:
                    self._listen(network.bind(everywhere, found["port"]))
        except OSError as error:
            found["error"] = network.describe_error(error)
        self._send_queue.send(messages.ROUTED, **found)

    def _ask(self, find: Callable[[], Any], timeout_s: float, default: Any, on_answer: Callable[[Any], object]) -> None:
        """Ask as `Loop.ask` does; if the run is being stopped by the time of the answer, it is dropped."""

        def take(answer: Any) -> None:
            if not self._is_over:
                on_answer(answer)

        self._loop.ask(find, timeout_s, default, take)

    def _listen(self, listener: socket) -> int:
        """Send the token to everyone who connects, until the run starts; return the port."""
        self._listeners.append(listener)
        listener.listen(512)
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), lambda: self._answer(listener))
        port: int = listener.getsockname()[1]
        return port

    def _answer(self, listener: socket) -> None:
        try:
            sock, _ = listener.accept()
            sock.send(network.TOKEN)
        except OSError:
            return  # it has disconnected already
        # The prober closes first, so that the port is not left in TIME_WAIT here.
        self._answered.append(sock)
        if len(self._answered) > MAX_ANSWERED:
            self._answered.pop(0).close()

    def probe(self, header: dict[str, Any]) -> None:
        """Answer a PROBE: whether each of `targets` can be reached, and how long a DNS lookup takes."""
        questions: list[tuple[Callable[[], Any], float, Any]] = [
            (partial(network.try_target, host, port), PROBE_TIMEOUT_S, messages.NOT_TRIED)
            for host, port in header["targets"]
        ]
        questions.append((partial(network.time_look_up, header["peer"]), DNS_TIMEOUT_S, DNS_TIMEOUT_S))
        answers: dict[int, Any] = {}

        def keep(place: int, answer: Any) -> None:
            answers[place] = answer
            if len(answers) < len(questions):
                return
            *errors, reverse_dns_s = (answers[place] for place in range(len(questions)))
            self._send_queue.send(messages.PROBED, errors=errors, reverse_dns_s=reverse_dns_s)

        for place, (find, timeout_s, default) in enumerate(questions):
            self._ask(find, timeout_s, default, partial(keep, place))

    def share(self, header: dict[str, Any]) -> None:
        """Answer a SHARE with what tells whether others see the same directory."""
        folder = os.path.join(os.path.expanduser(header["workdir"] or "~"), os.path.expanduser(header["folder"]))
        self._ask(
            lambda: checkpoints.describe(folder),
            LOOK_TIMEOUT_S,
            {"kernel": None, "levels": []},
            lambda found: self._send_queue.send(messages.SHARED, **found),
        )

    def look_for_save(self, folder: str, since: float, least_s: float) -> None:
        """Answer a LOOK: whether a file in `folder` was last written after `since`, and at least `least_s` ago."""
        self._ask(
            lambda: checkpoints.look(folder, since, least_s),
            LOOK_TIMEOUT_S,
            {"has_saved": None, "is_missing": False},
            lambda found: self._send_queue.send(messages.SEEN, **found),
        )

    def stop_listening(self) -> None:
        """Close what was open for probes; the master port stays held."""
        for sock in self._listeners:
            self._loop.forget(sock.fileno())
        for sock in self._listeners + self._answered:
            sock.close()
        self._listeners, self._answered = [], []

    def release_port(self) -> None:
        """Release the port that node 0 holds, so that torchrun can bind it."""
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None
