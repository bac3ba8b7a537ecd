"""Run under the trainer's tests: train as `launcher.trainer` does, and write what this rank ended with."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from launcher import distributed
from launcher.trainer.config import read_config
from launcher.trainer.data import read_text, share_from_main
from launcher.trainer.loop import train
from launcher.trainer.model import build_model

data, folder = sys.argv[1:]
world = distributed.init(timeout_s=30)
try:
    # Each rank has another seed, so equal weights at the end are the work of DDP.
    seed = ["--seed", str(world.rank)]
    config = read_config(["--data", data, "--save-dir", folder, "--steps_per_epoch=5", "--epochs=2", *seed])
    text = share_from_main(lambda: read_text(config.data), world)
    model = build_model(config)
    train(model, text, config, world)
finally:
    distributed.shutdown()
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
digests = [hashlib.sha256(part).hexdigest() for part in (text.numpy().tobytes(), weights)]
Path(folder, f"rank.{world.rank}").write_text(" ".join(digests))
