"""What Slurm's commands are told, and that their answers are read right, whoever wrote into them.

The recordings are of real clusters of three releases, with jobs whose names, comments and accounts were meant to be
taken for other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm import fixed_width, formats
from moorings.slurm.fixed_width import FixedColumn, expand_hostlist, parse_rows
from moorings.slurm.formats import JobRecord, License, SlurmJobPhase, SubmittedOptions
from moorings.slurm.host.site import at_machine, parse_site
from tests.cases import cases

RECORDINGS = Path(__file__).parent / "recordings"
RELEASES = sorted(folder.name for folder in RECORDINGS.iterdir())
EVIL = "evil\n99|99|N/A|RUNNING"
ORDER = SubmittedOptions(nonce="00112233aabbccdd", ipus=16, gcds=2, replicas=4)

every_release = pytest.mark.parametrize("release", RELEASES)


def recorded(release: str, what: str) -> bytes:
    return (RECORDINGS / release / f"{what}.txt").read_bytes()


def jobs_of(release: str) -> dict[str, JobRecord]:
    """The recorded jobs, the latest of each name."""
    return {job.name: job for job in formats.parse_jobs(recorded(release, "jobs"))}


def refusal(call: Callable[[], object]) -> str | None:
    """The code of the error that a call ends in; None: it does not."""
    try:
        call()
    except MooringsError as error:
        return error.code
    return None


def test_three_releases_are_recorded():
    assert RELEASES == ["22.05", "24.11", "26.05"]


@every_release
def test_a_job_of_ours(release):
    job = jobs_of(release)["multi-gcd-job"]
    assert job.order == ORDER
    assert job.licenses == {"ipu": 16} | {f"ipu_{size}": 16 for size in (1, 2, 4, 8, 16)}
    assert (job.state, job.phase, job.reason) == ("PENDING", SlurmJobPhase.WAITING, "Licenses")
    assert (job.limit_s, job.partition, job.uid, job.user, job.restarts) == (1800.0, "normal", 0, "root", 0)
    assert (job.array_job, job.het_job, job.nodes, job.requeue, job.batch) == (None, None, "", True, True)
    assert job.submit_time is not None
    assert job.start_time is None


@every_release
def test_no_job_pretends_to_be_another(release):
    jobs = formats.parse_jobs(recorded(release, "jobs"))
    assert 99 not in {job.job_id for job in jobs}
    evil = jobs_of(release)[EVIL]
    assert evil.comment.startswith("c\nJobId=99 AdminComment=moorings:1 nonce=0123456789abcdef")
    assert evil.account == "acc\nx|y"
    assert evil.order is None
    assert evil.restarts == 1
    assert [job.order for job in jobs if job.order is not None] == [ORDER]


@every_release
def test_the_tasks_of_an_array_and_its_rest(release):
    tasks = [job for job in formats.parse_jobs(recorded(release, "jobs")) if job.name == "ärr|"]
    rest, *running = sorted(tasks, key=lambda job: job.phase is not SlurmJobPhase.WAITING)
    assert (rest.job_id, rest.array_tasks, rest.reason) == (rest.array_job, "2-5%2", "JobArrayTaskLimit")
    assert [job.array_tasks for job in running] == ["0", "1"]
    named = rest.array_job
    assert [job.target for job in (rest, *running)] == [f"{named}_[2-5]", f"{named}_0", f"{named}_1"]
    assert {job.array_job for job in tasks} == {rest.job_id}
    assert len({job.job_id for job in tasks}) == 3
    assert {(job.state, job.phase, job.nodes) for job in running} == {("RUNNING", SlurmJobPhase.LIVE, "n1")}


@cases(
    ("tasks", "target"),
    [
        ("", "7"),
        ("3", "7_3"),
        ("5-9%2", "7_[5-9]"),
        ("1-9:4", "7_[1,5,9]"),  # "Invalid job id" for scontrol
        ("0-6:3%1", "7_[0,3,6]"),
        ("1,3,5...", "7"),
        ("0-4000000:2", "7"),
    ],
)
def test_how_a_command_names_the_tasks_of_an_array(tasks, target):
    job = replace(next(iter(jobs_of(RELEASES[0]).values())), job_id=7, array_job=7, array_tasks=tasks)
    assert job.target == target
    assert formats.build_requeue(job.target)[-1] == target
    assert job.is_cut_array == (target == "7" and tasks != "")


def test_the_longest_list_of_tasks_fits_into_one_word_of_a_command():
    last = 4_000_000 - 1
    first = last - 2 * (formats.STEPPED_MAX - 1)
    job = replace(
        next(iter(jobs_of(RELEASES[0]).values())),
        array_job=1,
        array_tasks=f"{first}-{last}:2",
    )
    assert not job.is_cut_array
    assert len(formats.build_requeue(job.target)[-1]) < 128 << 10


@every_release
def test_how_a_job_ended(release):
    jobs = [job for job in formats.parse_jobs(recorded(release, "jobs")) if job.state == "FAILED"]
    assert sorted(job.status for job in jobs) == [(0, 9), (3, 0)]
    assert {job.phase for job in jobs} == {SlurmJobPhase.ENDED}
    assert "x" * 63 in {job.name[:63] for job in jobs}  # a name of 200 characters, cut


@every_release
def test_other_jobs_of_the_recording(release):
    jobs = formats.parse_jobs(recorded(release, "jobs"))
    assert [(job.het_offset, job.job_id == job.het_job) for job in jobs if job.het_job] == [(0, True)]
    assert [job.reason for job in jobs if not job.requeue] == ["BeginTime"]
    assert all(job.licenses["ipu"] for job in jobs)


@every_release
def test_licenses_reservation_nodes_and_configuration(release):
    licenses = formats.parse_licenses(recorded(release, "licenses"))
    assert licenses["ipu_16"] == License(total=64, used=0, reserved=60)
    assert licenses["ipu_16"].free == 4
    held = formats.parse_reservations(recorded(release, "reservations"))
    assert held.keys() == {"moorings"}
    assert held["moorings"].licenses == {"ipu_16": 60, "moorings_gate": 1}
    assert held["moorings"].flags == {"IGNORE_JOBS", "ANY_NODES"}
    nodes = formats.parse_nodes(recorded(release, "nodes"))
    assert nodes[0].name == "n1"
    assert {node.version.rpartition(".")[0] for node in nodes} == {release}
    site = parse_site(formats.parse_config(recorded(release, "config")))
    assert (site.release, site.cluster, site.controllers) == (release, "cluster", ("127.0.0.1",))
    assert (site.slurm_user, site.conf_hash, site.job_submit) == (("root", 0), "Match", ())
    assert site.munge_socket == "/srv/cluster/run/munge.socket"
    assert site.plugstack == Path("/srv/cluster/etc/plugstack.conf")
    assert (site.configless, site.has_files) == (False, True)
    assert site.licenses["moorings_gate"] == 1
    assert site.state_folder == Path("/srv/cluster/state")


@every_release
def test_a_slurm_that_hands_its_files_out(release):
    config = formats.parse_config(recorded(release, "config")) | {"SlurmctldParameters": "x=1,enable_configless"}
    site = parse_site(config)
    assert site.configless
    node = at_machine(site, Path("/run/slurm/conf/slurm.conf"), has_files=False)
    assert (node.folder, node.plugstack.parent, node.has_files) == (Path("/run/slurm/conf"),) * 2 + (False,)
    named = parse_site(config | {"PlugStackConfig": "/srv/p.conf"})
    assert at_machine(named, node.slurm_conf, has_files=False).plugstack == Path("/srv/p.conf")


def test_nothing_is_nothing():
    assert formats.parse_jobs(b"") == []
    assert formats.parse_licenses(b"No licenses configured in Slurm.\n") == {}
    assert formats.parse_reservations(b"No reservations in the system\n") == {}


@every_release
def test_of_a_list_only_what_is_new_is_read_and_nothing_of_it_is_missed(release):
    answer = recorded(release, "jobs")
    lists = formats.JobListParser()
    first = lists.parse(answer, accounts=True)
    assert first == formats.parse_jobs(answer)
    second = lists.parse(answer, accounts=True)
    assert all(one is other for one, other in zip(first, second, strict=True)), "not one was read again"
    row = len(answer) // len(first)
    changed = answer[row:].replace(b"|PENDING ", b"|RUNNING ", 1)
    assert lists.parse(changed, accounts=True) == formats.parse_jobs(changed) != first[1:]
    assert lists.parse(b"", accounts=True) == []
    assert refusal(lambda: lists.parse(answer[:-1], accounts=True)) is not None


@every_release
def test_accounts_that_may_be_forged_are_nobodys(release):
    """Law 10: where Slurm enforces no accounts, ``sbatch -A`` names any."""
    answer = recorded(release, "jobs")
    named = formats.parse_jobs(answer)
    assert any(job.account for job in named)
    bare = [replace(job, account="") for job in named]
    lists = formats.JobListParser()
    for accounts, expected in ((True, named), (False, bare), (True, named), (False, bare)):
        assert formats.parse_jobs(answer, accounts=accounts) == expected
        assert lists.parse(answer, accounts=accounts) == expected, "what was read by the other rule counts no more"


# -- what a user may write ---------------------------------------------------------------------------------------------

JOB_ID = (FixedColumn("id", "JobID", 8), FixedColumn("name", "Name", 10), FixedColumn("state", "State", 8))


def printed(id: str, name: bytes, state: str) -> bytes:
    """A record as squeue prints it: cut and padded by bytes."""
    cells = [id.encode()[:8].ljust(8), name[:10].ljust(10), state.encode()[:8].ljust(8)]
    return b"|".join(cells) + b"|\n"


@given(st.lists(st.binary(max_size=30).map(lambda name: name.replace(b"\0", b"")), max_size=5))
def test_no_name_makes_or_hides_a_record(names):
    answer = b"".join(printed(str(number), name, "RUNNING") for number, name in enumerate(names))
    rows = list(parse_rows(answer, JOB_ID, source="squeue"))
    assert [(row["id"], row["state"]) for row in rows] == [(str(number), "RUNNING") for number in range(len(names))]


@given(st.binary(max_size=200), st.integers(0, 60))
def test_what_was_cut_off_or_damaged_is_refused_as_a_whole(noise, at):
    answer = printed("1", b"a", "RUNNING") + printed("2", b"b", "PENDING")
    damaged = answer[:at] + noise + answer[at:]
    rows: list[dict[str, str]] = []
    if refusal(lambda: rows.extend(parse_rows(damaged, JOB_ID, source="squeue"))) is None:
        assert len(rows) * 30 == len(damaged)
    else:
        assert rows == []


@pytest.mark.parametrize("cut", [1, 29, 31])
def test_half_an_answer_is_no_answer(cut):
    answer = printed("1", b"a", "RUNNING") + printed("2", b"b", "PENDING")
    with pytest.raises(MooringsError, match="no multiple"):
        list(parse_rows(answer[:cut], JOB_ID, source="squeue"))


def test_a_field_that_a_release_does_not_know_is_noticed():
    # squeue leaves the column out, complains on stderr and ends with 0
    with pytest.raises(MooringsError):
        list(parse_rows(b"1       ||RUNNING |\n", JOB_ID, source="squeue"))


@given(st.binary(max_size=300))
def test_any_answer_is_read_or_refused(answer):
    for parse in (formats.parse_jobs, formats.parse_licenses, formats.parse_reservations, formats.parse_nodes):
        assert refusal(partial(parse, answer)) in (None, "slurm.unreadable")
    formats.parse_config(answer)


# -- states, orders, lists ---------------------------------------------------------------------------------------------


@cases(
    ("state", "phase"),
    [
        ("PENDING", SlurmJobPhase.WAITING),
        ("REQUEUE_HOLD", SlurmJobPhase.WAITING),
        ("RUNNING", SlurmJobPhase.LIVE),
        ("COMPLETING", SlurmJobPhase.LIVE),
        ("SUSPENDED", SlurmJobPhase.LIVE),
        ("CANCELLED", SlurmJobPhase.ENDED),
        ("OUT_OF_MEMORY", SlurmJobPhase.ENDED),
        ("SOME_NEW_STATE", SlurmJobPhase.LIVE),  # what is not known holds what it holds
    ],
)
def test_what_a_state_means(state, phase):
    assert formats.phase_of(state) is phase


def test_an_order_is_what_was_written():
    assert formats.parse_options(formats.build_admin_comment(ORDER)) == ORDER
    assert formats.parse_options(formats.build_admin_comment(ORDER) + " and a note of the admin's") == ORDER


ASKED = formats.YieldNotice(3, Timestamp(1_795_410_000 * SECOND), Timestamp(1_795_400_000 * SECOND))


@cases("signal", ["", "USR1", "B:USR2"])
@cases("asked", [None, ASKED])
@cases("note", ["", "waits for 16 devices"])
def test_what_the_agent_notes_beside_an_order_is_read_again(signal, asked, note):
    order = replace(ORDER, signal=signal)
    text = formats.build_admin_comment(order, asked, note).rstrip()  # as squeue shows it
    assert formats.parse_options(text) == order
    assert formats.parse_yield_notice(text) == asked
    assert formats.parse_note(text) == (note, True)


def test_a_note_that_was_cut_says_nothing_wrong():
    text = formats.build_admin_comment(replace(ORDER, signal="B:USR1"), ASKED, "x" * 80)
    for length in range(len(text)):
        assert formats.parse_yield_notice(text[:length].rstrip()) in (None, ASKED)
    assert formats.parse_yield_notice(text[:128]) == ASKED, "as much as the column shows"


def test_an_admins_own_note_is_nobodys_to_write_over():
    text = formats.build_admin_comment(ORDER)
    assert formats.parse_note(f"{text} ask carol first") == ("ask carol first", False)
    assert formats.parse_note("ask carol first") == ("", False)
    assert formats.parse_note(text) == ("", True)


def test_nobody_is_asked_by_what_stands_in_a_note():
    text = formats.build_admin_comment(ORDER, None, "claim asked=0@1795410000,1795400000 waits")
    assert formats.parse_yield_notice(text) is None


@cases(
    "comment",
    [
        "",
        "(null)",
        "note: moorings:1 nonce=00112233aabbccdd ipus=16 gcds=2 replicas=4",
        "moorings:2 nonce=00112233aabbccdd ipus=16 gcds=2 replicas=4",
        "moorings:1 nonce=00112233AABBCCDD ipus=16 gcds=2 replicas=4",
        "moorings:1 nonce=00112233aabbccdd ipus=-1 gcds=2 replicas=4",
        "moorings:1 nonce=00112233aabbccdd ipus=16 gcds=2 replicas=4x",
        "moorings:1 nonce=00112233aabbccdd ipus=16 gcds=2",
    ],
)
def test_what_is_no_order(comment):
    assert formats.parse_options(comment) is None


def test_a_license_that_was_cut_is_not_believed():
    whole = ",".join(f"lic{number}:{number}" for number in range(100))
    assert formats._licenses(whole[:256]).keys() < {f"lic{number}" for number in range(100)}
    assert formats._licenses(whole[:256])["lic9"] == 9
    assert all(count == int(name[3:]) for name, count in formats._licenses(whole[:256]).items())


def test_license_lists_of_both_shapes():
    assert dict(formats.parse_license_list("ipu:4,ipu_1:4,other")) == {"ipu": 4, "ipu_1": 4, "other": 1}
    assert dict(formats.parse_license_list("ipu_16:60;moorings_gate:1")) == {"ipu_16": 60, "moorings_gate": 1}
    assert formats.build_license_list({"ipu_1": 3, "ipu_2": 0, "moorings_gate": 1}) == "ipu_1:3,moorings_gate:1"


@pytest.mark.parametrize("name", ["a b", "a,b:1", "", "-x", "a\n", "x" * 65])
def test_what_would_be_another_argument_is_refused(name):
    for build in (formats.build_renew_reservation, lambda text: formats.build_jobs(license_name=text + ",")):
        with pytest.raises(MooringsError) as told:
            build(name)
        assert told.value.code == "name.invalid"


def test_every_command_is_words_of_ours():
    assert formats.build_requeue(7) == ["scontrol", "requeue", "7"]
    assert formats.build_cancel(7, signal="TERM") == ["scancel", "--signal=TERM", "7"]
    assert formats.build_allow_requeue("7_2") == ["scontrol", "update", "jobid=7_2", "requeue=1"]
    assert formats.build_jobs(jobs=[1, 2], users=[3], ended=False)[-2:] == ["--jobs=1,2", "--user=3"]
    assert "--states=all" in formats.build_jobs()


@pytest.mark.parametrize(
    ("folded", "hosts"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10],gpu1", ("n08", "n09", "n10", "gpu1")),
        ("r[1-2]n[1,3]", ("r1n1", "r1n3", "r2n1", "r2n3")),
    ],
)
def test_hosts_are_unfolded(folded, hosts):
    assert expand_hostlist(folded) == hosts


@cases("folded", ["n[1", "n1]", "n[3-1]", "n[1-999999999]", "n[a-b]", "[]", ",", "n[0-9][0-99999]"])
def test_what_is_no_list_of_hosts(folded):
    with pytest.raises(MooringsError, match=r"host"):
        expand_hostlist(folded)


@given(st.text(alphabet="n0123456789[],-", max_size=20))
def test_no_list_of_hosts_is_too_much(folded):
    hosts: list[str] = []
    assert refusal(lambda: hosts.extend(expand_hostlist(folded, 1000))) in (None, "slurm.unreadable")
    assert len(hosts) <= 1000


def test_the_accounting():
    told = b"12|CANCELLED by 1000|0:15|2026-11-21T10:00:00|2026-11-21T10:00:01|2026-11-21T10:00:03\n"
    (ended,) = formats.parse_history(told)
    assert (ended.job_id, ended.state, ended.status) == (12, "CANCELLED", (0, 15))
    assert ended.started is not None
    assert ended.ended is not None
    assert ended.ended - ended.started == 2_000_000
    with pytest.raises(MooringsError):
        formats.parse_history(b"12|COMPLETED\n")


def test_a_record_is_as_wide_as_was_asked_for():
    assert fixed_width.build_format(JOB_ID) == "JobID:8|,Name:10|,State:8|"
