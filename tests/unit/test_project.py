"""What people meet who join the project: versions, the changelog, workflows, forms, and what they link to."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import __version__

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]  # in the order of Keep a Changelog
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def read(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text("utf-8")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(".github", "workflows", "tests.yml"))["jobs"]
    return found


# versions


def test_every_python_that_the_package_names_is_tested(jobs: dict[str, Any]) -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert [int(version.partition(".")[2]) for version in PYTHONS] == [*range(10, 10 + len(PYTHONS))]
    matrix = jobs["unit"]["strategy"]["matrix"]
    assert (matrix["os"], matrix["python"]) == (["ubuntu-latest"], PYTHONS)
    assert [entry["os"] for entry in matrix["include"]] == ["macos-latest"]
    used = [
        step["with"]["python-version"] for job in jobs.values() for step in job["steps"] if "setup-python" in str(step)
    ]
    more = [entry["python"] for entry in matrix["include"]] + [version for version in used if "{" not in version]
    assert set(more) <= set(PYTHONS)


def test_ruff_is_the_same_before_a_commit_and_in_make_lint() -> None:
    (pinned,) = re.findall(r"^ruff==(\S+)$", read("constraints.txt"), re.MULTILINE)
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["rev"] == f"v{pinned}"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


def test_the_packages_of_the_tests_have_exact_versions() -> None:
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    pinned = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines]
    assert pinned == sorted(pinned)
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["torch"], *extras["yaml"], *extras["dev"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[><=;\s]", line, maxsplit=1)[0]).lower() for line in wanted}
    assert names - set(pinned) == set()


# the changelog


def test_the_newest_version_of_the_changelog_is_the_one_of_launch() -> None:
    heads = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]]
    assert None not in releases
    versions = [tuple(map(int, found.groups()[:3])) for found in releases if found]
    assert versions == sorted(set(versions), reverse=True)
    assert ".".join(map(str, versions[0])) == __version__
    days = [date.fromisoformat(found[4]) for found in releases if found]
    assert days == sorted(days, reverse=True)


def test_the_changelog_sorts_its_entries() -> None:
    _, *versions = re.split(r"^## .*$", read("CHANGELOG.md"), flags=re.MULTILINE)
    for text in versions:
        kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
        assert [line for line in text.splitlines() if line and not line.startswith(("### ", "- "))] == []
        entries = re.findall(r"^- (.*)$", text, re.MULTILINE)
        assert len(entries) == len(set(entries))
        assert [entry for entry in entries if not entry.endswith(".")] == []


# workflows and forms


def test_each_step_can_be_repeated_in_a_checkout(jobs: dict[str, Any]) -> None:
    targets = re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE)
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for line in lines:
        assert re.fullmatch(r'(?:sudo env(?: "\w+=\$\w+")+ )?(?:make \w+(?: PYTEST_ARGS=\S+)?|\.ci/run)', line), line
    assert {word for line in lines for word in re.findall(r"make (\w+)", line)} <= set(targets)
    assert sum(line.endswith(".ci/run") for line in lines) == 1


def test_workflows_can_only_read() -> None:
    for path in (GITHUB / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert "permissions" not in job
            (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
            assert checkout["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_name_the_version_that_is_newest(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    (version,) = [field for field in form["body"] if field.get("id") == "version"]
    assert version["attributes"]["placeholder"] == f"launch, version {__version__}"
    links = re.findall(r"\]\(\.\./blob/HEAD/([^)]*)\)", path.read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_supported_version_is_the_newest() -> None:
    assert f"| {__version__.rpartition('.')[0]} | yes |" in read("SECURITY.md")
