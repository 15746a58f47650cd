import json
import re

import torch

import retrieval_interp as ri


def page_data(html):
    return json.loads(re.search(r"^const data = (\{.*\});$", html, re.M)[1])


def test_the_page_holds_the_attention_of_every_example(model, task):
    batch = task.sample(6)
    view = ri.attention_view(model, task, batch, [4, 1])
    data = page_data(view.html)
    _, cache = model.run_with_cache(batch.inputs)
    for place, example in enumerate([4, 1]):
        for head, pattern in enumerate(data["attention"][place]):
            layer, number = divmod(head, model.cfg.n_heads)
            expected = cache[f"blocks.{layer}.attn.hook_pattern"][example, number]  # [dest src]
            shown = torch.tensor(pattern) / 1000
            torch.testing.assert_close(shown, expected, atol=5e-4, rtol=0)
        assert data["tokens"][place] == task.position_labels(batch, example)
    names = data["props"]["attentionHeadNames"]
    assert names == [f"L{layer}.H{head}" for layer in range(3) for head in range(2)]
    assert data["props"]["maskUpperTri"] is True
    assert re.findall(r"<option value=\"\d+\">(\d+)</option>", view.html) == ["4", "1"]
    model.cfg.attention_dir = "bidirectional"
    assert page_data(ri.attention_view(model, task, batch).html)["props"]["maskUpperTri"] is False


def test_positions_are_named_by_symbol_and_chain(task):
    batch = task.sample(2, seed=3)
    labels = task.position_labels(batch, 1)
    symbols = {0: "A{}?", 1: "A{}", 2: "B{}", 3: "B{}", 4: "C{}"}
    for chain, roles in enumerate(batch.roles[1].tolist(), start=1):
        for role, position in enumerate(roles):
            assert labels[position] == symbols[role].format(chain)
