import json
from pathlib import Path
from typing import Any

import pytest

from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.records import Split
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.splits import load_splits, with_splits


@pytest.fixture
def catalogue(catalogues: dict[str, Catalogue]) -> Catalogue:
    return catalogues["en"]


def write(folder: Path, splits: Any) -> Path:
    path = folder / "splits.json"
    path.write_text(json.dumps({"splits": splits}), encoding="utf-8")
    return path


def test_a_split_file_assigns_tasks(tmp_path: Path, catalogue: Catalogue) -> None:
    path = write(
        tmp_path, {"train": {"start": 1, "end": 4}, "val": {"task_ids": [5, "0006"]}, "test": {"task_ids": []}}
    )
    found = with_splits(catalogue, load_splits(path, catalogue))
    assert [task.task_id for task in found.tasks.values() if task.split == "train"] == ["1", "2", "3"]
    assert [task.task_id for task in found.tasks.values() if task.split == "val"] == ["5", "6"]
    assert found.tasks["7"].split is None
    assert found.tasks_fingerprint == catalogue.tasks_fingerprint


@pytest.mark.parametrize(
    "splits",
    [
        None,
        [],
        {"train": {}},
        {"train": {"task_ids": 3}},
        {"valid": {"task_ids": []}},
        {"train": {"start": "a", "end": 2}},
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, catalogue: Catalogue, splits: Any) -> None:
    with pytest.raises(InputError, match=r"splits\.json"):
        load_splits(write(tmp_path, splits), catalogue)


def test_a_missing_and_a_cut_off_split_file_are_told_as_such(tmp_path: Path, catalogue: Catalogue) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_splits(tmp_path / "none.json", catalogue)
    (tmp_path / "cut.json").write_text('{"splits": {"val"', encoding="utf-8")
    with pytest.raises(InputError, match="not JSON, or is cut off"):
        load_splits(tmp_path / "cut.json", catalogue)


@pytest.mark.parametrize("again", ["3", "0003", " 3 "])
def test_a_task_in_two_splits_is_refused_by_id(catalogue: Catalogue, again: str) -> None:
    with pytest.raises(InputError, match=r"1 task\(s\) occur in both train and test: 3\."):
        with_splits(catalogue, {"train": ["2", "3"], "test": [again]}, allow_overlap="product,persona")


def test_unknown_tasks_are_named(catalogue: Catalogue) -> None:
    with pytest.raises(InputError, match=r"do not exist: 100000, .* and 2 more"):
        with_splits(catalogue, {"train": [str(number) for number in range(100_000, 100_012)]})


@pytest.mark.parametrize(("field", "what"), [("gold_asin", "product"), ("persona", "persona")])
def test_products_and_personas_may_be_allowed_to_overlap(catalogue: Catalogue, field: str, what: str) -> None:
    first, second = catalogue.tasks["1"], catalogue.tasks["2"]
    shared = second.model_copy(update={field: getattr(first, field)})
    doubled = Catalogue("en", catalogue.products, {"1": first, "2": shared})
    splits: dict[Split, list[str]] = {"train": ["1"], "val": ["2"]}
    with pytest.raises(InputError, match=rf"1 {what}\(s\) occur in both train and val"):
        with_splits(doubled, splits)
    assert with_splits(doubled, splits, allow_overlap=f" {what} ").tasks["2"].split == "val"


def test_only_products_and_personas_can_be_allowed(catalogue: Catalogue) -> None:
    with pytest.raises(ParameterError, match="allow_overlap is 'task'"):
        with_splits(catalogue, {}, allow_overlap="task")
