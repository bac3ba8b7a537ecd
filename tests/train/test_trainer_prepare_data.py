"""Tiny Shakespeare from a real web server and from files; the text itself is too long for a repository."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from machines.ports import free_port

from launcher.trainer import prepare_data
from launcher.trainer.config import ConfigError
from launcher.trainer.prepare_data import PATH, find_shakespeare, main

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000


class Answer(BaseHTTPRequestHandler):
    """Serves what its path says."""

    def do_GET(self) -> None:
        if self.path not in ("/text", "/cut", "/wrong", "/endless"):
            self.send_error(404)
            return
        body = TEXT[::-1] if self.path == "/wrong" else TEXT
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) * (1000 if self.path == "/endless" else 1)))
        self.end_headers()
        self.wfile.write(body[:1000] if self.path == "/cut" else body * (2 if self.path == "/endless" else 1))

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Command:
    """The command in a directory of its own."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *argv: object) -> tuple[int, str, str]:
        exit_code = main([*map(str, argv)])
        return exit_code, *self.capsys.readouterr()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*"))


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with a shorter text to get."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(prepare_data, "SIZE_BYTES", len(TEXT))
    monkeypatch.setattr(prepare_data, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return Command(tmp_path, capsys)


def test_the_text_is_downloaded_once(web: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_data, "URL", f"{web}/text")
    assert command.run() == (0, f"{PATH} written, {len(TEXT)} bytes; train on it with --data shakespeare\n", "")
    assert PATH.read_bytes() == TEXT
    assert command.left() == ["data", "tinyshakespeare.txt"]
    monkeypatch.setattr(prepare_data, "URL", f"{web}/none")
    assert command.run() == (0, f"{PATH} already exists\n", "")


@pytest.mark.parametrize(("where", "size"), [("wrong", len(TEXT)), ("cut", 1000), ("endless", len(TEXT) + 1)])
def test_another_text_is_refused(
    where: str, size: int, web: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_data, "URL", f"{web}/{where}")
    expected = f"{web}/{where} is not Tiny Shakespeare: {size} bytes, expected {len(TEXT)}\n"
    assert command.run() == (1, "", expected)
    assert command.left() == []


def test_where_there_is_no_network_the_way_out_is_named(
    web: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = "fix: download it on another machine, then run python -m launcher.trainer.prepare_data --file FILE\n"
    monkeypatch.setattr(prepare_data, "SILENCE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url, reason in (
            (f"http://127.0.0.1:{free_port()}/text", "<urlopen error [Errno 111] Connection refused>"),
            (f"{web}/none", "HTTP Error 404: Not Found"),
            (f"http://127.0.0.1:{silent.getsockname()[1]}/", "timed out"),
        ):
            monkeypatch.setattr(prepare_data, "URL", url)
            assert command.run() == (1, "", f"can't download {url}: {reason}; {fix}")
    assert command.left() == []


def test_a_copy_is_taken_and_another_text_of_that_name_stays(command: Command) -> None:
    copy = command.folder / "copy.txt"
    run_it = "run python -m launcher.trainer.prepare_data"
    with pytest.raises(ConfigError) as missing:
        find_shakespeare()
    assert str(missing.value) == f"{PATH} is missing on rank 0's host; fix: {run_it}"
    assert command.run("--file", copy) == (1, "", f"{copy}: No such file or directory\n")
    copy.write_bytes(TEXT)
    PATH.parent.touch()
    assert command.run("--file", copy) == (1, "", "data: File exists\n")
    PATH.parent.unlink()
    assert command.run("--file", copy)[0] == 0
    assert find_shakespeare().read_bytes() == TEXT
    PATH.write_bytes(TEXT + b"and my own play")
    said = f"{PATH} on rank 0's host is not Tiny Shakespeare; fix: remove it, and {run_it}"
    assert command.run("--file", copy) == (1, "", f"{said}\n")
    assert PATH.read_bytes() == TEXT + b"and my own play"
