"""Codes in words: what goes in comes out, at the places that formats say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from backends.quantization.unpack import pack, packed_words, unpack  # noqa: E402


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(1, 8), rows=st.integers(0, 4), count=st.integers(1, 100), seed=st.integers(0, 99))
def test_codes_come_back(bits, rows, count, seed) -> None:
    codes = torch.randint(0, 1 << bits, (rows, count), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    words = pack(codes, bits)
    assert words.dtype == torch.int32 and words.shape == (rows, packed_words(count, bits))
    assert torch.equal(unpack(words, bits, count), codes)


def test_a_code_lies_where_a_string_of_bits_has_it() -> None:
    """Against Python's integers: code k in bits [k × bits, (k + 1) × bits)."""
    for bits in (3, 4, 5):
        codes = [(7 * k + k * k) % (1 << bits) for k in range(40)]
        whole = sum(code << (k * bits) for k, code in enumerate(codes))
        words = pack(torch.tensor([codes], dtype=torch.uint8), bits)[0].tolist()
        assert [word & 0xFFFFFFFF for word in words] == [(whole >> (32 * i)) & 0xFFFFFFFF for i in range(len(words))]


def test_many_rows_are_packed_in_several_goes_to_the_same_words() -> None:
    codes = (torch.arange(2100 * 1000).reshape(2100, 1000) % 13).to(torch.uint8)
    words = pack(codes, 4)
    assert torch.equal(words[1500:1502], pack(codes[1500:1502], 4))


def test_a_code_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into 3 bits"):
        pack(torch.tensor([[8]], dtype=torch.uint8), 3)
    with pytest.raises(ValueError, match="do not fit"):
        pack(torch.tensor([[-1]]), 4)
