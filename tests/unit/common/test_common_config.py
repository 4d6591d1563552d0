"""TOML into typed structs: every refusal is one line with file, key, value and what was expected."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whitepanda.common.config import convert, is_own_name, load_toml, read_toml
from whitepanda.common.errors import ConfigError


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1
    name: str = ""


class Needed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    mode: Literal["off", "auto"]
    size: int
    pair: tuple[float, str]
    inner: Inner


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inner: Inner = Inner()
    rows: tuple[Inner, ...] = ()
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    points: tuple[tuple[float, str], ...] = ()
    mode: Literal["off", "auto"] = "off"
    limit: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    on: bool = False
    must: Needed | None = None


def refusal(data: dict) -> str:
    with pytest.raises(ConfigError) as error:
        convert(data, Outer, "file.toml")
    return str(error.value)


def test_values_and_defaults():
    assert convert({"inner": {"size": 2}, "rows": [{"name": "a"}]}, Outer, "x") == Outer(
        Inner(2, ""), (Inner(1, "a"),), 0.5
    )


def test_whole_numbers_are_taken_for_ratios():
    assert convert({"ratio": 1}, Outer, "x").ratio == 1.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"colour": "red"},
            "file.toml: unknown key 'colour' (value 'red'); known here: inner, limit, mode, must, names, on, points,",
        ),
        ({"inner": {"sise": 3}}, "file.toml: unknown key 'inner.sise' (value 3); known here: name, size"),
        ({"rows": [{}, {"sise": 3}]}, "unknown key 'rows[1].sise' (value 3); known here: name, size"),
        ({"rows": [{"size": 1}, {"size": 1.5}]}, "rows[1].size must be a whole number, got 1.5"),
        ({"names": ["a", "b", 7]}, "names[2] must be text in quotes, got 7"),
        ({"inner": {"size": "3"}}, "file.toml: inner.size must be a whole number, got '3'"),
        ({"ratio": "much"}, "file.toml: ratio must be a number, got 'much'"),
        ({"inner": 3}, "file.toml: inner must be a table, got 3"),
        ({"names": "a"}, "names must be a list, got 'a'"),
        ({"points": [[1, "a"], [1]]}, "points[1] must be a list of 2: a number, text in quotes, got [1]"),
        ({"mode": "on"}, """mode must be "off" or "auto", got 'on'"""),
        ({"limit": "x"}, "limit must be a whole number, got 'x'"),
        ({"on": 1}, "on must be true or false, got 1"),
        ({"ratio": True}, "ratio must be a number, got true"),
    ],
)
def test_refusals_name_key_and_value(data, message):
    assert message in refusal(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_wherever_they_are(value):
    assert refusal({"ratio": value}) == f"file.toml: ratio must be a finite number (value {value})"
    assert refusal({"rows": [{}, {"size": value}]}).startswith("file.toml: rows[1].size must be a finite number")


def test_long_values_are_cut_to_one_line():
    message = refusal({"ratio": "x" * 500})
    assert len(message) < 150
    assert message.endswith("...")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    file = tmp_path / "f.toml"
    file.write_text("ratio = 'x'\ncolour = 1\nlimit = 99\n[inner]\nsize = 'y'\nname = ''\n[must]\nname = 1\n")

    def check(config, wrong):
        assert (config.ratio, config.limit) == (0.5, None)  # the defaults in place of wrong values
        yield f"ratio must not be {config.ratio}"  # said already
        yield "inner.name must be something"
        if "limit" not in wrong:
            yield "on must go with the limit"

    with pytest.raises(ConfigError) as error:
        load_toml(file, Outer, check)
    assert error.value.problems == (
        f"{file}: ratio must be a number, got 'x'",
        f"{file}: unknown key 'colour' (value 1); known here: inner, limit, mode, must, names, on, points, ratio, rows",
        f"{file}: limit must be 0 to 9 (value 99)",
        f"{file}: inner.size must be a whole number, got 'y'",
        f"{file}: must.name must be text in quotes, got 1",
        f"""{file}: must.mode is missing; it must be "off" or "auto\"""",
        f"{file}: must.size is missing; it must be a whole number",
        f"{file}: must.pair is missing; it must be a list of 2: a number, text in quotes",
        f"{file}: [must.inner] is missing; it must be a table",
        f"{file}: inner.name must be something",
    )


def test_missing_file_and_folder_and_no_toml(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope\.toml: cannot read: No such file"):
        read_toml(tmp_path / "nope.toml")
    with pytest.raises(ConfigError, match="cannot read: Is a directory"):
        read_toml(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("[agent\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: .*line 1"):
        load_toml(broken, Outer)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_toml(broken, Outer)

    broken.write_text("inner = " + "9" * 5000)  # more digits than Python turns into a number
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_toml(broken, Outer)
    broken.write_text("inner = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_toml(broken, Outer)


scalars = st.integers() | st.text() | st.booleans() | st.floats(allow_nan=False)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@pytest.mark.long
@given(
    st.dictionaries(
        st.sampled_from(["inner", "rows", "ratio", "names", "points", "mode", "limit", "on", "must", "other"]), values
    )
)
def test_any_toml_like_value_is_taken_or_refused_in_one_kind_of_error(data):
    try:
        convert(data, Outer, "f")
    except ConfigError as error:
        assert str(error).startswith("f: ")  # noqa: PT017 - most values are taken


@pytest.mark.parametrize(
    ("header", "is_own"),
    [
        ("localhost", True),
        ("LOCALHOST.:9747", True),
        ("127.0.0.1:9747", True),
        ("10.1.2.3", True),
        ("[::1]:9747", True),
        ("[2001:db8::7]", True),
        ("node1:9747", True),
        ("Node1", True),
        ("node1.evil.example:9747", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:9747,evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("[::1", False),
        ("::1", False),
        ("", False),
    ],
)
def test_a_server_knows_its_own_names_and_every_address(header, is_own):
    assert is_own_name(header, {"node1"}) is is_own
