"""The token tree itself: what it shares, what it predicts, what may see what, how it is divided."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_pairs

from fedpref.training import preference_tree
from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import (
    Prompted,
    TokenTree,
    TreeLimits,
    chosen_sequences,
    pair_sequences,
    token_tree,
    trees_of,
)

few = st.integers(0, 2)  # so few kinds of token that beginnings are often shared
sequences = st.lists(
    st.tuples(st.lists(few, min_size=1, max_size=5), st.lists(few, max_size=5)),
    min_size=1,
    max_size=6,
)


def test_by_hand() -> None:
    # system 1 2, reports 3 and 4; the responses of the first report both begin with 5
    tree = token_tree([([1, 2, 3], [5, 6]), ([1, 2, 3], [5, 7]), ([1, 2, 4], [5, 6])])
    assert tree.ids.tolist() == [1, 2, 3, 5, 6, 7, 4, 5, 6]
    assert tree.depths.tolist() == [0, 1, 2, 3, 4, 4, 2, 3, 4]
    assert tree.ends.tolist() == [9, 9, 6, 6, 5, 6, 9, 9, 9]
    assert tree.predictors.tolist() == [2, 3, 3, 6, 7]  # the shared 5 is predicted once
    assert tree.targets.tolist() == [5, 6, 7, 5, 6]
    assert [own.tolist() for own in tree.responses] == [[0, 1], [0, 2], [3, 4]]
    # The 7 sees its sequence, not its sibling; with a window of two only the token before it.
    assert np.flatnonzero(tree.attention()[5]).tolist() == [0, 1, 2, 3, 5]
    assert np.flatnonzero(tree.attention(2)[5]).tolist() == [3, 5]


@given(sequences)
def test_each_sequence_is_a_path(given_sequences: list[Prompted]) -> None:
    tree = token_tree(given_sequences)
    seen = tree.attention()
    for (prompt, response), own in zip(given_sequences, tree.responses, strict=True):
        assert tree.targets[own].tolist() == list(response)
        whole = [*prompt, *response]
        for place, predictor in enumerate(tree.predictors[own], start=len(prompt)):
            context = np.flatnonzero(seen[predictor])
            # What the predictor sees is the sequence up to it, in order, at its own depths.
            assert tree.ids[context].tolist() == whole[:place]
            assert tree.depths[context].tolist() == list(range(place))


@given(sequences)
def test_nothing_is_there_twice(given_sequences: list[Prompted]) -> None:
    tree = token_tree(given_sequences)
    beginnings = {
        tuple([*prompt, *response][:end])
        for prompt, response in given_sequences
        for end in range(1, len(prompt) + len(response) + 1)
    }
    assert len(tree) == len(beginnings)
    answers = {
        tuple([*prompt, *response][:end])
        for prompt, response in given_sequences
        for end in range(len(prompt) + 1, len(prompt) + len(response) + 1)
    }
    assert len(tree.targets) == len(answers)


@given(sequences, st.integers(1, 4))
def test_a_window_is_counted_in_places_of_the_sequence(
    given_sequences: list[Prompted], window: int
) -> None:
    tree = token_tree(given_sequences)
    whole, near = tree.attention(), tree.attention(window)
    for row in range(len(tree)):
        assert np.flatnonzero(near[row]).tolist() == np.flatnonzero(whole[row]).tolist()[-window:]


def test_pairs_as_sequences() -> None:
    (pair,) = make_pairs(1)
    assert pair_sequences([pair]) == [
        (pair.prompt_ids, pair.chosen_ids),
        (pair.prompt_ids, pair.rejected_ids),
    ]
    assert chosen_sequences([pair]) == [(pair.prompt_ids, pair.chosen_ids)]


@pytest.mark.parametrize("balance", [None, 30.0, 500.0])
@pytest.mark.parametrize("max_tokens", [1, 90, 200, 10_000])
def test_runs_are_in_order_bounded_and_cheapest(max_tokens: int, balance: float | None) -> None:
    pairs = make_pairs(6)
    limits = TreeLimits(max_tokens, balance)

    def cost(run: list[EncodedPair]) -> float:
        tokens = len(token_tree(pair_sequences(run)))
        fits = tokens <= max_tokens or len(run) == 1
        return limits.cost(tokens) if fits else float("inf")

    runs = trees_of(pairs, pair_sequences, limits)
    assert [pair for run, _ in runs for pair in run] == pairs
    for run, tree in runs:
        assert len(tree) == len(token_tree(pair_sequences(run)))
        assert len(tree) <= max_tokens or len(run) == 1
    # Every way to cut six pairs into runs.
    cheapest = min(
        sum(cost(pairs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(pairs)]))
        for count in range(len(pairs))
        for cuts in itertools.combinations(range(1, len(pairs)), count)
    )
    assert sum(cost(list(run)) for run, _ in runs) == pytest.approx(cheapest)


@given(sequences)
def test_sizes_are_those_of_the_trees(given_sequences: list[Prompted]) -> None:
    """Each run from the first on, by the limit that just admits it or just does not."""
    pairs = [EncodedPair("", tuple(p), tuple(r), tuple(r[:1])) for p, r in given_sequences]
    for end in range(1, len(pairs) + 1):
        size = len(token_tree(pair_sequences(pairs[:end])))
        assert len(trees_of(pairs[:end], pair_sequences, TreeLimits(size))) == 1
        if end > 1:
            assert len(trees_of(pairs[:end], pair_sequences, TreeLimits(size - 1))) > 1


def test_only_the_trees_that_are_returned_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    original = preference_tree.token_tree

    def spy(given_sequences: list[Prompted]) -> TokenTree:
        built.append(len(given_sequences))
        return original(given_sequences)

    monkeypatch.setattr(preference_tree, "token_tree", spy)
    runs = trees_of(make_pairs(24), pair_sequences, TreeLimits(300))
    assert len(runs) > 3
    assert sorted(built) == sorted(2 * len(run) for run, _ in runs)


def test_what_decides_how_a_group_is_divided() -> None:
    pairs = make_pairs(8)

    def sizes(limits: TreeLimits) -> list[int]:
        return [len(run) for run, _ in trees_of(pairs, pair_sequences, limits)]

    assert sizes(TreeLimits(1)) == [1] * 8  # a pair is never divided
    assert sizes(TreeLimits(10_000)) == [8]
    assert len(sizes(TreeLimits(10_000, balance=100.0))) > 1  # attention has become the dearer part
    assert trees_of([], pair_sequences, TreeLimits(10)) == []


def test_cost() -> None:
    assert TreeLimits(10).cost(100) == 132
    assert TreeLimits(10, balance=50.0).cost(100) == 332  # attention costs twice the rest
