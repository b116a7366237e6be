import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.sharing import matched_tokens, prefix_sharing
from workloads.traffic import Span, SpanTable, Traffic, answer_content


def traffic(prompts, outputs=None) -> Traffic:
    prompts = [[Span(*span) for span in prompt] for prompt in prompts]
    inputs = [sum(span.length for span in prompt) for prompt in prompts]
    outputs = [1] * len(prompts) if outputs is None else outputs
    return Traffic(np.arange(len(prompts)), inputs, outputs, spans=SpanTable.build(prompts))


def test_nothing_shared():
    sharing = prefix_sharing(Traffic(np.arange(2), [100, 5], [1, 1]), 16)
    assert (sharing.token_share, sharing.request_share, sharing.blocks, sharing.distinct_blocks) == (
        0,
        0,
        8,
        8,
    )


def test_only_leading_tokens_count():
    found = matched_tokens(traffic([[(-1, 0, 8), (-2, 0, 8)], [(-1, 0, 8), (-3, 0, 8)], [(-2, 0, 8)]]))
    assert found.tolist() == [0, 8, 0]


def test_spans_may_be_cut_anywhere():
    found = matched_tokens(
        traffic([[(-1, 0, 10)], [(-1, 0, 4), (-2, 0, 6)], [(-1, 0, 7), (-1, 7, 3)], [(-1, 0, 4), (-2, 0, 9)]])
    )
    assert found.tolist() == [0, 4, 10, 10]


def test_answers_are_cached_too():
    prompts = [[(-1, 0, 8)], [(-1, 0, 8), (answer_content(0), 0, 5), (2, 0, 3)]]
    assert matched_tokens(traffic(prompts, [5, 1])).tolist() == [0, 13]


def test_blocks():
    sharing = prefix_sharing(traffic([[(-1, 0, 20)], [(-1, 0, 20)], [(-1, 0, 10), (-2, 0, 10)]]), 8)
    # the second is wholly known, its partial last block too; of the third one block of 8
    assert (sharing.blocks, sharing.seen_blocks, sharing.seen_tokens, sharing.requests_hit) == (9, 4, 28, 2)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-3, -1), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
)
def test_as_if_counted_token_by_token(prompts, block):
    made = traffic(prompts)
    seen: list[tuple] = []
    expected = []
    for row, prompt in enumerate(prompts):
        tokens = [(c, o + k) for c, o, n in prompt for k in range(n)]
        best = 0
        for other in seen:
            same = next((i for i, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b), None)
            best = max(best, min(len(tokens), len(other)) if same is None else same)
        expected.append(best)
        seen.append((*tokens, (answer_content(row), 0)))
    assert matched_tokens(made).tolist() == expected
    sharing = prefix_sharing(made, block)
    assert 0 <= sharing.token_share <= 1 and sharing.distinct_blocks + sharing.seen_blocks == sharing.blocks
