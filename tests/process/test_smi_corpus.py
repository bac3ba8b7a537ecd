"""What the tools of real GPUs print, in tests/gpu_standin/smi_corpus, and what each answer must lead to.

The values are from public reports, and from a recording; UUIDs and addresses are replaced. A file has a section for
each command, which begins with `$`: its name, and with which code it exits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from machines.example_facts import JOB, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks
from launcher.node.facts import gpus
from launcher.preflight import gpus as gpu_checks
from launcher.preflight import requirements
from launcher.preflight.findings import CheckedHost
from launcher.session.node_state import read_facts
from launcher.wording import count

CORPUS = Path(__file__).parents[1] / "gpu_standin" / "smi_corpus"


def read_sections(path: Path) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("$ "):
            sections[line.removeprefix("$ ")] = []
        elif not line.startswith("#"):
            sections[[*sections][-1]].append(line)
    return sections


def play(fake: Callable[[str, str], None], sections: dict[str, list[str]]) -> None:
    """Put each tool on the PATH, which answers each of its commands."""
    cases: dict[str, str] = {}
    for heading, lines in sections.items():
        command, _, code = heading.partition(": exit ")
        if code:
            tool, _, option = command.partition(" ")
            pattern = "*" if tool != "nvidia-smi" else f"{option}=*"
            answer = "cat <<'END'\n" + "\n".join(lines) + f"\nEND\nexit {code};;"
            cases[tool] = cases.get(tool, "") + f'case "$1" in {pattern}) {answer} esac\n'
    for tool, script in cases.items():
        fake(tool, script)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(CORPUS.glob("*.txt"))])
def test_what_real_tools_print(fake: Callable[[str, str], None], path: Path) -> None:
    sections = read_sections(path)
    play(fake, sections)
    known = {"hostname": "here", "home": "/", "workdir_found": True, "script_found": True, "search": {}}
    found = read_facts({**known, **gpus.query_gpus()}, "")
    cuda = next((heading.split()[-1] for heading in sections if heading.startswith("torch's CUDA")), "13.0")
    build = {"hip_version": "6.4", "cuda_version": None} if cuda == "none" else {"cuda_version": cuda}
    node = CheckedHost(JOB, Host("gpu1"), facts(gpus=found.gpus, gpu_error=found.gpu_error, checks=Checks(), **build))
    leads_to = [count(len(found.gpus), "GPU"), *told(requirements.check(node)), *told(gpu_checks.check(node))]
    assert leads_to == sections["leads to"]
