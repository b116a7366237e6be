"""What became of drafts in a run with speculative decoding, for its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sim.engine.engine import Engine


def told(engines: Iterable[Engine]) -> dict[str, Any]:
    """Counts that `reports.speculation` makes figures of, as a part of a run's facts; empty without speculation.

    `num_drafts`: verifications of a sequence with drafts; `draft_tokens`, `accepted_tokens`: drafts in them, and those that held;
    `accepted_at`: how often each place of a draft held. Steps that computed a sequence whose answer had ended are left out.
    """
    seen: Counter[tuple[int, int]] = Counter()
    most = 0
    for engine in engines:
        if not engine.config.speculation.active:
            return {}
        seen.update(engine.recorder.drafts)
        most = engine.config.speculation.num_speculative_tokens
    rows = [(drafted, held, often) for (drafted, held), often in seen.items() if drafted and held >= 0]
    return {
        "speculation": {
            "num_drafts": sum(often for _, _, often in rows),
            "draft_tokens": sum(drafted * often for drafted, _, often in rows),
            "accepted_tokens": sum(held * often for _, held, often in rows),
            "accepted_at": [sum(often for _, held, often in rows if held > place) for place in range(most)],
        }
    }
