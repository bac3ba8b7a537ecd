"""Tracebacks in what a program printed: found, cut and shortened."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.diagnosis.tracebacks import (
    cut_tracebacks,
    extract_crash,
    extract_errors,
    extract_traceback,
    gather_traceback,
    is_stack,
    shorten_traceback,
)

SIMPLE = """\
Traceback (most recent call last):
  File "/data/train.py", line 90, in <module>
    main()
  File "/data/train.py", line 88, in step
    raise ValueError("the optimizer met a NaN at step 42")
ValueError: the optimizer met a NaN at step 42
"""


@pytest.mark.parametrize(
    "stderr",
    [
        SIMPLE,
        SIMPLE[:-1],
        SIMPLE.replace("\n", "\r\n"),
        "noise\n" + SIMPLE + "more noise\n  indented\n",
        "".join(f"[rank3]: {line}\n" for line in SIMPLE.splitlines()),
        SIMPLE.replace("ValueError: the optimizer met a NaN at step 42", "KeyError: 'lr'") + "\n"
        "During handling of the above exception, another exception occurred:\n\n" + SIMPLE,
        SIMPLE + "".join(f"[rank11]: {line}\n" for line in SIMPLE.splitlines()) + "W1120 torchrun says more\n",
    ],
)
def test_the_last_traceback_is_found(stderr):
    assert extract_traceback(stderr) == SIMPLE.splitlines()
    assert shorten_traceback(extract_traceback(stderr)) == [
        'File "/data/train.py", line 88, in step',
        '  raise ValueError("the optimizer met a NaN at step 42")',
        "ValueError: the optimizer met a NaN at step 42",
    ]


LOGURU = SIMPLE.replace(" last):", " last):\n").replace(
    '  File "/data/train.py", line 90', '> File "/data/train.py", line 90'
)


@pytest.mark.parametrize(
    "printed",
    [
        "  1%|▏    | 1/100 [00:00<00:00, 9300.01it/s]" + SIMPLE,
        "\r  0%|  | 0/100\r  1%|▏ | 1/100" + SIMPLE.replace("\n", "\r\n"),
        "2026-11-27 10:00:01,123 ERROR train: " + SIMPLE + "2026-11-27 10:00:02,123 INFO train: bye\n",
        "".join(f"2026-11-27 10:00:0{at},123 | {line}\n" for at, line in enumerate(SIMPLE.splitlines())),
        "".join(f"[1,0]<stderr>: {line}\n" for line in ["noise", *SIMPLE.splitlines()]),
        "step 1: Original " + SIMPLE,
        LOGURU,
    ],
)
def test_a_traceback_need_not_begin_a_line(printed):
    short = [
        'File "/data/train.py", line 88, in step',
        '  raise ValueError("the optimizer met a NaN at step 42")',
        "ValueError: the optimizer met a NaN at step 42",
    ]
    assert shorten_traceback(extract_traceback(printed)) == short
    assert shorten_traceback(extract_traceback("a\n" + CHAINED + printed)) == short
    assert extract_errors(printed)[0] == short[-1]
    assert not [line for line in cut_tracebacks(printed.splitlines()) if "rain.py" in line or "Error" in line]


@pytest.mark.parametrize(
    "hostile",
    [
        f"{'1a' * 40}{SIMPLE.splitlines()[0]}\n{'1a' * 39}{'1' * 8000}",
        SIMPLE.splitlines()[0] * 400 + "x",
    ],
)
def test_no_line_takes_long_to_read(hostile):
    """A rank may print anything, and the launcher reads it while the run is to be stopped."""
    start = time.process_time()
    extract_traceback(hostile)
    assert time.process_time() - start < 5


def test_a_traceback_on_stdout_counts_if_it_ends_it():
    assert gather_traceback("a\n" + SIMPLE, "b") == ("a", "b\n" + SIMPLE[:-1])
    assert gather_traceback("a\n" + CHAINED + "bye\n", "") == ("a", CHAINED + "bye")
    for stdout, stderr in [("a\n", "b\n"), (SIMPLE, CHAINED), (SIMPLE + "step\n" * 40, "")]:
        assert gather_traceback(stdout, stderr) == (stdout, stderr)


FOREIGN = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/home/ann/train.py", line 7, in forward
    return self.layer(x)
           ~~~~~~~~~~^^^
  File "/usr/lib/python3/dist-packages/torch/nn/functional.py", line 2, in linear
    return torch._C._nn.linear(x)
  File "/opt/conda/lib/python3.11/contextlib.py", line 81, in inner
    return func(*args)
RuntimeError: mat1 and mat2 shapes cannot be multiplied

"""


def test_the_innermost_frame_of_the_user_is_shown():
    assert shorten_traceback(extract_traceback(FOREIGN)) == [
        'File "/home/ann/train.py", line 7, in forward',
        "  return self.layer(x)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]


def test_where_all_frames_are_foreign_the_innermost_is_shown():
    lines = extract_traceback(FOREIGN.replace("/home/ann/", "/v/site-packages/"))
    assert shorten_traceback(lines) == [
        'File "/opt/conda/lib/python3.11/contextlib.py", line 81, in inner',
        "  return func(*args)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]


@pytest.mark.parametrize("count", range(1, 6))
def test_a_traceback_that_was_cut_off_is_shown_as_far_as_it_goes(count):
    lines = SIMPLE.splitlines()[:count]
    short = shorten_traceback(extract_traceback("\n".join(lines)))
    assert short[-1].strip() == lines[-1].strip()
    assert len(short) == len(set(short)) <= 3


def stderr_of(code):
    """Return what this Python prints for a program that fails, or for the file of one."""
    words = [str(code)] if isinstance(code, Path) else ["-c", code]
    return subprocess.run([sys.executable, "-IS", *words], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(
    ("code", "mark", "error"),
    [
        ("train(1,, 2)", "        ^", "SyntaxError: invalid syntax"),
        ("if 1:\nx = 1", None, "IndentationError: expected an indented block"),
    ],
)
@pytest.mark.parametrize("is_imported", [False, True])
def test_a_script_that_python_can_not_read(tmp_path, code, mark, error, is_imported):
    """Python prints no header for the script itself; a module has one, and the frame that imports it."""
    script = tmp_path / "train.py"
    script.write_text(f"{code}\n")
    start = f"import sys; sys.path.insert(0, '{tmp_path}'); import train"
    stderr = stderr_of(start) if is_imported else stderr_of(script)
    lines = ["a warning", *stderr.splitlines()]
    short = shorten_traceback(extract_traceback("\n".join(lines)))
    number = len(code.splitlines())
    assert short[:2] == [f'File "{script}", line {number}', f"  {code.splitlines()[-1]}"]
    assert short[-1].startswith(error)
    assert mark is None or short[2] == f"  {mark}"
    assert extract_errors(stderr) == short[-1:]
    assert cut_tracebacks(lines) == ["a warning"]


@pytest.mark.parametrize(
    "printed",
    [
        'see\n  File "train.py", line 3\nand so on\n',
        "see Traceback (most recent call last): above\n  x\ny\n",
        # Below rich's box the error is a last line.
        "╭──── Traceback (most recent call last) ────╮\n│ /data/train.py:90 in <module> │\n╰────╯\nKeyError: 'lr'\n",
    ],
)
def test_what_is_no_traceback(printed):
    assert extract_traceback(printed) == []


def test_an_error_of_several_lines_is_named_by_its_first():
    short = shorten_traceback(extract_traceback(stderr_of("raise ValueError('one\\ntwo\\n  three')")))
    # Python 3.13 shows the line of a -c between them.
    assert (short[0], short[-1]) == ('File "<string>", line 1, in <module>', "ValueError: one")


# the error and what belongs to it

NCCL = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 5, in <module>
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid usage
[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank0]: Last error:
[rank0]: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 4000

NCCL INFO bye
"""
CHAINED = """\
Traceback (most recent call last):
  File "train.py", line 3, in save
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
RuntimeError: the checkpoint was not saved
"""


def test_the_message_of_an_error_goes_on_to_the_next_empty_line():
    assert extract_errors(NCCL) == [
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid usage",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "Last error:",
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 4000",
    ]


def test_an_error_comes_before_those_that_it_is_chained_to():
    assert extract_errors("noise\n" + CHAINED) == [
        "RuntimeError: the checkpoint was not saved",
        "OSError: [Errno 28] No space left on device",
    ]


def test_an_error_that_was_handled_before_is_no_part_of_it():
    assert extract_errors(SIMPLE.replace("ValueError", "OSError") + "retrying\n" + SIMPLE) == [
        "ValueError: the optimizer met a NaN at step 42"
    ]
    assert extract_errors("no error\n") == []


def test_tracebacks_are_cut_out_with_all_that_belongs_to_them():
    copy = "".join(f"[rank3]: {line}\n" for line in SIMPLE.splitlines())
    assert cut_tracebacks(("a\n" + CHAINED + "b\n").splitlines()) == ["a", "b"]
    assert cut_tracebacks(("a\n" + SIMPLE + copy + "b\n").splitlines()) == ["a", "b"]
    assert cut_tracebacks(["a", "b"]) == ["a", "b"]


# crashes


def test_the_crash_that_faulthandler_saw():
    code = """
import ctypes, faulthandler, threading, time
faulthandler.enable()
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
time.sleep(0.1)
def read(): ctypes.string_at(0)
read()
"""
    stderr = stderr_of(code)
    assert extract_crash("a warning\n" + stderr) == [
        'File "<string>", line 6 in read',
        "Fatal Python error: Segmentation fault",
    ]
    assert [line for line in ("a warning\n" + stderr).splitlines() if not is_stack(line)] == ["a warning"]


def test_a_crash_without_a_thread_is_named_by_its_error():
    assert extract_crash("Fatal Python error: Aborted\n\n") == ["Fatal Python error: Aborted"]
    assert extract_crash(SIMPLE) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", True),
        ("frame #3: <unknown function> + 0x94ac3 (0x79ec2da94ac3 in libc.so.6)", True),
        ("#4 std::_Function_handler<std::shared_ptr<c10::LazyValue<std::string>>>", True),
        ("Exception raised from checkTimeout at ProcessGroupNCCL.cpp:618 (most recent call first):", True),
        ('  File "/tmp/a.py", line 4 in <module>', True),
        ('  File "/tmp/a.py", line 4, in <module>', False),
        ("#4 of 10 batches", False),
        ("Thread 3 started", False),
    ],
)
def test_what_a_crash_prints_after_its_error(line, expected):
    assert is_stack(line) is expected
