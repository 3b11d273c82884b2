"""What a task is given: file form or API form, never half of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.bindings import Binding, GcdBinding, Rendezvous, task_environment

API = {"IPUOF_VIPU_API_HOST": "vipu", "IPUOF_VIPU_API_PORT": "8090", "IPUOF_VIPU_API_PARTITION_ID": "train"}
MEETING = Rendezvous("10.0.0.1", 4711)

IPU = Binding(
    "train",
    API,
    (
        GcdBinding(0, ("pod64:0", "pod64:1"), "train_gcd0_ipuof.conf", "{}"),  # type: ignore[arg-type]
        GcdBinding(1, ("pod64:2", "pod64:3"), "train_gcd1_ipuof.conf", "{}"),  # type: ignore[arg-type]
    ),
)
GPU = Binding("train", {}, (GcdBinding(0, ("hgx:3",), environment={"CUDA_VISIBLE_DEVICES": "3"}),))  # type: ignore[arg-type]

bindings = st.builds(
    lambda api, named, n_gcds: Binding(
        "train",
        API if api else {},
        tuple(GcdBinding(n, (), f"train_gcd{n}.conf" if named else "") for n in range(n_gcds)),
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)


def forms(variables: dict[str, str]) -> tuple[bool, bool]:
    """Whether it has anything of the file form, and of the API form."""
    return "IPUOF_CONFIG_PATH" in variables, any(name.startswith("IPUOF_VIPU_") for name in variables)


def test_a_folder_for_files_gives_the_file_form():
    variables = task_environment(IPU, 1, MEETING, run="run-1", files_folder="/run/x")
    assert variables["IPUOF_CONFIG_PATH"] == "/run/x/train_gcd1_ipuof.conf"
    assert forms(variables) == (True, False)


def test_no_folder_gives_the_whole_api_form():
    variables = task_environment(IPU, 1, MEETING, run="run-1")
    assert variables.items() >= {**API, "IPUOF_VIPU_API_GCD_ID": "1"}.items()
    assert forms(variables) == (False, True)


def test_hardware_without_files_has_the_api_form_even_with_a_folder():
    bare = Binding("train", API, (GcdBinding(0, ()),))
    assert forms(task_environment(bare, 0, MEETING, run="run-1", files_folder="/run/x")) == (False, True)


def test_hardware_without_an_api_has_neither_unless_there_is_a_file():
    assert forms(task_environment(GPU, 0, MEETING, run="run-1")) == (False, False)
    assert forms(task_environment(GPU, 0, MEETING, run="run-1", files_folder="/run/x")) == (False, False)


@given(bindings, st.none() | st.just("/run/x"), st.data())
def test_never_half_of_both(binding, folder, data):
    rank = data.draw(st.integers(0, len(binding.gcds) - 1))
    variables = task_environment(binding, rank, MEETING, run="run-1", files_folder=folder)
    in_file, in_api = forms(variables)
    assert not (in_file and in_api)
    assert in_file is (folder is not None and bool(binding.gcds[rank].file_name))
    assert in_api is (bool(binding.api) and not in_file)
    assert ("IPUOF_VIPU_API_GCD_ID" in variables) is in_api


def test_a_task_knows_its_rank_the_others_and_where_they_meet():
    variables = task_environment(IPU, 1, MEETING, run="run-1")
    assert (
        variables.items()
        >= {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "4711",
            "MOORINGS_RUN_ID": "run-1",
            "MOORINGS_PARTITION_ID": "train",
            "MOORINGS_DEVICES": "pod64:2,pod64:3",
        }.items()
    )


def test_a_task_gets_what_its_own_gcd_needs():
    assert task_environment(GPU, 0, MEETING, run="run-1")["CUDA_VISIBLE_DEVICES"] == "3"


def test_there_is_no_task_without_a_gcd():
    with pytest.raises(IndexError):
        task_environment(IPU, 2, MEETING, run="run-1")
