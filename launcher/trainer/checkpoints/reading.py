"""Read a checkpoint of torch.distributed.checkpoint as data; torch itself would run any code hidden in one.

`.metadata` is a pickle with the location of each tensor; the `.distcp` files hold an archive of torch.save for each
tensor and each other value. torch reads `.metadata` with plain pickle and the values with weights_only=False; torch 2.4
reads the tensors that way, too (FileSystemReader.read_data and DefaultLoadPlanner.load_bytes, torch 2.4 to 2.14).
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, ClassVar

import torch
import torch.serialization
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

METADATA = ".metadata"
_ZIP = b"PK\x03\x04"
_RECORDS = (
    dcp.Metadata,
    dcp.MetadataIndex,
    dcp.StorageMeta,
    dcp.TensorStorageMetadata,
    dcp.ChunkStorageMetadata,
    dcp.BytesStorageMetadata,
    dcp.TensorProperties,
    _StorageInfo,
)


def _get_member(kind: object, name: str) -> object:
    """Replace getattr, which Python 3.11.0 uses to pickle a member of an enumeration."""
    if kind is not dcp._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"{METADATA} asks for {name!r} of {kind!r}")
    return dcp._MEM_FORMAT_ENCODING[name]


# Everything that torch 2.4 to 2.14 write, on Python 3.8 to 3.14, apart from plain values and the dtypes.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__name__): kind for kind in (*_RECORDS, dcp._MEM_FORMAT_ENCODING)},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("builtins", "getattr"): _get_member,
    # Where it was saved; nothing opens that path.
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
}


# These are called with arguments; a record is created empty, and filled by BUILD.
_CALLED = (torch.Size, torch.serialization._get_layout, _get_member, PurePosixPath, dcp._MEM_FORMAT_ENCODING)
# Opcodes that make plain values, and nothing else. The others belong to protocols 0 and 1, take objects from elsewhere
# (persistent ids, the extension registry, buffers), or make what no checkpoint has (keyword arguments, bytearray).
_PLAIN_OPCODES = (
    pickle.PROTO + pickle.FRAME + pickle.STOP + pickle.MARK + pickle.POP + pickle.POP_MARK
    + pickle.NONE + pickle.NEWTRUE + pickle.NEWFALSE + pickle.BINFLOAT
    + pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG1 + pickle.LONG4
    + pickle.BINUNICODE + pickle.SHORT_BINUNICODE + pickle.BINUNICODE8
    + pickle.BINBYTES + pickle.SHORT_BINBYTES + pickle.BINBYTES8
    + pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3
    + pickle.EMPTY_LIST + pickle.EMPTY_DICT + pickle.EMPTY_SET + pickle.FROZENSET
    + pickle.BINGET + pickle.LONG_BINGET + pickle.BINPUT + pickle.LONG_BINPUT + pickle.MEMOIZE
    + pickle.GLOBAL + pickle.STACK_GLOBAL
)  # fmt: skip


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Compare by identity: == would call methods of an object that the file made."""
    return any(value is one for one in allowed)


_PythonUnpickler: Any = pickle._Unpickler  # its methods have no types


class _MetadataUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Build the records of a checkpoint; call, fill and change nothing else.

    Python's own unpickler (in C) sets attributes of anything on the stack, including classes and functions.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))  # not the file: any length in it would be allocated before reading

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None and module == "torch":
            dtype = vars(torch).get(name)
            allowed = dtype if isinstance(dtype, torch.dtype) else None
        if allowed is None:
            raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no checkpoint needs")
        return allowed

    def _refuse_opcode(self) -> None:
        raise pickle.UnpicklingError(f"{METADATA} holds an opcode that no checkpoint needs")

    def _reduce(self) -> None:
        function, arguments = self.stack[-2:]
        if not _is_one_of(function, _CALLED) or type(arguments) is not tuple:
            raise pickle.UnpicklingError(f"{METADATA} calls {type(function).__name__}, which no checkpoint needs")
        self.load_reduce()

    def _make(self) -> None:
        kind, arguments = self.stack[-2:]
        if not _is_one_of(kind, _RECORDS) or type(arguments) is not tuple or arguments:
            raise pickle.UnpicklingError(f"{METADATA} makes an object that no checkpoint needs")
        self.load_newobj()

    def _fill(self) -> None:
        """Fill a record, never a class, a function or a member of an enumeration: those belong to the whole process."""
        target, state = self.stack[-2:]
        if not _is_one_of(type(target), _RECORDS):
            raise pickle.UnpicklingError(f"{METADATA} sets attributes of something that isn't a record")
        if not hasattr(type(target), "__setstate__") and not _is_plain_state(state):
            raise pickle.UnpicklingError(f"{METADATA} sets attributes that no record has")
        self.load_build()

    def _change(self, kind: type, load: Callable[[Any], None], target: object) -> None:
        if type(target) is not kind:
            raise pickle.UnpicklingError(f"{METADATA} changes something that isn't a {kind.__name__}")
        load(self)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), _refuse_opcode),
        **{opcode: _PythonUnpickler.dispatch[opcode] for opcode in _PLAIN_OPCODES},
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _make,
        pickle.BUILD[0]: _fill,
        pickle.APPEND[0]: lambda self: self._change(list, _PythonUnpickler.load_append, self.stack[-2]),
        pickle.SETITEM[0]: lambda self: self._change(dict, _PythonUnpickler.load_setitem, self.stack[-3]),
        # These have the values above a mark, and the container below it.
        pickle.APPENDS[0]: lambda self: self._change(list, _PythonUnpickler.load_appends, self.metastack[-1][-1]),
        pickle.SETITEMS[0]: lambda self: self._change(dict, _PythonUnpickler.load_setitems, self.metastack[-1][-1]),
        pickle.ADDITEMS[0]: lambda self: self._change(set, _PythonUnpickler.load_additems, self.metastack[-1][-1]),
    }


def _is_plain_state(state: object) -> bool:
    return type(state) is dict and all(type(name) is str and not name.startswith("__") for name in state)


class PlainReader(FileSystemReader):
    """Read the files of a checkpoint, and build nothing but tensors and plain values."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Return the location of each tensor; raise UnpicklingError if the file holds anything else."""
        metadata = _MetadataUnpickler((Path(self.path) / METADATA).read_bytes()).load()
        if not isinstance(metadata, dcp.Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError(f"{METADATA} holds no metadata")
        for place in metadata.storage_data.values():
            _check_place(place)
        meta = getattr(metadata, "storage_meta", None) or dcp.StorageMeta()  # torch before 2.4 wrote none
        meta.load_id = self.load_id
        metadata.storage_meta = meta
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        """Read what the plan asks for, and pass it to the planner."""
        by_file = defaultdict(list)
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            by_file[place.relative_path].append((item, place))
        for name, items in by_file.items():
            with (Path(self.path) / name).open("rb") as file:
                for item, place in items:
                    _read_item(file, item, place, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class PlainPlanner(DefaultLoadPlanner):
    """Put what was read into the state, with plain values only."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Put one value where it belongs."""
        name, plain = read_item.dest_index.fqn, _load_plain(value)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], plain)
        else:
            self.state_dict[name] = plain


def _check_place(place: Any) -> None:
    """Refuse a file outside the checkpoint's directory, and one with filters, which torch 2.7 and later can write."""
    if not isinstance(place, _StorageInfo) or PurePosixPath(place.relative_path).name != place.relative_path:
        raise pickle.UnpicklingError(f"{METADATA} names a file outside the checkpoint")
    if getattr(place, "transform_descriptors", None):
        raise pickle.UnpicklingError(f"{METADATA} asks for {place.transform_descriptors!r}, which is not supported")


def _read_item(file: BinaryIO, item: Any, place: _StorageInfo, planner: Any) -> None:
    file.seek(place.offset)
    content = io.BytesIO(file.read(place.length))
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, content)
        return
    tensor = narrow_tensor_by_index(_load_plain(content), item.storage_offsets, item.lengths)
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise ValueError(f"{item.storage_index.fqn} has shape {list(tensor.size())}, not {list(target.size())}")
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def read_plain(path: Path) -> Any:
    """Read a file of torch.save that may hold only tensors and plain values."""
    return _load_plain(io.BytesIO(path.read_bytes()))


def _load_plain(content: io.BytesIO) -> Any:
    """Read what torch.save wrote, and refuse any older or other format.

    torch before 2.6 runs a TorchScript archive whatever weights_only says (CVE-2025-32434).
    """
    if (
        content.getbuffer()[: len(_ZIP)] != _ZIP
        or "constants.pkl" in torch._C.PyTorchFileReader(content).get_all_records()
    ):
        raise pickle.UnpicklingError("it holds something that torch.save doesn't write")
    content.seek(0)
    try:
        return torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own message advises switching this off
        raise pickle.UnpicklingError("it holds more than tensors and plain values") from None
