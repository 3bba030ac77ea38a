"""Hashes of texts are equal exactly for equal texts, however Arrow holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from runner.data.columns.hash_text import hash_texts
from runner.data.files.read_files import as_texts


def test_equal_texts_and_only_those_get_equal_numbers():
    rng = np.random.default_rng(0)
    texts = ["", "a", "a\0", "\0a", "abcdefgh", "abcdefghi", "x" * 8, "x" * 16, "x" * 17, "ä"]
    texts += ["".join(rng.choice(list("ab"), size=n)) for n in range(1, 40) for _ in range(20)]
    texts += [f"user{n}" for n in range(20_000)]
    numbers = hash_texts(pa.array(texts))
    assert len(set(numbers.tolist())) == len(set(texts))
    order = rng.permutation(len(texts))
    assert (hash_texts(pa.array([texts[n] for n in order])) == numbers[order]).all()


def test_plain_large_binary_sliced_and_dictionary_texts_agree():
    texts = pa.array(["one", "two", None, "three", "", "two", "a longer text than eight"])
    want = hash_texts(texts)
    for type_ in (pa.large_string(), pa.binary(), pa.large_binary()):
        assert (hash_texts(texts.cast(type_)) == want).all()
    there = np.array([0, 1, 3, 4, 5, 6])
    coded = hash_texts(texts.dictionary_encode())
    assert (coded[there] == want[there]).all()
    assert (hash_texts(texts.slice(3, 3)) == want[3:6]).all()


def test_numbers_do_not_change_between_versions():
    """They are in the vocabularies that runs have saved."""
    assert hash_texts(pa.array(["recommender"])).tolist() == [3405357616044684891]


def test_bytes_that_are_no_utf8_become_escapes_and_others_the_same_texts():
    values = [b"a", None, b"", b"Z\xfcrich", "Zürich".encode()]
    want = ["a", None, "", r"Z\xfcrich", "Zürich"]
    for type_ in (pa.binary(), pa.large_binary()):
        plain = pa.array(values, type_)
        for column in (plain, plain.dictionary_encode()):
            assert as_texts(column).to_pylist() == want
    assert as_texts(pa.array([1, None])).to_pylist() == ["1", None]
