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

from launcher.trainer import prepare_data
from launcher.trainer.config import ConfigError
from launcher.trainer.prepare_data import find_shakespeare, main
from tests.train.conftest import free_port

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000


class Answer(BaseHTTPRequestHandler):
    """Serves what its path says."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/text")
            self.end_headers()
            return
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
class Said:
    """What a run of the command wrote on the screen."""

    exit_code: int
    out: str
    err: str


@dataclass
class Command:
    """The command in a folder of its own; `path` is where the text shall be."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def path(self) -> Path:
        return self.folder / "data" / "tinyshakespeare.txt"

    def run(self, *argv: object) -> Said:
        exit_code = main(["--folder", str(self.folder / "data"), *map(str, argv)])
        return Said(exit_code, *self.capsys.readouterr())

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*"))


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with a shorter text to get."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(prepare_data, "SIZE_BYTES", len(TEXT))
    monkeypatch.setattr(prepare_data, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return Command(tmp_path, capsys)


@pytest.mark.parametrize("where", ["text", "moved"])
def test_the_text_is_downloaded_once(where: str, web: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command.path
    monkeypatch.setattr(prepare_data, "URL", f"{web}/{where}")
    assert command.run() == Said(0, f"{path} written, {len(TEXT)} bytes; train on it with --data {path}\n", "")
    assert path.read_bytes() == TEXT
    assert command.left() == ["data", "tinyshakespeare.txt"]
    monkeypatch.setattr(prepare_data, "URL", f"{web}/none")
    assert command.run() == Said(0, f"{path} already exists\n", "")


@pytest.mark.parametrize(("where", "size"), [("wrong", len(TEXT)), ("cut", 1000), ("endless", len(TEXT) + 1)])
def test_another_text_is_refused(
    where: str, size: int, web: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_data, "URL", f"{web}/{where}")
    expected = f"{len(TEXT)} with SHA-256 {hashlib.sha256(TEXT).hexdigest()}"
    assert command.run() == Said(1, "", f"{web}/{where} is not Tiny Shakespeare: {size} bytes, expected {expected}\n")
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
            assert command.run() == Said(1, "", f"can't download {url}: {reason}; {fix}")
    assert command.left() == []


def test_a_copy_is_taken_and_another_text_of_that_name_stays(command: Command) -> None:
    copy, path, folder = command.folder / "copy.txt", command.path, command.path.parent
    run_it = f"run python -m launcher.trainer.prepare_data --folder {folder}"
    with pytest.raises(ConfigError) as missing:
        find_shakespeare(folder)
    assert str(missing.value) == f"{path} is missing on rank 0's host; fix: {run_it}"
    assert command.run("--file", copy) == Said(1, "", f"{copy}: No such file or directory\n")
    copy.write_bytes(TEXT)
    folder.touch()
    assert command.run("--file", copy) == Said(1, "", f"{folder}: File exists\n")
    folder.unlink()
    assert command.run("--file", copy).exit_code == 0
    assert path.read_bytes() == TEXT
    assert find_shakespeare(folder) == path
    path.write_bytes(TEXT + b"and my own play")
    said = f"{path} on rank 0's host is not Tiny Shakespeare; fix: remove it, and {run_it}"
    assert command.run("--file", copy) == Said(1, "", f"{said}\n")
    assert path.read_bytes() == TEXT + b"and my own play"
