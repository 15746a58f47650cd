"""Heads that find an indirect object in GPT-2 small, beside those of a paper.

    python examples/gpt2_names.py [MODEL]

MODEL is hf:gpt2, from the local cache of Hugging Face's hub or the network, or the folder of a
model with as many heads. The paper is K. Wang et al., *Interpretability in the Wild: a Circuit for
Indirect Object Identification in GPT-2 Small* (https://arxiv.org/abs/2211.00593). Where its
counterfactual has three other names, here only the name that is repeated is another one.
"""

import sys

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.units import MetricTask, Unit, estimate_units
from retrieval_interp.circuits.replacement import with_counterfactual
from retrieval_interp.storage.models_by_name import load_model
from retrieval_interp.views.why_text import finding

PAPER = {  # its 26 heads, by what it calls them
    "name mover": "L9.H6 L9.H9 L10.H0",
    "negative name mover": "L10.H7 L11.H10",
    "backup name mover": "L9.H0 L9.H7 L10.H1 L10.H2 L10.H6 L10.H10 L11.H2 L11.H9",
    "S-inhibition": "L7.H3 L7.H9 L8.H6 L8.H10",
    "induction": "L5.H5 L5.H8 L5.H9 L6.H9",
    "duplicate token": "L0.H1 L0.H10 L3.H0",
    "previous token": "L2.H2 L4.H11",
}
KNOWN = {ri.Head.parse(name) for names in PAPER.values() for name in names.split()}


def roc_auc(scores, positive):
    """How often a positive one has a higher score than another one; ties count half."""
    others = [score for head, score in scores.items() if head not in positive]
    wins = [
        (scores[head] > other) + (scores[head] == other) / 2
        for head in positive
        for other in others
    ]
    return sum(wins) / len(wins)


def main(name="hf:gpt2", examples=32):
    model, _ = load_model(name, "auto")
    if (size := (model.cfg.n_layers, model.cfg.n_heads)) != (12, 12):
        raise ri.InputError(f"{name}: expected 12 layers of 12 heads, found {size}")
    task = ri.IndirectObjectTask(model.tokenizer)
    batch = task.sample(examples, split="discovery", device=next(model.parameters()).device)
    batch = with_counterfactual(model, batch, task.counterfactual(batch))
    estimates = estimate_units(model, MetricTask(task), batch)
    heads = [ri.Head(layer, head) for layer in range(12) for head in range(12)]
    scores = {head: abs(estimates.of(Unit(head))) for head in heads}
    ranked = sorted(heads, key=lambda head: -scores[head])
    try:
        why = ri.why(model, task, examples=examples, upto="heads", progress=ri.progress_bar)
        summary, found = finding(why), {score.unit.head for score in why.units}
    except ri.InputError as nothing:  # to recover, in a model that has learned nothing
        summary, found = [str(nothing)], set()

    print("\n".join(summary))
    print("\nheads of the paper, with their rank by what they are estimated to do; * found")
    for kind, names in PAPER.items():
        of_kind = [ri.Head.parse(word) for word in names.split()]
        marks = [f"{head} {ranked.index(head) + 1}{'*' * (head in found)}" for head in of_kind]
        print(f"{kind + ':':<21} {', '.join(marks)}")
    print(f"found, not in the paper: {', '.join(map(str, sorted(found - KNOWN))) or 'none'}")
    print(f"{len(found & KNOWN)} of {len(KNOWN)} found, ROC-AUC {roc_auc(scores, KNOWN):.2f}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except ri.InputError as error:
        sys.exit(str(error))
