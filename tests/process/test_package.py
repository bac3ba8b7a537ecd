"""The package as it is uploaded: built, checked, and used read-only from another folder, without a checkout."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher import __version__

ROOT = Path(__file__).parents[2]
SOURCE = f"ssh_torch_launcher-{__version__}"
TEMPLATES = {f"launcher/cli/report_page/templates/{name}" for name in ("page.html", "style.css")}
# As `pip install .` finds it: the build takes the installed hatchling, so nothing is downloaded.
BUILD = ["build", "--no-isolation", "--outdir"]
# Root may write whatever modes say, unless it gives that up.
AS_A_USER = ["setpriv", "--bounding-set", "-dac_override", "--"] if os.geteuid() == 0 else []
WHERE = """
import sys
from importlib.metadata import version
import launcher
print(version("ssh-torch-launcher"), *sys.path, launcher.__file__, sep="\\n")
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


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
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the wheel beside the packages that this Python has; then nobody can write there."""
    if AS_A_USER and shutil.which(AS_A_USER[0]) is None:
        pytest.skip("no setpriv: apt-get install util-linux")
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    present = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "present.pth").write_text("".join(f"{path}\n" for path in present))
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--ignore-installed", str(wheel)]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *install]
    subprocess.run(pip, check=True, timeout=DEADLINE_S, env={"PATH": os.environ["PATH"], "HOME": str(folder)})
    paths = [packages, *packages.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    yield folder
    for path, mode in modes.items():
        path.chmod(mode)


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Run:
    """Run a program of the environment in an empty folder, as a user who has just logged in."""
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}

    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AS_A_USER, str(environment / "bin" / program), *words],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(name))


def test_an_index_would_accept_both(built: Path) -> None:
    files = sorted(path.name for path in built.iterdir())
    assert files == [f"{SOURCE}-py3-none-any.whl", f"{SOURCE}.tar.gz"]
    said = python("-m", "twine", "--no-color", "check", "--strict", *(str(built / name) for name in files))
    assert said.count("PASSED") == 2


def test_they_hold_the_package_and_nothing_else(built: Path, wheel: Path) -> None:
    """The wheel is made of what the source distribution has: no tests, no documents."""
    with tarfile.open(built / f"{SOURCE}.tar.gz") as source:
        names = {name.removeprefix(f"{SOURCE}/") for name in source.getnames()}
    others = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launcher").rglob("*.py")}
    package = code | {"launcher/py.typed", *TEMPLATES}
    assert names == others | package
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == package


def test_it_is_the_installed_one_and_can_t_be_written(installed: Run, environment: Path) -> None:
    version, *paths, file = installed("python", "-I", "-c", WHERE).stdout.splitlines()
    assert version == __version__
    assert Path(file).is_relative_to(environment)
    assert not any(Path(path).is_relative_to(ROOT / folder) for path in paths for folder in ("launcher", "tests"))
    assert str(ROOT) not in paths
    done = installed("python", "-c", f"open({str(Path(file).with_name('new.py'))!r}, 'w')")
    assert done.stderr.splitlines()[-1].startswith("PermissionError: ")
    assert installed("launch", "--version").stdout == f"launch, version {__version__}\n"
    (info,) = environment.glob("lib/python3*/site-packages/ssh_torch_launcher*.dist-info")
    programs = {entry.name for entry in PathDistribution(info).entry_points}
    assert programs == {"launch", "test-distributed"}
    assert all(os.access(environment / "bin" / name, os.X_OK) for name in programs)


def test_a_run(installed: Run, tmp_path: Path) -> None:
    """The address needs no login."""
    done = installed("launch", "--hosts", "127.0.0.1", "--cpu", "--nproc", "1", "--no-python", "true")
    assert done.returncode == 0, done
    assert "1 rank succeeded, 0 processes left on 1 host" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "logs"]


def test_what_an_index_shows(metadata: Message) -> None:
    assert metadata["Name"] == "ssh-torch-launcher"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    pythons = re.findall(r":: (3\.\d+)$", "\n".join(metadata.get_all("Classifier", [])), re.MULTILINE)
    assert metadata["Requires-Python"] == f">={pythons[0]}"
