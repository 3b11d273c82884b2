"""The text of a test cluster's configuration files; pure.

No systemd and no cgroups are needed, and nothing is paced for a machine room: jobs are looked at as soon as they come.
"""

from __future__ import annotations

from pathlib import Path

# Each with why, where the name does not tell.
_SETTINGS = {
    "ClusterName": "moorings",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "AuthType": "auth/munge",
    "ProctrackType": "proctrack/linuxproc",  # the ones that need no cgroups
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "MpiDefault": "none",
    "MailProg": "/bin/true",
    "ReturnToService": "2",  # a node that comes back is taken
    "KillWait": "2",
    "PropagateResourceLimits": "NONE",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "PriorityType": "priority/multifactor",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
    "SlurmdParameters": "config_overrides",  # a node has the CPUs it is said to have
}


def build_slurm_conf(
    *,
    folder: Path,
    host: str,
    ports: range,
    nodes: int,
    plugins: Path | None,
    accounting: bool,
    licenses: str,
    features: str = "",
    extra: str,
) -> str:
    """slurm.conf; a line of ``extra`` replaces what stands here under the same key.

    Args:
        folder: the cluster's.
        host: short name of this machine.
        ports: of slurmctld, of slurmdbd, then one for each node.
        nodes: how many, n1 and on.
        plugins: where Slurm's plugins are, if not where it thinks.
        accounting: whether there is a slurmdbd.
        licenses: the value of ``Licenses``, or nothing.
        features: of each node, or nothing.
        extra: lines for slurm.conf.
    """
    port = f"[{ports[2]}-{ports[1 + nodes]}]" if nodes > 1 else str(ports[2])  # a range of one is refused
    settings = _SETTINGS | {
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(ports[0]),
        "AuthInfo": f"socket={folder}/run/munge.socket",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "NodeName": f"n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000",
        "PartitionName": "normal Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    }
    if features:
        settings["NodeName"] += f" Feature={features}"
    if plugins:
        settings["PluginDir"] = str(plugins)
    if licenses:
        settings["Licenses"] = licenses
    if accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": str(ports[1]),
            "AccountingStoragePass": f"{folder}/run/munge.socket",  # no password: which munged vouches to slurmdbd
            "AccountingStorageEnforce": "associations,limits,qos",
        }
    lines = [line.strip() for line in extra.splitlines() if "=" in line and not line.strip().startswith("#")]
    replaced = {line.partition("=")[0].strip().lower() for line in lines}
    ours = [f"{key}={value}" for key, value in settings.items() if key.lower() not in replaced]
    return "\n".join([*ours, *lines, ""])


def build_slurmdbd_conf(folder: Path, port: int, plugins: Path | None) -> str:
    """slurmdbd.conf: the database is reached over the socket that MYSQL_UNIX_PORT names."""
    where = f"PluginDir={plugins}\n" if plugins else ""
    return f"""\
{where}\
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
