"""The stores' suite on projects and their usage; ``store_suite`` builds on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.devices import PoolName
from moorings.core.model.projects import Project, ProjectShare, ProjectUsage, UserLimit
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Changes, Epoch, ExpectedVersion, Store
from moorings.testing.builders import NEW, NOW, POOL, a_project, an_event
from moorings.testing.store_lists import OpenStore, StoreListTests

MANY = 77  # projects; not a round number, whatever batch size an implementation has


class StoreProjectTests(StoreListTests):
    """Tests of projects; subclass ``StoreSuite``, which has all."""

    def test_a_project_comes_back_as_it_was(self, open_store: OpenStore) -> None:
        store = open_store()
        project = Project(
            name="lab/vision",
            shares=(ProjectShare(POOL, ((4, 1), (16, 2))), ProjectShare(PoolName("hgx"), ((1, 8),))),
            weight=0.1 + 0.2,
            devices_max=48,
            user_devices_max=0,
            members=("ann", "jürgen \udce9"),
            aliases=("slurm/c1/vision", "kubernetes/k1/vision"),
            version=7,
            user_limits=(UserLimit("ann", 8), UserLimit("jürgen \udce9", 0)),
        )
        store.commit(store.begin_epoch("first", NOW), Changes(projects=[(project, NEW), (Project(name="lab"), NEW)]))
        assert store.load_unended().projects == (Project(name="lab"), project)
        store.close()
        again = open_store()
        assert again.load_unended().projects == (Project(name="lab"), project)
        assert repr(again.load_unended().projects[1]) == repr(
            project
        )  # 2 and 2.0 are equal, and are not the same bytes in a log
        again.close()

    def test_projects_and_what_they_used_are_loaded_by_name(self, store: Store, epoch: Epoch) -> None:
        names = ["B", "Z", "a", "a/b", "a0", "b"]
        projects = [a_project(name=name) for name in names]
        usage = [ProjectUsage(name, 5, NOW) for name in names]
        changes = Changes(projects=[(project, NEW) for project in reversed(projects)], usage=usage[::-1])
        store.commit(epoch, changes)
        saved = store.load_unended()
        assert (list(saved.projects), list(saved.usage)) == (projects, usage)

    def test_many_projects_are_saved_changed_and_removed_at_once(self, store: Store, epoch: Epoch) -> None:
        projects = [a_project(number) for number in range(MANY)]
        usage = [ProjectUsage(project.name, number, NOW) for number, project in enumerate(projects)]
        store.commit(epoch, Changes(projects=[(project, NEW) for project in projects], usage=usage))
        changed = [replace(project, weight=number + 0.5, version=2) for number, project in enumerate(projects)]
        later = [ProjectUsage(used.project, used.used + 1, Timestamp(NOW + 1)) for used in usage]
        store.commit(epoch, Changes(projects=[(project, ExpectedVersion(1)) for project in changed], usage=later))
        saved = store.load_unended()
        assert (list(saved.projects), list(saved.usage)) == (changed, later)
        store.commit(epoch, Changes(projects_removed=[(project.name, 2) for project in projects[1:]]))
        saved = store.load_unended()
        assert (list(saved.projects), list(saved.usage)) == (changed[:1], later[:1])

    @pytest.mark.parametrize("expected", [1, 3])
    def test_a_project_of_another_version_is_a_conflict(self, store: Store, epoch: Epoch, expected: int) -> None:
        good, stale = a_project(1), a_project(2)
        store.commit(epoch, Changes(projects=[(good, NEW), (stale, NEW)]))
        store.commit(epoch, Changes(projects=[(replace(stale, version=2), ExpectedVersion(1))]))
        changes = Changes(
            projects=[
                (replace(good, version=2), ExpectedVersion(1)),
                (replace(stale, version=9), ExpectedVersion(expected)),
            ]
        )
        error = self.refused_commit(store, epoch, changes)
        assert f"project lab-0002 has version 2, not {expected}" in error.detail
        error = self.refused_commit(store, epoch, Changes(projects_removed=[(good.name, 1), (stale.name, expected)]))
        assert f"project lab-0002 has version 2, not {expected}" in error.detail

    def test_a_project_that_is_not_there_is_a_conflict(self, store: Store, epoch: Epoch) -> None:
        changed = Changes(projects=[(a_project(1, version=2), ExpectedVersion(1))])
        assert "project lab-0001 is gone" in self.refused_commit(store, epoch, changed).detail
        removed = Changes(projects_removed=[("lab-0001", 1)])
        assert "project lab-0001 is gone" in self.refused_commit(store, epoch, removed).detail

    def test_a_projects_name_is_used_once(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, Changes(projects=[(a_project(1), NEW)]))
        again = Changes(projects=[(a_project(2), NEW), (a_project(1, weight=9), NEW)])
        assert "lab-0001" in self.refused_commit(store, epoch, again).detail
        twice = Changes(projects=[(a_project(3), NEW), (a_project(3), NEW)])
        assert "lab-0003" in self.refused_commit(store, epoch, twice).detail

    def test_a_removed_project_can_be_made_anew_by_the_same_commit(self, store: Store, epoch: Epoch) -> None:
        store.commit(
            epoch, Changes(projects=[(a_project(1, version=4), NEW)], usage=[ProjectUsage("lab-0001", 9, NOW)])
        )
        heir, used = a_project(1, weight=3), ProjectUsage("lab-0001", 1, Timestamp(NOW + 1))
        store.commit(epoch, Changes(projects=[(heir, NEW)], projects_removed=[("lab-0001", 4)], usage=[used]))
        saved = store.load_unended()
        assert (saved.projects, saved.usage) == ((heir,), (used,))

    def test_what_a_project_used_replaces_what_was_known(self, store: Store, epoch: Epoch) -> None:
        store.commit(epoch, Changes(usage=[ProjectUsage("lab", 1 << 40, NOW), ProjectUsage("default", 5, NOW)]))
        later = Timestamp(NOW + 1)
        store.commit(
            epoch,
            Changes(usage=[ProjectUsage("lab", 7, NOW), ProjectUsage("lab", 8, later), ProjectUsage("ops", 0, later)]),
        )
        assert store.load_unended().usage == (
            ProjectUsage("default", 5, NOW),
            ProjectUsage("lab", 8, later),
            ProjectUsage("ops", 0, later),
        )
        assert store.load_unended().projects == ()  # it needs no defined project

    def test_with_a_project_goes_what_it_used_and_nothing_else(self, store: Store, epoch: Epoch) -> None:
        names = ["lab", "lab/vision", "lab-2"]
        projects = [a_project(name=name) for name in names]
        usage = [ProjectUsage(name, 5, NOW) for name in names]
        store.commit(epoch, Changes(projects=[(project, NEW) for project in projects], usage=usage))
        store.commit(epoch, Changes(projects_removed=[("lab/vision", 1)]))
        saved = store.load_unended()
        assert [project.name for project in saved.projects] == ["lab", "lab-2"]
        assert [used.project for used in saved.usage] == ["lab", "lab-2"]

    def test_a_refused_commit_leaves_projects_and_usage_alone(self, store: Store, epoch: Epoch) -> None:
        store.commit(
            epoch, Changes(projects=[(a_project(1), NEW), (a_project(2), NEW)], usage=[ProjectUsage("lab", 5, NOW)])
        )
        changes = Changes(
            projects=[(a_project(3), NEW), (a_project(1, version=2, weight=2), ExpectedVersion(1))],
            projects_removed=[("lab-0002", 1), ("none", 1)],
            usage=[ProjectUsage("lab", 6, NOW)],
        )
        self.refused_commit(store, epoch, changes)
        self.refused_commit(store, Epoch(epoch - 1), Changes(usage=[ProjectUsage("lab", 6, NOW)]), "store.fenced")

    @pytest.mark.parametrize(
        "changes",
        [
            Changes(projects=[(a_project(1), NEW)]),
            Changes(projects_removed=[("lab", 1)]),
            Changes(usage=[ProjectUsage("lab", 5, NOW)]),
            Changes(events=[an_event()]),
        ],
        ids=["projects", "projects_removed", "usage", "events"],
    )
    def test_each_kind_of_change_is_something_to_save(self, changes: Changes) -> None:
        assert changes
        assert not Changes()
