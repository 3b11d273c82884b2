"""Calls of the ``vipu`` command as arguments, and answers as values: pairs of ``build_*`` and ``parse_*``, pure.

Shown by public texts (facts: vipu sections 2, 3 and 8), or guessed:

- ``--showjson`` before the verb makes the command print JSON; partitions are ``[].partition.{id, spec}`` with
  ``spec.ipus[]``, ``spec.num_gcds``, ``spec.num_replicas``; clusters are ``[].spec.ipu_link_domains[].ipus[]``. Where
  the state is in that JSON, and the form of an IPU, are not public: the state is searched for beside ``id``, in
  ``spec`` and in ``status``; an IPU is any JSON value and only compared.
- Tables are lines of columns between ``|``, in an order that differs between releases: columns are found by the words
  of the header, never by their number. Only the state is read from a table.
- ``ACTIVE`` is the one state in the texts (``PS_ACTIVE`` in logs). The other words are guesses; a wrong guess can only
  make a partition *less* ready, and every unknown word is UNKNOWN.

An answer that cannot be parsed is a ``VipuParseError``, never an empty one: half a listing must not look like a short
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorings.core.model.driver_results import ObservedState, PartitionSpec
from moorings.drivers.vipu.settings import VipuSettings

NAME_CHARS_MAX = 36  # Poplar fails with a misleading device error on longer names (facts: vipu section 10)

_STATES: dict[str, ObservedState] = {
    "ACTIVE": ObservedState.ACTIVE,
    "PROVISIONING": ObservedState.PROVISIONING,
    "PENDING": ObservedState.PROVISIONING,
    "CREATING": ObservedState.PROVISIONING,
    "RESETTING": ObservedState.RESETTING,
    "REMOVING": ObservedState.REMOVING,
    "DELETING": ObservedState.REMOVING,
    "ERROR": ObservedState.ERROR,
    "FAILED": ObservedState.ERROR,
}

# Words of gRPC and of sockets for a lost answer; the vendor's own are not public.
_LOST = ("deadline", "timed out", "timeout", "time out", "unavailable", "connection", "cancel", "no answer", "eof")


class VipuParseError(ValueError):
    """An answer that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class VendorPartition:
    """A partition as the vendor lists it.

    Attributes:
        name: its id.
        state: the vendor's word; empty if missing in this answer.
        ipus: the identity of each of its IPUs, in the vendor's order.
        gcds: number of GCDs; None if missing.
    """

    name: str
    state: str
    ipus: tuple[str, ...]
    gcds: int | None = None


def parse_state(state: str) -> ObservedState:
    """Return our state for a vendor's; an unknown one is UNKNOWN: not ready, not gone (law 4)."""
    return _STATES.get(state.strip().upper().removeprefix("PS_"), ObservedState.UNKNOWN)


# ---- requests


def build_create(order: PartitionSpec, settings: VipuSettings) -> tuple[str, ...]:
    """Return the arguments that create a partition."""
    size = len(order.block)
    words = ["create", "partition", order.name, "--size", str(size)]
    if settings.allocation:
        words += ["--allocation", settings.allocation]
    if order.gcds > 1:
        words += ["--num-gcds", str(order.gcds), "--gcd-sync-replicas", str(order.gcds * order.replicas_per_gcd)]
    elif settings.reconfigurable:
        words.append("--reconfigurable")
    values = {
        "name": order.name,
        "start": str(order.block.start),
        "end": str(order.block.start + size - 1),
        "size": str(size),
        "index": str(order.block.start // size),
    }
    return (*words, *(_substitute(word, values) for word in settings.create_arguments))


def _substitute(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def build_delete(name: str) -> tuple[str, ...]:
    """Return the arguments that remove a partition."""
    return ("delete", "partition", name)


def build_reset(name: str) -> tuple[str, ...]:
    """Return the arguments that reset a partition."""
    return ("reset", "partition", name)


def is_ambiguous_failure(told: str) -> bool:
    """Whether a failure may only mean a lost answer: the vendor may still carry out the request."""
    return any(word in told.lower() for word in _LOST)


# ---- partitions


def build_partitions() -> tuple[str, ...]:
    """Return the arguments that list partitions as JSON."""
    return ("--showjson", "list", "partitions")


def parse_partitions(text: str, ipu_keys: Sequence[str] = ()) -> tuple[VendorPartition, ...]:
    """Return the partitions of a JSON listing.

    Raises:
        VipuParseError: it is not such a listing, as a whole and in every entry.
    """
    found: dict[str, VendorPartition] = {}
    for entry in _entries(text):
        partition = _partition(_inner(entry, "partition"), entry, ipu_keys)
        if partition.name in found:
            raise VipuParseError(f"partition {partition.name[:80]!r} is listed twice")
        found[partition.name] = partition
    return tuple(found.values())


def _partition(value: Mapping[str, Any], entry: Mapping[str, Any], ipu_keys: Sequence[str]) -> VendorPartition:
    name, spec = value.get("id"), value.get("spec")
    if not isinstance(name, str) or not name:
        raise VipuParseError("a partition has no id")
    if not isinstance(spec, dict) or not isinstance(spec.get("ipus"), list):
        raise VipuParseError(f"partition {name[:80]!r} has no list of IPUs")
    gcds = spec.get("num_gcds")
    places = (value, entry, spec, value.get("status"), entry.get("status"))
    states = [place["state"] for place in places if isinstance(place, dict) and isinstance(place.get("state"), str)]
    return VendorPartition(
        name=name,
        state=states[0] if states else "",
        ipus=tuple(_ipu(ipu, ipu_keys) for ipu in spec["ipus"]),
        gcds=gcds if isinstance(gcds, int) and not isinstance(gcds, bool) else None,
    )


def _ipu(value: object, keys: Sequence[str]) -> str:
    """Return an IPU's identity: its whole JSON value, or the given keys of it."""
    if keys and isinstance(value, dict):
        missing = [key for key in keys if key not in value]
        if missing:
            raise VipuParseError(f"an IPU has no {missing[0]!r}; it has {', '.join(map(str, value))[:200]}")
        value = {key: value[key] for key in keys}
    return json.dumps(value, sort_keys=True)


def build_states() -> tuple[str, ...]:
    """Return the arguments that list partitions as a table."""
    return ("list", "partitions")


def parse_states(text: str) -> dict[str, str]:
    """Return the state of each partition of a table.

    Raises:
        VipuParseError: there is no table with columns Partition and State, or a line does not fit its header.
    """
    header: list[str] | None = None
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip(" \t-+|="):  # a rule, or an empty line
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if header is None:
            header = _header(cells)
            continue
        if len(cells) != len(header):
            raise VipuParseError(f"a line has {len(cells)} columns and not {len(header)}: {line[:120]!r}")
        row = dict(zip(header, cells, strict=True))
        if not row["partition"] or row["partition"] in found:
            raise VipuParseError(f"a line names no partition, or one that is there already: {line[:120]!r}")
        found[row["partition"]] = row["state"]
    if header is None:
        raise VipuParseError(f"there is no table of partitions: {text[:120]!r}")
    return found


def _header(cells: Sequence[str]) -> list[str]:
    names = [cell.lower().removesuffix(" id") for cell in cells]
    for needed in ("partition", "state"):
        if names.count(needed) != 1:
            raise VipuParseError(f"the table has no one column {needed!r}: {' | '.join(cells)[:120]!r}")
    return names


# ---- the devices of a cluster


def build_clusters() -> tuple[str, ...]:
    """Return the arguments that list clusters as JSON."""
    return ("--showjson", "list", "clusters")


def parse_clusters(text: str, cluster: str, ipu_keys: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the identity of each IPU of a cluster, in the order of its link domains: our device numbers.

    Args:
        text: the JSON listing.
        cluster: the cluster's id; empty: the only one.
        ipu_keys: the keys that identify an IPU.

    Raises:
        VipuParseError: not such a listing, without that cluster, or with two IPUs of the same identity.
    """
    entries = [(entry, _inner(entry, "cluster")) for entry in _entries(text)]
    names = [str(inner.get("id", entry.get("id", ""))) for entry, inner in entries]
    chosen = [inner for (_, inner), name in zip(entries, names, strict=True) if not cluster or name == cluster]
    if len(chosen) != 1:
        told = ", ".join(names)[:200] or "none"
        wanted = f"cluster {cluster!r} is not one" if cluster else f"{len(chosen)} clusters are"
        raise VipuParseError(f"{wanted} of those listed ({told}); say which with 'cluster' in [pool.vipu]")
    spec = chosen[0].get("spec")
    domains = spec.get("ipu_link_domains") if isinstance(spec, dict) else None
    if not isinstance(domains, list):
        raise VipuParseError("the cluster has no list of link domains")
    ipus: list[str] = []
    for domain in domains:
        if not isinstance(domain, dict) or not isinstance(domain.get("ipus"), list):
            raise VipuParseError("a link domain has no list of IPUs")
        ipus += [_ipu(ipu, ipu_keys) for ipu in domain["ipus"]]
    if len(set(ipus)) != len(ipus):
        raise VipuParseError("two IPUs of the cluster cannot be told apart; see 'ipu_keys' in [pool.vipu]")
    return tuple(ipus)


# ---- bindings of jobs


def build_ipuof(name: str, gcd: int, settings: VipuSettings) -> tuple[str, ...]:
    """Return the arguments that print the IPUoF file of one GCD."""
    return ("get", "partition", name, "--gcd", str(gcd), settings.ipuof_option)


def parse_ipuof(text: str, gcd: int, n_devices: int) -> str:
    """Return the IPUoF file unchanged, after a check.

    PopTorch reads ``devices`` and ``attributes["GCD Id"]`` (facts: vipu section 8); the rest belongs to the vendor.

    Raises:
        VipuParseError: not an IPUoF file, or one of another GCD or another number of devices.
    """
    value = _json(text)
    devices = value.get("devices") if isinstance(value, dict) else None
    attributes = value.get("attributes") if isinstance(value, dict) else None
    if not isinstance(devices, list) or not isinstance(attributes, dict):
        raise VipuParseError(f"that is no IPUoF file: {text[:120]!r}")
    if len(devices) != n_devices:
        raise VipuParseError(f"the IPUoF file has {len(devices)} devices and not {n_devices}")
    if str(attributes.get("GCD Id", gcd)) != str(gcd):
        raise VipuParseError(f"the IPUoF file is of GCD {attributes['GCD Id']!r} and not {gcd}")
    return text


# ---- the configuration file


def build_configuration(settings: VipuSettings, access_key: str) -> str:
    """Return the text of the configuration file for ``vipu --config``: one ``name="value"`` a line.

    ``api-host`` and ``api-port`` are known from sites' files. The other names are the command's options without their
    dashes, or guesses (the three of the certificates): a site whose release has other names provides its own file.
    """
    values = {
        "api-host": settings.api_host,
        "api-port": str(settings.api_port),
        "api-user-id": settings.api_user,
        "api-access-key": access_key,
        "tls-client-cert": settings.client_cert_file,
        "tls-client-key": settings.client_key_file,
        "tls-server-cert": settings.server_cert_file,
    }
    return "".join(f"{name}={_quoted(value)}\n" for name, value in values.items() if value)


def _quoted(value: str) -> str:
    """Return a string of HCL; unescaped, ``${`` and ``%{`` would begin a template."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("${", "$${").replace("%{", "%%{")
    return f'"{escaped}"'


# ---- JSON


def _entries(text: str) -> list[dict[str, Any]]:
    value = _json(text)
    if value is None:  # an empty list, as printed by programs in Go
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise VipuParseError(f"that is no list of objects: {text[:120]!r}")
    return value


def _inner(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an entry's inner object: some listings wrap it as ``{"partition": {...}}``, others do not."""
    inner = entry.get(name, entry)
    if not isinstance(inner, dict):
        raise VipuParseError(f"an entry's {name!r} is no object")
    return inner


def _json(text: str) -> Any:  # noqa: ANN401  (checked by every caller)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VipuParseError(f"that is not JSON: {text[:120]!r}") from error
