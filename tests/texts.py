"""A sentence, tasks about it, and tokenizers of several kinds; nothing is downloaded."""

from dataclasses import replace

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import retrieval_interp as ri
from retrieval_interp.model import word_tokenizer

SENTENCE = "When Mary and John went to the store, John gave a drink to"


def giving(counterfactual=None):
    """A task of that sentence, with four names."""
    names = ["Ann", "Bob", "Cid", "Dan"]
    tokenizer = byte_pairs([f"to {name} and" for name in names] * 9 + [SENTENCE], vocab_size=400)
    sentence = "When {S1} and {IO} went to the store, {S2} gave a drink to"
    fillings = {"IO": names, "S1": names, "S2": "S1"}
    options = {"wrong": "S1", "tokenizer": tokenizer, "counterfactual": counterfactual}
    return ri.TemplateTask([sentence], fillings, answer="IO", **options)


def pairs(*changes):
    """The sentence with another name in the middle, and pairs that differ from that."""
    pair = ri.Pair(SENTENCE, SENTENCE.replace("John gave", "Ann gave"), (" Mary",), (" John",))
    return [replace(pair, **change) for change in changes or ({},)]


def sentence_tokenizer():
    return byte_pairs([f"{SENTENCE} Mary Ann"] * 3, vocab_size=300)


def _trained(texts, before, after, vocab_size, bos, alphabet=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = before, after
    how = {"special_tokens": ["<bos>"], "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=[*alphabet], **how)
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>" if bos else None, name_or_path="ours"
    )


def byte_pairs(texts, vocab_size=550, bos=True, single_digits=False):
    """Byte-level BPE in the manner of GPT-2; with single digits, of SmolLM2."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [pre_tokenizers.Digits(individual_digits=True), level] if single_digits else [level]
    before, alphabet = pre_tokenizers.Sequence(parts), pre_tokenizers.ByteLevel.alphabet()
    return _trained(texts, before, decoders.ByteLevel(), vocab_size, bos, alphabet)


def like_llama(texts, vocab_size=550):
    """In the manner of SentencePiece: spaces become ▁, also at the beginning; digits are single."""
    parts = [
        pre_tokenizers.Split("\n", "isolated"),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Digits(individual_digits=True),
    ]
    before = pre_tokenizers.Sequence(parts)
    return _trained(texts, before, decoders.Metaspace(), vocab_size, True, ["▁"])


def whole_words(texts):
    """A token for every word between blanks."""
    words = sorted({word for text in texts for word in text.split()})
    return word_tokenizer([*words, "<s>"], "<s>")
