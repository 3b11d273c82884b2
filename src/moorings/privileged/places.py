"""Where the parts of a shared machine find each other. All of it is root's, but for the controller's own folder."""

from __future__ import annotations

from pathlib import Path

JOBS = Path("/var/lib/moorings-jobs")  # the root daemon's folder
LOCK = "lock"  # in it, held while a daemon runs
LOG = "daemon.log"  # in it, if 'moor up --system' has started the daemon
SOCKETS = Path("/run/moorings")
SUBMIT = "submit"  # in the folder of the sockets: people hand in their jobs
CONTROL = "control"  # the controller says when they start and end
OWN = "controller"  # the controller's folder, for
API = f"{OWN}/api"  # its own socket
CONTROLLER_USER = "moorings"  # the controller's
DATA = Path("/var/lib/moorings")  # that user's
