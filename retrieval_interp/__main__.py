"""`python -m retrieval_interp COMMAND`: the same as `retrieval-interp COMMAND`."""

from retrieval_interp.cli.__main__ import run

if __name__ == "__main__":
    run()
