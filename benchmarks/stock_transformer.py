"""TransformerLens's own HookedTransformer with another model's weights, to time that against it."""

import copy
import warnings

from torch import Tensor, nn
from transformer_lens import HookedTransformer


class StockTransformer(nn.Module):
    """Reads vectors through `W_E`; blocks and their GELU are TransformerLens's for GPT-2.

    Args:
        model: sizes and weights, of a task in vectors.
    """

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
