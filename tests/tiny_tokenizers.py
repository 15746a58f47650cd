"""Tokenizers of several kinds, trained on some texts; nothing is downloaded."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from retrieval_interp.model import word_tokenizer


def _trained(texts, before, after, vocab_size, bos, alphabet=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = before, after
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<bos>"],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>" if bos else None, name_or_path="ours"
    )


def byte_pairs(texts, vocab_size=550, bos=True, single_digits=False):
    """Byte-level BPE in the manner of GPT-2; with single digits, of SmolLM2."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [pre_tokenizers.Digits(individual_digits=True), level] if single_digits else [level]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        texts, pre_tokenizers.Sequence(parts), decoders.ByteLevel(), vocab_size, bos, alphabet
    )


def like_llama(texts, vocab_size=550):
    """In the manner of SentencePiece: spaces become ▁, also at the beginning; digits are single."""
    parts = [
        pre_tokenizers.Split("\n", "isolated"),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Digits(individual_digits=True),
    ]
    return _trained(
        texts, pre_tokenizers.Sequence(parts), decoders.Metaspace(), vocab_size, True, ["▁"]
    )


def whole_words(texts):
    """A token for every word between blanks."""
    words = sorted({word for text in texts for word in text.split()})
    return word_tokenizer([*words, "<s>"], "<s>")


def check_tokens(task, question, made):
    """Whether roles are at the last tokens of their words; returns how many have several tokens."""
    tokenizer = task.tokenizer
    begin, several = len(task.begin), 0
    for symbol in question.occurrences:
        if symbol.role not in task.roles:
            continue
        at = made.roles[task.roles.index(symbol.role)]
        before, until = (len(tokenizer.decode(made.prompt[begin:end])) for end in (at, at + 1))
        assert before < symbol.end <= until
        several += before > symbol.start
    assert tokenizer.decode(made.prompt[begin:]).rstrip() == question.prompt
    assert made.roles[task.roles.index("END")] == len(made.prompt) - 1
    scored = [tokenizer.decode([number]).strip() for number in made.answers]
    assert question.correct.startswith(scored[0]) and len(set(scored)) == len(scored)
    return several
