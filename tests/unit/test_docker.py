"""The files of docker/ agree with each other; what they start is in tests/slurm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.hosts.hostfiles import read_hostfile
from launcher.hosts.ranges import expand_names

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = DOCKER.parent / "compose.yaml"


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_hostfile_and_slurm_name_the_nodes_of_the_cluster(services: dict[str, Any]) -> None:
    nodes = [name for name, service in services.items() if service["command"] == ["node"]]
    assert [host.name for host in read_hostfile(DOCKER / "hostfile")] == nodes
    for name, service in services.items():
        assert list(expand_names(service["environment"]["NODES"])) == nodes
        assert service["hostname"] == service["container_name"] == name
    assert f"SlurmctldHost={(services.keys() - nodes).pop()}\n" in (DOCKER / "slurm.conf").read_text()


def test_compose_sets_the_arguments_that_the_image_takes(services: dict[str, Any]) -> None:
    taken = re.findall(r"^ARG (\w+)=(.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    for service in services.values():
        assert service["build"]["args"] == {name: f"${{{name}:-{default}}}" for name, default in taken}
        context = (COMPOSE.parent / service["build"]["context"]).resolve()
        assert context / service["build"]["dockerfile"] == DOCKER / "Dockerfile"
        assert f"{service['build']['context']}:/project" in service["volumes"]


def test_all_that_the_image_copies_is_there_and_not_ignored() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for words in copied for source in words.split()}
    assert all((DOCKER.parent / source).exists() for source in sources)
    ignored, *rules = [
        line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert ignored == "*"
    assert {source.partition("/")[0] for source in sources} == {rule[1:] for rule in rules if rule.startswith("!")}
