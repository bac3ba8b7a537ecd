"""What `python -m bench soak` changes of `launch` reaches a controller."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile

from machines.patience import DEADLINE_S

from bench.soak import HURRY

PACKS = "import sys; sys.stdout.buffer.write(archives.pack_launcher().content)"


def test_a_controller_of_the_soak_pauses_for_a_moment() -> None:
    words = [sys.executable, "-c", HURRY + PACKS]
    done = subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=True)
    archive = zipfile.ZipFile(io.BytesIO(done.stdout))
    policy = archive.read("launcher/runs/policy.py")
    assert b"\nFIRST_PAUSE_S = 0.05\n" in policy
    assert "launcher/runs/run.py" in archive.namelist()
