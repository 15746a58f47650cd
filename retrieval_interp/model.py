"""Building the models to train: GPT-2 blocks over continuous vectors or tokens (section 7.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from retrieval_interp.config import Init, ModelConfig
from retrieval_interp.tasks import TokenTask, TrainingTask
from retrieval_interp.tasks.training_task import BEGIN

if TYPE_CHECKING:
    from retrieval_interp.circuits.models.transformer import Transformer


def build_model(
    config: ModelConfig,
    task: TrainingTask,
    seed: int = 0,
    device: str | torch.device = "cpu",
    init: Init = "gpt2",
) -> "Transformer":
    """A freshly initialized model for a task; the same seed gives the same weights on any device.

    For a task on tokens it has a tokenizer of the task's words, and a learned positional embedding
    that starts as sinusoids. It needs TransformerLens 3.

    Args:
        config: sizes of the model.
        task: determines the sizes of inputs and outputs.
        seed: of the weights; the caller's random state is left unchanged.
        device: where to put the model.
        init: `gpt2`, TransformerLens's (normal weights of standard deviation 0.8 / sqrt(d_model)),
            or `linear`, PyTorch's for linear layers (uniform within 1 / sqrt(inputs)) and for
            embeddings of words (standard normal). Biases are zero.
    """
    import retrieval_interp.circuits.models.transformer as transformer

    cfg = transformer.HookedTransformerConfig(
        n_layers=config.layers,
        n_heads=config.heads,
        d_model=config.d_model,
        d_head=config.head_width,
        n_ctx=task.n_positions,
        d_vocab=task.d_in,
        d_vocab_out=task.d_out,
        attn_only=not config.mlp,
        act_fn="gelu_pytorch_tanh",  # GPT-2's gelu_new, fused
        normalization_type="LN",
        positional_embedding_type="standard",
        default_prepend_bos=isinstance(task, TokenTask),
        device="cpu",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(task, TokenTask):
            model = transformer.Transformer(cfg, tokenizer_of(task))
            model.pos_embed.W_pos.data.copy_(task.position_encoding(cfg.d_model))
        else:
            model = transformer.VectorTransformer(cfg)
        if init == "linear":
            _init_as_linear_layers(model)
    model.to(device, print_details=False)
    return model


@torch.no_grad()
def _init_as_linear_layers(model: "Transformer") -> None:
    for name, weight in model.named_parameters():
        kind = name.split(".")[-1]
        if kind.startswith("W_") and kind != "W_pos":
            # W_O of all heads together is one linear layer into the residual stream.
            inputs = weight.shape[0] * weight.shape[1] if kind == "W_O" else weight.shape[-2]
            weight.uniform_(-(inputs**-0.5), inputs**-0.5)
    if not getattr(model, "reads_vectors", False):
        model.embed.W_E.normal_()


def tokenizer_of(task: TrainingTask) -> Any:
    """The tokenizer of a task's words; None for a task on vectors."""
    return word_tokenizer(task.vocabulary, BEGIN) if isinstance(task, TokenTask) else None


def word_tokenizer(words: Sequence[str], begin: str) -> Any:
    """A Hugging Face tokenizer of whole words separated by whitespace; nothing is downloaded.

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
