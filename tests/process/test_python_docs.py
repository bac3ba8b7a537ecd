"""The examples of docs/python.md run, and a user's file with them passes `mypy --strict`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machines.launches import write_python
from machines.patience import DEADLINE_S
from node_process import STAND_IN

import launcher

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "python.md").read_text("utf-8")
# Of each section with an example, its anchor's words and the example.
EXAMPLES = dict(re.findall(r"^#+ ([^\n]+)\n(?:(?!^#|```).)*```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
# This machine in the place of GPU hosts, with a torch that starts the ranks and is nothing else.
HERE = {
    r'"gpu\[\d-\d\]"': '"localhost"',
    r"gpus=8": f"nproc=1, cpu=True, python={sys.executable!r}, env={{'PYTHONPATH': {str(STAND_IN)!r}}}",
    r"\nwith launcher.attach": "\nopen('listed', 'w').close()\nwith launcher.attach",
}
TRAINS = "print('step 1')"
# A detached run has left its program after 10 s, and must still run when that lists the runs.
RUNS_LONG = "import os, time\nprint('step 1')\nwhile not os.path.exists('listed'):\n    time.sleep(0.1)\n"
SAVES = "import os\nos.makedirs('outputs', exist_ok=True)\nopen('outputs/model', 'w').close()\n"
FAILS = "raise ValueError('no data')"
SCRIPTS = {
    "From Python": (TRAINS, r"localhost 0 step 1\n0 [\d.]+\n"),
    "Errors": (FAILS, r"localhost 0 None 1\nTraceback (?s:.*)ValueError: no data\n \n\[0\]\n"),
    "Check hosts first": (TRAINS, r"0 localhost None\n"),
    "Runs that outlive the program": (RUNS_LONG, r"(\S+)\n\1 nightly running \[localhost:0\] step 1\n"),
    "Other commands": (SAVES, r"\{'localhost': \[[0-9, ]*\]\}\n0\n"),
    "asyncio": (TRAINS, r"\[0, 0\]\n"),
}


def run(source: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "example.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, *words, "example.py"]
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )  # fmt: skip


def test_every_example_is_run() -> None:
    assert EXAMPLES.keys() == SCRIPTS.keys()
    assert GUIDE.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("section", SCRIPTS)
def test_an_example(section: str, tmp_path: Path) -> None:
    script, said = SCRIPTS[section]
    (tmp_path / "train.py").write_text(script)
    source = f"import sys\nsys.executable = {str(write_python(tmp_path / 'python'))!r}\n{EXAMPLES[section]}"  # it forks
    for pattern, text in HERE.items():
        source = re.sub(pattern, lambda _, text=text: text, source)
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(said, done.stdout), done.stdout


def test_the_examples_are_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="pip install mypy")
    names = "\n".join(f"launcher.{name}" for name in launcher.__all__)
    source = "\n".join([*EXAMPLES.values(), names])
    quiet = ("--follow-imports=silent", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"))
    wrong = "import launcher\n\nwith launcher.lunch([]) as run:\n    run.wait().exit_code.upper()\n"
    wrong += "launcher.launch([], hots='gpu1')\n"
    (tmp_path / "wrong.py").write_text(wrong)
    done = run(source, tmp_path, "-m", "mypy", "--strict", *quiet, "wrong.py")
    assert [line for line in done.stdout.splitlines() if not line.startswith("wrong.py:")] == []
    assert 'Module has no attribute "lunch"' in done.stdout
    assert 'Unexpected keyword argument "hots"' in done.stdout


def test_what_is_public_is_declared_twice_the_same() -> None:
    """For type checkers, and for `import launcher`."""
    tree = ast.parse((ROOT / "launcher" / "__init__.py").read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    declared = {alias.asname or alias.name for node in imports if node.module != "types" for alias in node.names}
    assert declared == set(launcher.__all__) - {"__version__"}
    for name in declared:
        assert getattr(launcher, name) is not None
        assert f"`{name}`" in GUIDE or f"launcher.{name}" in GUIDE, name


def test_packages_of_these_names_do_not_replace_functions() -> None:
    code = """
        import launcher
        from launcher.hosts import ranges
        import launcher.runs.policy
        from launcher import hosts, errors
        assert callable(launcher.hosts) and callable(launcher.runs) and hosts is launcher.hosts
        assert not hasattr(launcher, "none")
    """
    subprocess.run([sys.executable, "-c", re.sub("^ +", "", code, flags=re.MULTILINE)], cwd=ROOT, check=True)


def test_the_import_is_light() -> None:
    """It is paid by programs that only may start a run, and it takes no module that takes time."""
    code = "import sys; before = {*sys.modules}; import launcher; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-Sc", code], cwd=ROOT, capture_output=True, text=True, check=True)
    light = {"launcher", "types", "warnings"}
    assert {name for name in done.stdout.split() if not name.startswith("importlib")} <= light
