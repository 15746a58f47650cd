"""Transformers that this project's hooked model is timed against."""

import copy
import warnings

import torch.nn.functional as F
from torch import Tensor, nn
from transformer_lens import HookedTransformer

import retrieval_interp as ri


class PlainBlock(nn.Module):
    def __init__(self, config: ri.ModelConfig):
        super().__init__()
        self.heads, width = config.heads, config.heads * config.head_width
        self.ln1 = nn.LayerNorm(config.d_model)
        self.qkv = nn.Linear(config.d_model, 3 * width)
        self.out = nn.Linear(width, config.d_model)
        self.mlp = (
            nn.Sequential(
                nn.LayerNorm(config.d_model),
                nn.Linear(config.d_model, 4 * config.d_model),
                nn.GELU(approximate="tanh"),
                nn.Linear(4 * config.d_model, config.d_model),
            )
            if config.mlp
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x if self.mlp is None else x + self.mlp(x)


class PlainTransformer(nn.Module):
    """Plain PyTorch written by hand, nanoGPT style: fused attention, no hook points."""

    def __init__(self, config: ri.ModelConfig, task: ri.RetrievalTask):
        super().__init__()
        self.read = nn.Linear(task.d_in, config.d_model, bias=False)
        self.blocks = nn.Sequential(*(PlainBlock(config) for _ in range(config.layers)))
        self.write = nn.Sequential(
            nn.LayerNorm(config.d_model), nn.Linear(config.d_model, task.d_out)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.write(self.blocks(self.read(inputs)))


class StockTransformer(nn.Module):
    """TransformerLens's own HookedTransformer, with the weights of another on vectors."""

    def __init__(self, model: HookedTransformer):
        super().__init__()
        cfg = copy.deepcopy(model.cfg)
        cfg.act_fn = "gelu_new"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
            self.hooked = HookedTransformer(cfg)
        self.hooked.load_state_dict(model.state_dict())
        self.hooked.pos_embed.W_pos.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.hooked(inputs @ self.hooked.W_E, start_at_layer=0)
        return outputs
