"""SqueezeLLM (arXiv 2306.07629): each row has a table of 2^bits values that codes point into; outliers are kept apart.

qweight int32 [K / 32 × bits, N], packed along K in plain order; lookup_table [N, 2^bits]. With sparse parts: rows int32 [N + 1],
cols int32, vals (CSR over outputs); full_rows [K, X] with full_row_indices int32 [X], the outputs that have most outliers, in
full. Sparse values have the table's entry nearest 0 taken off, as the dense part adds it there. `startrows` only shares out work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import QuantizedWeight, Sparse
from backends.quantization.formats.raw import FLOATS, Raw, check_scales, own
from backends.quantization.unpack import pack


@dataclass(frozen=True, slots=True)
class SqueezeLLM:
    """Look-up tables of 2^`bits` values, `bits` 3 or 4."""

    bits: int = 4
    mode: str = "squeezellm-4bit"
    packed: str = "qweight"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        if inputs % 32:
            raise raw.error("qweight", f"packs 32 columns at a time, which {inputs} inputs do not fill")
        words = raw.take("qweight", torch.int32, shape=(inputs // 32 * self.bits, outputs))
        table = raw.take("lookup_table", *FLOATS, shape=(outputs, 1 << self.bits))
        table = own(check_scales(raw, "lookup_table", table)).to(
            torch.float32 if table.dtype == torch.float32 else torch.float16
        )
        raw.ignore("startrows")
        sparse = _sparse(raw, outputs, inputs)
        return QuantizedWeight("table", self.bits, outputs, inputs, own(words.t()), table=table, sparse=sparse)

    def save(self, codes: Tensor, table: Tensor, sparse: Sparse | None = None) -> dict[str, Tensor]:
        """The tensors of a layer from codes [N, K] and tables [N, 2^bits]."""
        found = {"qweight": pack(codes, self.bits).t().contiguous(), "lookup_table": table.contiguous()}
        if sparse is not None:
            found |= {"rows": sparse.starts, "cols": sparse.columns, "vals": sparse.values}
        return found


def _sparse(raw: Raw, outputs: int, inputs: int) -> Sparse | None:
    """Both kinds of outliers as one CSR matrix."""
    starts = raw.maybe("rows", torch.int32, shape=(outputs + 1,))
    columns, values = (raw.take("cols", torch.int32), raw.take("vals", *FLOATS)) if starts is not None else (None, None)
    full = raw.maybe("full_rows", *FLOATS)
    if starts is None and full is None:
        return None
    if starts is not None:
        counts = starts[1:] - starts[:-1]
        if int(starts[0]) or bool((counts < 0).any()) or int(starts[-1]) != len(columns) or len(columns) != len(values):
            raise raw.error("rows", "does not count up from 0 to the number of values")
        if len(columns) and (int(columns.min()) < 0 or int(columns.max()) >= inputs):
            raise raw.error("cols", f"points outside of {inputs} columns")
    if full is None:
        return Sparse(own(starts), own(columns), own(check_scales(raw, "vals", values)))
    rows, cols, vals = [], [], []
    if starts is not None:
        rows.append(torch.repeat_interleave(torch.arange(outputs), counts.long()))
        cols.append(columns.long())
        vals.append(values.float())
    where = raw.take("full_row_indices", torch.int32, shape=(full.shape[1],)).long()
    if full.shape[0] != inputs or (len(where) and (int(where.min()) < 0 or int(where.max()) >= outputs)):
        raise raw.error("full_rows", f"does not fit a layer of [{outputs}, {inputs}]")
    rows.append(where.repeat_interleave(inputs))
    cols.append(torch.arange(inputs).repeat(len(where)))
    vals.append(full.float().t().reshape(-1))
    return coordinates_to_csr(torch.cat(rows), torch.cat(cols), torch.cat(vals), outputs)


def coordinates_to_csr(rows: Tensor, columns: Tensor, values: Tensor, outputs: int) -> Sparse:
    """CSR of (row, column, value) in any order; zeros are left out."""
    kept = values != 0
    rows, columns, values = rows[kept], columns[kept], values[kept]
    order = torch.argsort(rows * (int(columns.max()) + 1 if len(columns) else 1) + columns)
    starts = torch.zeros(outputs + 1, dtype=torch.int32)
    starts[1:] = torch.bincount(rows, minlength=outputs).cumsum(0)
    return Sparse(starts, columns[order].to(torch.int32), values[order].contiguous())
