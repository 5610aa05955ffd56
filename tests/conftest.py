"""Shared fixtures: the folder of published data, small shops, and builders of small gate files."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shopskill_lib.masks import Slot, assign
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue

GateWriter = Callable[..., Path]
Writer = Callable[..., Path]


SLOW = (
    "test_run", "test_two_processes", "test_online", "test_invariants", "test_distil", "test_truth", "test_compiler",
    "test_author",
)  # fmt: skip
"""Files that take longest: they come first, so that two workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow files first."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the published data and reference documents; tests that need it are skipped without it."""
    folder = Path(os.environ.get("SHOPSKILL_SHARED", Path(__file__).parents[1].parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"the published data are not at {folder}; set SHOPSKILL_SHARED to their folder")
    return folder


@pytest.fixture(scope="session")
def real_files(shared: Path) -> Path:
    """Folder of the small real catalogue and its tasks."""
    return shared / "data" / "shopsim_catalog"


@pytest.fixture(scope="session")
def catalogues() -> dict[str, Catalogue]:
    """A generated catalogue of 2,000 products in each language."""
    sizes = {"products": 2000, "train": 60, "val": 40, "test": 40}
    return {"en": generate_catalogue(1, "en", **sizes), "zh": generate_catalogue(1, "zh", **sizes)}


@pytest.fixture(scope="session")
def shops(catalogues: dict[str, Catalogue], tmp_path_factory: pytest.TempPathFactory) -> dict[str, EmbeddedShop]:
    """The shops of these catalogues."""
    cache = tmp_path_factory.mktemp("indexes")
    return {language: EmbeddedShop(catalogue, cache) for language, catalogue in catalogues.items()}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to a file of the test's own folder."""

    def _write(content: str | bytes, name: str = "pairs.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def gate_rows(pairs: int, factors: Sequence[str], seed: int = 0) -> list[dict[str, str]]:
    """Rows of a valid gate: M17 masks of single-version slots, seeded 0/1 rewards, one column a factor."""
    rng = np.random.default_rng(seed)
    task_ids = [f"{number:04d}" for number in range(1, pairs + 1)]
    masks = assign(seed, "val", task_ids, [Slot(factor, (factor,)) for factor in factors]).masks
    rewards = rng.integers(0, 2, size=(pairs, 2))
    return [
        {"task_id": task_id}
        | dict(zip(factors, map(str, mask), strict=True))
        | {"reward": str(reward), "bare_reward": str(bare)}
        for task_id, mask, (reward, bare) in zip(task_ids, masks, rewards, strict=True)
    ]


def to_csv(rows: Sequence[dict[str, str]], delimiter: str = ",") -> str:
    """CSV text of rows that share their columns."""
    return "\n".join(delimiter.join(row) for row in [list(rows[0]), *(list(row.values()) for row in rows)]) + "\n"


def with_mask_column(rows: Sequence[dict[str, str]], factors: Sequence[str]) -> list[dict[str, str]]:
    """The same rows with one bit-string `mask` instead of one column a factor."""
    return [
        {"task_id": row["task_id"], "mask": "".join(row[factor] for factor in factors)}
        | {name: cell for name, cell in row.items() if name not in factors and name != "task_id"}
        for row in rows
    ]


def write_interventions(write: Writer, *items: dict[str, Any]) -> Path:
    """Write an interventions file with `write`."""
    return write(json.dumps(list(items), ensure_ascii=False), "interventions.json")


FACTORS = ("search", "variant", "核对规格", "budget")
"""Four factor names for small gates, one of them Chinese."""


@pytest.fixture
def gate_csv(write: Callable[..., Path]) -> GateWriter:
    """Write a valid gate CSV of n pairs and these factors; `change(rows)` may spoil the rows first."""

    def _gate_csv(
        pairs: int = 100,
        factors: Sequence[str] = FACTORS,
        seed: int = 0,
        change: Callable[[list[dict[str, str]]], object] | None = None,
    ) -> Path:
        rows = gate_rows(pairs, factors, seed)
        if change:
            change(rows)
        return write(to_csv(rows))

    return _gate_csv
