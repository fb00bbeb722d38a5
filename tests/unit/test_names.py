import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.names import MAX_PART_CHARS, DatasetName


@pytest.mark.parametrize(
    "text", ["crm.sales.candidates", "a.b.c", "A1.b_2.c-3", "0.1.2", f"a.b.{'x' * MAX_PART_CHARS}"]
)
def test_three_plain_parts_are_a_name(text: str):
    assert str(DatasetName.parse(text)) == text


@pytest.mark.parametrize("text", ["", ".", "a", "a.b", "a.b.c.d", "a..c", ".b.c", "a.b.", "..."])
def test_a_name_has_exactly_three_parts(text: str):
    with pytest.raises(InvalidRequest):
        DatasetName.parse(text)


@pytest.mark.parametrize(
    "part",
    [
        "_system",
        "__raw__t",
        "-a",
        "a b",
        "a/b",
        "a\\b",
        "ä",
        "a\n",
        "a\x00",
        "`a`",
        "'a'",
        "$",
        "٣",
        " a",
        f"{'x' * (MAX_PART_CHARS + 1)}",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_that_cannot_be_a_folder_and_an_identifier_is_refused_by_name(part: str, place: int):
    parts = ["a", "b", "c"]
    parts[place] = part
    with pytest.raises(InvalidRequest, match="the part"):
        DatasetName.parse(".".join(parts))


def test_a_name_cannot_climb_out_of_the_lake():
    for text in ("../../x", "a.b.../etc", "a.../../b.c", "/a.b.c"):
        with pytest.raises(InvalidRequest):
            DatasetName.parse(text)


def test_names_are_ordered_by_their_parts():
    assert min(DatasetName.parse("b.a.a"), DatasetName.parse("a.b.a")).catalog == "a"
