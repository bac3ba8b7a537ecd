"""Versions that are told without an import of torch: from its version.py, and from the directories beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.programs.search import describe_torch


@pytest.mark.parametrize(
    ("text", "files", "versions"),
    [
        (
            "from typing import Optional\n__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\n"
            "hip: Optional[str] = None\n",
            ["nvidia_nccl_cu13-2.28.3.dist-info", "nvidia_nccl_cu12-2.27.5.dist-info", "numpy-2.3.1.dist-info"],
            ("2.13.0+cu128", "12.8", None, "2.27.5", "2.3.1"),
        ),
        ('__version__ = "2.1.0a0+gitab"\ncuda = "11.8"\nhip = None\n', [], ("2.1.0a0+gitab", "11.8", None, None, None)),
        (
            "__version__ = '2.4.1+rocm6.1'\ncuda: str | None = None\nhip: str | None = '6.1.40091'\n",
            ["nvidia_nccl_cu12-2.20.5.dist-info"],
            ("2.4.1+rocm6.1", None, "6.1.40091", None, None),
        ),
        ("debug = False\n", [], ("unknown", None, None, None, None)),
        (None, [], ("unknown", None, None, None, None)),
    ],
    ids=["CUDA", "built from source", "ROCm", "another form", "no file"],
)  # fmt: skip
def test_versions_are_read_without_an_import(
    tmp_path: Path, text: str | None, files: list[str], versions: tuple[str | None, ...]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit(1)")
    if text is not None:
        (tmp_path / "torch" / "version.py").write_text(text)
    for name in files:
        (tmp_path / name).mkdir()
    found = describe_torch(str(tmp_path / "torch"))
    assert tuple(found[name] for name in ("torch", "cuda", "hip", "nccl", "numpy")) == versions
