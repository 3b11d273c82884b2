"""Shapes get their methods at their first use, and are dataclasses like any other."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from moorings.wire.lazy_dataclass import dataclass

BUILT = """
from moorings.cli.commands import get
from moorings.client import client
from moorings.wire import forecasts, shapes

classes = [each for each in {**vars(shapes), **vars(forecasts)}.values() if hasattr(each, "__mro__")]
print(len(classes) > 50, [each.__name__ for each in classes if "__dataclass_fields__" in vars(each)])
"""


def shape():
    @dataclass(frozen=True, kw_only=True)
    class Shape:
        """A shape."""

        size: int
        name: str = "none"

    return Shape


def test_importing_the_command_line_builds_hardly_any_shape():
    done = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=True)
    assert done.stdout == "True ['CheckpointShape', 'AcceleratorsShape', 'ResourcesShape']\n", "defaults of others"


def test_an_instance_is_one_of_an_ordinary_dataclass():
    kind = shape()
    one = kind(size=1)
    assert repr(one).endswith("Shape(size=1, name='none')")
    assert one == kind(size=1) != replace(one, name="other")
    assert len({one, kind(size=1)}) == 1
    with pytest.raises(FrozenInstanceError):
        one.size = 2


def test_a_wrong_argument_is_refused_at_the_first_use():
    with pytest.raises(TypeError, match="unexpected keyword argument 'length'"):
        shape()(length=1)


def test_fields_are_known_before_the_first_instance():
    kind = shape()
    assert is_dataclass(kind)
    assert [each.name for each in fields(kind)] == ["size", "name"]


def test_threads_that_need_a_shape_first_all_get_it():
    with ThreadPoolExecutor(8) as pool:
        for kind in [shape() for _ in range(50)]:
            made = list(pool.map(lambda size, kind=kind: kind(size=size), range(8)))
            assert [each.size for each in made] == list(range(8))
