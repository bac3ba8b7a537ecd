"""What nvidia-smi and rocm-smi say, played by shell scripts: this machine has no such GPUs."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from machines.patience import long_enough, slowed
from machines.processes import is_alive
from node_process import wait_until

from launcher.job.facts import Gpu, GpuProcess
from launcher.node.facts import gpus, responder
from launcher.node.loop import Loop
from launcher.node.processes import proc
from launcher.session.node_state import read_facts

REST = ", Disabled, 30, Disabled"
LINE = f"0, NVIDIA H200, 143771, 580.159, GPU-8932f937, 143000, Default, 0, 00000000:3B:00.0{REST}"
SECOND = LINE.replace("0, NVIDIA", "1, NVIDIA").replace("GPU-8932f937", "GPU-0a1b2c3d")
NO_PROCESS = 1 << 22  # beyond every pid_max

# Printed by ROCm 5 on a node with MI250 (the fields that are asked for, of two cards).
ROCM_5 = (
    '{"card0": {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10989568", '
    '"Card series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Card model": "0x0b0c", '
    '"Card vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "D65209"}, '
    '"card1": {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "34351349760", '
    '"Card series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Card model": "0x0b0c", '
    '"Card vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "D65209"}, '
    '"system": {"Driver version": "6.2.4"}}'
)
# Printed by ROCm 6 on a node with MI300A: other capitals.
ROCM_6 = (
    '{"card0": {"Device Name": "AMD Instinct MI300A", "Device ID": "0x74a0", "Device Rev": "0x00", '
    '"Subsystem ID": "0x74a0", "GUID": "46363", "Card Series": "AMD Instinct MI300A", "Card Model": "0x74a0", '
    '"Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "N/A", "Node ID": "4", '
    '"GFX Version": "gfx942"}, "system": {"Driver version": "6.16.13"}}'
)
# Printed for cards that this ROCm does not know, and for one in the processor.
ROCM_UNKNOWN = (
    '{"card0": {"Card Series": "N/A", "Card Model": "0x7551", "Card SKU": "APM107573", "GFX Version": "gfx1201", '
    '"VRAM Total Memory (B)": "34208743424", "VRAM Total Used Memory (B)": "29225381888"}, '
    '"card1": {"Card SKU": "PHXGENERIC", "GFX Version": "gfx1103", "VRAM Total Memory (B)": "N/A"}}'
)


def nvidia(gpu_answer: str, apps_answer: str = "") -> str:
    """Return the script of a fake nvidia-smi: what it does when asked for GPUs, and for processes on them."""
    return f'case "$1" in\n--query-gpu=*) {gpu_answer or ":"};;\n--query-compute-apps=*) {apps_answer or ":"};;\nesac'


def say(*lines: str) -> str:
    return "cat <<END\n" + "\n".join(lines) + "\nEND\n"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process of ours with a run's mark."""
    with ExitStack() as ends:
        process = subprocess.Popen(["sleep", "300"], env={"PATH": os.defpath, "LAUNCH_MARK": "old.1.0"})
        ends.callback(process.wait)
        ends.callback(process.kill)
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield process


def query() -> tuple[list[Gpu], str | None]:
    """Ask as a node does, and read the answer as the launcher does."""
    known = {"hostname": "here", "cpu_count": 1, "home": "/", "ssh_client": None}
    known |= {"ssh_address": None, "addresses": [], "workdir_found": True, "script_found": True, "search": {}}
    facts = read_facts({**known, **gpus.query_gpus()}, "")
    return list(facts.gpus), facts.gpu_error


H200 = Gpu(
    0, "NVIDIA H200", 143771, "580.159", 143000, "Default", 0, uuid="GPU-8932f937", bus_id="00000000:3B:00.0"
)  # fmt: skip


# ---- nvidia-smi -----------------------------------------------------------------------------------------------------


def test_processes_are_put_on_their_gpus(fake: Callable[[str, str], None], sleeper: subprocess.Popen[bytes]) -> None:
    apps = say(
        f"GPU-0a1b2c3d, {sleeper.pid}, 120000",
        f"GPU-8932f937, {NO_PROCESS}, [N/A]",
        f"GPU-0a1b2c3d, {sleeper.pid}, 5",
        "GPU-ffffffff, 1, 5",
        "GPU-0a1b2c3d, [N/A], 5",
        "No running processes found",
        "",
    )
    fake("nvidia-smi", nvidia(say(LINE, SECOND), apps))
    found, error = query()
    assert error is None
    assert [gpu.index for gpu in found] == [0, 1]
    owner = getpass.getuser()
    assert found[0].processes == (GpuProcess(NO_PROCESS),)
    assert found[1].processes == (
        GpuProcess(sleeper.pid, 120000, owner, "sleep", "old.1.0"),
        GpuProcess(sleeper.pid, 5, owner, "sleep", "old.1.0"),
    )


def test_a_process_of_a_user_without_a_name_is_told_by_number() -> None:
    if os.geteuid() != 0:
        pytest.skip("to become a user without a name takes root: run these tests as root")
    process = subprocess.Popen(["sleep", "300"], user=54321, group=54321)
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert gpus.describe_process(process.pid) == {"owner": "54321", "name": "sleep", "mark": None}
    finally:
        process.kill()
        process.wait()


def test_a_process_that_has_no_gpu_open_is_another_one_s_number(
    fake: Callable[[str, str], None], sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the driver counts processes in another PID namespace."""
    fake("nvidia-smi", nvidia(say(LINE), say(f"GPU-8932f937, {sleeper.pid}, 1024")))
    monkeypatch.setattr(proc, "CONTROL_DEVICES", (os.devnull,))
    assert query()[0][0].processes == (GpuProcess(sleeper.pid, 1024),)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(proc, "GPU_DEVICES", (str(tmp_path / "nvidia"),))
    with (
        (tmp_path / "nvidia0").open() as device,
        subprocess.Popen(["/bin/sleep", "300"], pass_fds=[device.fileno()]) as user,
    ):
        wait_until(lambda: Path(f"/proc/{user.pid}/comm").read_text() == "sleep\n")
        fake("nvidia-smi", nvidia(say(LINE), say(f"GPU-8932f937, {user.pid}, 1024")))
        assert query()[0][0].processes == (GpuProcess(user.pid, 1024, getpass.getuser(), "sleep"),)
        user.kill()


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        (LINE, H200),
        ("0, GB10, [N/A], 580.95, GPU-1, [N/A], [N/A], [N/A], [N/A]" + REST,
         Gpu(0, "GB10", None, "580.95", compute_mode="[N/A]", uuid="GPU-1", bus_id="[N/A]")),
        ("0, A30, 24576, 535.1, GPU-1, 24000, Exclusive_Process, 12, 00000001:00:00.0" + REST,
         Gpu(0, "A30", 24576, "535.1", 24000, "Exclusive_Process", 12, uuid="GPU-1", bus_id="00000001:00:00.0")),
    ],
)  # fmt: skip
def test_a_line_of_the_table(fake: Callable[[str, str], None], line: str, gpu: Gpu) -> None:
    fake("nvidia-smi", nvidia(say(line)))
    assert query() == ([gpu], None)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("true", None),
        ("echo '0, H100'", "0, H100"),
        ("echo 'Failed to initialize NVML'; echo more; exit 9", "Failed to initialize NVML"),
        ("echo 'No devices were found'", "No devices were found"),
    ],
)
def test_a_tool_without_gpus(fake: Callable[[str, str], None], script: str, error: str | None) -> None:
    fake("nvidia-smi", script)
    assert query() == ([], error)


def test_a_lost_gpu_costs_its_own_line(fake: Callable[[str, str], None]) -> None:
    lost = "Unable to determine the device handle for GPU0000:5D:00.0: GPU is lost."
    fake("nvidia-smi", nvidia(say(LINE, lost) + "exit 15", say("GPU-8932f937, 1, 5") + "exit 15"))
    (gpu,), error = query()
    assert (gpu.index, error) == (0, lost)
    assert [process.pid for process in gpu.processes] == [1]


@pytest.mark.parametrize("apps", ["exit 6", "echo 'GPU-8932f937, 7'"])
def test_without_a_list_of_processes_the_gpus_are_known(fake: Callable[[str, str], None], apps: str) -> None:
    fake("nvidia-smi", nvidia(say(LINE), apps))
    assert query() == ([H200], None)


def test_two_queries_that_hang_are_cut_together(
    fake: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other they would take twice as long; the time-out is shortened for the test."""
    timeout_s = round(slowed(1))
    monkeypatch.setattr(gpus, "TOOL_TIMEOUT_S", timeout_s)
    fake("nvidia-smi", f"echo $$ >>{tmp_path}/pids; exec sleep 300")
    began_at = time.monotonic()
    assert query() == ([], f"nvidia-smi gave no answer in {timeout_s} s")
    assert timeout_s <= time.monotonic() - began_at < 2 * timeout_s
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_rocm_smi_that_hangs(fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TOOL_TIMEOUT_S", 0.05)
    fake("rocm-smi", "exec sleep 300")
    assert query() == ([], "rocm-smi gave no answer in 0 s")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for NVIDIA's driver."""
    monkeypatch.setattr(gpus, "DRIVER", str(tmp_path))


@pytest.mark.usefixtures("driver")
def test_a_driver_that_loads_is_waited_for(fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """As without persistence mode, where nvidia-smi can take longer than a tool that hangs is given."""
    monkeypatch.setattr(gpus, "TOOL_TIMEOUT_S", 0.05)
    fake("nvidia-smi", nvidia("sleep 0.5; " + say(LINE)))
    assert query() == ([H200], None)


@pytest.mark.usefixtures("driver")
def test_slow_gpus_are_waited_for_beyond_the_other_facts(
    fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sent(list[dict[str, Any]]):
        def send(self, kind: str, **fields: Any) -> None:
            self.append(fields)

    def attempt(timeout_s: float) -> None:  # in which the other facts have to come
        monkeypatch.setattr(responder, "FACTS_TIMEOUT_S", timeout_s)
        fake("nvidia-smi", nvidia(f"sleep {timeout_s + 0.5}; " + say(LINE)))
        sent, loop = Sent(), Loop()
        asked = responder.Responder(loop, sent, None, -1)  # type: ignore[arg-type]
        asked.gather_facts({"pythons": []}, {}, "")
        while not sent:
            loop.run_once()
        (told,) = sent
        assert "error" not in told
        assert [gpu["name"] for gpu in told["gpus"]] == ["NVIDIA H200"]

    long_enough(attempt, 0.5)


def test_a_long_list_of_processes_does_not_stall(fake: Callable[[str, str], None]) -> None:
    """More than a pipe holds, while the other answer is waited for."""
    fake("nvidia-smi", nvidia(say(LINE), f"yes 'GPU-8932f937, {NO_PROCESS}, 5' | head -n 5000"))
    (gpu,), error = query()
    assert (len(gpu.processes), error) == (5000, None)


# ---- rocm-smi -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ROCM_5, [
            Gpu(0, "AMD INSTINCT MI250 (MCM) OAM AC MBA", 65520, "6.2.4", 65510),
            Gpu(1, "AMD INSTINCT MI250 (MCM) OAM AC MBA", 65520, "6.2.4", 32760),
        ]),
        (ROCM_6, [Gpu(0, "AMD Instinct MI300A", None, "6.16.13")]),
        (ROCM_UNKNOWN, [Gpu(0, "0x7551", 32624, "", 4753), Gpu(1, "AMD GPU", None, "")]),
        (f"WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n{ROCM_6}",
         [Gpu(0, "AMD Instinct MI300A", None, "6.16.13")]),
    ],
    ids=["ROCm 5", "ROCm 6", "unknown cards", "asleep"],
)  # fmt: skip
def test_cards_of_amd(fake: Callable[[str, str], None], text: str, found: list[Gpu]) -> None:
    fake("rocm-smi", say(text))
    assert query() == (found, None)


def test_ten_cards_stand_in_the_order_of_their_numbers(fake: Callable[[str, str], None]) -> None:
    cards = ", ".join(f'"card{index}": {{"Card Series": "MI300X {index}"}}' for index in (10, 2, 1, 0))
    fake("rocm-smi", say(f"{{{cards}}}"))
    assert [gpu.index for gpu in query()[0]] == [0, 1, 2, 10]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("true", "rocm-smi lists none"),
        ("echo 'cat: /sys/module/amdgpu/initstate: No such file or directory'; exit 1", "rocm-smi lists none"),
        ("echo 'ERROR: GPU[0] : driver not initialized' >&2; exit 2", "ERROR: GPU[0] : driver not initialized"),
        (say('{"card0": "none"}'), "rocm-smi lists none"),
    ],
)
def test_a_rocm_smi_without_cards(fake: Callable[[str, str], None], script: str, error: str) -> None:
    fake("rocm-smi", script)
    assert query() == ([], error)


def test_nvidia_s_tool_is_asked_first(fake: Callable[[str, str], None]) -> None:
    fake("nvidia-smi", nvidia(say(LINE)))
    fake("rocm-smi", "echo must not be asked >&2; exit 1")
    assert query() == ([H200], None)
