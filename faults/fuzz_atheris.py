"""One target under atheris, in a process of its own; `faults.fuzz --engine atheris` starts it.

Arguments: target, folder for its file, report to write, folder for findings (or nothing), and
libFuzzer's own. The bytes that libFuzzer makes are the choices that the strategy takes.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tasks", "circuits", "retrieval_interp"]):
    from faults.fuzz import TARGETS, Tally, limit_memory
    from faults.fuzz_guard import install

from hypothesis import HealthCheck, given, settings

_EVERY = 50  # inputs between two reports


def main() -> None:
    name, folder, report, out, *libfuzzer = sys.argv[1:]
    tally = Tally(TARGETS[name], Path(folder), Path(out) if out else None)

    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(tally.target.inputs)
    def try_one(value: object) -> None:
        found = len(tally.findings)
        tally(value)
        if len(tally.findings) > found or tally.counts.total() % _EVERY == 1:
            Path(report).write_text(tally.to_json())

    install()
    limit_memory()
    atheris.Setup([sys.argv[0], *libfuzzer], try_one.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
