"""A Hugging Face tokenizer of whole words separated by whitespace; nothing is downloaded."""

from collections.abc import Sequence
from typing import Any


def word_tokenizer(words: Sequence[str], begin: str) -> Any:
    """A tokenizer with these words and no others.

    Args:
        words: in the order of their token ids.
        begin: the word put before every text, also used for padding and as the end.

    Returns:
        A `transformers.PreTrainedTokenizerFast`.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(numbers))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, numbers[begin])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        name_or_path="whole words",
        bos_token=begin,
        eos_token=begin,
        pad_token=begin,
        add_bos_token=True,  # else TransformerLens downloads a tokenizer that does
    )
