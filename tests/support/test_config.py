from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from huefield.ase.md.config import MDConfig
from huefield.ase.neb.search import PathConfig
from huefield.reproduce.toy import ToyConfig
from huefield.support.config import FrozenConfig, explain


class Oven(FrozenConfig):
    kind: Literal["oven"] = "oven"
    temperature: float = Field(180.0, gt=0)
    shelves: int = 2


class Stove(FrozenConfig):
    kind: Literal["stove"] = "stove"
    plates: int = 4


class Kitchen(FrozenConfig):
    heat: Annotated[Oven | Stove, Field(discriminator="kind")] = Oven()
    cooks: tuple[str, ...]


def faults_of(**given: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Kitchen.model_validate(given)
    return explain(caught.value, "kitchen.yaml").splitlines()


def test_fields_cannot_be_changed() -> None:
    oven = Oven()
    with pytest.raises(ValidationError, match="frozen"):
        oven.temperature = 200.0
    assert oven.temperature == 180.0


def test_equal_configurations_have_equal_hashes() -> None:
    assert Oven(shelves=3) == Oven(shelves=3)
    assert hash(Oven(shelves=3)) == hash(Oven(shelves=3))
    assert Oven(shelves=3) != Oven()


def test_survives_json() -> None:
    kitchen = Kitchen(heat=Stove(plates=5), cooks=("Ada", "Emmy"))
    assert Kitchen.model_validate_json(kitchen.model_dump_json()) == kitchen


def test_unknown_key_of_a_call_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"(?s)temprature.*kind, temperature, shelves"):
        Oven(temprature=200.0)


def test_unknown_key_is_explained_with_its_place_value_and_the_known_ones() -> None:
    expected = "kitchen.yaml: heat.stove.plate: is not a known key; known are kind, plates (got 3)"
    assert faults_of(heat={"kind": "stove", "plate": 3}, cooks=[]) == [expected]


def test_each_unknown_key_has_a_line() -> None:
    assert faults_of(cooks=[], sink=1, fridge=None) == [
        "kitchen.yaml: sink: is not a known key; known are heat, cooks (got 1)",
        "kitchen.yaml: fridge: is not a known key; known are heat, cooks (got None)",
    ]


def test_wrong_value_is_explained_with_its_place_and_value() -> None:
    expected = "kitchen.yaml: heat.oven.temperature: Input should be greater than 0 (got -3)"
    assert faults_of(heat={"kind": "oven", "temperature": -3}, cooks=[]) == [expected]


def test_every_wrong_value_has_a_line() -> None:
    lines = faults_of(heat={"kind": "oven", "temperature": "hot", "shelves": 1.5}, cooks=["Ada", 7])
    assert [line.split(": ")[1] for line in lines] == ["heat.oven.temperature", "heat.oven.shelves", "cooks.1"]
    assert "(got 'hot')" in lines[0]


def test_unknown_kind_is_explained_with_the_known_ones() -> None:
    (line,) = faults_of(heat={"kind": "campfire"}, cooks=[])
    assert line.startswith("kitchen.yaml: heat: ")
    for kind in ("'campfire'", "'oven'", "'stove'"):
        assert kind in line


def test_missing_key_is_named() -> None:
    (line,) = faults_of()
    assert line.startswith("kitchen.yaml: cooks: Field required")


def test_what_is_no_configuration_at_all_is_explained() -> None:
    with pytest.raises(ValidationError) as caught:
        Kitchen.model_validate("soup")
    explained = explain(caught.value, "kitchen.yaml")
    assert explained.startswith("kitchen.yaml: configuration: Input should be a valid dictionary")
    assert explained.endswith("(got 'soup')")


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ToyConfig, {"steps": (-1, 0, 0)}),
        (ToyConfig, {"members": 10**6}),
        (ToyConfig, {"grid_points": 10**9}),
        (MDConfig, {"steps": 10**20}),
        (MDConfig, {"steps": 1, "every": 10**20}),
        (PathConfig, {"images": 10**6}),
        (PathConfig, {"steps": 10**20}),
    ],
)
def test_counts_have_bounds(config: type[BaseModel], settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"less than or equal|greater than or equal"):
        config.model_validate(settings)
