from pathlib import Path

import pytest

from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.records import Hint


def hints(path: Path) -> list[str]:
    return [hint.text for hint in read_lines(path, Hint.model_validate_json)]


def hint(text: str) -> Hint:
    return Hint(id="x", text=text)


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    assert hints(path) == []
    append_lines(path, [hint("红\nline"), hint("b")])
    append_lines(path, [])
    append_lines(path, [hint("c")])
    assert hints(path) == ["红\nline", "b", "c"] and path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("size", [1, 10, 65_535, 65_536, 200_000])
def test_a_torn_tail_of_any_size_is_cut_off_by_the_next_line(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    append_lines(path, [hint("a")])
    whole = path.read_bytes()
    path.write_bytes(whole + (b'{"id":"x","text":"' + b"y" * size)[:size])
    assert hints(path) == ["a"]
    append_lines(path, [hint("b")])
    assert hints(path) == ["a", "b"] and path.read_bytes().startswith(whole)


def test_a_file_that_holds_a_torn_line_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "x"')
    append_lines(path, [hint("b")])
    assert hints(path) == ["b"]


def test_a_whole_line_without_its_end_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_lines(path, [hint("a")])
    path.write_bytes(path.read_bytes()[:-1])
    assert hints(path) == ["a"]
    append_lines(path, [hint("b")])
    assert hints(path) == ["a", "b"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "x", "text": "a"}\n{"id": "x"}\n{"id": "x", "text": "c"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: the line is damaged \(Field required\)"):
        hints(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="the line cannot be written"):
        append_lines(tmp_path / "file" / "a.jsonl", [hint("a")])
    with pytest.raises(OutputError, match="No space left"):
        append_lines(Path("/dev/full"), [hint("a")])
