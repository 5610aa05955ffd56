"""What several test files share: small catalogues, their shops, and the place of the reference data."""

import os
from pathlib import Path

import pytest

from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SHOPSKILL_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def catalogues() -> dict[str, Catalogue]:
    sizes = {"products": 2000, "train": 60, "val": 40, "test": 40}
    return {"en": generate_catalogue(1, "en", **sizes), "zh": generate_catalogue(1, "zh", **sizes)}


@pytest.fixture(scope="session")
def shops(
    catalogues: dict[str, Catalogue], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, EmbeddedShop]:
    cache = tmp_path_factory.mktemp("indexes")
    return {language: EmbeddedShop(catalogue, cache) for language, catalogue in catalogues.items()}


@pytest.fixture(scope="session")
def real_files() -> Path:
    folder = SHARED / "data" / "shopsim_catalog"
    if not folder.is_dir():
        pytest.skip(f"the real catalogue is not at {folder}; SHOPSKILL_SHARED names the folder of data")
    return folder
