"""What IPU jobs need of nodes, from real answers of three releases."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.node_requirements import JobNodeRequirements, build_cpus, build_needs, parse_needs
from tests.unit.slurm.test_formats import every_release, recorded

# Of four nodes of 16 CPUs n2 is drained and n4 full; on n3 a plain job has 10, and an IPU job 4.
LEFT = {"n1": 16, "n2": 0, "n3": 6, "n4": 0}


@every_release
def test_what_jobs_without_ipus_leave(release: str) -> None:
    found = parse_needs(recorded(release, "needs"), recorded(release, "cpus"))
    assert found.left == LEFT
    shapes = {number: (job.required, job.cpus, job.nodes_max) for number, job in found.jobs.items()}
    assert shapes == {
        3: (("n3",), 4, 1),
        4: (("n4",), 16, 1),
        5: (("n3", "n4"), 4, 3),  # -w n[3-4] -N2-3
        6: ((), 4, 3),
    }


def listed(job: int, nodes: str = "", required: str = "", cpus: str = "4") -> bytes:
    fields = ((str(job), 12), (nodes, 512), (required, 256), (cpus, 12), ("1", 12), ("", 128), ("0", 16))
    return ("".join(f"{text:{width}}|" for text, width in fields) + "\n").encode()


def cpus_of(name: str, states: str, shared: str = "NO") -> bytes:
    return f"{name:128}|{states:48}|{shared:24}|\n".encode()


def test_jobs_that_wait_take_nothing() -> None:
    assert parse_needs(listed(1, required="n1"), cpus_of("n1", "6/10/0/16")).left == {"n1": 10}
    assert parse_needs(listed(1, nodes="n[1-2]"), cpus_of("n1", "6/10/0/16")).left == {"n1": 14}


def test_a_node_whose_cpus_jobs_share_in_any_partition_is_not_told_of() -> None:
    """Of 16 CPUs that are all taken, another job may get 16."""
    twice = cpus_of("n1", "16/0/0/16", "FORCE:4") + cpus_of("n1", "16/0/0/16")
    assert parse_needs(listed(1), twice + cpus_of("n2", "0/16/0/16", "EXCLUSIVE")).left == {"n2": 16}


@pytest.mark.parametrize("job", [listed(1, nodes="n" * 512), listed(1, nodes="n1", cpus="")])
def test_where_a_running_job_is_not_known_no_node_is(job: bytes) -> None:
    assert parse_needs(job, cpus_of("n1", "6/10/0/16")).left == {}


def test_a_list_of_nodes_that_was_cut_names_none() -> None:
    found = parse_needs(listed(7, required="n" * 256), cpus_of("n1", "6/10/0/16"))
    assert (found.jobs[7].required, found.jobs[7].cpus) == ((), 4)
    assert isinstance(found.jobs[7], JobNodeRequirements)


def test_what_cannot_be_read() -> None:
    with pytest.raises(MooringsError, match="squeue"):
        parse_needs(b"no row", b"")
    assert build_needs()[0] == "squeue"
    assert build_cpus()[0] == "sinfo"
