"""Sequences that begin alike as one token tree: what they share is computed once.

The pairs of an accumulation group share the system prompt, the two responses of a pair share the
report, and often the beginning of their JSON. A tree holds each shared token once. A token attends
to its ancestors and itself, at its depth as position, so that a forward over the tree gives every
sequence the log-probs that it has alone. Torch-free; `tree_forward` runs it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedpref.training.encoding import EncodedPair

Ids = NDArray[np.int64]
# What each forward costs beside its tokens, in tokens: measured with the tiny demo model on a CPU.
_FIXED_COST: Final = 32
Prompted = tuple[Sequence[int], Sequence[int]]  # token ids of a prompt and of a response to it


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of N tokens, each behind its ancestors and directly before its descendants.

    `ids`, `depths` and `ends` (N,): token, place in its sequence, place behind its last descendant.
    Of the tokens that some response holds, P in number, `predictors` (P,) names the tokens before
    them and `targets` (P,) their ids; `responses` lists for each sequence, in the order given,
    which of the P are its response.
    """

    ids: Ids
    depths: Ids
    ends: Ids
    predictors: Ids
    targets: Ids
    responses: tuple[Ids, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def attention(self, window: int | None = None) -> NDArray[np.bool_]:
        """Return (N, N): whether the row's token attends to the column's.

        With a `window`, only to those fewer than `window` places before it in its sequence.
        """
        places = np.arange(len(self))
        allowed = (places <= places[:, None]) & (places[:, None] < self.ends)
        if window is not None:
            allowed &= self.depths[:, None] - self.depths[None, :] < window
        return allowed


def token_tree(sequences: Sequence[Prompted]) -> TokenTree:
    """Return the tree of prompt + response sequences; shared beginnings are found by token.

    Every prompt needs a token: the first of a response is predicted from it.
    """
    tokens = [np.array([*prompt, *response], dtype=np.int64) for prompt, response in sequences]
    spans = list(_segments(tokens))
    starts = np.cumsum([0, *(span.end - span.start for span in spans)])
    ends = starts[1:].copy()
    # The places of each sequence's tokens in the tree, segment by segment from the root.
    paths: list[list[Ids]] = [[] for _ in tokens]
    for number, span in enumerate(spans):
        for member in span.members:
            paths[member].append(np.arange(starts[number], starts[number + 1]))
    # Depth first: a segment's descendants stand directly behind it, the last of them last.
    for number, span in reversed(list(enumerate(spans))):
        if span.parent is not None:
            ends[span.parent] = max(ends[span.parent], ends[number])
    places = [np.concatenate(path) for path in paths]
    before = [places[i][len(p) - 1 : -1] for i, (p, _) in enumerate(sequences)]
    predicted = [places[i][len(p) :] for i, (p, _) in enumerate(sequences)]
    # A token has one predecessor, so that the predicted tokens' places tell predictions apart.
    unique, first = np.unique(np.concatenate(predicted), return_index=True)
    ids = np.concatenate([tokens[span.members[0]][span.start : span.end] for span in spans])
    return TokenTree(
        ids=ids,
        depths=np.concatenate([np.arange(span.start, span.end) for span in spans]),
        ends=np.repeat(ends, np.diff(starts)),
        predictors=np.concatenate(before)[first],
        targets=ids[unique],
        responses=tuple(np.searchsorted(unique, own) for own in predicted),
    )


def chosen_sequences(pairs: Sequence[EncodedPair]) -> list[Prompted]:
    """Return the chosen response of each pair with its prompt."""
    return [(pair.prompt_ids, pair.chosen_ids) for pair in pairs]


def pair_sequences(pairs: Sequence[EncodedPair]) -> list[Prompted]:
    """Return chosen and rejected of each pair: 2·pairs sequences, chosen at the even places."""
    return [
        (pair.prompt_ids, response)
        for pair in pairs
        for response in (pair.chosen_ids, pair.rejected_ids)
    ]


@dataclass(frozen=True)
class TreeLimits:
    """How large trees may be, and what a token costs.

    A tree holds at most `max_tokens`. At `balance` tokens attention, whose work grows with the
    square of the tree, takes as long as all the rest of the model; None where attention skips what
    no token sees.
    """

    max_tokens: int
    balance: float | None = None

    def cost(self, tokens: int) -> float:
        """Return what a tree of so many tokens costs, in tokens of a tree without attention."""
        attention = 0.0 if self.balance is None else tokens / self.balance
        return _FIXED_COST + tokens * (1 + attention)


def trees_of(
    pairs: Sequence[EncodedPair],
    sequences_of: Callable[[Sequence[EncodedPair]], list[Prompted]],
    limits: TreeLimits,
) -> list[tuple[Sequence[EncodedPair], TokenTree]]:
    """Return runs of consecutive pairs with the tree of each, those that cost least together.

    A pair is never divided: one that is larger than the limit by itself is a run of its own.
    `sequences_of` gives each pair's sequences whatever the others are.
    """
    own = [sequences_of([pair]) for pair in pairs]
    shared = _common_lengths([sequence for sequences in own for sequence in sequences])
    places = np.cumsum([0, *map(len, own)])  # where each pair's sequences begin
    best = [0.0]  # the least cost of the first n pairs,
    last: list[int] = []  # and where their last run starts
    for end in range(1, len(pairs) + 1):
        choices: list[tuple[float, int]] = []
        size = 0
        for start in range(end - 1, -1, -1):
            for place in range(places[start], places[start + 1]):
                # A sequence adds what it shares with none of those behind it.
                behind = shared[place, place + 1 : places[end]]
                size += int(shared[place, place] - behind.max(initial=0))
            if choices and size > limits.max_tokens:
                break
            choices.append((best[start] + limits.cost(size), start))
        cost, start = min(choices)
        best.append(cost)
        last.append(start)
    runs: list[tuple[Sequence[EncodedPair], TokenTree]] = []
    end = len(pairs)
    while end:
        start = last[end - 1]
        tree = token_tree([sequence for sequences in own[start:end] for sequence in sequences])
        runs.append((pairs[start:end], tree))
        end = start
    return runs[::-1]


def _common_lengths(sequences: Sequence[Prompted]) -> Ids:
    """Return with how many tokens each two begin alike: (sequences, sequences).

    With itself, that is a sequence's own length.
    """
    tokens = [np.array([*prompt, *response], dtype=np.int64) for prompt, response in sequences]
    lengths = np.array([len(own) for own in tokens], dtype=np.int64)
    table = np.full((len(tokens), lengths.max(initial=0) + 1), -1, dtype=np.int64)
    for row, own in zip(table, tokens, strict=True):
        row[: len(own)] = own
    common = np.empty((len(tokens), len(tokens)), dtype=np.int64)
    for number, own in enumerate(tokens):
        # Its end differs from all: from tokens, which are not negative, and from what fills a row.
        different = table[:, : len(own) + 1] != np.append(own, -2)
        common[number] = different.argmax(axis=1)
    return common


@dataclass(frozen=True)
class _Span:
    """Tokens start … end of all `members`, which are equal up to `end`."""

    start: int
    end: int
    parent: int | None
    members: tuple[int, ...]


def _segments(tokens: Sequence[Ids]) -> Iterator[_Span]:
    """Yield the segments depth first, branches in the order of their first member.

    A segment has no branch inside.
    """
    waiting: list[tuple[int, int | None, tuple[int, ...]]] = [(0, None, tuple(range(len(tokens))))]
    count = 0
    while waiting:
        start, parent, members = waiting.pop()
        end = min(_agree(tokens[members[0]], tokens[member], start) for member in members)
        branches: dict[int, list[int]] = {}
        for member in members:
            if len(tokens[member]) > end:
                branches.setdefault(int(tokens[member][end]), []).append(member)
        number = parent
        if end > start:
            number = count
            yield _Span(start, end, parent, members)
            count += 1
        waiting += [(end, number, tuple(branch)) for branch in reversed(branches.values())]


def _agree(one: Ids, other: Ids, start: int) -> int:
    """Return the first place from `start` on at which the two differ or one of them ends."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[start:length] != other[start:length])
    return start + int(different[0]) if len(different) else length
