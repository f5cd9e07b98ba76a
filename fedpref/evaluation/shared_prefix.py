"""The common beginning of many prompts: its keys and values are computed once, for all batches.

A batch of the remaining parts is padded between the prefix and each part. The attention mask and
the position ids make that right wherever attention goes by them; it is wrong where a layer goes by
the distance of two places in the cache.
"""

import inspect
import itertools
from collections.abc import Sequence

import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from fedpref.training.positions import rotates_by_length

# Tokens for which a full cache is enlarged at a time.
_ROOM = 32


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that all prompts begin with; at least one of each is left over."""
    # What the first and the last in lexical order share, all between them share as well.
    first, last = min(map(list, prompts)), max(map(list, prompts))
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return [token for token, _ in common][: min(map(len, prompts)) - 1]


def allows_padding(model: PreTrainedModel) -> bool:
    """Return whether padding on the left leaves the answers of `model` as they are.

    It must be told the position of each token, and not rotate by the longest sequence so far.
    """
    told = "position_ids" in inspect.signature(model.forward).parameters
    return told and not rotates_by_length(model)


def allows_gaps(model: PreTrainedModel, length: int) -> bool:
    """Return whether padding may stand inside sequences of `length` tokens in all, too.

    Every layer must attend to the whole sequence.
    """
    layers = DynamicCache(config=model.config).layers
    return allows_padding(model) and all(
        type(layer) is DynamicLayer
        or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= length)
        for layer in layers
    )


class SharedPrefix:
    """The keys and values of `prefix`, which may be empty, in each layer of a model."""

    def __init__(self, model: PreTrainedModel, prefix: Sequence[int]) -> None:
        self.length = len(prefix)
        self._cache = DynamicCache(config=model.config)
        if prefix:
            ids = torch.tensor([list(prefix)], device=model.device)
            model(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=1)

    def expanded(self, rows: int) -> Cache:
        """Return a cache of its own for a batch of `rows` that all begin with the prefix."""
        layers = [_RoomyLayer() for _ in self._cache.layers]
        if self.length:
            for layer, own in zip(layers, self._cache.layers, strict=True):
                layer.begin(own.keys.expand(rows, -1, -1, -1), own.values.expand(rows, -1, -1, -1))
        return Cache(layers=layers)


class _RoomyLayer(DynamicLayer):
    """A cache layer with room behind its end, so that not all of it is copied for each token."""

    def __init__(self) -> None:
        super().__init__()
        self._room: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def begin(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start with these keys and values (rows, heads, tokens, dim), which stay as they are."""
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of new tokens and return all."""
        if not self.is_initialized:
            self.begin(key_states[:, :, :0], value_states[:, :, :0])
        end = self.keys.shape[2] + key_states.shape[2]
        keys = _appended(self._room[0], self.keys, key_states)
        values = _appended(self._room[1], self.values, value_states)
        self._room = (keys, values)
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values


def _appended(room: torch.Tensor | None, states: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return memory that begins with `states` and `new`: `room` if `states` are its beginning."""
    start, end = states.shape[2], states.shape[2] + new.shape[2]
    if room is None or room.data_ptr() != states.data_ptr() or room.shape[2] < end:
        rows, heads, _, dim = new.shape
        room = new.new_empty(rows, heads, end + _ROOM, dim)
        room[:, :, :start] = states
    room[:, :, start:end] = new
    return room
