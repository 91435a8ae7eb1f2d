import pytest

from atlctl.diagnosis.tracebacks import (
    Frame,
    boxed_frame_of,
    exception_name,
    exception_type,
    frame_of,
    read_exception,
    user_frame,
)

CHAINED = """Traceback (most recent call last):
  File "/jobs/a.py", line 1, in load
    raise KeyError("lr")
KeyError: 'lr'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/jobs/b.py", line 2, in main
    load()
mylib.errors.BadConfig: cannot load:
  - lr missing
see the manual""".splitlines()


def test_the_last_exception_of_a_chain_and_the_first_line_of_its_message():
    assert read_exception(CHAINED) == ("mylib.errors.BadConfig: cannot load:", "mylib.errors.BadConfig")


def test_the_original_traceback_of_a_data_loader_is_part_of_the_message():
    lines = [
        "Traceback (most recent call last):",
        '  File "/jobs/t.py", line 3, in main',
        "IndexError: Caught IndexError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        '  File "/jobs/d.py", line 9, in __getitem__',
        "IndexError: list index out of range",
    ]
    assert read_exception(lines)[0] == "IndexError: Caught IndexError in DataLoader worker process 0."


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ("", None)),
        (["", "  "], ("", None)),
        (["Signal 9 (SIGKILL) received by PID 3"], ("Signal 9 (SIGKILL) received by PID 3", None)),
        (["ValueError: x"], ("ValueError: x", "ValueError")),
        (["Traceback (most recent call last):", "  cut off here"], ("cut off here", None)),
        (["Traceback (most recent call last):", "AssertionError"], ("AssertionError", "AssertionError")),
    ],
)
def test_short_texts(lines, expected):
    assert read_exception(lines) == expected


@pytest.mark.parametrize(
    "line", ["note: x", "loss 0.5", "To enable traceback see: https", "2026-11-20: Error", "Error in x"]
)
def test_lines_that_are_no_exception(line):
    assert exception_type(line) is None


def test_the_users_frame_is_the_last_outside_of_packages_and_the_standard_library():
    lines = [
        '  File "/jobs/train.py", line 1, in <module>',
        '  File "data.py", line 2, in read',
        '  File "/usr/lib/python3.11/json/__init__.py", line 3, in loads',
        '  File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 4, in forward',
        '  File "<frozen runpy>", line 5, in run',
    ]
    assert str(user_frame(lines)) == 'File "data.py", line 2, in read'
    assert user_frame(lines[2:]) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("KeyError: 'lr'", "KeyError"),
        ("AssertionError", "AssertionError"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError"),
        ("mylib.data.ShardLost: 3", "mylib.data.ShardLost"),  # any class can be raised
        ("main.<locals>.ShardLost: 3", "main.<locals>.ShardLost"),
        ("main.<locals>.数据错误: 3", "main.<locals>.数据错误"),
        ("main.<lambda>.ShardLost: 3", None),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("SystemExit: 3", "SystemExit"),
        ("loss: 0.3", None),
        ("    ValueError: x", None),
        ("Saving to disk: done", None),
        ("", None),
    ],
)
def test_the_line_behind_a_tracebacks_frames(line, name):
    assert exception_name(line) == name


def test_a_frame_without_a_function_is_a_syntax_errors():
    found = frame_of('  File "/jobs/x.py", line 9')
    assert found == Frame("/jobs/x.py", 9, "<unknown>")


@pytest.mark.parametrize(
    "line", ["", "File", '  File "a.py"', '  File "a.py", line x, in f', 'see File "a", line 1']
)  # fmt: skip
def test_lines_that_are_no_frame(line):
    assert frame_of(line) is None


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3.11/json/__init__.py", "/o/lib64/python3.12/site-packages/x.py", "<frozen runpy>",
        "<string>", "/usr/lib/python3/dist-packages/y.py", r"C:\\venv\\site-packages\\z.py",
    ],
)  # fmt: skip
def test_frames_that_are_not_the_users(path):
    found = frame_of(f'  File "{path}", line 1, in f')
    assert found == Frame(path, 1, "f")
    assert not found.own


@pytest.mark.parametrize(
    "line",
    [
        "│ /my jobs/train.py:171 in main    │",
        "| /my jobs/train.py:171 in main    |",
        "  │ /my jobs/train.py:171 in main",
    ],
)
def test_a_frame_in_a_box(line):
    found = boxed_frame_of(line)
    assert found == Frame("/my jobs/train.py", 171, "main")
    assert found.own


def test_a_frame_in_a_box_that_is_not_the_users():
    found = boxed_frame_of("│ /usr/lib/python3.11/json/__init__.py:3 in loads │")
    assert found == Frame("/usr/lib/python3.11/json/__init__.py", 3, "loads")
    assert not found.own


@pytest.mark.parametrize(
    "line",
    [
        "/jobs/train.py:171 in main", "│ ❱ 171 │   step()  │", "│ │ note = 'a.py:3 in f' │ │",
        "│   /jobs/a.py:1 in f │", "│ /jobs/train.py in main │", "│ /jobs/train.py:171 in main of it │",
        "│ /jobs/train.py:x in main │", "│",
    ],
)  # fmt: skip
def test_lines_of_a_box_that_are_no_frame(line):
    assert boxed_frame_of(line) is None
