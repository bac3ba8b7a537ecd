"""Checkpoints are read as data: whatever code somebody hides in one doesn't run, and real ones still load."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata

from launcher.trainer import __main__ as trainer

SHORT = ["--save-dir", "outputs", "--data-size", "100", "--steps-per-epoch", "2", "--layers", "1", "--batch-size", "2"]
STEP = Path("outputs/checkpoints/step_2")
DATA = "__0_0.distcp"
REFUSED = f"{STEP}: can't be read: UnpicklingError: "


class Trap:
    """Leaves a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


class Hooked:
    """Calls methods of what may be named, to get from there to everything."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (BytesStorageMetadata, "__init__")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Train two steps, and return the checkpoint."""
    monkeypatch.chdir(tmp_path)
    assert trainer.main([*SHORT, "--epochs", "1"]) == 0
    capsys.readouterr()
    return STEP


def read_metadata(step: Path) -> Any:
    return pickle.loads((step / ".metadata").read_bytes())


def put(value: object) -> Callable[[Path], None]:
    """Return what writes a value in the place of the metadata."""
    return lambda step: (step / ".metadata").write_bytes(pickle.dumps(value)) and None


def hide_in_planner_data(step: Path) -> None:
    metadata = read_metadata(step)
    metadata.planner_data["x"] = Trap()
    (step / ".metadata").write_bytes(pickle.dumps(metadata, protocol=2))


def point_elsewhere(step: Path) -> None:
    metadata = read_metadata(step)
    for place in metadata.storage_data.values():
        place.relative_path = f"../{step.name}/{DATA}"
    (step / ".metadata").write_bytes(pickle.dumps(metadata))


def prepend(opcodes: bytes) -> Callable[[Path], None]:
    """Return what runs these first, and leaves the metadata as it was otherwise."""

    def spoil(step: Path) -> None:
        body = pickle.dumps(read_metadata(step), protocol=2)
        (step / ".metadata").write_bytes(body[:2] + opcodes + body[2:])

    return spoil


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def naming(kind: object) -> bytes:
    return f"c{kind.__module__}\n{kind.__name__}\n".encode()  # type: ignore[attr-defined]


NAMED_SO = b"}" + text("name") + text("../x") + b"s"  # {"name": "../x"}
PATH = b"cpathlib\nPosixPath\n"
MEMBER = naming(_MEM_FORMAT_ENCODING) + b"K\x00\x85R"


def replace_items(step: Path, ending: str, content: bytes) -> None:
    """Let the items of this name lead to other content at the end of the data."""
    metadata = read_metadata(step)
    offset = (step / DATA).stat().st_size
    with (step / DATA).open("ab") as file:
        file.write(content)
    found = [place for index, place in metadata.storage_data.items() if index.fqn.endswith(ending)]
    assert found
    for place in found:
        place.offset, place.length = offset, len(content)
    (step / ".metadata").write_bytes(pickle.dumps(metadata))


def archive(value: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def script() -> bytes:
    """Return what torch.load takes for TorchScript, which torch before 2.6 runs."""
    file = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(file)
    writer.write_record("constants.pkl", b"x", 1)
    writer.write_end_of_file()
    return file.getvalue()


def in_item(ending: str, make: Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda step: replace_items(step, ending, make())


NO_RECORD = ".metadata sets attributes of something that isn't a record"
# What the opcodes do that find_class never sees: to BUILD a class is to change it for the whole process.
OPCODES = [
    (PATH + b"(N" + NAMED_SO + b"tb0", NO_RECORD),
    (b"ctorch.serialization\n_get_layout\n" + NAMED_SO + b"b0", NO_RECORD),
    (MEMBER + NAMED_SO + b"b0", NO_RECORD),
    (naming(BytesStorageMetadata) + b")\x81(N" + NAMED_SO + b"tb0", ".metadata sets attributes that no record has"),
    (naming(BytesStorageMetadata) + b")\x81}" + text("__setstate__") + PATH + b"sb0",
     ".metadata sets attributes that no record has"),
    (naming(BytesStorageMetadata) + b")R0", ".metadata calls type, which no checkpoint needs"),
    (text("x") + b")R0", ".metadata calls str, which no checkpoint needs"),
    (PATH + b")\x810", ".metadata makes an object that no checkpoint needs"),
    (PATH + b"Na0", ".metadata changes something that isn't a list"),
    (PATH + b"(Ne0", ".metadata changes something that isn't a list"),
    (PATH + b"NNs0", ".metadata changes something that isn't a dict"),
    (PATH + b"(NNu0", ".metadata changes something that isn't a dict"),
    (PATH + b"(N\x900", ".metadata changes something that isn't a set"),
    *[(opcodes, ".metadata holds an opcode that no checkpoint needs") for opcodes in (
        b"P1\n0", b"NQ0", b"\x82\x010", b"(" + PATH + b"o0", b"(ipathlib\nPosixPath\n0", PATH + b")}\x920",
        b"\x96" + b"\xff" * 7 + b"\x7f0",
    )],
]  # fmt: skip


@pytest.mark.parametrize(("opcodes", "said"), OPCODES)
def test_a_checkpoint_changes_nothing_but_itself(
    saved: Path, capsys: pytest.CaptureFixture[str], opcodes: bytes, said: str
) -> None:
    name = PurePosixPath.name
    try:
        prepend(opcodes)(saved)
        assert trainer.main([*SHORT, "--epochs", "2", "--resume", "auto"]) == 2
        assert capsys.readouterr().err == f"{REFUSED}{said}; fix: name another one with --resume PATH\n"
        assert PurePosixPath.name is name
        assert not hasattr(torch.serialization._get_layout, "name")
        assert _MEM_FORMAT_ENCODING(0).name == "TORCH_CONTIGUOUS_FORMAT"
    finally:  # the next test would suffer
        if PurePosixPath.name is not name:
            PurePosixPath.name = name  # type: ignore[method-assign]
        vars(torch.serialization._get_layout).pop("name", None)
        vars(_MEM_FORMAT_ENCODING(0)).pop("name", None)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_checkpoint_loads_whatever_protocol_wrote_it(saved: Path, protocol: int) -> None:
    (saved / ".metadata").write_bytes(pickle.dumps(read_metadata(saved), protocol=protocol))
    assert trainer.main([*SHORT, "--epochs", "2", "--resume", "auto"]) == 0


@pytest.mark.parametrize("how", ["auto", "path"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (put(Trap()), ".metadata holds posix.mkdir, which no checkpoint needs"),
        (hide_in_planner_data, ".metadata holds posix.mkdir, which no checkpoint needs"),
        (put(Hooked()), f".metadata asks for '__init__' of {BytesStorageMetadata!r}"),
        (put({"state_dict_metadata": {}}), ".metadata holds no metadata"),
        (point_elsewhere, ".metadata names a file outside the checkpoint"),
        (in_item("weight", lambda: archive(Trap())), "it holds more than tensors and plain values"),
        (in_item("weight", lambda: pickle.dumps(Trap())), "it holds something that torch.save doesn't write"),
        (in_item("weight", lambda: archive(Trap(), _use_new_zipfile_serialization=False)),
         "it holds something that torch.save doesn't write"),
        (in_item("weight", script), "it holds something that torch.save doesn't write"),
    ],
)  # fmt: skip
def test_code_in_a_checkpoint_does_not_run(
    saved: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], said: str, how: str
) -> None:
    spoil(saved)
    assert trainer.main([*SHORT, "--epochs", "2", "--resume", "auto" if how == "auto" else str(saved)]) == 2
    assert capsys.readouterr().err == f"{REFUSED}{said}; fix: name another one with --resume PATH\n"
    assert not Path("pwned").exists()


def test_the_options_of_the_optimizer_are_not_read(saved: Path) -> None:
    replace_items(saved, ".lr", pickle.dumps(Trap()))
    assert trainer.main([*SHORT, "--epochs", "2", "--resume", "auto"]) == 0
    assert not Path("pwned").exists()


class OldPickler(pickle._Pickler):
    """Writes a member of an enumeration as Python 3.11.0 did."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, _MEM_FORMAT_ENCODING):
            return getattr, (_MEM_FORMAT_ENCODING, value.name)
        return NotImplemented


def test_a_checkpoint_of_torch_2_4_still_loads(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its metadata has fewer fields; the layout is the same."""
    metadata = read_metadata(saved)
    for name in ("version", "storage_meta"):
        vars(metadata).pop(name, None)
    for place in metadata.storage_data.values():
        vars(place).pop("transform_descriptors", None)
    with (saved / ".metadata").open("wb") as file:
        OldPickler(file, 4).dump(metadata)
    assert b"getattr" in (saved / ".metadata").read_bytes()
    assert trainer.main([*SHORT, "--epochs", "2", "--resume", "auto"]) == 0
    assert f"resume  {saved}, step 2 of epoch 2" in capsys.readouterr().out.splitlines()
