"""`python -m retrieval_interp.train`: the same as `retrieval-interp train`."""

from retrieval_interp.commands.command import run_command
from retrieval_interp.commands.train import main

if __name__ == "__main__":
    run_command(main, "python -m retrieval_interp.train")
