"""The command line of run.py."""

from __future__ import annotations

import pytest

from moorings.appliance.arguments import Arguments, parse_arguments

SEED = [
    *("CSX", "--params", "configs/params_gpt2_small.yaml", "--num_csx", "1", "--model_dir", "model_dir/"),
    *("--num_wgt_servers", "2", "--mode", "train", "--job_time_sec", "60"),
]


def test_the_command_line_of_the_vendor_s_manual() -> None:
    given = {"mode": "train", "model_dir": "model_dir/", "num_csx": 1, "num_wgt_servers": 2, "job_time_sec": 60}
    assert parse_arguments(SEED) == Arguments(params="configs/params_gpt2_small.yaml", runconfig=given)


def test_dashes_and_underscores_are_one() -> None:
    assert parse_arguments([word.replace("_", "-") if word[0] == "-" else word for word in SEED]) == (
        parse_arguments(SEED)
    )


def test_every_other_option() -> None:
    words = (
        "CSX --params p --mode=eval --compile_dir c --checkpoint_path k --max_steps 7 --job_priority p1 --job_labels"
        " a=b c=d=e --mount_dirs m n --python_paths q --server http://x:1 --context lab --validate_only"
    )
    assert parse_arguments(words.split()) == Arguments(
        params="p",
        validate_only=True,
        checkpoint_path="k",
        runconfig={
            "mode": "eval",
            "compile_dir": "c",
            "max_steps": 7,
            "job_priority": "p1",
            "job_labels": ("a=b", "c=d=e"),
            "mount_dirs": ("m", "n"),
            "python_paths": ("q",),
        },
        flags={"server": "http://x:1", "context": "lab"},
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "the following arguments are required: device"),
        ("CSX", "the following arguments are required: --params"),
        ("GPU --params p", "invalid choice: 'GPU'"),
        ("CSX --params p --mode sleep", "invalid choice: 'sleep'"),
        ("CSX --params p --mode train --mode eval", "--mode was given twice"),
        ("CSX --params p --num_csx 1 --num-csx 2", "--num-csx was given twice"),
        ("CSX --params p --num_csx two", "invalid int value: 'two'"),
        ("CSX --params p --compile_only --validate_only", "not allowed with argument --compile_only"),
        ("CSX --params p --num_cs 1", "unrecognized arguments: --num_cs 1"),
    ],
)
def test_wrong_words_end_with_2(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told.replace("'", "") in said.replace("'", "")
    assert said.startswith("usage: run.py")
