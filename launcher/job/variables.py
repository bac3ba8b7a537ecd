"""Which environment variables reach the ranks: a documented allow-list, --env and --env-file.

Other launchers that forward everything break nodes (SSH_CONNECTION, functions, one node's CUDA_VISIBLE_DEVICES), and
those that forward nothing lose WANDB_API_KEY. Values travel over stdin and never appear in a command line.
"""

from __future__ import annotations

import fnmatch
import io
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import UsageError

if TYPE_CHECKING:
    from dotenv.parser import Binding

FORWARDED = (
    "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH*", "PYTORCH_*", "TRITON_*", "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUBLAS_*", "HIP_*", "HSA_*", "MIOPEN_*", "OMP_*", "MKL_*",
    "KMP_*", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "HF_*", "HUGGINGFACE_*",
    "TRANSFORMERS_*", "TOKENIZERS_PARALLELISM", "WANDB_*", "MLFLOW_*", "COMET_*", "CLEARML_*",
)  # fmt: skip
# Set by a surrounding torchrun, and wrong for the new run; or right on one machine only: which GPUs (HIP's
# and ROCm's beside CUDA's), and the name by which NCCL tells hosts apart.
NEVER_FORWARDED = ("TORCHELASTIC_*", "*_VISIBLE_DEVICES", "NCCL_HOSTID")
# The variables that tell a process its GPUs.
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASS(W|PHRASE)|(?<!BY)(?<!COM)(?<!TRES)(?<!SUR)(?<!OVER)(?<!UNDER)PASS$|PWD$|WEBHOOK"
    r"|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|_(KEYS?|AUTH|DSN|PAT|COOKIE)$|AUTHORIZATION|CONN(ECTION)?_?STR",
    re.IGNORECASE,
)
_PASSWORD_NAME = re.compile(r"PASS|PWD", re.IGNORECASE)
_SWITCHES = ("--ask-password",)  # options that name a secret and take no value
_SWITCH = re.compile(r"true|false|yes|no", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,9}(\.\d{0,20})?(e[+-]?\d{1,3})?", re.IGNORECASE)
# What names a secret in JSON and in a command line. A tokenizer's eos_token is none.
_SECRET_WORD = r"([\w-]{0,30}(PASSW(OR)?D|SECRET|API[_-]?KEY)|((ACCESS|AUTH|API)[_-]?)?TOKEN)"
# Every part has a bound: a value may be long, and is looked at from each of its characters on.
_SECRET_VALUE = re.compile(
    r"[a-z][a-z0-9+.-]{0,30}://[^\s/@]{0,300}:[^\s@]{1,300}@"  # a URL with a password, which may hold a bare /
    r"|https?://[^\s/@]{1,300}@"  # a token in the user's place
    r"|(PASSW(OR)?D|PWD|TOKEN|SECRET|(API|ACCESS|ACCOUNT)_?KEY|\bSIG)=[^\s;&]"  # of a query, or libpq's
    rf"|\"{_SECRET_WORD}\"\s{{0,9}}:"
    rf"|--{_SECRET_WORD}\s{{1,9}}\S"
    r"|BEARER\s{1,9}[\w.~+/-]{8}"
    r"|\b(AUTHORIZATION|X-[\w-]{0,30}(KEY|TOKEN)):\s{0,9}\S"  # a header of HTTP
    r"|hooks\.slack\.com/services/"
    # Tokens by their prefixes: GitHub's, Hugging Face's, GitLab's, Slack's, OpenAI's, and AWS's access keys. What
    # follows has no underscore, as /data/hf_transformers_cache has.
    r"|(?-i:\b(gh[pousr]_|github_pat_|hf_|AKIA)[A-Za-z0-9]{16}|\bglpat-[\w-]{16})"
    r"|(?-i:\b(xox[abp]-|sk-)[\w-]{0,60}[A-Za-z0-9]{16})"
    r"|PRIVATE KEY-----",
    re.IGNORECASE,
)
HIDDEN = "***"  # instead of a secret
_MOST_SIGNS = 8  # of a word's equals signs that are looked at
# bash takes its options from these wherever it is started, and with `xtrace` it executes PS4.
_REFUSED = ("SHELLOPTS", "BASHOPTS")


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this environment that every rank gets: those on the allow-list."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _matches(name, FORWARDED) and not _matches(name, NEVER_FORWARDED)
    }


def parse_settings(settings: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read the values of --env: `K=V`, or `K` to forward its value in `environ`."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        _check_name(name, f"--env {_hide_value(setting)!r}")
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: {name} is not set here", f"give its value: --env {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """Read a dotenv file; it is parsed, never executed, and `$NAME` in it stays as it is."""
    from dotenv.parser import parse_stream  # here, because few launches need it

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    found: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        where = f"{path}:{_line_number(binding)}"
        if binding.error or (binding.key is not None and binding.value is None):
            line = _hide_value(binding.original.string.strip())
            raise UsageError(f"{where}: must be NAME=VALUE, got {line[:60]!r}")
        if binding.key is not None and binding.value is not None:
            _check_name(binding.key, where)
            found[binding.key] = binding.value
    return found


def _line_number(binding: Binding) -> int:
    """Return the line of a binding; the parser gives that of the first blank line before it."""
    text = binding.original.string
    blank = text[: len(text) - len(text.lstrip())]
    return binding.original.line + blank.count("\n")


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable's value must not be shown, by its name or by what the value looks like, or isn't already.

    Switches such as `true` are never secret; a number is, only if the name says password: MAX_TOKENS=4096 isn't.
    """
    is_plain = _SWITCH.fullmatch(value) or (_NUMBER.fullmatch(value) and not _PASSWORD_NAME.search(name))
    is_told = (_SECRET_NAME.search(name) and not is_plain) or _SECRET_VALUE.search(value)
    return bool(is_told or value == HIDDEN)


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `***` for each secret: by its name (`K=V`, `--name V`) or its look."""
    return [_hide_secret(word, before) for word, before in zip(words, ["", *words], strict=False)]


def _hide_secret(word: str, before: str) -> str:
    option = "--env=" if word.startswith("--env=") else ""
    parts = word.removeprefix(option).split("=", _MOST_SIGNS)
    for number in range(1, len(parts)):
        name, value = "=".join(parts[:number]), "=".join(parts[number:])
        if is_secret(_as_variable(name), value):
            return option + (HIDDEN if is_secret("", name) else f"{name}={HIDDEN}")
    is_value = before.startswith("--") and "=" not in before and before not in _SWITCHES and not word.startswith("-")
    return HIDDEN if is_secret(_as_variable(before) if is_value else "", word) else word


def _as_variable(option: str) -> str:
    """Return `api_key` for --api-key, and for the +api-key of Hydra."""
    return option.lstrip("+-").replace("-", "_")


def shell_assignments(env: Mapping[str, str]) -> list[str]:
    """Return `NAME=value` words for a shell; a secret becomes `NAME="${NAME}"`, to be set where the line is pasted."""
    return [
        f'{name}="${{{name}}}"' if is_secret(name, value) else f"{name}={shlex.quote(value)}"
        for name, value in env.items()
    ]


def refuse_rank(environ: Mapping[str, str]) -> None:
    """Raise UsageError if this process is a rank of a run of `launch`: every rank would start a run of its own."""
    mark, rank = environ.get("LAUNCH_MARK"), environ.get("RANK")
    if mark and rank:
        who = f"rank {rank} of run {mark.partition('.')[0]}"
        raise UsageError(f"this is {who}, and every rank would start a run", "start launch outside of a run")


def _check_name(name: str, where: str) -> None:
    if not _NAME.match(name):
        raise UsageError(f"{where}: {name!r} isn't a valid variable name")
    if name in _REFUSED:
        text = f"{where}: {name} would change every shell on the hosts, including those that launch uses"
        raise UsageError(text, "use set or shopt in your script")


def _hide_value(setting: str) -> str:
    """Return a setting for a message without its value, which may be a secret."""
    name, equals, _ = setting.partition("=")
    return f"{name}{equals}..." if equals else setting


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
