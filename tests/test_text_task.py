"""Questions in the tokens of a language model: formulations, templates, indirect objects."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest
import torch

import retrieval_interp as ri
from examples import answers
from retrieval_interp.tasks.words.given_texts import NextTokenTask
from retrieval_interp.tasks.words.template_task import NAMES, TEMPLATES
from tests.paper_prompts import SHORTER, TEXTS, answer_of
from tests.texts import SENTENCE, byte_pairs, like_llama, sentence_tokenizer, whole_words

PEOPLE = ["Anna", "Bob", "Clara", "Dan", "Eve", "Frank", "Greta", "Hugo", "Ida", "Jakob"]
PLACES = ["shop", "park", "school", "harbour"]
GIVING = [
    "When {S1} and {IO} met at the {place}, {S2} gave a book to",
    "At the {place} {IO} saw {S1} , {S2} spoke to",
]
FILLINGS = {"IO": PEOPLE, "S1": PEOPLE, "S2": "S1", "place": PLACES}
GIVINGS = [
    template.format(S1=a, IO=b, S2=a, place=p) + f" {b}"
    for template in GIVING
    for a, b in product(PEOPLE, repeat=2)
    for p in PLACES
]
CAPITALS = [
    {"country": "France", "capital": "Paris"},
    {"country": "Italy", "capital": "Rome"},
    {"country": "Peru", "capital": "Lima"},
]


@pytest.fixture(scope="module")
def bpe():
    return byte_pairs(GIVINGS, 300)


def template_task(tokenizer, **changes):
    roles = ("END", "S2", "S1+1", "S1", "IO")
    arguments = {"templates": GIVING, "fillings": FILLINGS, "answer": "IO", "wrong": "S1"}
    return ri.TemplateTask(**{**arguments, "roles": roles, "tokenizer": tokenizer, **changes})


def check_tokens(task, question, made):
    """Whether roles are at the last tokens of their words; returns how many have several tokens."""
    tokenizer = task.tokenizer
    begin, several = len(task.begin), 0
    for symbol in question.occurrences:
        if symbol.role not in task.roles:
            continue
        at = made.roles[task.roles.index(symbol.role)]
        before, until = (len(tokenizer.decode(made.prompt[begin:end])) for end in (at, at + 1))
        assert before < symbol.end <= until
        several += before > symbol.start
    assert tokenizer.decode(made.prompt[begin:]).rstrip() == question.prompt
    assert made.roles[task.roles.index("END")] == len(made.prompt) - 1
    scored = [tokenizer.decode([number]).strip() for number in made.answers]
    assert question.correct.startswith(scored[0]) and len(set(scored)) == len(scored)
    return several


def as_csv(*rows):
    csv.writer(file := io.StringIO()).writerows(rows)
    return file.getvalue()


def tokens_of(task, question):
    """A question's tokens, or why it has none."""
    try:
        return task.tokens(question)
    except ri.InputError as error:
        return str(error)


@pytest.mark.parametrize("formulation", SHORTER, ids=lambda f: f.name)
def test_roles_are_at_the_last_token_of_their_symbols(formulation):
    """With few merges, so that names are several tokens."""
    size = 550 if formulation.name == "kingdoms" else 450
    task = ri.PromptTask(formulation, byte_pairs(TEXTS, size))
    questions, tokens = task.usable(10, seed=1)
    several = sum(map(check_tokens, [task] * 10, questions, tokens))
    assert several > 0 or formulation.name != "lives-with"
    assert {made.prompt[0] for made in tokens} == {task.tokenizer.bos_token_id}
    assert task.sample(10, seed=1).roles.tolist() == [[made.roles] for made in tokens]


@pytest.mark.parametrize("formulation", SHORTER, ids=lambda f: f.name)
def test_a_counterfactual_asks_about_another_chain(formulation):
    """Nothing but the question is another one, and so is the answer."""
    read = [formulation.sample(index) for index in range(200)]
    texts = [f"{question.prompt} {question.correct}" for question in read]
    task = ri.PromptTask(formulation, byte_pairs(texts, vocab_size=1500))
    (questions, made), batch = task.usable(10), task.sample(10)
    other = task.counterfactual(batch)
    for question, tokens, row in zip(questions, made, other.inputs):
        text = task.tokenizer.decode(row[1 : len(tokens.prompt)]).rstrip()
        assert text.splitlines()[:-1] == question.prompt.splitlines()[:-1]
        assert answer_of(formulation, text) != question.correct
        assert answer_of(formulation, question.prompt) == question.correct


@pytest.mark.parametrize(
    "tokenizer_of",
    [partial(byte_pairs, vocab_size=300), partial(like_llama, vocab_size=75), whole_words],
)
def test_roles_of_a_template_are_at_the_last_token_of_their_words(tokenizer_of):
    task = template_task(tokenizer_of(GIVINGS))
    several, used = 0, 0
    for index in range(60):
        question = task.question(index, seed=3)
        made = tokens_of(task, question)
        if not isinstance(made, str):  # else two names begin alike
            used += 1
            several += check_tokens(task, question, made)
            at = dict(zip(task.roles, made.roles))
            assert at["S1+1"] == at["S1"] + 1
    assert used > 10 and (several > 0 or tokenizer_of == whole_words)


@pytest.mark.parametrize(
    ("tokenizer_of", "last"),
    [(partial(byte_pairs, single_digits=True), "Ġ"), (like_llama, "▁"), (whole_words, "words.")],
)
def test_what_all_answers_share_belongs_to_the_prompt(tokenizer_of, last):
    """Such as the space before a digit; the scored tokens are those in which answers differ."""
    prompt = ri.EquationsPrompt(steps=3)
    tokenizer = tokenizer_of([*TEXTS, "0 1 2 3", prompt.sample(0).prompt])
    task = ri.PromptTask(prompt, tokenizer)
    (question,), (tokens,) = task.usable(1)
    read = tokenizer.convert_ids_to_tokens(tokens.prompt)
    assert read[-1] == last and tokens.roles[-1] == len(read) - 1
    scored = tokenizer.convert_ids_to_tokens(tokens.answers)
    assert sorted(scored) == ["0", "1", "2", "3"] and scored[0] == question.correct
    for number in tokens.answers:  # just what the tokenizer makes of prompt and answer
        whole = f"{question.prompt} {tokenizer.decode([number])}"
        whole = tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert whole == [*tokens.prompt[1:], number]


def test_losses_accuracy_and_logit_differences():
    task = ri.PromptTask(ri.LivesWithPrompt(steps=2), byte_pairs(TEXTS))
    batch = task.sample(16)
    outputs = torch.randn(*batch.inputs.shape, len(task.tokenizer))
    losses, right, difference = [], [], []
    for example in range(16):
        logits = outputs[example, batch.roles[example, 0, -1]]
        (correct, *_), wrong = batch.targets[example, 0].tolist()
        scores = [float(logits[token]) for token in (correct, *wrong)]
        losses.append([math.log(sum(map(math.exp, scores))) - scores[0]])
        right.append(scores[0] == max(scores))
        difference.append(scores[0] - sum(scores[1:]) / 3)
    torch.testing.assert_close(task.example_losses(outputs, batch), torch.tensor(losses))
    torch.testing.assert_close(task.logit_differences(outputs, batch), torch.tensor(difference))
    assert task.accuracy(outputs, batch) == pytest.approx(sum(right) / 16)
    flat = task.example_losses(torch.zeros_like(outputs), batch)
    assert float(flat.mean()) == pytest.approx(task.plateau) == pytest.approx(math.log(4))


def test_what_is_left_out_is_said(bpe):
    names = {"IO": ["Jan", "Tom"], "S1": ["Jan", "Tom", "Jana"], "S2": "S1", "place": PLACES}
    task = template_task(bpe, fillings=names)
    made = [tokens_of(task, task.question(index)) for index in range(40)]
    usable = [index for index, each in enumerate(made) if not isinstance(each, str)][:8]
    with pytest.warns(ri.InputWarning, match=r"\d of \d+ examples are left out: ") as said:
        questions, tokens = task.usable(8)
    assert questions == [task.question(index) for index in usable]
    assert tokens == [made[index] for index in usable]
    assert f"{usable[-1] - 7} of {usable[-1] + 1} examples" in str(said[0].message)
    with pytest.warns(ri.InputWarning, match=r"\d+ of 11 words are left out: .* for IO"):
        template_task(byte_pairs(TEXTS, 9000), counterfactual={"IO": [*PEOPLE, "x y"]})


def test_answers_that_begin_alike_are_refused():
    task = ri.PromptTask(ri.EquationsPrompt(1, 12, "short"), byte_pairs(TEXTS, 300))
    text = "20 of 20 examples unusable .*the answers '1' and '10' begin with one token"
    with pytest.raises(ri.InputError, match=text):
        task.sample(3)


def test_all_other_words_are_wrong_by_default(bpe):
    task = ri.TemplateTask(["The capital of {country} is"], CAPITALS, "capital", tokenizer=bpe)
    question = task.question(0)
    assert question.acceptable == ("Lima", "Paris", "Rome") and task.n_answers == 3
    assert {"country": question.prompt.split()[3], "capital": question.correct} in CAPITALS
    assert task.to_dict()["wrong"] == ["Paris", "Rome", "Lima"]
    assert task.to_dict()["roles"] == ["END", "country"]
    for split in ("train", "test"):  # few, so that every split has all
        assert len({task.question(index, 5, split).prompt for index in range(30)}) == 3


def test_splits_share_no_prompt_where_there_are_many(bpe):
    task = template_task(bpe)  # 2 templates, 90 pairs, 4 places
    seen = {
        split: {task.question(i, seed, split).prompt for i in range(150) for seed in range(2)}
        for split in ("train", "validation", "discovery", "test")
    }
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))
    assert all(len(prompts) > 60 for prompts in seen.values())
    again = template_task(bpe).question(7, 1, "test")
    assert again == task.question(7, 1, "test") != task.question(7, 0, "test")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"templates": ["{IO} saw {S1}, who saw"]}, r"roles: expected one of .* found 'S2'"),
        ({"templates": ["{IO} and {S1}, {S2}, {IO} to"]}, "different marks"),
        ({"fillings": {**FILLINGS, "IO": ["Bob"], "S1": ["Bob"]}}, "expected enough words"),
        ({"answer": "OI"}, "answer: expected one of IO, S1, place, found 'OI'"),
        ({"tokenizer": None}, "expected a Hugging Face tokenizer that gives offsets"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(bpe, changes, text, without_type_checks):
    with pytest.raises(ri.InputError, match=text) as refused:
        template_task(**{"tokenizer": bpe, **changes})
    assert "\n" not in str(refused.value)


def test_the_loss_of_text_is_exact_in_a_large_vocabulary():
    logits = torch.randn(2, 9, 49_152) * 4
    task = NextTokenTask([[5, 70, 800, 9_000, 1, 2, 3, 40_000, 9], [1, 2, 3, 4, 5]])
    exact = logits.double().log_softmax(-1)
    expected = [
        -sum(float(exact[row, at, token]) for at, token in enumerate(ids[1:])) / (len(ids) - 1)
        for row, ids in enumerate(task.sequences)
    ]
    losses = task.example_losses(logits, task.whole())[:, 0]
    assert losses.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", [byte_pairs, like_llama])
def test_indirect_objects(kind):
    names = NAMES[:30]
    texts = [t.format(IO=a, S1=b, S2=b) for t in TEMPLATES for a, b in pairwise(names)]
    task = ri.IndirectObjectTask(kind(texts, 2000))
    assert set(names[1:-1]) <= set(task.names) < set(NAMES)
    batch = task.sample(64)
    end, s2, after, s1, io = batch.roles[:, 0].T
    assert (after == s1 + 1).all() and (s2 > after).all() and (end > s2).all()
    assert 16 < int((io < s1).sum()) < 48  # ABB and BAB
    words = [batch.inputs[torch.arange(64), at] for at in (io, s1, s2)]
    assert torch.equal(words[1], words[2])
    assert torch.equal(torch.stack(words[:2], dim=-1), batch.targets[:, 0, :, 0])


@pytest.mark.parametrize("name", ["list", "docstring"])
def test_what_followed_the_last_word_is_the_answer_but_not_in_the_counterfactual(name):
    known = {*answers.WORDS, *answers.ARGUMENTS}
    task = answers.BEHAVIOURS[name](byte_pairs([f" {word}" for word in sorted(known)] * 9, 1500))

    def followed(tokens):
        words = re.findall(r"\w+", task.tokenizer.decode(tokens))
        named = [word for word in words if word in known]
        return [*named, ""][named.index(named[-1]) + 1]

    batch = task.sample(8)
    other = task.counterfactual(batch, 0)
    right = [task.tokenizer.decode(row[:1]).strip() for row in batch.targets[:, 0, 0]]
    assert list(map(followed, batch.inputs)) == right
    assert not any(map(str.__eq__, map(followed, other.inputs), right))


def test_a_template_may_lack_a_role(bpe):
    with_place, without = GIVING[1], "When {S1} and {IO} met, {S2} gave a book to"
    roles = ("END", "S1", "place", "place+1")
    task = template_task(bpe, templates=[with_place, without], roles=roles)
    questions, tokens = task.usable(40)
    batch = task.batch(tokens)
    lacking = torch.tensor([question.prompt.startswith("When") for question in questions])
    assert 5 < int(lacking.sum()) < 35
    assert (batch.roles[lacking][:, 0, 2:] == -1).all()
    assert (batch.roles[~lacking][:, 0, 2] + 1 == batch.roles[~lacking][:, 0, 3]).all()
    assert (batch.roles[:, :, :2] >= 0).all()


def test_by_default_all_marks_are_roles(bpe):
    templates = ["When {S1} and {IO} met, {S2} gave a book to", GIVING[1]]
    task = template_task(bpe, templates=templates, roles=None)
    assert task.role_names == ("END", "S2", "IO", "S1", "place")


PEAP = ["prompt", "id", "correct_token", "wrong_token", "first", "again, s", "last", "length"]
FIRST = ["Tom met Eve Tom gave to", 900, " Eve", " Tom", 1, 4, 6, 7]


def test_pairs_are_read_from_the_files_of_others():
    """JSON of auto-circuit, JSON lines of feature-circuits, CSV with words and with token ids."""
    tokenizer = sentence_tokenizer()
    rows = [
        (SENTENCE, SENTENCE.replace("John gave", f"{name} gave"), " Mary", " John")
        for name in ("Ann", "Mary")
    ]
    pairs = tuple(ri.Pair(*row[:2], *((word,) for word in row[2:])) for row in rows)
    assert ri.read_pairs(json.dumps({"prompts": [vars(pair) for pair in pairs]})) == pairs
    names = ("clean_prefix", "patch_prefix", "clean_answer", "patch_answer")
    assert ri.read_pairs("\n".join(json.dumps(dict(zip(names, row))) for row in rows)) == pairs

    def read(rows, ending=""):
        columns = "clean", "corrupted", f"correct{ending}", f"incorrect{ending}"
        return ri.read_pairs(as_csv(columns, *rows), tokenizer)

    assert read(rows) == pairs
    mary, john = (tokenizer(f"to{word}")["input_ids"][-1] for word in (" Mary", " John"))
    ids = [(*row[:2], mary, john) for row in rows]
    with pytest.warns(ri.InputWarning, match="first two are read as ' Mary' and ' John'"):
        assert read(ids, "_idx") == pairs
    with pytest.raises(ri.InputError, match="a tokenizer of .* tokens, found 999999"):
        read([(*rows[0][:2], 999999, 1)], "_idx")
    with pytest.raises(ri.InputError, match="expected token ids as correct_idx, found ' Mary'"):
        read(rows, "_idx")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clean,group\na,b", "CSV with clean, .* found clean, group"),
        (__file__, "expected the text of a file, found '.*read it first"),
        ('{"clean_prefix": "a"}', "clean_prefix, .* in every line, found"),
        (as_csv(PEAP, FIRST), "or two files of PEAP, found prompt, id"),
    ],
)
def test_files_of_no_pairs_are_refused(text, message):
    with pytest.raises(ri.InputError, match=message):
        ri.read_pairs(text)


def test_prompts_of_different_length_are_aligned_at_both_ends():
    """Behind the words with which all begin, places count from the end."""
    texts = [f"After lunch {who} gave it to" for who in ("Tom", "Ann and Tom", "Tom and Ann")]
    pairs = [ri.Pair(text, text.replace("After", "Then"), (" Ann",), (" Tom",)) for text in texts]
    words = whole_words([*texts, "Then"])
    with pytest.warns(ri.InputWarning, match="1 of 4 pairs are left out: .* as many tokens"):
        task = ri.PairsTask([*pairs, replace(pairs[0], corrupt="After")], words)
    batch = task.sample(2)
    assert task.role_names == ("s", "After", "lunch", "token@-4", "gave", "it", "END")
    assert batch.roles[:, 0].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 5, 6, 7, 8]]


def test_spans_of_a_file_are_roles():
    """Two files of PEAP, whose columns say where spans begin, counted behind the first token."""
    rows = [FIRST, ["Tom saw Sue here Tom gave to", 901, " Sue", " Tom", 1, 5, 7, 8]]
    others = [[row[0].replace("Tom gave", "Ann gave"), *row[1:]] for row in rows]
    words = whole_words([row[0] for row in [*rows, *others]])
    pairs = ri.read_pairs(as_csv(PEAP, *rows), None, as_csv(PEAP, *others))
    assert [pair.corrupt for pair in pairs] == [row[0] for row in others]
    task = ri.PairsTask(pairs, words)
    spans = ["first", "first.2", "first.3", "first.4", "again__s", "again__s.2"]
    assert task.role_names == ("BOS", *spans, "END")  # the last word is none of a span
    places = [task.sample(1, split=split).roles[0, 0].tolist() for split in ("train", "test")]
    assert places == [[0, 1, 2, 3, -1, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7]]
    with pytest.raises(ri.InputError, match="as many rows .* found 2 and 1 rows"):
        ri.read_pairs(as_csv(PEAP, *rows), None, as_csv(PEAP, *others[:1]))
    longer = [*pairs[0].spans[:-1], ("END", 9)]
    with pytest.raises(ri.InputError, match="spans: expected a prompt of 9 tokens, found 6"):
        ri.PairsTask([replace(pairs[0], spans=tuple(longer))], words)
    with pytest.raises(ri.InputError, match="expected the same spans in all"):
        ri.PairsTask([pairs[0], replace(pairs[1], spans=pairs[1].spans[1:])], words)
