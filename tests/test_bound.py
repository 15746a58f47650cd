import json


def test_the_table_and_the_json_hold_a_row_for_every_length(tmp_path, run_command_in_process):
    path = tmp_path / "bound.json"
    done = run_command_in_process("bound", "--steps", 1, 3, 4, "--json", path)
    keys = ("steps", "paper", "unmasked", "causal", "simulated_unmasked", "simulated_causal")
    assert json.loads(path.read_text()) == [
        dict(zip(keys, row)) for row in [(1, 1, 2, 2, 2, 2), (3, 2, 3, 3, 3, 3), (4, 2, 3, 4, 3, 4)]
    ]
    assert done.stdout.splitlines()[-3].split() == ["4", "2", "3", "4", "3", "4"]
