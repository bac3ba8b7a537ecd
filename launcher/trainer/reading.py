"""Read a checkpoint of torch.distributed.checkpoint as data: torch itself runs whatever code is hidden in one.

`.metadata` is a pickle that says where each tensor lies; the `.distcp` files hold an archive of torch.save for each
tensor and each other value. torch reads the first by plain pickle and the values with weights_only=False; torch 2.4
reads the tensors so, too (FileSystemReader.read_data and DefaultLoadPlanner.load_bytes, torch 2.4 to 2.14).
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

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
_FORMAT = (
    dcp.Metadata,
    dcp.MetadataIndex,
    dcp.StorageMeta,
    dcp.TensorStorageMetadata,
    dcp.ChunkStorageMetadata,
    dcp.BytesStorageMetadata,
    dcp.TensorProperties,
    dcp._MEM_FORMAT_ENCODING,
    _StorageInfo,
)


def _get_member(kind: object, name: str) -> object:
    """Stand in for getattr, by which Python 3.11.0 writes the member of an enumeration."""
    if kind is not dcp._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"{METADATA} asks for {name!r} of {kind!r}")
    return dcp._MEM_FORMAT_ENCODING[name]


# All that torch 2.4 to 2.14 write, on Python 3.8 to 3.14, beside plain values and the dtypes.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__name__): kind for kind in _FORMAT},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("builtins", "getattr"): _get_member,
    # Where it was saved, which nobody opens.
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None and module == "torch":
            dtype = vars(torch).get(name)
            allowed = dtype if isinstance(dtype, torch.dtype) else None
        if allowed is None:
            raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no checkpoint needs")
        return allowed


class PlainReader(FileSystemReader):
    """Reads the files of a checkpoint, and builds nothing but tensors and plain values."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Return what says where each tensor lies; raise UnpicklingError if it says anything else."""
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, dcp.Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError(f"{METADATA} holds no metadata")
        for place in metadata.storage_data.values():
            _check_place(place)
        meta = getattr(metadata, "storage_meta", None) or dcp.StorageMeta()  # torch before 2.4 wrote none
        meta.load_id = self.load_id
        metadata.storage_meta = meta
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        """Give the planner what it asks for."""
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
    """Puts what was read into the state, with values that are plain."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Put one value where it belongs."""
        name, plain = read_item.dest_index.fqn, _load_plain(value)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], plain)
        else:
            self.state_dict[name] = plain


def _check_place(place: Any) -> None:
    """Keep the reading in the checkpoint's own folder, and to files without filters, which torch 2.7 and later know."""
    if not isinstance(place, _StorageInfo) or PurePosixPath(place.relative_path).name != place.relative_path:
        raise pickle.UnpicklingError(f"{METADATA} names a file outside of the checkpoint")
    if getattr(place, "transform_descriptors", None):
        raise pickle.UnpicklingError(f"{METADATA} asks for {place.transform_descriptors!r}, which this trainer hasn't")


def _read_item(file: BinaryIO, item: Any, place: _StorageInfo, planner: Any) -> None:
    file.seek(place.offset)
    content = io.BytesIO(file.read(place.length))
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, content)
        return
    tensor = narrow_tensor_by_index(_load_plain(content), item.storage_offsets, item.lengths)
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise ValueError(f"{item.storage_index.fqn} is {list(tensor.size())}, and not {list(target.size())}")
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def _load_plain(content: io.BytesIO) -> Any:
    """Read what torch.save wrote, and no older or other format.

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
    except pickle.UnpicklingError:  # torch's words advise to switch this off
        raise pickle.UnpicklingError("it holds more than tensors and plain values") from None
