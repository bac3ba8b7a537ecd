"""Who types an option of torchrun is told what takes its place in `launch`."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from launcher.cli import usage_errors
from launcher.cli.run import command

NAMES = {name.lstrip("-") for option in command.params for name in option.opts}
TORCHRUNS = {name for action in get_args_parser()._actions for name in action.option_strings}


@pytest.mark.parametrize("option", sorted(TORCHRUNS - {"-h", "--help"}))
def test_each_option_of_torchrun_has_an_answer(option: str) -> None:
    word = option.lstrip("-").replace("_", "-")
    assert usage_errors._find_flag(word, {name: name for name in NAMES}) or word in usage_errors._FIXES
