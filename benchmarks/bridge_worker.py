"""Scores a shipped circuit on its checkpoint loaded into a TransformerBridge.

    python benchmarks/bridge_worker.py small transformer-a --examples 64

Runs with TransformerLens 4, which has no HookedTransformer, and prints one JSON object;
`versions.py --bridge` makes the environment, runs this and compares the numbers with those of the
HookedTransformer.

1. TransformerLens's own `convert_tl_checkpoint` converts the weights to those of a native bridge.
2. A bridge takes floats as embeddings; `VectorBridge` first multiplies the task's vectors by the
   read-in, as the subclass of HookedTransformer here does.
3. `ri.open(bridge, task)` loads the circuit, which is scored as for any model.
"""

import argparse
import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import retrieval_interp as ri


def load_bridge(path: Path) -> tuple[Any, ri.RetrievalTask]:
    """The model and task of a checkpoint of the retrieval task."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    class VectorBridge(TransformerBridge):
        """A bridge whose input is [batch, pos, d_in] vectors instead of tokens."""

        def forward(self, input: Tensor, *arguments: Any, **options: Any) -> Any:
            return super().forward(input @ self.W_E, *arguments, **options)

    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["retrieval_interp"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    n_heads, d_model, d_head = weights["blocks.0.attn.W_Q"].shape
    d_in, d_out = len(weights["embed.W_E"]), weights["unembed.W_U"].shape[1]
    mlp = weights.get("blocks.0.mlp.W_in")
    config = TransformerBridgeConfig(
        n_layers=content["model"]["layers"],
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head,
        d_mlp=None if mlp is None else mlp.shape[1],
        attn_only=mlp is None,
        n_ctx=len(weights["pos_embed.W_pos"]),
        d_vocab=d_in,
        d_vocab_out=d_out,
        act_fn="gelu_new",
        normalization_type="LN",
        positional_embedding_type="standard",
    )
    bridge = TransformerBridge.boot_native(config)
    bridge.load_state_dict(convert_tl_checkpoint(weights, config), strict=True)
    bridge.__class__ = VectorBridge
    options = {name: value for name, value in content["task"].items() if name != "name"}
    return bridge.eval(), ri.RetrievalTask(**options)


def numbers(bench: ri.Workbench) -> dict[str, float]:
    """The MSE of the intact model, of the circuit and of each ablation, by name."""
    score = ri.score_circuit(bench.model, bench.task, bench.circuit, bench.batch, controls=0)
    found = {"intact": score.baseline_loss, "circuit": score.combined_loss}
    found |= {f"{row.head} alone": row.loss for row in score.heads}
    found |= {f"{row.path} ablated too": row.ablated_loss for row in score.paths}
    found |= {f"{row.path} cut live": row.live_loss for row in (*score.paths, *score.enabling)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoints", nargs="+", help="small, transformer-a, ...")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--hooked", action="store_true", help="in this project's own classes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    package = Path(str(resources.files("retrieval_interp")))
    result = {}
    for name in options.checkpoints:
        what = (name, None)
        if not options.hooked:
            what = load_bridge(package / "checkpoints" / f"{name}.safetensors")
        bench = ri.open(*what, examples=options.examples, device="cpu")
        bench.load(package / "results" / f"{name}.circuit.json")
        result[name] = numbers(bench)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
