"""YAML is read as DVC reads it, by another parser; what it would leave in doubt is refused in one line."""

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import refused_by
from dvc.utils.serialize._yaml import loads_yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ncpipe.commands.new import render
from ncpipe.config.yaml_file import parse_yaml, read_yaml, shared_mappings
from ncpipe.system.errors import InputError

REFUSED = object()
ROOT = Path(__file__).parent.parent


def read(reader: Any, text: str) -> Any:
    """What a reader makes of a text; REFUSED if it raises."""
    try:
        return reader(text)
    except InputError:
        return REFUSED
    except Exception:  # DVC's reader raises KeyError and ValueError too
        assert reader is loads_yaml
        return REFUSED


def same(ours: Any, theirs: Any) -> bool:
    """Equal, and of the same types: True is not 1, and nan is nan."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        keys = set(map(repr, ours)) == set(map(repr, theirs))
        return keys and all(same(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs or (ours != ours and theirs != theirs)


def agree(text: str) -> bool:
    """Whether both readers take a text for the same; ours may refuse a date."""
    ours, theirs = read(parse_yaml, text), read(loads_yaml, text)
    if ours is REFUSED:
        return theirs is REFUSED or isinstance(theirs["a"], date | datetime)
    return same(ours, theirs)


WORDS = """
1e-3 1e3 1E5 .5e3 .5e+3 1. .1 0.5 010 0o10 0x1F 0b101 1_000 _1 1:30 1:30.5 +1 -0 no yes y on off
Null ~ true True tRue .inf -.INF +.inf .nan .NaN -.nan 2020-01-01 2020-1-1 08 0o8 1e400 += -
null nULL 1__ +_ 0x_ ._ .e1 1_e3 0.1_0
""".split()  # noqa: SIM905


def test_a_word_means_what_dvc_takes_it_for_with_and_without_a_tag() -> None:
    assert [word for word in WORDS if not agree(f"a: {word}")] == []
    tagged = [f"a: !!{tag} {word}" for tag in ("int", "float", "bool", "null", "str") for word in WORDS]
    assert [text for text in tagged if read(parse_yaml, text) is not REFUSED and not agree(text)] == []


@settings(max_examples=200)
@given(st.text("0123456789+-._eExXob:~aAnNuUlLtTrRfFsSiIyY", min_size=1, max_size=7))
@example("0b_").via("not a number to either")
@example("=")
@example("<<")
def test_plain_words_mean_what_dvc_takes_them_for(word: str) -> None:
    assert agree(f"a: {word}")


leaf = st.one_of(
    st.sampled_from(WORDS), st.sampled_from(["'no'", '"1e-3"', '""', "''", "two words", '"\\u00e9\\n"', ""])
)
key = st.sampled_from(["b", "c", "d", "'1'", "e f"])


@st.composite
def merging_documents(draw: st.DrawFn) -> str:
    """Mappings in block style, each of which may merge some of those above it."""
    lines: list[str] = []
    for number in range(draw(st.integers(1, 4))):
        lines.append(f"m{number}: &m{number}")
        entries = [f"  {k}: {draw(leaf)}" for k in draw(st.lists(key, unique=True, min_size=1, max_size=3))]
        above = [f"*m{i}" for i in draw(st.lists(st.integers(0, number - 1), max_size=3))] if number else []
        if above:
            merge = f"  <<: {above[0]}" if len(above) == 1 else f"  <<: [{', '.join(above)}]"
            entries.insert(draw(st.integers(0, len(entries))), merge)
        lines += entries
    return "\n".join(lines)


@settings(max_examples=75)
@given(merging_documents())
@example("m0: &m0 {b: 1, c: 2}\nm1: {<<: *m0, c: 3}")
@example("m0: {<<: [{b: 1, c: 2}, {b: 3, d: 4}], c: 5}")
def test_merge_keys_bring_what_they_bring_in_dvc(text: str) -> None:
    assume("2020-" not in text)
    assert same(read(parse_yaml, text), read(loads_yaml, text))


LAUGHS = "a0: &a0 [1, 1]\n" + "\n".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 2020-01-01", "line 1: '2020-01-01' is a date, which nothing here takes; quote it if it is text"),
        ("a: 1\nb: !!int x", "line 2: 'x' is no int"),
        ("a: !!float " + "x" * 10**5, "line 1: a number of 100000 characters; 400 are the most"),
        ("a: +_", "line 1: '+_' is no int; put quotes around it if it is text"),
        ("a: " + "[" * 10**5, "line 1: nested more than 100 deep"),
        ("\n".join(f"{' ' * i}a:" for i in range(3000)), "line 101: nested more than 100 deep"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is there twice; remove one"),
        ("k" * 10**5 + ": 1", "not valid YAML: line 1, column 100001: mapping values are not allowed"),
        (LAUGHS, "more than 100000 values, counting each alias as all it stands for"),
        ("a: &a [*a]", "line 1: an alias stands inside what it names"),
        ("a: !x 3", "line 1: the tag '!x' means nothing here; remove it"),
        ("a: !!set {b, c}", "the tag 'set' means nothing here"),
        ("a: 1\n? [1, 2]\n: 3", "line 2: the key [1, 2] is no text; put quotes around it"),
        ("a: {<<: 3}", "line 1: << takes keys with values, or a list of such"),
        ("a: {<<: {b: 1}, <<: {c: 1}}", "line 1: the key << is there twice; merge a list"),
        ("a: <<", "line 1: << means nothing here; quote it if it is text"),
        ("%YAML 1.1\n---\na: no", "line 1: only YAML 1.2 is read; remove the %YAML line"),
        ("a: 1\n---\nb: 1", "line 2, column 1: expected a single document in the stream (line 1)"),
        ("a: {b: [1, 2\nc: 3}", "line 2, column 2: while parsing a flow sequence (line 1): did not find"),
        ("a: \x01", "not valid YAML: unacceptable character #x0001"),
        ('a: "\ud800"', "not valid YAML"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    """In one line, before anything is built of it."""
    refused = refused_by(parse_yaml, text)
    assert message in refused
    assert len(refused) <= 200


def test_a_mapping_that_two_keys_share_is_found() -> None:
    """DVC loses a change of the first and gives both a change of the second."""
    shared = parse_yaml("a: &a {b: 1}\nc: *a\nd: [*a]\ne: {<<: *a}")
    assert shared_mappings(shared) == [("c", "a"), ("d.0", "a")]
    inner = "a: &a {b: &b {c: {d: 1}}}\ne: {<<: *a}\nf: {<<: *a, b: {<<: *b}}"
    assert shared_mappings(parse_yaml(inner)) == [("e.b", "a.b"), ("f.b.c", "a.b.c")]
    assert shared_mappings(None) == []


SHIPPED = sorted(ROOT.glob("stages/*/params.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_experiments_of_a_shipped_study_share_nothing(path: Path) -> None:
    tree = read_yaml(path)
    assert shared_mappings({key: value for key, value in tree.items() if key != "about"}) == []


def test_experiments_of_a_new_study_share_nothing() -> None:
    assert shared_mappings(parse_yaml(render("own_params.yaml", {}))) == []
