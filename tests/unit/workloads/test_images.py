"""How an image is written, and what of a shell travels into one."""

import pytest

from moorings.core.model.errors import MooringsError
from moorings.workloads.environment import ExportRule, choose_variables
from moorings.workloads.images import absolute_image, check_image, is_image_file, means_the_machine
from moorings.workloads.jobs import parse_job
from tests.cases import cases

SHELL = {"PATH": "/bin", "LD_PRELOAD": "/x.so", "CONDA_PREFIX": "/c", "HF_HOME": "/h", "HOME": "/home/ann"}


def parse(text, **given):
    return parse_job(f'command = "train"\n{text}', source="job.toml", folder="/w", submitter=SHELL, **given)


@cases(
    ("written", "image"),
    [
        ("registry.example/digits:1", "registry.example/digits:1"),
        ("docker://debian@sha256:ab12", "docker://debian@sha256:ab12"),
        ("./digits.sif", "/w/digits.sif"),
        ("digits.sif", "/w/digits.sif"),
        ("../digits.sif", "/w/../digits.sif"),
        ("/opt/digits.sif", "/opt/digits.sif"),
        ("oras://registry.example/digits.sif", "oras://registry.example/digits.sif"),
    ],
)
def test_an_image_of_a_job_file_is_a_name_or_an_absolute_path(written, image):
    job = parse(f'image = "{written}"\n')
    assert (job.image, is_image_file(image)) == (image, image.startswith("/"))
    assert parse(f'[kubernetes]\nimage = "{written}"\n').image == image


def test_a_flag_wins_over_the_image_of_a_file():
    assert parse('image = "a:1"\n', image="b:1").image == "b:1"


@cases(
    "image",
    [
        "",
        "-v/:/x",
        "--privileged",
        "docker://--privileged",
        "docker://-v=/a:/b",
        "a b",
        "a\nb",
        "a;b",
        "a,b",
        "$(x)",
        "a" * 4097,
    ],
)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(MooringsError) as caught:
        check_image(image)
    assert caught.value.code == "job.invalid"


def test_an_image_named_twice_is_refused_with_its_line():
    with pytest.raises(MooringsError, match=r"job\.toml:4: the file names an image twice"):
        parse('image = "a:1"\n[kubernetes]\nimage = "b:1"\n')


def test_relative_images_start_in_their_folder():
    assert absolute_image("./a.sif", "/") == "/a.sif"


def test_variables_of_the_machine_travel_into_no_image_unless_named():
    assert choose_variables(ExportRule("ALL"), SHELL).variables == SHELL
    inside = {"HF_HOME": "/h", "HOME": "/home/ann"}
    assert choose_variables(ExportRule("ALL"), SHELL, into_image=True).variables == inside
    named = ExportRule("ALL", ("PATH",), {"LD_PRELOAD": "/y.so"})
    assert choose_variables(named, SHELL, into_image=True).variables == {
        **inside,
        "PATH": "/bin",
        "LD_PRELOAD": "/y.so",
    }
    assert parse('image = "a:1"\n', usual_export="ALL").environment == inside
    assert parse("", usual_export="ALL", image="a:1").environment == inside


@cases("name", ["MODULEPATH", "LMOD_CMD", "BASH_FUNC_module%%", "VIRTUAL_ENV", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"])
def test_names_of_programs_and_files_mean_the_machine(name):
    assert means_the_machine(name)
