"""What the client of a server says of a run, in words: whether it asked for what it was told to, and kept up."""

from __future__ import annotations

from reports.wording import number, share


def client_rows(facts: dict) -> list[tuple[str, str]]:
    """The lines that every reader wants, of what is under `client` in a run's `host`: name and figure."""
    rows = []
    if facts["prompt_tokens_wanted"]:
        counted, wanted = number(facts["prompt_tokens_counted"]), number(facts["prompt_tokens_wanted"])
        rows.append(("Prompt tokens, counted by the server / asked for", f"{counted} / {wanted}"))
    if facts.get("cached_tokens"):
        rows.append(("Prompt tokens from the server's cache", number(facts["cached_tokens"])))
    if (facts.get("tokens_a_chunk") or 0) > 1.05:
        rows.append(("Tokens a chunk, mean", number(facts["tokens_a_chunk"])))
        rows.append(("TPOT after the first chunk, mean (ms)", _ms(facts["tpot_after_first_chunk_mean"])))
    counters = facts.get("server_counters") or {}
    if counters.get("prefix_queries"):
        rows.append(
            ("Prefix hit rate, as the server says", share(counters["prefix_hits"] / counters["prefix_queries"]))
        )
    if "preemptions" in counters:
        rows.append(("Preemptions, as the server says", number(counters["preemptions"])))
    lags = (facts["send_lag_p50"], facts["send_lag_p99"])
    rows.append(("Sent behind schedule, p50 / p99 (ms)", " / ".join(map(_ms, lags))))
    rows.append(("Client's use of a core", share(facts["cpu_share"])))
    return rows


def more_client_rows(facts: dict) -> list[tuple[str, str]]:
    """The rest of it, for who wants to know how the server was asked, and what other tools would have called these latencies."""
    found = (
        ("Asked at", facts.get("endpoint")),
        ("Answers get their lengths by", facts.get("lengths") or "the model's own end"),
        ("Prompts counted by", facts.get("prompts_counted_by")),
        ("Answers counted by", facts.get("output_tokens_counted_by")),
        ("Chunks", number(facts.get("chunks"))),
        ("To the first chunk of any kind, mean (ms)", _ms(facts.get("ttft_any_chunk_mean"))),
        ("To the end of the stream, mean (ms)", _ms(facts.get("e2e_to_stream_end_mean"))),
        ("Gap between chunks, mean (ms)", _ms(facts.get("chunk_gap_mean"))),
        ("Waited for a connection, p99 (ms)", _ms(facts.get("connect_p99"))),
        ("Client late to things, p99 (ms)", _ms(facts.get("loop_lag_p99"))),
    )
    return [(name, str(value)) for name, value in found if value is not None]


def _ms(value: float | None) -> str:
    return number(value and value * 1e3)
