"""The tiny base model's tokenizer: byte-level BPE with a ChatML template in the manner of Qwen.

Any text can be encoded and comes back unchanged. To keep CPU training short, text is cut so that
whole lines of the compact prompt, stretches of JSON and the ontology's names between quotes can
become one token each; words of reports are cut as usual. A line break is always a piece of its own,
so that the prompt's tokens stay a prefix of the tokens of prompt and response.
"""

import re
from collections.abc import Iterable
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fedpref.task import ONTOLOGY, messages

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MAX_LENGTH: Final = 4096
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
_JSON_STRETCHES: Final = (
    '{"diseases":[],"findings":[]}',
    '{"diseases":["',
    '"],"findings":[{"disease":"',
    '"],"findings":[]}',
    '","location":"',
    '"},{"disease":"',
    '"}]}',
    '","',
)


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on texts (reports, prompts and answers)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pieces()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _pieces() -> str:
    """Return the expression whose matches are the pieces within which tokens are formed."""
    lines = [line for line in messages("", "compact")[0]["content"].split("\n") if line]
    whole = [re.escape(text) for text in (*lines, *_JSON_STRETCHES)]
    names = "|".join(re.escape(name) for name in (*ONTOLOGY.locations, *ONTOLOGY.diseases))
    return "|".join(
        (
            *whole,
            rf'(?<=")(?:{names})(?=")',
            r"\n",
            r" ?\p{L}+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+",
            r"[^\S\n]",
        )
    )
