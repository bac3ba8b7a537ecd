"""Variables for the ranks: the allow-list, --env, dotenv files, and what may be shown of them."""

from __future__ import annotations

import pytest

from launcher.errors import EXIT_USAGE, UsageError
from launcher.job.variables import forwarded, hide_secrets, is_secret, parse_settings, read_env_file, shell_assignments


def test_only_what_the_list_allows_is_forwarded():
    wanted = {
        "CLEARML_TASK": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "FI_PROVIDER": "efa",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HF_HOME": "",
        "HIP_LAUNCH_BLOCKING": "1",
        "HF_TOKEN": "t",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": "/x",
        "PYTORCH_CUDA_ALLOC_CONF": "y",
        "TORCH_LOGS": "",
        "WANDB_API_KEY": "s",
    }
    unwanted = [
        "PATH", "HOME", "SSH_CONNECTION", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES", "NCCL_HOSTID", "LD_PRELOAD", "nccl_debug", "XNCCL_DEBUG",
        "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "BASH_FUNC_x%%", "PYTHONHOME", "PYTHONSTARTUP",
    ]  # fmt: skip
    assert forwarded(dict.fromkeys(unwanted, "1") | wanted) == wanted


def test_settings_of_the_command_line():
    assert parse_settings(["A=1", "B=", "_C=x=y z", "HOME", "A=2"], {"HOME": "/root"}) == {
        "A": "2",
        "B": "",
        "_C": "x=y z",
        "HOME": "/root",
    }


@pytest.mark.parametrize(
    ("setting", "message", "fix"),
    [
        ("NO", "--env NO: NO is not set here", "give its value: --env NO=VALUE"),
        ("", "--env '': '' isn't a valid variable name", ""),
        ("A B=1", "--env 'A B=...': 'A B' isn't a valid variable name", ""),
        ("A\n=1", "--env 'A\\n=...': 'A\\n' isn't a valid variable name", ""),
        ("É=1", "--env 'É=...': 'É' isn't a valid variable name", ""),
        *(
            (
                f"{name}=xtrace",
                f"--env '{name}=...': {name} would change every shell on the hosts, including those that launch uses",
                "use set or shopt in your script",
            )
            for name in ("SHELLOPTS", "BASHOPTS")
        ),
    ],
)
def test_a_bad_setting_is_refused(setting, message, fix):
    with pytest.raises(UsageError) as caught:
        parse_settings([setting], {"HOME": "/root"})
    assert (caught.value.message, caught.value.fix, caught.value.exit_code) == (message, fix, EXIT_USAGE)


DOTENV = """\
# a comment
PLAIN=two words   # a comment
export EXPORTED=1

EMPTY=
SINGLE='# $HOME ${A} `id` $(id) "'
DOUBLE="a\\tb\\n\\"c\\" $HOME"
LINES="one
two"
SPACED = x
PLAIN=again#no comment
UNICODE=é€
"""


@pytest.mark.parametrize(("start", "newline"), [("", "\n"), ("\ufeff", "\r\n")])
def test_a_dotenv_file_is_parsed_and_never_executed(tmp_path, start, newline):
    path = tmp_path / "env"
    path.write_bytes((start + DOTENV.replace("\n", newline)).encode())
    assert read_env_file(path) == {
        "EXPORTED": "1",
        "EMPTY": "",
        "SINGLE": '# $HOME ${A} `id` $(id) "',
        "DOUBLE": 'a\tb\n"c" $HOME',
        "LINES": "one\ntwo",
        "SPACED": "x",
        "PLAIN": "again#no comment",
        "UNICODE": "é€",
    }


def env_file_error(path):
    with pytest.raises(UsageError) as caught:
        read_env_file(path)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "number", "message"),
    [
        ("A=1\nthis is no setting\n", 2, "must be NAME=VALUE, got 'this is no setting'"),
        ("A='open\n", 1, "must be NAME=VALUE, got 'A=...'"),
        ("A-B=1\n", 1, "'A-B' isn't a valid variable name"),
        ("x y " * 40, 1, f"must be NAME=VALUE, got {('x y ' * 15)!r}"),
        ("A=1\n\n\nNAME\n", 4, "must be NAME=VALUE, got 'NAME'"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(tmp_path, text, number, message):
    path = tmp_path / "env"
    path.write_bytes(text.encode())
    assert env_file_error(path) == f"{path}:{number}: {message}"


def test_a_file_that_can_not_be_read_is_refused(tmp_path):
    (tmp_path / "latin").write_bytes(b"A=\xe9\n")
    assert env_file_error(tmp_path / "none") == f"{tmp_path / 'none'}: No such file or directory"
    assert env_file_error(tmp_path) == f"{tmp_path}: Is a directory"
    assert env_file_error(tmp_path / "latin") == f"{tmp_path / 'latin'}: not UTF-8 text"


def test_secrets_are_known_by_their_names():
    names = [
        "WANDB_API_KEY", "aws_secret_access_key", "DB_PASSWORD", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY",
        "ENCRYPTION_KEY", "REGISTRY_AUTH", "SENTRY_DSN", "PASS", "DB_PASS", "MAX_TOKENS",
    ]  # fmt: skip
    others = ["NCCL_DEBUG", "MONKEY", "TOKENIZERS_PARALLELISM", "KEY_FILE", "BYPASS", "COMPASS"]
    assert [name for name in names + others if is_secret(name, "words")] == names


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("MAX_TOKENS", "4096", False),
        ("SORT_KEY", "2", False),
        ("TOKEN_RATE", "-1.5e-3", False),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "True", False),
        ("USE_PASSWORD", "no", False),
        ("DB_PASSWORD", "83741902", True),
        ("BOT_TOKEN", "1234567890", True),
        ("HF_TOKEN", "4096x", True),
        ("HF_TOKEN", "4096\n", True),
    ],
)
def test_a_number_or_a_switch_is_no_secret(name, value, secret):
    assert is_secret(name, value) is secret


def test_secrets_are_known_by_their_values():
    secrets = [
        "https://u:p@h", "https://u:p@h/path?x=1", "postgresql+psycopg2://u:p/w@h:5432/db", "redis://:p@h",
        "a http://proxy:3128,HTTP://u:p@proxy:3128", "https://ghp_token@github.com/x.git",
        "https://h/x?user=a&password=p", "host=h user=u password=p", "https://h/x?sv=1&sig=ab%3D",
        "Endpoint=h;AccountKey=ab==", "Bearer abcdefgh12", "Authorization: Basic YTpi", "X-Api-Key:abc",
        "-----BEGIN OPENSSH PRIVATE KEY-----", '{"user": "a", "password": "x"}', '{"db_password":"x"}',
        '{"access_token" : "x"}', '{"api_key": "x"}', "--user a --password x", "--api-key x",
        "https://hooks.slack.com/services/T0/B0/x", "x ghp_" + "a1B2" * 4, "hf_" + "a1B2" * 4, "glpat-" + "a1_-" * 4,
        "xoxb-123456789012-" + "a1B2" * 4, "sk-" + "a1B2" * 4, "sk-proj-a_b-" + "a1B2" * 4, "AKIA" + "A1B2" * 4,
    ]  # fmt: skip
    others = [
        "X-Request-Id: abc", "hf_" + "a" * 15, "/data/hf_transformers_cache", "/data/sk-learn-experiments-2026",
        "/data/disk-" + "a" * 16, '{"eos_token": "x", "max_tokens": 5}', '{"tokenizer": "x"}', "--max-tokens 5",
        "--password", "https://h:8080/path", "http://[::1]:8080", "ssh://git@github.com/x.git", "git@github.com:x.git",
        "tcp://10.0.0.1:29500", "/usr/lib:/opt/x@2/lib", "expandable_segments:True", "password", "config=x", "",
        "a" * 1_000_000, "a://:" * 20_000, "sk-" * 40_000, "--" * 60_000,
    ]  # fmt: skip
    assert [value for value in secrets + others if is_secret("MLFLOW_TRACKING_URI", value)] == secrets


def test_a_secret_stands_in_no_line():
    assert shell_assignments({"A": "", "B": "it's", "HF_TOKEN": "hunter2", "URI": "https://u:hunter2@h"}) == [
        "A=''",
        "B='it'\"'\"'s'",
        'HF_TOKEN="${HF_TOKEN}"',
        'URI="${URI}"',
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--env", "MY_KEY=geheim", "--env", "LR=3"], ["--env", "MY_KEY=***", "--env", "LR=3"]),
        (["--env=MY_AUTH=a=b", "--env=LR=3"], ["--env=MY_AUTH=***", "--env=LR=3"]),
        (["--env", "DB=postgres://u:p=w@h/db"], ["--env", "DB=***"]),
        (["t.py", "--api-key", "abc", "--lr", "3"], ["t.py", "--api-key", "***", "--lr", "3"]),
        (["t.py", "--wandb-api-key=abc", "+model.token=x"], ["t.py", "--wandb-api-key=***", "+model.token=***"]),
        (["--setup", "export HF_TOKEN=abc; source x"], ["--setup", "export HF_TOKEN=***"]),
        (["--setup", "A=1; export MY_PAT=abc"], ["--setup", "A=1; export MY_PAT=***"]),
        (["sh", "-c", 'curl -H "Authorization: Bearer abcdefgh12"'], ["sh", "-c", "***"]),
        (["postgres://u:p=w@h?a_key=c", "https://tok@h/x"], ["***", "***"]),
        (["--password", "1234", "--max-tokens", "4096"], ["--password", "***", "--max-tokens", "4096"]),
        # No secrets: switches, what begins the next option, and what is only called a key.
        (["--ask-password", "t.py", "--use-auth", "--lr=3"], ["--ask-password", "t.py", "--use-auth", "--lr=3"]),
        (["a=b=c", "=", "x" + "=" * 99, "--tokenizer", "gpt2"], ["a=b=c", "=", "x" + "=" * 99, "--tokenizer", "gpt2"]),
        ([], []),
    ],
)
def test_a_command_line_on_disk_has_no_secrets(words: list[str], shown: list[str]) -> None:
    assert hide_secrets(words) == shown
