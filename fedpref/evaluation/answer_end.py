"""Where an answer may end although its model has not ended it: nothing to come can change it.

A model that goes on behind its object writes what nobody reads. Whether it does belongs to the
answer all the same (`Projection.strict`), so that one more token has to show it.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from fedpref.task import project

# How far back a template's opening of a thinking block is looked for, in tokens.
_PROMPT_TAIL = 16


def answer_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of an answer; a special token in it is part of what the model wrote."""
    return str(
        tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


class AnswerEnd:
    """Whether one growing answer's projection is decided.

    It is when the first JSON object has closed and something else than white space stands before or
    behind it, or when the object is refused. `fedpref.task.project` itself is asked, of all the
    text and only where a token closes a brace. A text with a `<think>` or `</think>` is never
    decided before the model ends, nor is any if the prompt opens such a block. What remains: a
    model that writes its first tag behind an object and further text would have taken that object
    back with a `</think>`; here the object stands.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        tail = answer_text(tokenizer, prompt[-_PROMPT_TAIL:])
        self._thinks = tail.rstrip().endswith("<think>")
        self._closed = False

    def reached(self, token_ids: Sequence[int]) -> bool:
        """Return whether the answer is decided; to be asked after each of its tokens."""
        if self._thinks or not (self._closed or self._closes_a_brace(token_ids[-1])):
            return False
        # Replacement characters at the end may be the first bytes of a character to come.
        text = answer_text(self._tokenizer, token_ids).rstrip("\ufffd")
        if "think>" in text:
            return False
        projection = project(text)
        self._closed = projection.failure != "no_object"
        return self._closed and not projection.strict

    def _closes_a_brace(self, token_id: int) -> bool:
        # By its name in the vocabulary: the byte token <0x7D> can still become part of a broken
        # run of bytes. A model may have more outputs than the tokenizer has tokens.
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return token is not None and "}" in token
