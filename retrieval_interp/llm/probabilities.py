"""How often the paper's protocol gets the right answer, without sampling (section 4, figure 2).

The paper samples until an acceptable answer comes. An answer has the probability that the model
gives to its tokens, one after the other, so

1. one run of the prompt, and one of all answers after it, give every answer's probability;
2. the protocol ends with the right one with p(right) / (sum of p over acceptable answers);
3. the mean over questions is its expected accuracy.
"""

import math
from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits.continued_runs import ContinuedRuns
from retrieval_interp.circuits.hooks import HookedModel, measuring
from retrieval_interp.circuits.losses import Progress, no_progress, standard_error
from retrieval_interp.llm.results import AccuracyRow
from retrieval_interp.tasks.messages import InputError
from retrieval_interp.tasks.words.prompts import PromptTask
from retrieval_interp.tasks.words.text_task import continuations, shared_length


def expected_accuracy(
    model: HookedModel,
    task: PromptTask,
    questions: int = 500,
    seed: int = 0,
    progress: Progress = no_progress,
) -> AccuracyRow:
    """Ask a model (HookedTransformer or TransformerBridge) about the first test texts of a seed.

    A text is asked about every chain, so that these questions share its run. Texts are independent,
    the questions of one are not: standard errors are of the mean over texts. The number of
    questions is rounded up to whole texts, at least two.

    Raises:
        InputError: if answers change the tokens of the prompt, or one begins another, or the model
            reads fewer tokens.
    """
    runs, rows, chains = ContinuedRuns(model), list[Tensor](), task.prompt.chains
    texts = max(2, math.ceil(questions / chains))  # of one there is no standard error
    asked = progress([*product(range(texts), range(chains))], task.prompt.name)
    with torch.inference_mode(), measuring(model):
        for index, chain in asked:
            question = task.question(index, seed, "test", chain)
            words = sorted(question.acceptable, key=lambda word: word != question.correct)
            following = [task.before_answer + word for word in words]
            prompt, answers = continuations(task.tokenizer, question.prompt, following)
            rows.append(log_probabilities(runs, [*task.begin, *prompt], answers).cpu())
    logs = torch.stack(rows).double()  # the right answer first
    right, best = logs.softmax(-1)[:, 0], (logs.argmax(-1) == 0).double()
    of_texts = [values.reshape(texts, chains).mean(1) for values in (right, best)]
    (accuracy, stderr), likeliest = ((float(v.mean()), standard_error(v)) for v in of_texts)
    return AccuracyRow(
        model=task.tokenizer_name,
        formulation=task.prompt.name,
        steps=vars(task.prompt).get("steps"),
        questions=len(rows),
        accuracy=accuracy,
        stderr=stderr,
        chance=task.prompt.chance,
        solved=task.n_solved,
        chat=task.chat,
        likeliest=likeliest[0],
        likeliest_stderr=likeliest[1],
        accepted=float(logs.logsumexp(-1).exp().mean()),
    )


def log_probabilities(
    runs: ContinuedRuns, prompt: list[int], answers: Sequence[list[int]]
) -> Float[Tensor, " answer"]:
    """Return the log probability of each answer after a prompt, over all its tokens, in nats."""
    context, longest = runs.model.cfg.n_ctx, len(prompt) + max(map(len, answers)) - 1
    if longest > context:
        raise InputError(f"expected at most the model's {context} tokens, found {longest}")
    # The last tokens are not read; what all others begin with belongs to the first run.
    shared = shared_length(*(answer[:-1] for answer in answers))
    first = [*prompt, *answers[0][:shared]]
    begin = torch.tensor([first], device=runs.device)
    logits = runs.logits(begin, shared + 1, keep=True).expand(len(answers), -1, -1)
    rest = [torch.tensor(answer[shared:-1], dtype=torch.long) for answer in answers]
    behind = pad_sequence(rest, batch_first=True).to(runs.device)
    if size := behind.shape[1]:
        rows = torch.cat([begin.expand(len(answers), -1), behind], 1)
        logits = torch.cat([logits, runs.logits(rows, size)], 1)
    logs = logits.log_softmax(-1)
    chosen = [log[range(len(row)), row].sum() for log, row in zip(logs, answers)]
    return torch.stack(chosen)
