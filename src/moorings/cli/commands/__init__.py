"""The one table of commands: what ``moor`` can do, and which module does it. Nothing is imported before it is called.

To add a command: a module here whose attribute has the command's name, and a row in ``COMMANDS``; then ``make docs``.
"""

from __future__ import annotations

from moorings.cli.grammar import Entry

_RUN, _LOOK, _CHANGE, _HOUSE = "Run jobs", "Look", "Change", "Keep house"

COMMANDS: dict[str, Entry] = {
    "run": Entry("run", "Run a job on a partition of its own, and wait for its end.", _RUN),
    "logs": Entry("runs", "Show the output of a run.", _RUN),
    "cancel": Entry("runs", "Stop runs.", _RUN),
    "wait": Entry("runs", "Wait for a run's end, or for a claim's partition.", _RUN),
    "get": Entry("get", "List things, or show some by name.", _LOOK, ("list", "ls")),
    "describe": Entry("describe", "Show everything about one thing.", _LOOK),
    "explain": Entry("describe", "Say why something waits, and what would change that.", _LOOK),
    "estimate": Entry("estimate", "Say when a claim would start that was made now.", _LOOK),
    "whatif": Entry("whatif", "Say what another policy would change for those who wait now.", _LOOK),
    "watch": Entry("get", "List things, and go on with what changes.", _LOOK),
    "events": Entry("events", "Show what has happened.", _LOOK),
    "create": Entry("create", "Make a partition, a claim, a project or an access key.", _CHANGE),
    "set": Entry("projects", "Change a project.", _CHANGE),
    "delete": Entry(
        "delete", "Remove partitions and projects, release claims, revoke keys.", _CHANGE, ("rm", "remove")
    ),
    "rotate": Entry("rotate", "Give an access key a new secret.", _CHANGE),
    "reset": Entry("delete", "Put a partition's devices into a clean state.", _CHANGE),
    "drain": Entry("drain", "Take devices out of service.", _CHANGE),
    "resume": Entry("drain", "Put devices back into service.", _CHANGE),
    "defrag": Entry("defrag", "Have claims go on elsewhere, so that there is room.", _CHANGE),
    "up": Entry("controller", "Start a controller on this machine.", _HOUSE),
    "down": Entry("controller", "Stop the controller on this machine; runs go on.", _HOUSE),
    "status": Entry("status", "Show how the controller and its pools are.", _HOUSE),
    "doctor": Entry("doctor", "Check the installation, and say what to mend.", _HOUSE),
    "diag": Entry("diag", "Write a bundle for whoever helps: redacted facts, logs and records.", _HOUSE),
    "backup": Entry("backup", "Save a controller's records to a file.", _HOUSE),
    "restore": Entry("backup", "Put a backup's records in place of a controller's.", _HOUSE),
    "pki": Entry("pki", "Make and renew the certificates of controllers and clients.", _HOUSE),
    "slurm": Entry("slurm", "Install, run and check what Slurm needs for jobs of IPUs.", _HOUSE),
    "wafer": Entry("wafer", "Look after the jobs of wafer-scale appliances.", _HOUSE),
    "simulate": Entry("simulate", "Try a policy on a trace of jobs, without a controller.", _HOUSE),
    "replay": Entry("replay", "Decide an event log again, or try another policy on it.", _HOUSE),
    "config": Entry("config", "Show the configuration, or choose a context.", _HOUSE),
    "version": Entry("version", "Show the versions of the command and of the controller.", _HOUSE),
    "completion": Entry("completion", "Print a completion script for a shell.", _HOUSE),
}
