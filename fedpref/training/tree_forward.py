"""A model's log-probs over a token tree, through transformers' public interfaces.

An attention mask with four dimensions is used as it is, for full and for sliding-window layers, so
that each kind of layer needs a mask of its own. What is listed here is what the tests compare with
sequences one by one; other architectures train on TRL's own engine.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import create_block_mask
from transformers import PreTrainedModel

from fedpref.training.positions import rotates_by_length
from fedpref.training.preference_tree import TokenTree, TreeLimits

if TYPE_CHECKING:
    from fedpref.config import TrainingSettings

logger = logging.getLogger(__name__)

# Whose forward takes a mapping from a layer's kind to its mask; the others take one mask.
_MASK_BY_KIND: Final = frozenset({"qwen2", "qwen3", "gemma2", "gemma3_text"})
_ONE_MASK: Final = frozenset({"llama", "mistral", "gemma"})
# Of the latter, whose layers attend in the window of their configuration; the others ignore it.
_ONE_WINDOW: Final = frozenset({"mistral"})
# Attention that takes a mask of any shape, and what it wants: true/false, or numbers to be added.
_BOOLEAN, _ADDED, _BLOCKS = "sdpa", "eager", "flex_attention"
# FlexAttention goes by blocks of so many tokens; a part of one costs what a whole one does.
_BLOCK: Final = 128
# It is compiled for the first length, for a single block and for any length, each by kind of layer,
# with and without gradients and by precision: more often than Dynamo takes for a mistake (8), after
# which it would go on uncompiled, with all scores in memory.
_COMPILED: Final = 64

# A tensor, or a BlockMask for FlexAttention.
Mask: TypeAlias = Any


def uses_trees(model: PreTrainedModel, settings: "TrainingSettings") -> bool:
    """Return whether the settings ask for trees and the model takes them; warns once if not.

    `model` is a bare one: it must be of an architecture known here, with attention that takes a
    mask of any shape, and rotate each token by its own position alone.
    """
    if settings.engine != "tree":
        return False
    obstacle = _obstacle(model)
    if obstacle is not None:
        _warn(obstacle)
    return obstacle is None


def _obstacle(model: PreTrainedModel) -> str | None:
    """Return what keeps the model from taking trees, None if nothing does."""
    kind = str(model.config.model_type)
    attention = str(model.config._attn_implementation)
    if kind not in _MASK_BY_KIND | _ONE_MASK:
        return f"a model of type {kind}"
    if attention not in {_BOOLEAN, _ADDED, _BLOCKS}:
        return f"a model with {attention} attention"
    if rotates_by_length(model):
        return f"a model of type {kind} that rotates positions by the longest sequence"
    return None


@cache
def _warn(obstacle: str) -> None:
    logger.warning(
        "%s takes no preference trees: each response is computed with its whole prompt, which is "
        "slower",
        obstacle,
    )


def use_block_attention(model: PreTrainedModel) -> None:
    """On CUDA, let attention skip what no token sees; use inside a model session only."""
    if _takes_blocks(model):
        model.set_attn_implementation(_BLOCKS)
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, _COMPILED)


def _takes_blocks(model: PreTrainedModel) -> bool:
    """Return whether the attention of the model is, or will be, FlexAttention."""
    attention = str(model.config._attn_implementation)
    return attention == _BLOCKS or (attention == _BOOLEAN and model.device.type == "cuda")


def tree_limits(model: PreTrainedModel, max_tokens: int) -> TreeLimits:
    """Return what bounds the trees of `model`, a bare one, and what their tokens cost.

    A token's products with a layer's P parameters take 2·P operations; each token that it meets in
    the attention takes 4 for each of the layer's query values.
    """
    if _takes_blocks(model):
        return TreeLimits(max_tokens)
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if ".layers." in name and weight.ndim == 2
    )
    queries = config.num_hidden_layers * config.num_attention_heads * width
    return TreeLimits(max_tokens, balance=parameters / (2 * queries))


def response_logps(model: Any, tree: TokenTree) -> torch.Tensor:
    """Return log π(response|prompt) of each sequence of the tree: (sequences,), in nats.

    `model` is a causal model, bare or wrapped by PEFT. Logits are made only where a response token
    is predicted; the sums are float32, or float64 for a model of that.
    """
    config, device = model.config, model.device
    padding = -len(tree) % _BLOCK if config._attn_implementation == _BLOCKS else 0
    rows, row_of_prediction = np.unique(tree.predictors, return_inverse=True)
    logits = model(
        # What is padded sees itself and is seen by nobody.
        input_ids=_tensor(np.pad(tree.ids, (0, padding)), device)[None],
        position_ids=_tensor(np.pad(tree.depths, (0, padding)), device)[None],
        attention_mask=attention_masks(config, tree, device, padding),
        logits_to_keep=_tensor(rows, device),
        use_cache=False,
    ).logits[0]
    if logits.dtype != torch.float64:
        logits = logits.float()
    row, target = _tensor(row_of_prediction, device), _tensor(tree.targets, device)
    # Ten times as exact as log_softmax, whose sum over a large vocabulary rounds at every step.
    logps = logits[row, target] - torch.logsumexp(logits, dim=-1)[row]
    return torch.stack([logps[_tensor(own, device)].sum() for own in tree.responses])


def attention_masks(
    config: Any, tree: TokenTree, device: torch.device, padding: int = 0
) -> Mask | Mapping[str, Mask]:
    """Return the tree's attention as the model with `config` takes it: a mask, or one by kind."""
    window = getattr(config, "sliding_window", None)
    if config.model_type in _ONE_MASK:
        own = window if config.model_type in _ONE_WINDOW else None
        return _mask(config, tree, own, device, padding)
    windows = {"full_attention": None, "sliding_attention": window}
    return {
        kind: _mask(config, tree, windows[kind], device, padding)
        for kind in sorted(set(config.layer_types))
    }


def _mask(
    config: Any, tree: TokenTree, window: int | None, device: torch.device, padding: int
) -> Mask:
    if config._attn_implementation == _BLOCKS:
        return _block_mask(tree, window, device, padding)
    allowed = torch.from_numpy(tree.attention(window)).to(device)[None, None]
    if config._attn_implementation == _BOOLEAN:
        return allowed
    dtype = config.dtype or torch.float32
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def _block_mask(tree: TokenTree, window: int | None, device: torch.device, padding: int) -> Mask:
    total = len(tree) + padding
    # Both of the length of the tree: a shape of its own in here would compile for each tree.
    ends = _tensor(np.pad(tree.ends, (0, padding), constant_values=total), device)
    depths = _tensor(np.pad(tree.depths, (0, padding)), device)

    def visible(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        seen = (query >= key) & (query < ends[key])
        return seen if window is None else seen & (depths[query] - depths[key] < window)

    return create_block_mask(visible, None, None, total, total, device=device)


def _tensor(array: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
