"""Build the models to train: GPT-2 blocks that read vectors or tokens (section 7.1)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.models.plain import PlainTransformer, hooked_model, plain_transformer
from retrieval_interp.config import Init, ModelConfig
from retrieval_interp.tasks import TokenTask, TrainingTask
from retrieval_interp.tasks.training_task import BEGIN


def build_model(
    config: ModelConfig,
    task: TrainingTask,
    seed: int = 0,
    device: str | torch.device = "cpu",
    init: Init = "gpt2",
) -> HookedModel:
    """Build a model for a task, initialized; the same seed gives the same weights on any device.

    For a task in tokens it has a tokenizer of the task's words, and a learned positional embedding
    that starts as sinusoids. It is a HookedTransformer, or with TransformerLens 4 a bridge.

    Args:
        config: sizes of the model.
        task: determines the sizes of inputs and outputs.
        seed: of the weights; the caller's random state is left unchanged.
        device: where to put the model.
        init: `gpt2`, TransformerLens's (normal weights of standard deviation 0.8 / sqrt(d_model)),
            or `linear`, PyTorch's for linear layers (uniform within 1 / sqrt(inputs)) and for
            embeddings of words (standard normal). Biases are zero.
    """
    weights = initial_weights(config, task, seed, init).to(device)
    return hooked_model(weights, tokenizer_of(task))


@torch.no_grad()
def initial_weights(
    config: ModelConfig, task: TrainingTask, seed: int, init: Init
) -> PlainTransformer:
    """Draw the weights of `build_model`, in the order in which a HookedTransformer draws them."""
    plain = empty_weights(config, task)
    weights = {name: weight for name, weight in plain.named_parameters() if ".W_" in name}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for weight in weights.values():
            nn.init.normal_(weight, std=0.8 / config.d_model**0.5)
        position = weights.pop("pos_embed.W_pos")
        if isinstance(task, TokenTask):
            position.copy_(task.position_encoding(config.d_model))
        else:
            position.zero_()
        if init == "linear":
            for name, weight in weights.items():
                # W_O of all heads together is one linear layer into the residual stream.
                together = name.endswith("W_O")
                inputs = weight.shape[0] * weight.shape[1] if together else weight.shape[-2]
                weight.uniform_(-(inputs**-0.5), inputs**-0.5)
            if isinstance(task, TokenTask):
                plain.embed.W_E.normal_()
    return plain


def empty_weights(config: ModelConfig, task: TrainingTask) -> PlainTransformer:
    """Make the weights of a model for a task, all zero."""
    return plain_transformer(
        not isinstance(task, TokenTask),
        n_layers=config.layers,
        n_heads=config.heads,
        d_model=config.d_model,
        d_head=config.head_width,
        d_mlp=4 * config.d_model,
        n_ctx=task.n_positions,
        d_vocab=task.d_in,
        d_vocab_out=task.d_out,
        attn_only=not config.mlp,
    )


def tokenizer_of(task: TrainingTask) -> Any:
    """Return a tokenizer of a task's words; None for a task in vectors."""
    return word_tokenizer(task.vocabulary, BEGIN) if isinstance(task, TokenTask) else None


def word_tokenizer(words: Sequence[str], begin: str) -> Any:
    """Make a Hugging Face tokenizer of whole words separated by whitespace, without a download.

    `words` are in the order of their ids; `begin` is put before every text, and pads and ends it.
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
