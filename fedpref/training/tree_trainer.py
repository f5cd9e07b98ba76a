"""TRL's trainers on preference trees: a batch is a whole accumulation group, in one tree or more.

Arguments, schedule, optimiser, callbacks and log stay TRL's; replaced are what a batch holds and
how its gradient comes about. The trees of a group run one after the other and their gradients add
up, so that the size of a group does not decide about memory.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import TokenTree
from fedpref.training.trainer import ROW, PhaseMixin
from fedpref.training.tree_forward import response_logps

_TREES = "trees"


@dataclass(frozen=True, eq=False)
class TreePart:
    """A tree and its place in its group: `whole` is what the group's loss is divided by.

    That is the number of pairs (DPO) or of response tokens (SFT) of all trees of the group.
    `reference` holds, for DPO, the root's log-prob of each sequence, (sequences,).
    """

    tree: TokenTree
    whole: int
    reference: torch.Tensor | None = None


class TreeCollator:
    """Turns rows, which only name their place in `pairs`, into the trees of their group."""

    def __init__(
        self,
        pairs: Sequence[EncodedPair],
        parts_of: Callable[[Sequence[EncodedPair]], list[TreePart]],
    ) -> None:
        self._pairs, self._parts_of = pairs, parts_of

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the rows' places and the parts of their group."""
        rows = [int(example[ROW]) for example in examples]
        return {ROW: torch.tensor(rows), _TREES: self._parts_of([self._pairs[r] for r in rows])}


class TreeMixin(PhaseMixin):
    """Mixed into a phase's TRL trainer: the gradient of a group, tree by tree."""

    def group_gradient(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any
    ) -> torch.Tensor:
        """Add the gradient of the group's loss to the parameters and return the loss."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        for part in inputs[_TREES]:
            with self.compute_loss_context_manager():
                loss = self.part_loss(response_logps(model, part.tree), part)
            self.accelerator.backward(loss)
            total += loss.detach()
        return total

    @abstractmethod
    def part_loss(self, logps: torch.Tensor, part: TreePart) -> torch.Tensor:
        """Return what a tree adds to its group's loss, from its sequences' log-probs."""
