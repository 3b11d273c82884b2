"""A Dockerfile, read as far as ours goes: the configuration of its images, and the folders that are their layers."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Built:
    """A stage: its configuration in the words of an image's document, and the folders copied into it, lowest first."""

    config: dict[str, object] = field(default_factory=dict)
    copied: tuple[str, ...] = ()


def read_targets(text: str, arguments: dict[str, str]) -> dict[str, Built]:
    """Every stage that ``FROM scratch`` leads to, by its name.

    Raises:
        ValueError: an instruction that is not known here; what it does to an image would be overlooked.
    """
    stages: dict[str, Built] = {"scratch": Built()}
    name = ""
    for line in _instructions(text):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(?:--platform=\S+ )?(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr] # ours all have a name
            if base in stages:
                stages[name] = stages[base]
        elif name in stages:
            stages[name] = _step(stages[name], word, rest, arguments)
    return stages


def _step(stage: Built, word: str, rest: str, arguments: dict[str, str]) -> Built:
    config = dict(stage.config)
    rest = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], rest)
    match word:
        case "ARG":
            pass
        case "LABEL":
            labels = config.get("Labels", {})
            assert isinstance(labels, dict)
            config["Labels"] = labels | dict(each.split("=", 1) for each in shlex.split(rest))
        case "ENV":
            assert "Env" not in config
            config["Env"] = shlex.split(rest)
        case "USER":
            config["User"] = rest
        case "WORKDIR":
            config["WorkingDir"] = rest
        case "ENTRYPOINT":
            config["Entrypoint"] = json.loads(rest)
        case "COPY":
            copied = re.fullmatch(r"--from=\S+ (/\S+)/ /", rest)
            if copied is None:
                raise ValueError(f"not a whole folder: COPY {rest}")
            return Built(config, (*stage.copied, copied[1]))
        case _:
            raise ValueError(f"{word} is not known here")
    return Built(config, stage.copied)


def _instructions(text: str) -> list[str]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [re.sub(r"\s+", " ", line) for line in lines.replace("\\\n", "").splitlines() if line]
