"""Search: BM25 over weighted fields (reference 1.13) with our tokens, on an index cached by content.

Documents go into one segment in id order, so equal scores rank by id and a query has one answer, whatever the
thread. The index knows no query language: words are words.
"""

import fcntl
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import tantivy

from shopskill_lib.errors import OutputError
from shopskill_lib.records import Product, fingerprint
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.text import tokens

SEARCH_VERSION = "shopskill-multifield-bm25-v1"

FIELD_WEIGHTS = {
    "title": 3.0, "brand": 2.0, "category": 2.0, "model": 2.5, "attributes": 1.5, "options": 1.2,
    "bullets": 0.8,
}  # fmt: skip

TOP_K = 150
"""Results of a query at most."""

MAX_QUERY_TOKENS = 64
"""Different tokens of a query that count; later ones are ignored."""

_HEAP = 2_000_000_000  # bytes the writer may fill before it would begin a second segment
_MANIFEST = "manifest.json"
_MODEL = re.compile(r"(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]+")

_Clause = tuple[tantivy.Occur, tantivy.Query]


class SearchIndex:
    """An opened index over the products of one catalogue."""

    def __init__(self, catalogue: Catalogue, folder: Path) -> None:
        index = tantivy.Index(_schema(), path=str(folder))
        self._schema = index.schema
        self._searcher = index.searcher()
        self._ids = list(catalogue.products)
        self._known: dict[str, list[_Clause]] = {}

    def search(self, query: str) -> list[str]:
        """Return the ids of the best products, best first, at most ``TOP_K``; none without tokens."""
        found = list(dict.fromkeys(tokens(query)))[:MAX_QUERY_TOKENS]
        clauses = [clause for token in found for clause in self._clauses(token)]
        if not clauses:
            return []
        hits = self._searcher.search(tantivy.Query.boolean_query(clauses), TOP_K, count=False).hits
        return [self._ids[address.doc] for _, address in hits]

    def _clauses(self, token: str) -> list[_Clause]:
        """Return what a token asks of the fields that have it; kept for the words of the catalogue."""
        clauses = self._known.get(token)
        if clauses is None:
            clauses = [
                (tantivy.Occur.Should, self._term(field, token, weight))
                for field, weight in FIELD_WEIGHTS.items()
                if self._searcher.doc_freq(field, token)
            ]
            if clauses:
                self._known[token] = clauses
        return clauses

    def _term(self, field: str, token: str, weight: float) -> tantivy.Query:
        term = tantivy.Query.term_query(self._schema, field, token, index_option="freq")
        return tantivy.Query.boost_query(term, weight)


def open_index(catalogue: Catalogue, cache: Path) -> SearchIndex:
    """Open the catalogue's index, building it first when the cache has none that is intact.

    Args:
        catalogue: the products to index.
        cache: folder of all indexes; made when missing.

    Raises:
        OutputError: the folder cannot be written, or the catalogue is too large for one segment.
    """
    identity = fingerprint([catalogue.products_fingerprint, SEARCH_VERSION, metadata.version("tantivy")])
    folder = cache / f"search-{identity[:16]}"
    if not _is_intact(folder, identity):
        try:
            with _alone(cache / f".{folder.name}.lock"):
                if not _is_intact(folder, identity):  # another process may have built it meanwhile
                    _build(catalogue, folder, identity)
        except (OSError, ValueError) as error:  # tantivy tells of a full disk by a ValueError
            raise OutputError(
                f"the search index cannot be written ({error})",
                where=str(folder),
                allowed="a folder with room for it",
                todo="choose another cache folder",
            ) from error
    return SearchIndex(catalogue, folder)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time build an index; the operating system lets go of the lock when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_intact(folder: Path, identity: str) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest == {"identity": identity, "files": _digests(folder)})
    except (OSError, ValueError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".lock" and path.name != _MANIFEST:
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _build(catalogue: Catalogue, folder: Path, identity: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as parent:
        made = Path(parent) / folder.name
        made.mkdir()
        _write(catalogue, made)
        manifest = {"identity": identity, "files": _digests(made)}
        (made / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _write(catalogue: Catalogue, folder: Path) -> None:
    index = tantivy.Index(_schema(), path=str(folder))
    writer = index.writer(heap_size=_HEAP, num_threads=1)
    for product in catalogue.products.values():
        writer.add_document(_document(product))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    if index.searcher().num_segments > 1:
        raise OutputError(
            f"{len(catalogue.products)} products do not fit into one segment",
            where=str(folder),
            allowed=f"an index of {_HEAP} bytes in memory",
            todo="use a smaller catalogue",
        )


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    for field in FIELD_WEIGHTS:
        builder.add_text_field(field, tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def _document(product: Product) -> tantivy.Document:
    """Return a product's fields as tokens; ``model`` holds the title's words of both letters and digits."""
    title = tokens(product.title)
    options = [text for axis, values in product.options.items() for text in (axis, *values)]
    fields = {
        "title": title,
        "brand": tokens(product.brand),
        "category": tokens(product.category),
        "model": [token for token in title if _MODEL.fullmatch(token)],
        "attributes": [token for text in product.attributes for token in tokens(text)],
        "options": [token for text in options for token in tokens(text)],
        "bullets": tokens(product.description),
    }
    return tantivy.Document(**{field: " ".join(found) for field, found in fields.items() if found})
