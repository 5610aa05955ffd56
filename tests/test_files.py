import argparse
import os
from pathlib import Path
from typing import NoReturn

import pytest

from shopskill_lib.console import Parser, respond
from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.files import read_text, write_bytes


def test_a_pipe_and_a_link_to_one_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OutputError, match=f"{name}: this is a device or a pipe"):
            write_bytes(tmp_path / name, b"x")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a" * 300, "核" * 200, "a\0b"])
def test_a_place_that_is_no_file_is_refused_in_one_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="What to do: choose another place"):
        write_bytes(Path(name), b"x")
    assert list(tmp_path.iterdir()) == []


def test_long_names_and_links_to_files_are_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("核" * 80), b"x")
    (tmp_path / "link").symlink_to("核" * 80)
    write_bytes(tmp_path / "link", b"y")
    assert (tmp_path / ("核" * 80)).read_bytes() == b"y"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    text = "task_id" if encoding == "utf-16" else "\ufefftask_id"
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    with pytest.raises(InputError, match="the file is UTF-16"):
        read_text(tmp_path / "a.csv")


def test_a_stop_by_hand_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(_: argparse.Namespace) -> NoReturn:
        raise KeyboardInterrupt

    parser = Parser(prog="shopskill")
    parser.set_defaults(command=stop)
    assert respond(parser, []) == 130
    assert capsys.readouterr() == ("", "shopskill: stopped\n")
