"""Where the line that loads the plugin goes: it is read once, at every moment of an upgrade, and handed out."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path

from moorings.slurm.host.install_plan import (
    FileAction,
    InstallManifest,
    InstallOptions,
    InstallStep,
    build_files,
    build_plugin_line,
    digest_of,
    lines_for_site,
    plan_install,
    plan_uninstall,
    retired_files,
    with_steps,
)
from moorings.slurm.host.plugstack import (
    LineLocation,
    PluginLine,
    PlugstackFiles,
    agent_uid_of,
    choose_location,
    include_file_of,
    installed_arguments,
    plugin_lines,
)
from moorings.slurm.host.site import Site
from moorings.slurm.slurm_conf import included_files
from tests.cases import cases
from tests.unit.slurm.test_installation import CHOICES, SITE, SOURCES

STACK, LOADER = SITE.plugstack, include_file_of(SITE)
CONFIGLESS = dataclasses.replace(SITE, configless=True)
INCLUDE = (
    "# Made by 'moor slurm install'.\ninclude /etc/slurm/plugstack.conf.d/*.conf\n"  # as earlier releases wrote it
)
DEBIANS = "include /etc/slurm/plugstack.conf.d/*.conf\n"
LINE = f"# Made by 'moor slurm install'.\n{build_plugin_line(SITE, CHOICES)}\n"
NEWER = dataclasses.replace(CHOICES, agent="ctl9:8091")

Disk = dict[Path, str]


def manifest_of(*texts: tuple[Path, str]) -> InstallManifest:
    return InstallManifest({path: (digest_of(text.encode()),) for path, text in texts})


def stack_of(disk: Mapping[Path, str], manifest: InstallManifest) -> PlugstackFiles:
    """What ``install.look_at_plugstack`` would see."""
    texts: Disk = {}
    rest = [STACK]
    while rest:
        path = rest.pop()
        if path in disk and path not in texts:
            texts[path] = disk[path]
            patterns = included_files(disk[path], str(path.parent))
            rest += [each for each in disk for pattern in patterns if fnmatch.fnmatch(str(each), pattern)]
    ours = {
        path for path in manifest.digests if path in disk and digest_of(disk[path].encode()) in manifest.digests[path]
    }
    return PlugstackFiles(texts, ours)


def plan(
    disk: Disk, manifest: InstallManifest, site: Site = SITE, choices: InstallOptions = CHOICES
) -> list[InstallStep]:
    stack = stack_of(disk, manifest)
    wanted = build_files(site, choices, b"plugin", SOURCES, stack)
    digests: dict[Path, str | None] = {path: digest_of(text.encode()) for path, text in disk.items()}
    return plan_install(wanted, digests, manifest, retired=retired_files(site, stack))


def states(disk: Disk, steps: list[InstallStep]) -> Iterator[Disk]:
    """The disk after each step, as a kill may leave it."""
    for step in steps:
        if step.wanted is not None and step.action in (FileAction.CREATE, FileAction.UPDATE):
            disk = disk | {step.path: step.wanted.content.decode()}
        elif step.action is FileAction.REMOVE:
            disk = {path: text for path, text in disk.items() if path != step.path}
        yield disk


def done(
    disk: Disk, manifest: InstallManifest, site: Site = SITE, choices: InstallOptions = CHOICES
) -> tuple[Disk, InstallManifest]:
    steps = plan(disk, manifest, site, choices)
    return [disk, *states(disk, steps)][-1], with_steps(manifest, steps)


def plugstack(disk: Disk) -> Disk:
    return {path: text for path, text in disk.items() if "plugstack" in str(path)}


def loads(disk: Disk) -> int:
    return len(plugin_lines(stack_of(disk, InstallManifest()).texts))


# What lies there at first, which of it is ours, and what there is after an installation by NEWER choices.
MORE = Path("/etc/slurm/plugstack.more")
OTHERS = Path("/etc/slurm/plugstack.conf.d/x11.conf")
NEW = LINE.replace("ctl1,ctl2:", "ctl9:")
LAYOUTS: list[tuple[str, Disk, tuple[Path, ...], Disk]] = [
    ("nothing", {}, (), {STACK: NEW}),
    ("ours of an earlier release", {STACK: INCLUDE, LOADER: LINE}, (STACK, LOADER), {STACK: NEW}),
    ("ours", {STACK: LINE}, (STACK,), {STACK: NEW}),
    ("a kill before the old line was removed", {STACK: NEW, LOADER: LINE}, (STACK, LOADER), {STACK: NEW}),
    ("a kill after that", {STACK: NEW}, (STACK, LOADER), {STACK: NEW}),
    ("Debian's own", {STACK: DEBIANS}, (), {STACK: DEBIANS, LOADER: NEW}),
    ("Debian's own, and ours in its folder", {STACK: DEBIANS, LOADER: LINE}, (LOADER,), {STACK: DEBIANS, LOADER: NEW}),
    ("ours, taken in by a file of a file", {STACK: "include plugstack.more", MORE: DEBIANS, LOADER: LINE}, (LOADER,),
     {STACK: "include plugstack.more", MORE: DEBIANS, LOADER: NEW}),
    ("others in our folder", {STACK: INCLUDE, LOADER: LINE, OTHERS: "optional x11.so"}, (STACK, LOADER),
     {STACK: INCLUDE, LOADER: NEW, OTHERS: "optional x11.so"}),
    ("our line changed by hand", {STACK: INCLUDE, LOADER: f"{LINE}#"}, (STACK,), {STACK: INCLUDE, LOADER: f"{LINE}#"}),
    ("the site's own line", {STACK: LINE.replace("Made", "made")}, (), {STACK: LINE.replace("Made", "made")}),
    ("the site's own line, and ours", {STACK: f"{LINE}#\n", LOADER: LINE}, (LOADER,), {STACK: f"{LINE}#\n"}),
    ("the site's own without ours", {STACK: "required x11.so"}, (), {STACK: "required x11.so"}),
]  # fmt: skip


@cases(("name", "disk", "ours", "after"), LAYOUTS)
def test_the_line_is_read_once_at_every_moment(name, disk, ours, after):
    manifest = manifest_of(*((path, disk.get(path, LINE)) for path in ours))
    if name == "our line changed by hand":
        manifest = manifest_of((STACK, INCLUDE), (LOADER, LINE))
    steps = plan(disk, manifest, choices=NEWER)
    known = with_steps(manifest, steps)
    before = loads(disk)
    for state in [disk, *states(disk, steps)]:
        assert loads(state) in (before, 1), name
        assert before == 0 or loads(state) == 1, name
        again, _ = done(state, known, choices=NEWER)
        assert plugstack(again) == after, name
    assert done(*done(disk, manifest, choices=NEWER), choices=NEWER) == done(disk, manifest, choices=NEWER), name


def test_uninstall_removes_both_layouts():
    for disk in ({STACK: LINE}, {STACK: INCLUDE, LOADER: LINE}, {STACK: LINE, LOADER: LINE}):
        steps = plan_uninstall(
            {path: digest_of(text.encode()) for path, text in disk.items()}, manifest_of(*disk.items())
        )
        assert {step.path for step in steps if step.action is FileAction.REMOVE} == disk.keys()
        assert all(loads(state) <= 1 for state in states(disk, steps))


def test_what_was_changed_by_hand_and_is_read_no_more_is_named():
    disk = {STACK: LINE, LOADER: f"{LINE}# by hand\n"}
    steps = plan(disk, manifest_of((STACK, LINE), (LOADER, LINE)))
    assert {step.path: step.action for step in steps if step.path in disk} == {
        STACK: FileAction.SAME,
        LOADER: FileAction.KEEP,
    }


def test_a_plugstack_that_was_changed_by_hand_stays_unless_force_is_said():
    disk = {STACK: f"{INCLUDE}# by hand\n", LOADER: LINE}
    manifest = manifest_of((STACK, INCLUDE), (LOADER, LINE))
    assert plugstack(done(disk, manifest)[0]) == disk
    forced = PlugstackFiles(disk, {STACK, LOADER})
    assert choose_location(SITE, forced) is LineLocation.FILE


@cases(
    ("disk", "ours", "why"),
    [
        ({}, (), ""),
        ({STACK: LINE}, (STACK,), ""),
        ({STACK: LINE}, (), ""),
        ({STACK: INCLUDE, LOADER: LINE}, (STACK, LOADER), ""),  # the installation itself moves it
        ({STACK: DEBIANS}, (), "hands out this file"),
        ({STACK: DEBIANS, LOADER: LINE}, (LOADER,), "crash"),
        ({STACK: INCLUDE, LOADER: LINE, OTHERS: ""}, (STACK, LOADER), "crash"),
        ({STACK: "required x11.so"}, (), "hands out this file"),
    ],
)
def test_what_a_site_writes_where_slurmctld_hands_files_out(disk, ours, why):
    told = lines_for_site(CONFIGLESS, CHOICES, None, PlugstackFiles(disk, ours))
    assert [line.file for line in told] == ([STACK] if why else [])
    assert all(why in line.why for line in told)
    if disk == {STACK: DEBIANS}:  # and nothing is put where the written line would be read beside it
        assert plugstack(done(disk, InstallManifest(), CONFIGLESS)[0]) == disk


def test_once_the_site_has_written_it_ours_goes():
    written = {STACK: build_plugin_line(SITE, CHOICES), LOADER: LINE}
    assert plugstack(done(written, manifest_of((LOADER, LINE)), CONFIGLESS)[0]).keys() == {STACK}


def test_a_line_of_the_sites_that_differs_is_told():
    line = build_plugin_line(SITE, CHOICES)
    assert lines_for_site(SITE, CHOICES, None, PlugstackFiles({STACK: f"{line} run_dir=/srv/run"})) == []
    (told,) = lines_for_site(SITE, NEWER, None, PlugstackFiles({STACK: line}))
    assert told.lines == (build_plugin_line(SITE, NEWER),)
    assert "differs" in told.why
    assert (
        lines_for_site(SITE, dataclasses.replace(CHOICES, library=Path("/opt")), None, PlugstackFiles({STACK: line}))
        != []
    )


@cases(
    ("line", "uid"),
    [
        (None, 64030),  # SlurmUser: what slurmctld hands out cannot be seen on every machine
        (PluginLine(STACK, "/x.so", {}), 0),
        (PluginLine(STACK, "/x.so", {"agent_uid": "7"}), 7),
        (PluginLine(STACK, "/x.so", {"agent_uid": "-7"}), 0),
    ],
)
def test_whose_word_is_the_agents(line, uid):
    assert agent_uid_of(SITE, line) == uid


@cases(
    ("line", "said"),
    [
        ("", ("", 0)),
        ("optional moorings_spank.so", ("", 0)),
        ("optional moorings_spank.so agent=ctl1,ctl2:9191 wait=100", ("ctl1,ctl2:9191", 100)),
        ("optional moorings_spank.so agent=ctl1 wait=soon", ("ctl1", 0)),
    ],
)
def test_what_an_installation_keeps_of_the_line_before(line, said):
    assert installed_arguments({Path("/etc/slurm/plugstack.conf"): f"# {line}\n{line}\n"}) == said
