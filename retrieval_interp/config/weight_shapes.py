"""The shape of every weight of a model, known without building it."""

from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.tasks import TrainingTask


def weight_shapes(config: ModelConfig, task: TrainingTask) -> dict[str, tuple[int, ...]]:
    """Shapes by HookedTransformer's names.

    Args:
        config: sizes of the model.
        task: determines the sizes of inputs and outputs.
    """
    width, heads, d_head = config.d_model, config.heads, config.head_width
    d_mlp = 4 * width
    block: dict[str, tuple[int, ...]] = {"ln1.w": (width,), "ln1.b": (width,)}
    for name in "QKV":
        block[f"attn.W_{name}"] = (heads, width, d_head)
        block[f"attn.b_{name}"] = (heads, d_head)
    block |= {"attn.W_O": (heads, d_head, width), "attn.b_O": (width,)}
    if config.mlp:
        block |= {"ln2.w": (width,), "ln2.b": (width,)}
        block |= {"mlp.W_in": (width, d_mlp), "mlp.b_in": (d_mlp,)}
        block |= {"mlp.W_out": (d_mlp, width), "mlp.b_out": (width,)}
    shapes = {
        "embed.W_E": (task.d_in, width),
        "pos_embed.W_pos": (task.n_positions, width),
        "ln_final.w": (width,),
        "ln_final.b": (width,),
        "unembed.W_U": (width, task.d_out),
        "unembed.b_U": (task.d_out,),
    }
    for layer in range(config.layers):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    return shapes
