"""The package as it is uploaded: built, checked, and used without anything from this checkout."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher import __version__

ROOT = Path(__file__).parents[2]
SOURCE = f"ssh_torch_launcher-{__version__}"
TEMPLATES = {f"launcher/commands/templates/{name}" for name in ("page.html", "pairs.svg", "style.css")}
# As `pip install .` finds it: the build takes the installed hatchling, so nothing is downloaded.
BUILD = ["build", "--no-isolation", "--outdir"]
USE = """
import sys
from importlib.metadata import version
import launcher
from launcher.cli.main import main
assert launcher.__file__.startswith(sys.argv[1]), launcher.__file__
assert version("ssh-torch-launcher") == launcher.__version__
main(["--version"])
"""


def python(*words: str, cwd: Path = ROOT) -> str:
    argv = [sys.executable, "-I", *words]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and from it the wheel: it must have all that a build needs."""
    for package in ("build", "hatchling", "twine"):
        pytest.importorskip(package, reason=f"pip install {package}")
    folder = tmp_path_factory.mktemp("dist")
    python("-m", *BUILD, str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    python("-m", "pip", "install", *options, "--target", str(folder), str(wheel))
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(name))


def test_an_index_would_accept_both(built: Path) -> None:
    files = sorted(path.name for path in built.iterdir())
    assert files == [f"{SOURCE}-py3-none-any.whl", f"{SOURCE}.tar.gz"]
    said = python("-m", "twine", "--no-color", "check", "--strict", *(str(built / name) for name in files))
    assert said.count("PASSED") == 2


def test_the_source_has_what_the_wheel_needs_and_no_tests_or_documents(built: Path) -> None:
    with tarfile.open(built / f"{SOURCE}.tar.gz") as source:
        names = {name.removeprefix(f"{SOURCE}/") for name in source.getnames()}
    others = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {name for name in names if not name.startswith("launcher/")} == others
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launcher").rglob("*.py")}
    assert names - others == kept | {"launcher/py.typed", *TEMPLATES}


def test_the_wheel_is_used_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(installed)!r})\n{USE}"
    assert python("-c", program, str(installed), cwd=tmp_path) == f"launch, version {__version__}\n"
    assert (installed / "launcher/py.typed").is_file()
    (info,) = installed.glob("*.dist-info")
    programs = {entry.name: entry.value for entry in PathDistribution(info).entry_points}
    assert programs.keys() == {"launch", "test-distributed"} == {path.name for path in (installed / "bin").iterdir()}
    assert all(os.access(installed / "bin" / name, os.X_OK) for name in programs)


def test_what_an_index_shows(metadata: Message) -> None:
    assert metadata["Name"] == "ssh-torch-launcher"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    pythons = re.findall(r":: (3\.\d+)$", "\n".join(metadata.get_all("Classifier", [])), re.MULTILINE)
    assert metadata["Requires-Python"] == f">={pythons[0]}"
