"""Who sees a record: one rule, checked against the sentences that say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.access import Caller, Ownership, Role, check_owner_access
from moorings.core.model.claims import ClaimSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import Project, Projects
from moorings.core.model.visibility import SEES_ALL, ownership_of, visible_to, visible_to_subject
from moorings.testing.builders import a_claim

LAB = Project(name="lab", members=("ann",), admins=("boss",))
VISION = Project(name="lab/vision", members=("bob",))
OPEN = Project(name="show", open=True)
BELOW_OPEN = Project(name="show/stage", members=("zoe",))
UNNAMED = Project(name="anybody")
DEFAULT = Project(name="default", members=("ann",))
PROJECTS = Projects((LAB, VISION, OPEN, BELOW_OPEN, UNNAMED, DEFAULT))
SUBJECTS = ("ann", "bob", "boss", "zoe", "eve")
NAMES = ("lab", "lab/vision", "lab/gone", "show", "show/stage", "anybody", "default", "default/x", "labour", "")


def caller(subject: str, role: Role = Role.USER, prefix: str | None = None) -> Caller:
    return Caller(subject, role, f"user/{subject}" if prefix is None else prefix, "k")


def sees(who: Caller, *, subject: str = "zed", owner: str = "local/run-1", project: str = "default") -> bool:
    return visible_to(who, PROJECTS).includes(Ownership(subject, owner, project))


@pytest.mark.parametrize("project", NAMES)
def test_an_admin_and_the_subject_see_a_record_of_any_project(project):
    assert sees(caller("root", Role.ADMIN), project=project)
    for role in Role:
        assert sees(caller("zed", role), project=project)


@pytest.mark.parametrize(
    ("project", "who"),
    [
        ("lab", {"ann", "boss"}),
        ("lab/vision", {"ann", "boss", "bob"}),
        ("lab/gone", set()),  # there is no such project now
        ("labour", set()),
        ("show", set(SUBJECTS)),
        ("show/stage", set(SUBJECTS)),
        ("anybody", set()),
        ("default", set()),
        ("default/x", set()),
        ("", set()),
    ],
)
@pytest.mark.parametrize("role", [Role.USER, Role.AGENT, Role.VIEWER])
def test_members_and_admins_of_a_project_and_of_those_above_see_what_is_in_it(role, project, who):
    assert {subject for subject in SUBJECTS if sees(caller(subject, role), project=project)} == who


def test_a_membership_that_has_ended_shows_nothing():
    after = PROJECTS.with_project(Project(name="lab", admins=("boss",)))
    record = Ownership("zed", "local/run-1", "lab")
    assert visible_to(caller("ann"), PROJECTS).includes(record)
    assert not visible_to(caller("ann"), after).includes(record)


@pytest.mark.parametrize("role", [Role.USER, Role.AGENT])
def test_a_prefix_shows_what_it_may_act_for(role):
    for owner in ("slurm/alpha", "slurm/alpha/7/x", "slurm/alphabet/7", "slurm/alph", "slurm", "user/slurm"):
        who = caller("slurm", role, "slurm/alpha/")
        try:
            check_owner_access(who, owner, "zed", "look")
        except MooringsError:
            assert not sees(who, owner=owner)
        else:
            assert sees(who, owner=owner)
    assert not sees(caller("x", role, "/"), owner="/x")
    assert not sees(caller("x", role, ""), owner="")


def test_a_viewer_acts_for_no_owner_and_sees_outlines():
    eye = caller("eye", Role.VIEWER, "user/zed")
    assert not sees(eye, owner="user/zed")
    assert visible_to(eye, PROJECTS).sees_outlines
    assert not any(visible_to(caller("eye", role), PROJECTS).sees_outlines for role in Role if role is not Role.VIEWER)


def test_nobody_sees_what_is_nobody_s_but_admins():
    for role in Role:
        for prefix in ("", "/", "user/ann"):
            shown = visible_to(caller("", role, prefix), PROJECTS).includes(Ownership())
            assert shown == (role is Role.ADMIN)
    assert not visible_to(caller("ann"), PROJECTS).includes(Ownership("", None, None))


def test_a_subject_sees_the_same_whatever_its_key_is_for():
    for subject in SUBJECTS:
        assert visible_to_subject(subject, PROJECTS).projects == visible_to(caller(subject), PROJECTS).projects


def test_a_claim_is_of_its_subject_owner_and_project():
    claim = a_claim(owner="user/x", subject="ann", spec=ClaimSpec(kind="ipu", size=1, project="lab"))
    assert ownership_of(claim) == Ownership("ann", "user/x", "lab")
    assert visible_to(caller("boss"), PROJECTS).includes_claim(claim)
    assert SEES_ALL.includes_claim(claim)
    assert not visible_to(caller("eve"), PROJECTS).includes_claim(claim)


names = st.sampled_from(["a", "a/b", "a/b/c", "d", "d/e", "default", "default/f"])
people = st.lists(st.sampled_from("uvw"), max_size=2, unique=True).map(tuple)


@st.composite
def some_projects(draw):
    chosen = sorted(draw(st.sets(names)))
    known = {"": True} | dict.fromkeys(chosen, True)
    kept = [name for name in chosen if name.rpartition("/")[0] in known]
    return Projects(
        Project(name=name, members=draw(people), admins=draw(people), open=draw(st.integers(0, 5)) == 0)
        for name in kept
    )


@given(some_projects(), names, st.sampled_from("uvw"), st.sampled_from([Role.USER, Role.AGENT, Role.VIEWER]))
def test_the_rule_is_the_one_of_the_sentence(projects, project, subject, role):
    """For whom is neither owner nor subject: a defined project, and one in its line names them or is open."""
    line = [one for name in projects.lineage(project) if (one := projects.get(name)) is not None]
    named = any(one.open or subject in (*one.members, *one.admins) for one in line)
    wanted = named and projects.get(project) is not None and project.partition("/")[0] != "default"
    who = Caller(subject, role, f"user/{subject}", "k")
    assert visible_to(who, projects).includes(Ownership("zed", "local/r", project)) == wanted


@given(some_projects(), names, st.sampled_from("uvw"))
def test_who_sees_what_is_in_an_unopened_project_may_use_it(projects, project, subject):
    if project in visible_to_subject(subject, projects).projects:
        above = [projects.get(name) for name in projects.lineage(project)]
        assert projects.is_member(project, subject) or any(one is not None and one.open for one in above)
