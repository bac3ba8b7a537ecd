"""What people meet who join the project: versions that are written down in several places."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from launcher import __version__

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text("utf-8")


def test_every_python_that_the_package_names_is_tested() -> None:
    pythons = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert [int(version.partition(".")[2]) for version in pythons] == [*range(10, 10 + len(pythons))]
    matrix = yaml.safe_load(read(".github", "workflows", "tests.yml"))["jobs"]["unit"]["strategy"]["matrix"]
    assert (matrix["os"], matrix["python"]) == (["ubuntu-latest"], pythons)
    assert [entry["os"] for entry in matrix["include"]] == ["macos-latest"]


def test_ruff_is_the_same_before_a_commit_and_in_make_lint() -> None:
    (pinned,) = re.findall(r"^ruff==(\S+)$", read("constraints.txt"), re.MULTILINE)
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["rev"] == f"v{pinned}"


def test_the_packages_of_the_tests_have_exact_versions() -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", read("constraints.txt").lower(), re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["torch"], *extras["yaml"], *extras["dev"]]
    assert {re.split(r"[><=;\s]", line, maxsplit=1)[0].lower() for line in wanted} <= pinned


def test_workflows_can_only_read() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())


def test_the_newest_version_is_the_same_everywhere() -> None:
    heads = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert heads[1].startswith(f"[{__version__}] - ")
    assert f"| {__version__.rpartition('.')[0]} | yes |" in read("SECURITY.md")
    for name in ("bug.yml", "idea.yml"):
        assert f"placeholder: launch, version {__version__}\n" in read(".github", "ISSUE_TEMPLATE", name)
