"""Which heads of a real language model find an indirect object: python examples/real_model.py

It runs SmolLM2-135M-Instruct; docs/language-models.md says how to install it. Nothing is downloaded
here.
"""

import sys

import retrieval_interp as ri
import torch

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

found = ri.estimated_ablations(model, task, batch[:16], exact=10)
print(f"loss {found.baseline_loss:.3f}; with the largest estimates, one at a time:")
for change, loss in found.exact.items():
    if isinstance(change, ri.HeadPath):
        what = f"{change.head} without {task.path_label(*change.path)}"
    else:
        what = f"{change[0]} {change[1]}"
    estimate = found.estimates[change]
    print(f"{what:28} {loss - found.baseline_loss:+.3f}  estimated {estimate.effect:+.3f}")
