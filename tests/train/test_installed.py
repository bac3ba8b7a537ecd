"""`launch` as a wheel in an environment of its own: used from another folder, without a checkout and read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

ROOT = Path(__file__).parents[2]
TEMPLATES = {f"launcher/commands/templates/{name}" for name in ("page.html", "pairs.svg", "style.css")}
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
# Root may write whatever modes say, unless it gives that up.
AS_A_USER = ["setpriv", "--bounding-set", "-dac_override", "--"] if os.geteuid() == 0 else []
WHERE = "import sys, launcher; print(*sys.path, launcher.__file__, sep='\\n')"
# As `launch demo`, in a few steps, and without torchrun, whose import would take half of the time.
TRAIN_OVER_SSH = """
import subprocess, sys
from launcher.commands.demo_hosts import demo_hosts
with demo_hosts(1) as hosts:
    reach = ["--ssh-config", str(hosts.ssh_config), "--hosts", *hosts.names, "--cpu", "--nproc", "1", "--start=plain"]
    trainer = ["-m", "launcher.trainer", "--data-size", "64", "--steps-per-epoch", "2"]
    sys.exit(subprocess.call([sys.argv[1], *reach, *trainer]))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="it builds the wheel: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, timeout=DEADLINE_S)
    (path,) = folder.iterdir()
    return path


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


def test_the_wheel_is_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launcher").rglob("*.py")}
    assert names == code | {"launcher/py.typed", *TEMPLATES}


def test_it_is_the_installed_one_and_can_t_be_written(installed: Run, environment: Path) -> None:
    *paths, file = installed("python", "-I", "-c", WHERE).stdout.splitlines()
    assert Path(file).is_relative_to(environment)
    assert not any(Path(path).is_relative_to(ROOT / folder) for path in paths for folder in ("launcher", "tests"))
    assert str(ROOT) not in paths
    done = installed("python", "-c", f"open({str(Path(file).with_name('new.py'))!r}, 'w')")
    assert done.stderr.splitlines()[-1].startswith("PermissionError: ")


def test_test_distributed(installed: Run, tmp_path: Path) -> None:
    done = installed("test-distributed", "1", "--cpu")
    assert done.returncode == 0, done
    assert "12 of 14 checks passed, 2 skipped with 1 rank on 1 host" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "logs"]


def test_the_trainer_over_ssh(installed: Run, environment: Path, tmp_path: Path) -> None:
    done = installed("python", "-I", "-c", TRAIN_OVER_SSH, str(environment / "bin" / "launch"))
    assert done.returncode == 0, done
    assert "1 rank succeeded, 0 processes left on 1 host" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "logs", "outputs"]
