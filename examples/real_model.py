"""Which heads of a real language model find an indirect object: python examples/real_model.py

It runs SmolLM2-135M-Instruct; docs/language-models.md says how to install it. Nothing is downloaded
here.
"""

import sys

import retrieval_interp as ri
import torch
from retrieval_interp.circuits import Scorer

try:
    model = ri.smollm2()
except ri.InputError as missing:
    sys.exit(str(missing))

task = ri.IndirectObjectTask(model.tokenizer)
batch = task.sample(32)
with torch.no_grad():
    outputs = model(batch.inputs)
print(task.description)
print(f"accuracy {task.accuracy(outputs, batch):.2f}", end=", ")
print(f"logit difference {task.logit_differences(outputs, batch).mean():.1f}\n")
del outputs

few, intact = batch[:16], ri.Circuit.empty(task)
estimates, attention = ri.attribute(model, task, few), ri.mean_attention(model, few)
places = (attention > 0.1).nonzero().tolist()
paths = [ri.HeadPath(ri.Head(*at[:2]), ri.RolePath(*at[2:])) for at in places]
effects = estimates.effects([intact.cut(path) for path in paths])
scorer = Scorer(model, task, few)
print(f"loss {scorer.loss(intact):.3f}; with the largest estimates, cut one at a time:")
for effect, path in sorted(zip(effects, paths), reverse=True)[:10]:
    change = scorer.loss(intact.cut(path)) - scorer.loss(intact)
    what = f"{path.head} without {task.path_label(*path.path)}"
    print(f"{what:28} {change:+.3f}  estimated {effect:+.3f}")
