import pytest

from retrieval_interp.tasks import InputError, parse_role, path_letters, role_letters, symbol_letter


def test_roles_are_read_by_name():
    assert [parse_role(f"s{role}", 7) for role in range(7)] == list(range(7))


@pytest.mark.parametrize("name", ["s7", "s-1", "s01", "S0", "", "s", "x1", "s1 s2", None, 3])
def test_other_names_are_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match="expected a role from s0 to s6, found"):
        parse_role(name, 7)


def test_letters_follow_the_paper():
    assert [role_letters(role) for role in range(5)] == [
        "query A",
        "A of A->B",
        "B of A->B",
        "B of B->C",
        "C of B->C",
    ]
    assert path_letters(2, 1) == "B <- A of A->B"
    assert path_letters(0, 2) == "query A <- B of A->B"
    assert path_letters(2, 3) == "B of A->B <- B of B->C"
    assert [symbol_letter(step) for step in (25, 26)] == ["Z", "x26"]
