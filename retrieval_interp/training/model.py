"""Building the models to train: GPT-2 blocks over continuous vectors or tokens.

Causal attention and optionally an MLP of four times the width, each after a layer norm, without
dropout (paper, section 7.1). The class is `circuits.models.vector_transformer.VectorTransformer`;
a task on tokens gets a HookedTransformer with a tokenizer of its words and a learned positional
embedding, initialized with sinusoids (`TokenTask.position_encoding`).
"""

from typing import TYPE_CHECKING

import torch

from retrieval_interp.config.model_config import Init
from retrieval_interp.config.model_config import ModelConfig as ModelConfig
from retrieval_interp.tasks import TokenTask, TrainingTask
from retrieval_interp.tasks.training_task import BEGIN
from retrieval_interp.training.word_tokenizer import word_tokenizer

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

    The caller's random state is left unchanged.

    Args:
        config: sizes of the model.
        task: determines the sizes of inputs and outputs.
        seed: of the weights.
        device: where to put the model.
        init: `gpt2`, TransformerLens's (normal weights of standard deviation 0.8 / sqrt(d_model)),
            or `linear`, PyTorch's for linear layers (uniform within 1 / sqrt(inputs)) and for
            embeddings of words (standard normal). Biases are zero.

    Raises:
        InputError: TransformerLens is 4 or newer.
    """
    from retrieval_interp.circuits.models.transformer import HookedTransformerConfig, Transformer
    from retrieval_interp.circuits.models.vector_transformer import VectorTransformer

    cfg = HookedTransformerConfig(
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
            model = Transformer(cfg, word_tokenizer(task.vocabulary, BEGIN))
            model.pos_embed.W_pos.data.copy_(task.position_encoding(cfg.d_model))
        else:
            model = VectorTransformer(cfg)
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
