"""Whether a token's position alone decides how a model rotates it."""

from typing import Final

from transformers import PreTrainedModel

_BY_LENGTH: Final = {"dynamic", "longrope"}


def rotates_by_length(model: PreTrainedModel) -> bool:
    """Return whether some layer's rotary embedding goes by the longest sequence of a forward.

    What such a model computes of a sequence depends on the others that it is computed with.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)]
    return any(one.get("rope_type") in _BY_LENGTH for one in (rope, *by_layer))
