"""The one table of commands of ``moor``, with the module of each. A module is imported when its command is called.

To add a command: a module here whose attribute has the command's name, and a row in ``COMMANDS``; then ``make docs``.
"""

from __future__ import annotations

from moorings.cli.command_tree import CommandEntry

_RUN, _LOOK, _CHANGE, _HOUSE = "Run jobs", "Look", "Change", "Keep house"

COMMANDS: dict[str, CommandEntry] = {
    "run": CommandEntry("run", "Run a job on a partition of its own, and wait for its end.", _RUN),
    "shell": CommandEntry("terminals", "Open a shell on a partition of its own.", _RUN),
    "attach": CommandEntry("terminals", "Come back to the terminal of a run.", _RUN),
    "exec": CommandEntry("terminals", "Run a command beside the tasks of a run.", _RUN),
    "port-forward": CommandEntry("terminals", "Reach a port of a run's machine from here.", _RUN),
    "logs": CommandEntry("runs", "Show the output of a run.", _RUN),
    "cancel": CommandEntry("runs", "Stop runs.", _RUN),
    "pause": CommandEntry("pause", "Pause runs: each saves a checkpoint and stops, and its devices are free.", _RUN),
    "resume": CommandEntry("pause", "Let a paused run wait again, or put devices back into service.", _RUN),
    "wait": CommandEntry("runs", "Wait for a run's end, or for a claim's partition.", _RUN),
    "get": CommandEntry("get", "List things, or show some by name.", _LOOK, ("list", "ls")),
    "describe": CommandEntry("describe", "Show everything about one thing.", _LOOK),
    "explain": CommandEntry("describe", "Explain why something waits and what would let it start.", _LOOK),
    "estimate": CommandEntry("estimate", "Estimate when a claim submitted now would start.", _LOOK),
    "whatif": CommandEntry(
        "whatif", "Compare another policy with the current one for the claims that wait now.", _LOOK
    ),
    "watch": CommandEntry("get", "List objects, then print each change.", _LOOK),
    "top": CommandEntry("top", "Show pools, people and the queue, and redraw the screen.", _LOOK),
    "motd": CommandEntry("motd", "Print a few lines about the machine for a login.", _LOOK),
    "events": CommandEntry("events", "Show what has happened.", _LOOK),
    "create": CommandEntry("create", "Make a partition, a claim, a project or an access key.", _CHANGE),
    "set": CommandEntry("projects", "Change a project.", _CHANGE),
    "delete": CommandEntry(
        "delete", "Remove partitions and projects, release claims, revoke keys.", _CHANGE, ("rm", "remove")
    ),
    "rotate": CommandEntry("rotate", "Give an access key a new secret.", _CHANGE),
    "reset": CommandEntry("delete", "Put a partition's devices into a clean state.", _CHANGE),
    "drain": CommandEntry("drain", "Take devices out of service.", _CHANGE),
    "defrag": CommandEntry("defrag", "Move claims to make a larger block free.", _CHANGE),
    "up": CommandEntry("controller", "Start a controller on this machine.", _HOUSE),
    "down": CommandEntry("controller", "Stop the controller on this machine; runs continue.", _HOUSE),
    "status": CommandEntry("status", "Show how the controller and its pools are.", _HOUSE),
    "doctor": CommandEntry("doctor", "Check the installation and show how to fix problems.", _HOUSE),
    "diag": CommandEntry("diag", "Write a diagnostic bundle without secrets: facts, logs and records.", _HOUSE),
    "backup": CommandEntry("backup", "Save a controller's records to a file.", _HOUSE),
    "restore": CommandEntry("backup", "Put a backup's records in place of a controller's.", _HOUSE),
    "pki": CommandEntry("pki", "Make and renew the certificates of controllers and clients.", _HOUSE),
    "slurm": CommandEntry("slurm", "Install, run and check what Slurm needs for jobs of IPUs.", _HOUSE),
    "wafer": CommandEntry("wafer", "Manage the jobs of wafer-scale appliances.", _HOUSE),
    "simulate": CommandEntry("simulate", "Try a policy on a trace of jobs, without a controller.", _HOUSE),
    "replay": CommandEntry("replay", "Replay an event log, or test another policy on it.", _HOUSE),
    "config": CommandEntry("config", "Show the configuration, or choose a context.", _HOUSE),
    "version": CommandEntry("version", "Show the versions of the command and of the controller.", _HOUSE),
    "completion": CommandEntry("completion", "Print a completion script for a shell.", _HOUSE),
}
