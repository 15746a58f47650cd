"""Training keeps freed memory for the next step: the system's own count of page faults."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")

KEEPING = {
    "alone": "from retrieval_interp.training import freed_memory as f; f.keep_freed_memory()",
    "sweep": "from retrieval_interp.sweep.cells import answers_of; answers_of([])",
    "train": "from retrieval_interp.commands import train as t; t.main(['--steps', '1'])",
}
MEASURE = """
import resource, torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(100):
    torch.ones(12 * 2**20)  # 48 MiB
before = faults()
for _ in range(10):
    torch.ones(12 * 2**20)
print("faults", faults() - before)
"""


@pytest.mark.parametrize("how", ["alone", "sweep", pytest.param("train", marks=pytest.mark.slow)])
def test_large_tensors_come_to_get_the_same_memory_again(how, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\n{KEEPING[how]}\n{MEASURE}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = 48 * 2**20 // 4096
    assert int(done.stdout.split()[-1]) < pages  # ten times as many otherwise
