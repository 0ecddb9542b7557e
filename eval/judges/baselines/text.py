"""The baseline that reads: what the words alone tell of the ratings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from ....data_modules.errors import DataError
from ....data_modules.schema import Pair, PairDataset
from .. import OK
from .regression import Learn, RegressionJudge, searched

NO_TRANSCRIPT = "no transcript of the response"
_NO_CONTEXT = "(no context)"  # a word of its own: no column is ever without words
_MOST_WORDS = 50_000  # kept per column and kind, the most frequent ones


class TextJudge(RegressionJudge):
    """Ridge regression on TF-IDF of words and characters, of context and response.

    The context is the text about the situation and the transcript of what is answered. A judge of delivery must beat
    it; where it agrees with the raters, they, or the writers of the responses, let words decide.
    """

    def __init__(self, dataset: PairDataset, seed: int = 0) -> None:
        """Fits it to a dataset (its training split); see `RegressionJudge`.

        Raises:
            DataError: Also if no response has a transcript.
        """
        if OK not in _documents(dataset.pairs)[1]:
            raise DataError(
                f"{dataset.root}: judge text reads transcripts, and none of the {len(dataset.pairs)} pairs to fit it "
                "on has a response_text; expected pairs with transcripts"
            )
        super().__init__("text", dataset, _documents, _ridge(seed))


def _documents(pairs: Sequence[Pair]) -> tuple[np.ndarray, list[str]]:
    """Texts of contexts and responses, shape (n, 2), and per pair whether it can be read."""
    texts = np.empty((len(pairs), 2), dtype=object)
    for row, pair in enumerate(pairs):
        context = " ".join(text for text in (pair.situation, pair.context_text) if text and text.strip())
        texts[row] = context or _NO_CONTEXT, pair.response_text or ""
    return texts, [OK if text.strip() else NO_TRANSCRIPT for text in texts[:, 1]]


def _ridge(seed: int) -> Learn:
    words = TfidfVectorizer(  # punctuation counts
        token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True, max_features=_MOST_WORDS
    )
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, max_features=_MOST_WORDS)
    columns = make_column_transformer(*((kind, column) for column in (0, 1) for kind in (words, characters)))
    return searched("ridge", make_pipeline(columns, Ridge()), {"ridge__alpha": (0.1, 1.0, 10.0, 100.0)}, seed)
