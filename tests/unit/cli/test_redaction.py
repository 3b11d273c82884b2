"""No secret gets through: by its form, by its name, by its value."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.cli.redaction import REDACTED, Redaction, is_secret_name
from tests.cases import cases

KEY = "moor_abcdefghij_" + "0f" * 32


@cases(
    ("text", "secret"),
    [
        (f"key is {KEY}.", "0f0f"),
        ("Authorization: Bearer abcdef123456", "abcdef"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNl"),
        ("postgresql://ann:hunter2@db/x", "hunter2"),
        ("https://ann:p%40ss@git/x", "p%40ss"),
        ("pepper " + "ab" * 32, "abab"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAAAA\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "MIIE"),
        ("WANDB_API_KEY=1234abcd", "1234abcd"),
        ('{"db_password": "tops3cret"}', "tops3cret"),
        ('password = "with \\" quote"', "with"),
        ("access_key: xyz123", "xyz123"),
        ("python train.py --token abc123 --lr 0.1", "abc123"),
        ("python train.py --hf-token=abc123", "abc123"),
        ("curl -d password=tops3cret&x=1", "tops3cret"),
        ("Authorization: Token tops3cret", "tops3cret"),
        ("curl -H 'Authorization: tops3cret' https://h", "tops3cret"),
        ('{"authorization": "Token tops3cret"}', "tops3cret"),
        ('Authorization: Digest username="ann", realm="r", response="tops3cret"', "tops3cret"),
        ("X-Auth-Key: tops3cret", "tops3cret"),
        ("X-Auth-Token: tops3cret", "tops3cret"),
        ('cookie="a=tops3cret; b=2"', "tops3cret"),
        ("Set-Cookie: id=tops3cret; Path=/", "tops3cret"),
        ("Cookie: a=1; id=tops3cret", "tops3cret"),
        ("pwd=tops3cret", "tops3cret"),
        ("Server=db;Uid=ann;Pwd=tops3cret;", "tops3cret"),
        ("MYSQL_PWD=/tops3cret", "tops3cret"),
        ("curl -u ann:tops3cret https://h", "tops3cret"),
        ("curl -uann:tops3cret https://h", "tops3cret"),
        ("curl --user 'ann:a tops3cret' https://h", "tops3cret"),
        ('command=["curl", "-u", "ann:tops3cret"]', "tops3cret"),
        ('command=["curl", "--token", "tops3cret"]', "tops3cret"),
        ('python train.py --token "a tops3cret"', "tops3cret"),
        ('detail="{\\"password\\": \\"tops3cret\\"}"', "tops3cret"),
        ('password="tops3cret', "tops3cret"),
        ("https://b.example/f?sv=2024&sig=tops3cret%3D&se=1", "tops3cret"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl", "c2ln"),
        ("ghp_" + "aB3d" * 9, "aB3d"),
        ("github_pat_11AAAAAAA0" + "aB3d" * 9, "aB3d"),
        ("hf_" + "aBcD" * 8, "aBcD"),
        ("sk-" + "aB3d" * 12, "aB3d"),
        ("sk-proj-" + "aB3d-" * 12, "aB3d"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSF"),
        ("postgresql://ann:p@tops3cret@db/x", "tops3cret"),
        ("postgresql://ann:p@@tops3cret@db:5432/x", "tops3cret"),
        ("postgresql://ann:p/tops3cret@db/x", "tops3cret"),
        ("postgresql://ann:p/a@tops3cret@db/x", "tops3cret"),
        ("postgresql://ann@example.org:tops3cret@db/x", "tops3cret"),
    ],
)
def test_by_its_form_or_name(text, secret):
    left = Redaction().text(text)
    assert secret not in left
    assert REDACTED in left


@cases(
    "text",
    [
        "claim-abcdefghijkl waits: devices 0-15 of pod64",
        "http://127.0.0.1:8090/v1/claims",
        "ts=2026-11-21T07:01:08.78Z level=info msg=key.created key=tz4ckdenlt subject=root",
        "python train.py --lr 0.1 --epochs 3",
        "author: Ann",
        "PWD=/home/ann OLDPWD=/tmp",
        "docker run -u root x",
        "pip install hf_transfer task-sk-learn sk-learn-contrib",
        "postgresql://ann@db:5432/x",
        "see https://h:8090/a/b@c and ann@example.org",
        "python -u train.py",
    ],
)
def test_what_is_needed_stays(text):
    assert Redaction().text(text) == text


def test_by_its_value_wherever_it_stands():
    redaction = Redaction(["s3cr3t-value", "x"])
    assert redaction.text("a s3cr3t-value b x") == f"a {REDACTED} b x", "what is too short stands in too many words"


def test_in_data():
    data = {
        "job": {
            "environment": {"A": "value-of-a", "B": "value-of-b"},
            "command": ["run", "--token", "t0ps", "--lr", "1"],
        },
        "accessKey": "moor_x",
        "list": [{"password": "p"}],
        "n": 3,
        "nothing": None,
    }
    left = Redaction().data(data, hidden=("environment",))
    text = json.dumps(left)
    assert not any(secret in text for secret in ("value-of", "t0ps", "moor_x", '"p"'))
    assert isinstance(left, dict)
    assert left["job"]["environment"] == {"A": REDACTED, "B": REDACTED}
    assert left["job"]["command"] == ["run", "--token", REDACTED, "--lr", "1"]
    assert (left["n"], left["nothing"]) == (3, None)


@given(st.text(), st.text(min_size=6))
def test_a_known_value_never_gets_through(around, secret):
    left = Redaction([secret]).text(f"{around}{secret}{around}")
    assert secret not in left or secret in REDACTED or secret in f"{around}{REDACTED}{around}"


@cases(
    ("name", "secret"),
    [
        *(("AWS_SECRET_ACCESS_KEY", True), ("HF_TOKEN", True), ("PGPASSWORD", True), ("Authorization", True)),
        *(("MYSQL_PWD", True), ("pwd", True), ("PWD", False), ("OLDPWD", False), ("PATH", False)),
        *(("GIT_AUTHOR", False), ("authority", False)),
    ],
)
def test_names(name, secret):
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    "part",
    [
        *(
            "x",
            "b-",
            "eyJ-",
            "eyJ.",
            "sk-",
            "sk-a",
            "AKIA",
            "://",
            "://a:",
            "://a:b@",
            "://a:b",
            "://a:b/",
            "sig=",
            "-u",
        ),
        *(
            "-u a:",
            "token",
            "token=",
            'token="',
            "token='",
            'token=\\"',
            "cookie:",
            "cookie: a=b;",
            "authorization: a ",
        ),
        *("pwd", "--token ", "--token-", '"--', "'-a", "moor_a_", "-----BEGIN PRIVATE KEY-----", "bearer ", "auth_key"),
    ],
)
def test_a_long_line_costs_no_square(part):
    # Doubling the length doubles the work; were it the square, this one would take minutes.
    Redaction().text(part * (400_000 // len(part)))


def test_a_long_line_without_a_secret_stays():
    text = "x" * 400_000 + " " + "b-" * 200_000
    assert Redaction().text(text) == text
