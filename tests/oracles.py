"""What several tests need: naive runs, tasks, models built by hand, bridges, tokenizers."""

import itertools
import random
import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.bridge import TransformerBridge

import retrieval_interp as ri
from examples.reach_the_bound import (
    PAIR,
    TOKEN,
    MatchingHead,
    Pairing,
    Slot,
    jump_head,
    pair_head,
    split,
)
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.mechanisms import Positions
from retrieval_interp.circuits.models.transformer import VectorTransformer
from retrieval_interp.circuits.paths import Mask
from retrieval_interp.model import word_tokenizer
from retrieval_interp.tasks import RetrievalTask

# Sequence order of the roles when D = 2: a source may not come after its destination.
ORDER = {3: 0, 4: 1, 1: 2, 2: 3, 0: 4}
PATHS = [(dest, src) for dest in range(5) for src in range(5) if ORDER[src] <= ORDER[dest]]


# Runs with hooks set by hand


def hooks_left(model):
    return sum(
        len(point.fwd_hooks) + len(point._forward_hooks) for point in model.hook_dict.values()
    )


def naive_outputs(model, circuit, batch):
    """One plain hook a head, set by hand."""
    hooks = []
    for (layer, head), mechanism in circuit.mechanisms.items():

        def replace(old, hook, head=head, mechanism=mechanism):
            new = old.clone()
            if mechanism.kind == "cut":
                for example in range(len(batch)):
                    for chain in batch.roles[example].tolist():
                        for path in mechanism.paths:
                            new[example, head, chain[path.dest], chain[path.src]] = 0
            else:
                new[:, head] = mechanism.pattern(Positions.of(batch, Mask()))
            return new

        hooks.append((f"blocks.{layer}.attn.hook_pattern", replace))
    return model.run_with_hooks(batch.inputs, fwd_hooks=hooks)


def naive_losses(model, task, circuit, batch):
    """The MSE of every example."""
    with torch.no_grad():
        outputs = naive_outputs(model, circuit, batch)
    errors = [
        (outputs[example, task.n_positions - task.chains + query] - batch.targets[example, query])
        for example in range(len(batch))
        for query in range(task.chains)
    ]
    return torch.stack(errors).pow(2).view(len(batch), -1).mean(1)


def naive_mse(model, task, circuit, batch):
    return float(naive_losses(model, task, circuit, batch).mean())


# HookedTransformers, and bridges with their weights


def stock_transformer(tokenizer=None, **cfg):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(HookedTransformerConfig(**cfg), tokenizer).eval()


def as_bridge(ours, cfg=None):
    """What `convert_tl_checkpoint` of TransformerLens 4 does, as far as it is needed here."""
    weights = {
        "embed.weight": ours["embed.W_E"],
        "pos_embed.weight": ours["pos_embed.W_pos"],
        "ln_final.weight": ours["ln_final.w"],
        "ln_final.bias": ours["ln_final.b"],
        "unembed.weight": ours["unembed.W_U"].T,
        "unembed.bias": ours["unembed.b_U"],
    }
    for layer in range(sum(name.endswith("W_Q") for name in ours)):
        block = f"blocks.{layer}."
        mlp = f"{block}mlp.W_in" in ours
        for norm in ("ln1", "ln2") if mlp else ("ln1",):
            weights[f"{block}{norm}.weight"] = ours[f"{block}{norm}.w"]
            weights[f"{block}{norm}.bias"] = ours[f"{block}{norm}.b"]
        for name in "QKV":
            weight = ours[f"{block}attn.W_{name}"]  # [head d_model d_head]
            weights[f"{block}attn.{name.lower()}.weight"] = weight.transpose(1, 2).flatten(0, 1)
            weights[f"{block}attn.{name.lower()}.bias"] = ours[f"{block}attn.b_{name}"].flatten()
        weights[f"{block}attn.o.weight"] = ours[f"{block}attn.W_O"].flatten(0, 1).T
        weights[f"{block}attn.o.bias"] = ours[f"{block}attn.b_O"]
        for name in ("in", "out") if mlp else ():
            weights[f"{block}mlp.{name}.weight"] = ours[f"{block}mlp.W_{name}"].T
            weights[f"{block}mlp.{name}.bias"] = ours[f"{block}mlp.b_{name}"]
    return weights


def bridge_of(model):
    """A bridge with a HookedTransformer's weights."""
    names = "n_layers n_heads d_model d_head d_mlp n_ctx d_vocab d_vocab_out attn_only"
    sizes = {name: getattr(model.cfg, name) for name in (*names.split(), "normalization_type")}
    sizes |= {"act_fn": "gelu_new", "positional_embedding_type": "standard"}
    cfg = TransformerBridgeConfig(**sizes)
    bridge = TransformerBridge.boot_native(cfg)
    bridge.load_state_dict(as_bridge(dict(model.named_parameters())), strict=True)
    return bridge.eval()


def without_norms(n_layers=3, n_ctx=15):
    cfg = HookedTransformerConfig(
        n_layers=n_layers, n_heads=2, d_model=16, d_head=8, n_ctx=n_ctx, d_vocab=8, d_vocab_out=8,
        attn_only=True, act_fn="gelu_new", normalization_type=None, device="cpu", seed=0,
    )  # fmt: skip
    return VectorTransformer(cfg)


def randomize(model):
    """Weights in which biases and layer norms matter too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "pos_embed.W_pos":
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


# A task that is not this project's, and models


class Lookup(ri.Task):
    """A start without a role, four pairs of words, then every first word again."""

    role_names = ("s0", "s1", "s2")
    loss_name = "cross entropy"

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        splits = ["train", "validation", "discovery", "test"]
        generator = torch.Generator().manual_seed(4 * seed + splits.index(split))
        keys = torch.rand(start + n, 16, generator=generator)[start:]
        words = keys[:, :12].argsort(1)[:, :8]
        key = 2 * keys[:, 12:].argsort(1)
        inputs = torch.cat([torch.full((n, 1), 12), words, words.gather(1, key)], dim=1)
        roles = torch.stack([torch.arange(9, 13).expand(n, -1), key + 1, key + 2], dim=-1)
        return ri.Batch(inputs, words.gather(1, key + 1), roles).to(device)

    def example_losses(self, outputs, batch):
        logits = outputs[:, -4:].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


LOOKUP_SIZES = {
    "n_layers": 2, "n_heads": 2, "d_model": 16, "d_head": 8, "d_mlp": 32, "n_ctx": 13,
    "d_vocab": 13, "d_vocab_out": 13, "act_fn": "gelu_new",
    "normalization_type": "LN",
}  # fmt: skip


def hooked_model(**sizes):
    return randomize(stock_transformer(**{**LOOKUP_SIZES, "seed": 0, "device": "cpu", **sizes}))


def by_hand():
    """A model of one step: layer 0 looks two words back, layer 1 for the line of that word.

    Words are unit vectors in three blocks of the residual stream: the word itself, what stands
    before the `=` of its line, and the answer.
    """
    task = ri.EquationsTask(chains=3, steps=1, curriculum=False)
    n, length = task.d_in, task.n_positions
    width = 3 * n + length
    model = stock_transformer(
        n_layers=2, n_heads=1, d_model=width, d_head=width, n_ctx=length, d_vocab=n,
        d_vocab_out=n, attn_only=True, normalization_type=None, seed=0, device="cpu",
    )  # fmt: skip
    eye, zero = torch.eye(n), torch.zeros(width, width)
    own, before, answer = (slice(block * n, (block + 1) * n) for block in range(3))
    place = slice(3 * n, width)
    back = torch.zeros(length, length)
    back[torch.arange(2, length), torch.arange(length - 2)] = 1000.0
    weights = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    weights["embed.W_E"][:, own] = eye
    weights["pos_embed.W_pos"][:, place] = torch.eye(length)
    weights["unembed.W_U"][answer] = 50 * eye
    for layer in range(2):
        for name in "QKVO":
            weights[f"blocks.{layer}.attn.W_{name}"][0] = zero
    first, second = ({k: f"blocks.{layer}.attn.W_{k}" for k in "QKVO"} for layer in range(2))
    weights[first["Q"]][0, place, place] = back
    weights[first["K"]][0, place, place] = torch.eye(length)
    weights[first["V"]][0, own, own] = eye
    weights[first["O"]][0, own, before] = eye
    weights[second["Q"]][0, before, own] = 1000 * eye
    weights[second["K"]][0, before, own] = eye
    # Never to a `?`, which holds the word before the `=`, too.
    weights[second["Q"]][0, own, n] = 1.0
    weights[second["K"]][0, task.vocabulary.index("?"), n] = -1e6
    weights[second["V"]][0, own, own] = eye
    weights[second["O"]][0, own, answer] = eye
    model.load_state_dict(weights, strict=False)
    return model, task


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


FAMILIES = ["gpt2", "llama", "qwen2", "gemma"]


def sentence_tokenizer():
    return byte_pairs([f"{SENTENCE} Mary Ann"] * 3, vocab_size=300)


def untrained_bridge(family, folder):
    """An untrained model of two layers of four heads, with keys that queries share."""
    tokenizer = sentence_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64
        ),
        "llama": lambda: transformers.LlamaConfig(**sizes, num_key_value_heads=2),
        "qwen2": lambda: transformers.Qwen2Config(**sizes, num_key_value_heads=2),
        "gemma": lambda: transformers.GemmaConfig(**sizes, num_key_value_heads=1, head_dim=8),
    }
    return bridge_of_config(configs[family](), tokenizer, folder)


def bridge_of_config(config, tokenizer, folder, kind=transformers.AutoModelForCausalLM):
    """A bridge to a model of Hugging Face with random weights, large enough to matter."""
    torch.manual_seed(0)
    model = kind.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


# Random matching heads: models whose circuit is known

PAIRINGS: tuple[Pairing, ...] = ("join", "point")
DISTRACTION = 0.04


def distractor(layer: int, head: int, offset: int = 1, scale: float = DISTRACTION) -> MatchingHead:
    """A head that attends sharply, like one that joins pairs, but is almost useless.

    It adds a little of the token it finds, which does not belong there, to `x+offset`.
    """
    copy = ((TOKEN, Slot("x", offset)),)
    return MatchingHead(layer, head, PAIR, PAIR, avoid=TOKEN, copy=copy, scale=scale)


def random_heads(
    task: RetrievalTask, n_layers: int, seed: int, n_heads: int = 1, extras: bool = True
) -> tuple[MatchingHead, ...]:
    """Random heads that solve a task; the same seed gives the same ones.

    Random are the pairing, the number of working layers and where they are, and how much each
    appends, with which reach and how many heads. Every other head is idle. With `extras` it is
    instead, in one case of four, a distractor, and in another, if a head of its layer works, it
    takes over half of that head's work.
    """
    rng = random.Random(seed)
    pairing = rng.choice(PAIRINGS)
    n_jumps = rng.randint(causal_depth(task.steps) - 1, min(task.steps, n_layers - 1))
    layers = sorted(rng.sample(range(n_layers), n_jumps + 1))
    heads, held = [pair_head(layers[0], pairing=pairing)], 1
    for left, layer in zip(range(n_jumps, 0, -1), layers[1:]):
        width = rng.choice(_widths(held, left, task.steps))
        offsets = range(held, held + width)
        numbers = [rng.randrange(n_heads) for _ in offsets]
        for number in sorted(set(numbers)):
            appended = tuple(offset for offset, other in zip(offsets, numbers) if other == number)
            reach = rng.randint(appended[-1] - held + 1, held)
            heads.append(jump_head(layer, reach, appended, number, pairing))
        held += width
    if extras:
        heads = _with_extras(heads, task, n_layers, n_heads, rng)
    return tuple(sorted(heads, key=lambda head: head.place))


def _with_extras(
    heads: list[MatchingHead], task: RetrievalTask, n_layers: int, n_heads: int, rng: random.Random
) -> list[MatchingHead]:
    placed = {tuple(head.place): head for head in heads}
    distractors: list[tuple[int, int]] = []
    for layer, number in itertools.product(range(n_layers), range(n_heads)):
        if (layer, number) in placed:
            continue
        whole = [head for head in heads if head.layer == layer and placed[head.place] == head]
        draw = rng.randrange(4)
        if draw == 0:
            distractors.append((layer, number))
        elif draw == 1 and whole:
            head = rng.choice(whole)
            placed[head.place], placed[layer, number] = split(head, [number])
    for layer, number in distractors:
        offset = rng.randint(1, task.steps)
        placed[layer, number] = distractor(layer, number, offset, DISTRACTION / len(distractors))
    return list(placed.values())


def _widths(held: int, left: int, steps: int) -> list[int]:
    """How many tokens a jump may append, so that it and the jumps left end at steps + 1."""
    return [
        width
        for width in range(1, held + 1)
        if held + width + left - 1 <= steps + 1 <= (held + width) * 2 ** (left - 1)
    ]


# Tokenizers of several kinds, trained on some texts; nothing is downloaded


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
    return transformers.PreTrainedTokenizerFast(
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
