"""What is known of the quality of quantized weights: from `bench quality`, whose file names the model and the text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place

FILE, SCHEMA = "quality.json", 1


@dataclass(frozen=True, slots=True)
class Known:
    """Measured quality.

    Attributes:
        model: that was measured: what it says of another model is a hint.   text: on what.
        modes: name of the weights' mode → words: perplexity against the reference's, KL divergence, same likeliest token.
    """

    model: str
    text: str
    modes: dict[str, str]


def read_known(path: Path) -> Known:
    """Read what `bench quality` has written: its folder, or the file in it.

    Raises:
        InputError: it is not such a file.
    """
    from reports import strict_json
    from reports.wording import clean

    file = path / FILE if path.is_dir() else path
    place = Place(file=str(file))
    hint = "`bench quality MODEL --out DIR` writes one"
    try:
        found = strict_json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", place=place, hint=hint) from None
    except (OSError, ValueError) as error:
        raise InputError(f"is not readable JSON ({error})", place=place, hint=hint) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("rows"), list):
        raise InputError(f"is not a result of bench quality of schema {SCHEMA}", place=place, hint=hint)
    modes: dict[str, str] = {}
    for number, row in enumerate(found["rows"]):
        try:
            if row["kv"] not in ("fp16", "bf16", "fp32"):
                continue  # of the KV, not of the weights alone
            modes.setdefault(str(row["weights"]), _words(row))
        except (KeyError, TypeError):
            raise InputError(f"row {number} lacks a figure", place=place, hint=hint) from None
    text = found.get("text")
    about = text.get("name") or text.get("source") or "" if isinstance(text, dict) else ""
    return Known(clean(found.get("model"), 80), clean(about, 120), modes)


def _words(row: dict[str, Any]) -> str:
    """`perplexity +0.8 %, KL 3.1e-3, same token 97.2 %`."""
    ratio, divergence, agreement = (float(row[key]["value"]) for key in ("ratio", "divergence", "agreement"))
    return f"perplexity {ratio - 1:+.2%}, KL {divergence:.2g}, same token {agreement:.1%}"
