"""How alike short texts are, by character n-grams: groups of texts, and pairs across two lists.

It orders what an author reads and aligns what it wrote; it never decides alone what two texts mean.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering
from sklearn.feature_extraction.text import TfidfVectorizer

from shopskill_lib.records import Language
from shopskill_lib.text import normalise


class Passage(NamedTuple):
    """A text and the module of the workflow it speaks of."""

    text: str
    stage: str


class _Measured(NamedTuple):
    """What was measured on paraphrased cards of known mechanisms, opposite advice among them.

    Opposites share most of their words: the distances are short ones, since an author can still join what was kept
    apart here, and cannot part what was aligned.
    """

    ngrams: tuple[int, int]
    together: float
    """Mean distance below which two groups are one."""
    aligned: float
    """Largest distance of two texts of one mechanism."""


_MEASURED: dict[Language, _Measured] = {"en": _Measured((2, 4), 0.74, 0.72), "zh": _Measured((1, 2), 0.8, 0.78)}

OTHER_STAGE = 0.2
"""Distance that is added between texts of different modules."""


def distances(passages: Sequence[Passage], language: Language) -> NDArray[np.float64]:
    """Return 1 - cosine of the tf-idf vectors, plus `OTHER_STAGE` across modules: n by n, symmetric, diagonal 0."""
    vectorizer: Any = TfidfVectorizer(analyzer="char", ngram_range=_MEASURED[language].ngrams, sublinear_tf=True)
    vectors = vectorizer.fit_transform([normalise(passage.text) for passage in passages])
    stages = np.array([passage.stage for passage in passages])
    apart = 1.0 - (vectors @ vectors.T).toarray() + OTHER_STAGE * (stages[:, None] != stages[None, :])
    np.fill_diagonal(apart, 0.0)
    return np.asarray(np.clip((apart + apart.T) / 2, 0.0, None), dtype=np.float64)


def groups(passages: Sequence[Passage], language: Language) -> list[int]:
    """Return the number of each text's group, from 1 in order of first appearance (average linkage)."""
    if len(passages) < 2:
        return [1] * len(passages)
    linkage: Any = AgglomerativeClustering(
        n_clusters=None,
        metric="precomputed",
        linkage="average",
        distance_threshold=_MEASURED[language].together,
    )
    labels = linkage.fit_predict(distances(passages, language)).tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels), 1)}
    return [numbers[label] for label in labels]


def align(left: Sequence[Passage], right: Sequence[Passage], language: Language) -> list[tuple[int, int]]:
    """Return pairs of positions that speak of one thing, closest first and each position once."""
    if not left or not right:
        return []
    apart = distances([*left, *right], language)[: len(left), len(left) :]
    limit = _MEASURED[language].aligned
    pairs = sorted((distance, *place) for place, distance in np.ndenumerate(apart.round(9)) if distance <= limit)
    chosen: list[tuple[int, int]] = []
    for _, one, other in pairs:
        if all(one != a and other != b for a, b in chosen):
            chosen.append((one, other))
    return chosen
