"""`python -m retrieval_interp.ablate`: the same as `retrieval-interp ablate`."""

from retrieval_interp.commands.ablate import main
from retrieval_interp.commands.command import run_command

if __name__ == "__main__":
    run_command(main, "python -m retrieval_interp.ablate")
