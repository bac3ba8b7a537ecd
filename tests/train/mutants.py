"""Break the trainer on purpose, one fault at a time, and see that its tests notice each.

`python tests/train/mutants.py [NAME...]`. Each mutant is one change of text in a copy of the checkout; the tests named
with it must fail there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
STEPS, ON_GPUS, CHECKPOINT = (
    f"tests/train/test_{name}.py" for name in ("trainer_steps", "on_gpus", "trainer_checkpoint")
)
TRAIN, SPLIT, SAVED, JOINED = (
    f"launcher/{name}.py" for name in ("trainer/train", "trainer/parallel", "trainer/checkpoint", "distributed")
)
FAULT = 'raise RuntimeError("mutant")'
# What the text of some mutants calls; it is put at the end of the file that they change.
CALLED = """

def forget(state):
    return {"optimizer": {name: {key: 0 * one for key, one in known.items()}
                          for name, known in state["optimizer"].items()}}


def own_shards(model):
    shards = [getattr(one, "_local_tensor", one).detach() for one in model.parameters()]
    for shard, one in zip(shards, model.parameters()):
        shard.grad = getattr(one.grad, "_local_tensor", one.grad)
    return shards


def unsummed(kind):
    def take_own(output_layouts, use_local_output, module, output, mesh):
        return output.to_local().chunk(mesh.size(), 1)[mesh.get_local_rank()]
    return type("Unsummed", (kind,), {"_prepare_output_fn": staticmethod(take_own)})
"""


class Mutant(NamedTuple):
    """One fault: what the old text becomes, in which file, and the tests that must notice."""

    path: str
    old: str
    new: str
    tests: str = STEPS


MUTANTS = {
    "no-clipping": Mutant(TRAIN, "config.clip_norm or math.inf", "math.inf"),
    "late-rate": Mutant(TRAIN, "learning_rate(step, self.steps", "learning_rate(max(1, step - 1), self.steps"),
    "all-decay": Mutant(TRAIN, "decays = parameter.dim() > 1 and", "decays = True or"),
    "undivided-passes": Mutant(TRAIN, "self.module(*batch) / config.accumulate", "self.module(*batch)"),
    "no-autocast": Mutant(TRAIN, 'enabled=config.amp != "off"', "enabled=False"),
    "no-unscale": Mutant(TRAIN, "self.scaler.unscale_(self.optimizer)", "pass"),
    "no-scaler": Mutant(TRAIN, 'enabled=config.amp == "fp16"', "enabled=False"),
    "no-sync-fails": Mutant(SPLIT, "return module.no_sync()", FAULT),
    "compile-fails": Mutant(SPLIT, "model.compile()", FAULT),
    "block-compile-fails": Mutant(SPLIT, "block.compile()", FAULT),
    "no-all-reduce": Mutant(SPLIT, "set_requires_all_reduce(is_last)", "set_requires_all_reduce(False)"),
    "other-random-numbers": Mutant(SAVED, 'torch.set_rng_state(own["cpu"])', "pass"),
    "optimizer-not-resumed": Mutant(SAVED, 'known["state"] = saved["optimizer"]', "pass"),
    "shards-of-optimizer-not-resumed": Mutant(
        SAVED, 'optimizer["state"] = state', 'optimizer["state"] = forget(state)'
    ),
    "norm-of-own-shard": Mutant(TRAIN, "(self.model.parameters(), config", "(own_shards(self.model), config"),
    "no-sum-over-tp": Mutant(SPLIT, '"mlp.2": RowwiseParallel(', '"mlp.2": unsummed(RowwiseParallel)('),
    "no-sum-of-validation": Mutant(TRAIN, "dist.all_reduce(total)", "pass"),
    "nan-gradient-saved": Mutant(TRAIN, "if not self.scaler.is_enabled():", "if False:", CHECKPOINT),
    "fused-fails": Mutant(TRAIN, "fused=True if", 'fused=int("mutant") if', ON_GPUS),
    "cuda-random-fails": Mutant(SAVED, 'torch.cuda.set_rng_state(own["cuda"], self._world.device)', FAULT, ON_GPUS),
    "scaler-not-resumed": Mutant(SAVED, 'self._scaler.load_state_dict(progress["scaler"])', FAULT, ON_GPUS),
    "no-set-device": Mutant(JOINED, "torch.cuda.set_device(device)", "pass", ON_GPUS),
    "no-device-id": Mutant(JOINED, 'device_id=device if device.type == "cuda" else None', "device_id=None", ON_GPUS),
}


def main(words: list[str]) -> int:
    """Try the mutants that were named, or all; return 1 if the tests of one passed, and 2 for an unknown name."""
    if unknown := [word for word in words if word not in MUTANTS]:
        print(f"no mutant {unknown[0]!r}; fix: choose from {', '.join(MUTANTS)}", file=sys.stderr)
        return 2
    exit_code = 0
    for name in words or MUTANTS:
        if not (said := catch(MUTANTS[name])):
            exit_code = 1
        print(f"{name}: {said or 'NOT NOTICED'}", flush=True)
    return exit_code


def catch(mutant: Mutant) -> str:
    """Return why the tests fail with that fault; "" if they pass; ValueError if the text isn't there exactly once."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        left_out = shutil.ignore_patterns(".*", "build", "logs", "outputs")
        shutil.copytree(ROOT, folder, ignore=left_out, dirs_exist_ok=True)
        path = Path(folder) / mutant.path
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.path} has {mutant.old!r} {text.count(mutant.old)} times, not once")
        path.write_text(text.replace(mutant.old, mutant.new) + CALLED)
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.tests]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ValueError(f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    reasons = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E  ")]
    return reasons[0] if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
