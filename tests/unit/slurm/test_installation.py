"""What an installation writes, and what it leaves alone: decisions; ``tests/slurm/test_install.py`` does them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.slurm.host.install_plan import (
    VIPU_CONF,
    FileAction,
    InstallManifest,
    InstallOptions,
    InstallStep,
    build_files,
    build_limits,
    build_manifest,
    build_vipu_conf,
    calls_our_script,
    check_uninstall,
    check_wait,
    digest_of,
    is_template,
    lines_for_site,
    parse_feature,
    parse_manifest,
    plan_install,
    plan_uninstall,
    with_steps,
    without_files,
)
from moorings.slurm.host.plugstack import PlugstackFiles
from moorings.slurm.host.site import (
    Site,
    conf_lines,
    is_requeued,
    licenses_wanted,
    sizes_up_to,
    uses_select_vipu,
    without_select_vipu,
)
from moorings.slurm.host.spank_object import parse_version
from moorings.slurm.slurm_conf import (
    parse_slurm_conf,
    plugstack_includes,
    plugstack_lines,
)
from tests.cases import cases

SITE = Site(
    version="22.05.8",
    cluster="c1",
    slurm_conf=Path("/etc/slurm/slurm.conf"),
    plugstack=Path("/etc/slurm/plugstack.conf"),
    controllers=("ctl1", "ctl2"),
    slurm_user=("slurm", 64030),
    conf_hash="Match",
    munge_socket="",
    job_submit=(),
    licenses={},
    tres=("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"),
    accounting=True,
    enforces_accounts=True,
    scheduler=(),
    job_requeue=True,
    requeue_exit=(),
    log_file="",
    state_folder=Path("/var/lib/slurm/slurmctld"),
)
CHOICES = InstallOptions(
    library=Path("/usr/local/lib/moorings/slurm"),
    agent="ctl1,ctl2:8091",
    agent_uid=0,
    ipus=64,
    largest=64,
    domain=64,
    wait_s=60,
)
SOURCES = {"moorings_submit.lua": b"-- ours\n", "job_submit.lua": b'require("moorings_submit")\n'}
FILES = build_files(SITE, CHOICES, b"plugin", SOURCES)
PATHS = [file.path for file in FILES]
JOB_SUBMIT, PLUGSTACK = Path("/etc/slurm/job_submit.lua"), Path("/etc/slurm/plugstack.conf")


def content_of(name: str) -> str:
    return next(file.content for file in FILES if file.path.name == name).decode()


def actions(steps: list[InstallStep]) -> dict[str, FileAction]:
    return {step.path.name: step.action for step in steps}


def installed() -> tuple[dict[Path, str | None], InstallManifest]:
    """The disk and the manifest after a first installation."""
    steps = plan_install(FILES, {}, InstallManifest())
    return {file.path: digest_of(file.content) for file in FILES}, with_steps(InstallManifest(), steps)


# -- the files ---------------------------------------------------------------------------------------------------------


def test_no_file_names_one_that_is_written_later():
    for number, file in enumerate(FILES):
        for later in FILES[number + 1 :]:
            assert str(later.path).encode() not in file.content, (file.path, later.path)


def test_what_everybody_can_read_has_no_secret_and_vipu_conf_is_closed():
    assert {file.path.name: file.mode for file in FILES}["vipu.conf"] == 0o600
    assert {file.path.name: file.owner for file in FILES if file.owner is not None} == {"vipu.conf": 64030}
    assert content_of("plugstack.conf") == (
        "# Made by 'moor slurm install'.\n"
        "optional /usr/local/lib/moorings/slurm/moorings_spank.so agent=ctl1,ctl2:8091 max=64 wait=60\n"
    )


@pytest.mark.parametrize(("agent", "line"), [("ctl1:8091", b""), ("ctl1,ctl2:9191", b"AgentPort=9191\n")])
def test_the_agent_listens_where_nodes_look_for_it(agent, line):
    made = build_vipu_conf(dataclasses.replace(CHOICES, agent=agent))
    assert made == VIPU_CONF + line
    assert is_template(made)
    assert not is_template(made + b"ApiAccessKey=moor_x\n")
    assert not is_template(b"")


def test_what_differs_from_the_plugins_defaults_is_told_to_it():
    site = dataclasses.replace(SITE, munge_socket="/run/m")
    files = build_files(site, dataclasses.replace(CHOICES, agent_uid=7), b"", SOURCES)
    assert files[-1].content.endswith(b" munge_socket=/run/m agent_uid=7\n")
    assert files[-1].why.endswith("the agent runs as uid 7")
    slurms = build_files(site, dataclasses.replace(CHOICES, agent_uid=64030), b"", SOURCES)
    assert slurms[-1].content.endswith(b" agent_uid=64030\n")
    assert slurms[-1].why.endswith("the agent runs as slurm(64030)")


def test_the_limits_of_the_submit_script():
    assert content_of("moorings_limits.lua").splitlines()[1:] == [
        "return {",
        "    max = 64,",
        "    sizes = { 1, 2, 4, 8, 16, 32, 64 },",
        "    domain = 64,",
        "    admins = { 64030 },",
        "}",
    ]


def test_the_submit_script_is_told_where_a_job_that_does_not_say_starts_once():
    once = build_limits(dataclasses.replace(SITE, job_requeue=False), CHOICES).decode()
    assert "    requeue = false,\n" in once
    assert "feature" not in once
    kept = build_limits(SITE, dataclasses.replace(CHOICES, feature="moorings"))
    assert b'    feature = "moorings",\n' in kept
    assert parse_feature(kept)
    assert not parse_feature(once.encode())
    assert "requeue" not in content_of("moorings_limits.lua")


@pytest.mark.parametrize(("largest", "sizes"), [(1, (1,)), (4, (1, 2, 4)), (48, (1, 2, 4, 8, 16, 32)), (0, ())])
def test_sizes(largest, sizes):
    assert sizes_up_to(largest) == sizes


# -- what is done ------------------------------------------------------------------------------------------------------


def test_a_second_time_nothing_is_done():
    on_disk, manifest = installed()
    assert set(actions(plan_install(FILES, on_disk, manifest)).values()) == {FileAction.SAME}
    assert with_steps(manifest, plan_install(FILES, on_disk, manifest)) == manifest


def test_a_newer_release_takes_the_place_of_what_we_wrote():
    on_disk, manifest = installed()
    newer = build_files(SITE, CHOICES, b"newer plugin", SOURCES | {"job_submit.lua": b"newer"})
    steps = actions(plan_install(newer, on_disk, manifest))
    assert steps.pop("moorings_spank.so") is FileAction.UPDATE
    assert steps.pop("job_submit.lua") is FileAction.UPDATE
    assert set(steps.values()) == {FileAction.SAME}


def test_what_was_changed_by_hand_is_kept_unless_force_is_said():
    on_disk, manifest = installed()
    on_disk[PATHS[1]] = digest_of(b"return {}")
    assert actions(plan_install(FILES, on_disk, manifest))["moorings_limits.lua"] is FileAction.KEEP
    assert actions(plan_install(FILES, on_disk, manifest, force=True))["moorings_limits.lua"] is FileAction.UPDATE


@pytest.mark.parametrize("force", [False, True])
def test_a_sites_own_file_is_never_rewritten(force):
    on_disk = {JOB_SUBMIT: digest_of(b"theirs"), PLUGSTACK: digest_of(b"theirs"), PATHS[3]: digest_of(b"ApiHost=c")}
    steps = plan_install(FILES, on_disk, InstallManifest(), force=force)
    assert actions(steps)["job_submit.lua"] is FileAction.KEEP
    assert actions(steps)["plugstack.conf"] is FileAction.KEEP
    assert actions(steps)["vipu.conf"] is FileAction.SAME
    assert not {JOB_SUBMIT, PLUGSTACK, PATHS[3]} & with_steps(InstallManifest(), steps).digests.keys()


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_plain_file_is_kept(force):
    steps = plan_install(FILES, {PATHS[0]: None}, InstallManifest(), force=force)
    assert actions(steps)["moorings_spank.so"] is FileAction.KEEP


def test_vipu_conf_is_the_sites_once_it_is_there():
    on_disk, manifest = installed()
    changed = [dataclasses.replace(file, content=b"new") if file.once else file for file in FILES]
    assert actions(plan_install(changed, on_disk, manifest, force=True))["vipu.conf"] is FileAction.SAME


@given(st.integers(0, len(FILES)))
def test_a_kill_at_any_moment_leaves_nothing_that_looks_like_the_sites(done):
    on_disk, manifest = installed()
    newer = [dataclasses.replace(file, content=file.content + b"\n") for file in FILES]
    known = with_steps(manifest, plan_install(newer, on_disk, manifest))  # written before any file is
    for file in newer[:done]:
        if not file.once:
            on_disk[file.path] = digest_of(file.content)
    assert FileAction.KEEP not in actions(plan_install(newer, on_disk, known)).values()
    assert set(actions(plan_uninstall(on_disk, known)).values()) == {FileAction.REMOVE}


def test_uninstall_takes_exactly_what_was_written_the_last_first():
    on_disk, manifest = installed()
    on_disk[PATHS[2]] = digest_of(b"changed")
    del on_disk[PATHS[1]]
    steps = plan_uninstall(on_disk, manifest)
    assert [step.path for step in steps] == PATHS[::-1]
    assert actions(steps)["moorings_submit.lua"] is FileAction.KEEP
    assert actions(steps)["moorings_limits.lua"] is FileAction.GONE
    assert [step.path for step in steps if step.action is FileAction.REMOVE] == [*PATHS[:2:-1], PATHS[0]]


def test_slurmctld_never_loses_a_script_that_it_needs():
    conf = Path("/etc/slurm/slurm.conf")
    with pytest.raises(MooringsError) as told:
        check_uninstall(["lua"], SOURCES["job_submit.lua"], conf)
    assert told.value.code == "slurm.refused"
    check_uninstall(["lua"], b"-- theirs, without ours\n", conf)
    check_uninstall(["lua"], None, conf)
    check_uninstall([""], SOURCES["job_submit.lua"], conf)


def test_the_manifest_is_read_as_it_was_written():
    _, manifest = installed()
    assert parse_manifest(build_manifest(manifest), "m") == manifest
    assert list(parse_manifest(build_manifest(manifest), "m").digests) == PATHS
    assert PATHS[0] not in without_files(manifest, [PATHS[0]]).digests


@given(st.binary(max_size=100) | st.sampled_from([b"{}", b"[]", b'{"version":2,"files":[]}']))
def test_a_damaged_manifest_is_refused(content):
    with pytest.raises(MooringsError) as told:
        parse_manifest(content, "m")
    assert told.value.code == "slurm.unreadable"


@pytest.mark.parametrize("path", ["relative", "/etc/../shadow"])
def test_a_manifest_names_no_odd_path(path):
    with pytest.raises(MooringsError):
        parse_manifest(build_manifest(InstallManifest({Path(path): ("a",)})), "m")


# -- what a site writes itself -----------------------------------------------------------------------------------------


def test_the_lines_for_slurm_conf():
    site = dataclasses.replace(
        SITE,
        licenses={"matlab": 5, "ipu": 3},
        job_submit=("throttle",),
        tres=(*SITE.tres, "gres/gpu"),
        scheduler=("bf_interval=10", "bf_licenses"),
        requeue_exit=("9", "100-121"),
    )
    assert [line.line for line in conf_lines(site, 4, 4)] == [
        "Licenses=matlab:5,ipu:4,ipu_1:4,ipu_2:4,ipu_4:4,moorings_gate:1",
        "JobSubmitPlugins=throttle,lua",
        "AccountingStorageTRES=gres/gpu,license/ipu",
        "RequeueExit=9,100-121,122",
        "SchedulerParameters=bf_interval=10",
    ]


def test_no_line_is_printed_that_is_there():
    licenses = {"a": 1} | licenses_wanted(4, 4)
    site = dataclasses.replace(
        SITE, licenses=licenses, job_submit=("lua",), tres=("license/ipu",), requeue_exit=("122",)
    )
    assert conf_lines(site, 4, 4) == []


@pytest.mark.parametrize(
    ("words", "again"),
    [((), False), (("122",), True), (("1", "120-130"), True), (("123-130", "12"), False), (("all", "1-"), False)],
)
def test_which_exit_codes_bring_a_job_back(words, again):
    assert is_requeued(dataclasses.replace(SITE, requeue_exit=words), 122) is again


def test_nodes_wait_longer_than_the_agent():
    check_wait(60, 50, Path("/etc/slurm/vipu.conf"))
    with pytest.raises(MooringsError, match="ApiTimeout=60") as told:
        check_wait(60, 60, Path("/etc/slurm/vipu.conf"))
    assert "--wait 70" in told.value.hint


@pytest.mark.parametrize("patience", [3591, 3599])
def test_what_is_hinted_is_allowed(patience):
    """``--wait`` takes 3600 at most."""
    with pytest.raises(MooringsError) as told:
        check_wait(60, patience, Path("/etc/slurm/vipu.conf"))
    assert "--wait 3600 " in told.value.hint
    check_wait(3600, patience, Path("/etc/slurm/vipu.conf"))


def test_what_to_add_to_a_sites_own_files():
    assert lines_for_site(SITE, CHOICES, None, PlugstackFiles()) == []
    theirs = PlugstackFiles({PLUGSTACK: "required x11.so"})
    script, stack = lines_for_site(SITE, CHOICES, b"function slurm_job_submit() end", theirs)
    assert script.lines[0] == 'package.path = "/etc/slurm/?.lua;" .. package.path'
    assert stack.lines == (content_of("plugstack.conf").splitlines()[1],)
    added = PlugstackFiles({PLUGSTACK: stack.lines[0]})
    assert lines_for_site(SITE, CHOICES, "\n".join(script.lines).encode(), added) == []


def test_a_comment_calls_nothing():
    assert calls_our_script(SOURCES["job_submit.lua"])
    assert not calls_our_script(b"-- require('moorings_submit')\n")


@cases(
    ("text", "included"),
    [
        ("include /etc/slurm/plugstack.conf.d/*.conf", True),
        ("include plugstack.conf.d/*", True),
        ("Include\t/etc/slurm/plugstack.conf.d/moorings.conf", True),
        ("# include /etc/slurm/plugstack.conf.d/*", False),
        ("include /etc/slurm/plugstack.conf.d/x*", False),
        ("include /etc/slurm/*", False),
        ("include", False),
        ("", False),
    ],
)
def test_whether_plugstack_takes_our_file_in(text, included):
    assert plugstack_includes(text, "/etc/slurm/plugstack.conf.d/moorings.conf", "/etc/slurm") is included


def test_the_line_that_loads_the_plugin():
    text = "# optional /no/moorings_spank.so\nrequired x.so\noptional /a/moorings_spank.so agent=h:1 max=4\n"
    assert plugstack_lines(text, "moorings_spank.so") == [("/a/moorings_spank.so", {"agent": "h:1", "max": "4"})]
    assert plugstack_lines("required x.so", "moorings_spank.so") == []


# -- from select/vipu --------------------------------------------------------------------------------------------------

VIPU = """\
# The example of the V-IPU user guide, section 5.1
SelectType=select/vipu
SelectTypeParameters = other_cons_res,CR_CPU
NodeName=n[1-4] CPUs=16 State=UNKNOWN
"""


def test_a_configuration_for_the_select_plugin_is_recognised():
    settings = parse_slurm_conf(VIPU)
    assert settings == {"selecttype": "select/vipu", "selecttypeparameters": "other_cons_res,CR_CPU"}
    assert uses_select_vipu(settings)
    assert not uses_select_vipu(parse_slurm_conf(VIPU.replace("SelectType=", "#SelectType=")))


@pytest.mark.parametrize(
    ("parameters", "lines"),
    [
        ("other_cons_res,CR_CPU", ["SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU"]),
        ("other_cons_tres,CR_Core_Memory", ["SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory"]),
        ("other_linear", ["SelectType=select/linear"]),
        ("", ["SelectType=select/cons_tres"]),
    ],
)
def test_what_takes_the_place_of_the_select_plugin(parameters, lines):
    settings = {"selecttype": "select/vipu", "selecttypeparameters": parameters}
    assert [line.line for line in without_select_vipu(settings, SITE.slurm_conf)] == lines


@given(st.text(max_size=200))
def test_any_slurm_conf_is_read(text):
    parse_slurm_conf(text)
    plugstack_includes(text, "/a/b", "/a")
    plugstack_lines(text, "x")


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"\x7fELF\x02\x01" + rest))
@example(b"\x7fELF\x02\x01" + b"\xff" * 58)  # tables further on than any file is long
def test_what_is_no_plugin_is_refused(image):
    with pytest.raises(MooringsError) as told:
        parse_version(image, "x.so")
    assert told.value.code == "slurm.unreadable"
