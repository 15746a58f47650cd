"""Which heads of a chat model answer the paper's questions in words (docs/words.md).

    python examples/question_in_words.py MODEL [--steps 1] [--examples 8] [--report page.html]

MODEL is the folder of a Hugging Face model, or hf:NAME. With half a billion parameters this takes
ten minutes or more on a CPU.
"""

import argparse
from pathlib import Path

import retrieval_interp as ri
from retrieval_interp.storage.models_by_name import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--time", type=float, help="seconds at most")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    model, _ = load_model(options.model, "cpu")
    task = ri.PromptTask(ri.EquationsPrompt(options.steps), model.tokenizer, chat=True)
    explanation = ri.why(
        model,
        task,
        examples=options.examples,
        controls=5,
        time=options.time,
        progress=ri.progress_bar,
    )
    print(explanation)
    if options.report is not None:
        ri.why_view(explanation, model).save_html(options.report)


if __name__ == "__main__":
    main()
