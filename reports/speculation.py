"""How speculative decoding went, under the key names of vLLM's serving benchmark."""

from __future__ import annotations

from reports.run_data import RunData
from reports.wording import number

KEY = "speculation"


def speculation_figures(data: RunData) -> dict:
    """Figures of drafts; nothing of a run without them.

    Returns:
        `spec_decode_num_drafts`: how often a sequence had drafts verified; `spec_decode_draft_tokens`,
        `spec_decode_accepted_tokens`: drafts verified and held, also such as came after the end of an answer;
        `spec_decode_acceptance_rate`: their ratio, per cent; `spec_decode_acceptance_length`: tokens of a verification, its own
        token included (vLLM's "mean acceptance length"); `spec_decode_per_position_acceptance_rates`: how often the first,
        second, … draft held, of all verifications.
    """
    counted = data.info.get(KEY)
    if not counted:
        return {}
    often, tokens, held = counted["num_drafts"], counted["draft_tokens"], counted["accepted_tokens"]
    return {
        "spec_decode_acceptance_rate": 100.0 * held / tokens if tokens else None,
        "spec_decode_acceptance_length": 1.0 + held / often if often else None,
        "spec_decode_num_drafts": often,
        "spec_decode_draft_tokens": tokens,
        "spec_decode_accepted_tokens": held,
        "spec_decode_per_position_acceptance_rates": [each / often if often else None for each in counted["accepted_at"]],
    }


def speculation_rows(summary: dict) -> list[tuple[str, str]]:
    """The same for people: (name, value)."""
    if "spec_decode_num_drafts" not in summary:
        return []
    rates = " / ".join(f"{rate:.0%}" for rate in summary["spec_decode_per_position_acceptance_rates"] if rate is not None)
    rate = summary["spec_decode_acceptance_rate"]
    return [
        ("Acceptance length (tokens a verification)", number(summary["spec_decode_acceptance_length"])),
        ("Acceptance rate", "n/a" if rate is None else f"{rate:.1f}%"),
        ("  by position", rates or "n/a"),
    ]
